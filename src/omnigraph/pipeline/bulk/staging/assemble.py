"""Versions made of the fragments that tasks wrote: the driver's part of staging.

A version is the base with the load's fragments added (or instead of all others), and then without the rows that were
rejected or replaced: two detached commits at most, both made again from the same fragments on another base.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.manifest.model.manifest import TableKey
from omnigraph.pipeline.bulk.job import BulkJob, SplitResult
from omnigraph.pipeline.bulk.staging.stage import ADDED, REPLACING
from omnigraph.storage.location import Location
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.write.fragments import (
    TargetTable,
    WrittenFragment,
    commit_append,
    commit_deletions,
    commit_overwrite,
    copy_fragment,
    ensure_table,
    fragment_paths,
    row_count,
    write_deletions,
)
from omnigraph.storage.util.runner import Runner

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class StagedFragment:
    """One fragment of a load: the rows of a stretch of one split, from `start` on."""

    fragment: WrittenFragment
    split: int
    stretch: int
    start: int


@dataclass(frozen=True, eq=False)
class Positions:
    """Rows of one table of a load, named by where they come from: that is the same on every base."""

    splits: "Numbers"
    stretches: "Numbers"
    ordinals: "Numbers"

    def __len__(self) -> int:
        return len(self.splits)

    def take(self, which: Any) -> "Positions":
        """Some of them: by numbers, a mask or a slice."""
        return Positions(self.splits[which], self.stretches[which], self.ordinals[which])

    @staticmethod
    def concat(parts: "Sequence[Positions]") -> "Positions":
        import numpy as np

        return Positions(
            *(
                np.concatenate([getattr(part, name) for part in parts]) if parts else np.zeros(0, np.int64)
                for name in ("splits", "stretches", "ordinals")
            )
        )


def staged_fragments(results: Iterable[SplitResult]) -> dict[TableKey, list[StagedFragment]]:
    """The fragments of each table: in a merge first those that replace, each in the order of the input."""
    ordered = sorted(results, key=lambda result: result.split)
    found: dict[TableKey, list[StagedFragment]] = {}
    for stretch, name in ((REPLACING, "replacing"), (ADDED, "added")):
        for result in ordered:
            for key, table in result.tables.items():
                start = 0
                for fragment in getattr(table, name):
                    found.setdefault(key, []).append(StagedFragment(fragment, result.split, stretch, start))
                    start += fragment.rows
    return found


@dataclass(frozen=True, slots=True)
class StagedVersion:
    """A version with all rows that a load has for one table, and which of its fragments they are."""

    staged: tuple[StagedFragment, ...]
    at: TableVersion
    ids: tuple[int, ...]  # of the pieces' fragments in that version
    base: TableVersion | None
    _by_stretch: dict[tuple[int, int], list[tuple[int, int, int]]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for piece, number in zip(self.staged, self.ids, strict=True):
            places.setdefault((piece.split, piece.stretch), []).append((piece.start, piece.fragment.rows, number))
        object.__setattr__(self, "_by_stretch", places)

    @property
    def rows(self) -> int:
        return sum(piece.fragment.rows for piece in self.staged)

    def fragments(self, stretch: int | None = None) -> tuple[int, ...]:
        pairs = zip(self.staged, self.ids, strict=True)
        return tuple(number for piece, number in pairs if stretch is None or piece.stretch == stretch)

    def addresses(self, positions: Positions) -> "Numbers":
        """Where these rows are in this version, in their order."""
        import numpy as np

        found = np.full(len(positions), -1, np.int64)
        for (split, stretch), parts in self._by_stretch.items():
            here = (positions.splits == split) & (positions.stretches == stretch)
            for start, rows, number in parts:
                inside = here & (positions.ordinals >= start) & (positions.ordinals < start + rows)
                found[inside] = (number << 32) + (positions.ordinals[inside] - start)
        if (found < 0).any():
            raise AssertionError(f"{self.at}: {(found < 0).sum()} rows of the load are nowhere in it")
        return found

    def positions(self, addresses: "Numbers") -> Positions:
        """Which rows of the load are at these addresses."""
        import numpy as np

        if not len(addresses):
            return Positions.concat([])
        order = np.argsort(np.array(self.ids))
        index = order[np.searchsorted(np.array(self.ids)[order], addresses >> 32)]
        of = {name: np.array([getattr(piece, name) for piece in self.staged]) for name in ("split", "stretch", "start")}
        offsets = addresses & 0xFFFFFFFF
        return Positions(of["split"][index], of["stretch"][index], of["start"][index] + offsets)


Copies: TypeAlias = dict[tuple[TableKey, str], list[StagedFragment]]  # by the table that they are in


def assemble(
    runner: Runner,
    job: BulkJob,
    key: TableKey,
    pieces: Sequence[StagedFragment],
    base: TableVersion | None,
    copies: Copies,
) -> StagedVersion:
    """The load's fragments of one table on a base; `base` is None for a type that has no table yet.

    `copies` are those that were made before for other tables, and are made once for each.
    """
    from omnigraph.schema.arrow import arrow_schema

    target, location = job.targets[key], job.location
    schema = arrow_schema(job.catalog.type_of(key))
    if base is not None and base.table_id != target.table_id:  # somebody else has made the type's first table
        known = copies.get((key, base.table_id))
        pieces = copies[key, base.table_id] = (
            _copy_fragments(runner, job, key, pieces, base) if known is None else known
        )
    fragments = [piece.fragment for piece in pieces]
    on = base if base is not None else ensure_table(location, target.table_id, schema)
    if job.mode == "overwrite" and base is not None:
        at, ids = commit_overwrite(location, on, schema, fragments)
    elif fragments:
        at, ids = commit_append(location, on, fragments)
    else:
        at, ids = on, []
    return StagedVersion(tuple(pieces), at, tuple(ids), base)


def _copy_fragments(
    runner: Runner, job: BulkJob, key: TableKey, pieces: Sequence[StagedFragment], base: TableVersion
) -> list[StagedFragment]:
    """The same rows as fragments of another table: those of one table must not be used in another."""
    here = assemble(runner, job, key, pieces, job.targets[key].at, {})
    task = partial(copy_fragment, job.location, here.at, target=TargetTable(base.table_id, base.table_version))
    copies = runner.run(task, list(here.ids), stage="copying rows")
    made = []
    for piece, copied in zip(pieces, copies, strict=True):
        start = piece.start
        for fragment in copied:
            made.append(replace(piece, fragment=fragment, start=start))
            start += fragment.rows
    return made


class ReplacedRows:
    """Where the stored rows are that a merge replaces, as far as earlier bases tell.

    A row stays where it is until its fragment is rewritten. So on another base, where nobody has written any of them,
    only fragments that are new have to be looked through: a fold brings one.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._known: dict[TableKey, tuple[TableVersion, Numbers]] = {}

    def find(
        self, key: TableKey, base: TableVersion | None, find: "Callable[[tuple[int, ...] | None], Numbers]"
    ) -> Any:
        """Their addresses in this base; `find` looks for them in some fragments, or in all."""
        assert base is not None
        found = self._find_from_known(key, base, find)
        if found is None:
            found = find(None)
        self._known[key] = base, found
        return found

    def _find_from_known(self, key: TableKey, base: TableVersion, find: Any) -> "Numbers | None":
        import numpy as np

        if key not in self._known:
            return None
        before, addresses = self._known[key]
        if before.table_id != base.table_id:
            return None
        earlier, now = fragment_paths(self._location, before), fragment_paths(self._location, base)
        same = [number for number, files in now.items() if earlier.get(number) == files]
        here = addresses[np.isin(addresses >> 32, same)]
        found = np.concatenate([here, find(tuple(number for number in now if number not in same))])
        return found if len(found) == len(addresses) else None


def delete_rows(runner: Runner, location: Location, at: TableVersion, addresses: "Numbers") -> tuple[TableVersion, int]:
    """A version without these rows, and how many are left; tasks write the deletion files."""
    import numpy as np

    if not len(addresses):
        return at, row_count(location, at)
    addresses = np.unique(addresses)
    fragments = addresses >> 32
    starts = np.flatnonzero(np.r_[True, fragments[1:] != fragments[:-1]])
    offsets = [part & 0xFFFFFFFF for part in np.split(addresses, starts[1:])]
    items = [(int(fragments[start]), part) for start, part in zip(starts, offsets, strict=True)]
    left = runner.run(partial(_delete_in, location, at), items, stage="removing rows")
    updated = [one for one in left if one is not None]
    removed = [number for (number, _), one in zip(items, left, strict=True) if one is None]
    return commit_deletions(location, at, updated, removed)


def _delete_in(location: Location, at: TableVersion, item: "tuple[int, Numbers]") -> str | None:
    number, offsets = item
    return write_deletions(location, at, number, offsets.tolist())


def has_only_minted_ids(results: Iterable[SplitResult], key: TableKey) -> bool:
    """Whether every row of a table has an id that this load made."""
    tables: list[Any] = [result.tables[key] for result in results if key in result.tables]
    return all(table.minted == table.rows and not table.unchanged for table in tables)


def sum_by_table(results: Iterable[SplitResult], name: str) -> Mapping[TableKey, int]:
    """A figure of the split results, added up by table."""
    found: dict[TableKey, int] = {}
    for result in results:
        for key, table in result.tables.items():
            found[key] = found.get(key, 0) + int(getattr(table, name))
    return found
