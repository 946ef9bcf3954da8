"""Rejected rows of a bulk load: as an error, or left out and written to a quarantine file, with their places.

Rows are known by their positions in the staged splits; lines and texts are looked up in the input only when they are
reported (`reject_locations.py`). Counts include all rows, ids and places only the first ones.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from omnigraph.errors import IDS_KEPT_MAX, VIOLATIONS_KEPT_MAX, BadRequest, ConstraintViolation, InvalidInput, Violation
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.pipeline.bulk.job import BulkJob, SplitResult
from omnigraph.pipeline.bulk.staging.assemble import Positions
from omnigraph.pipeline.bulk.staging.stage import read_rejected
from omnigraph.pipeline.bulk.verification.reject_locations import RowLocations, RowLocator
from omnigraph.schema.catalog import TypeDef
from omnigraph.storage.objects.object_store import ObjectStore
from omnigraph.write.load.input.input_splits import Split
from omnigraph.write.load.input.load_input import InputPlace
from omnigraph.write.load.load_rows import repeated_id_violation
from omnigraph.write.load.parse.parsed import RejectedLine
from omnigraph.write.load.quarantine import PROBLEMS_SHOWN_MAX, original_to_json, rejection_reason
from omnigraph.write.validate.violations import combine_violations, truncate_violations

DUPLICATES_LISTED_MAX = 10_000  # rows whose id occurred before that are listed, each with both places
SPLITS_AT_A_TIME = 64


class Rejection(NamedTuple):
    """A line of the summary: so many rows of a type were left out for one reason."""

    type_name: str
    rejection_reason: str
    rows: int


@dataclass(frozen=True, eq=False)
class RejectedGroup:
    """Rows of one table with one reason to reject them, in the order in which a report names them."""

    key: TableKey
    violation: Violation  # without places
    positions: Positions


@dataclass(frozen=True, eq=False)
class DuplicateIds:
    """Rows whose id occurred before: here each has its own reason, which names the place of the first."""

    definition: TypeDef
    ids: Sequence[str]  # of the first `DUPLICATES_LISTED_MAX`
    positions: Positions
    firsts: Positions

    @property
    def key(self) -> TableKey:
        return self.definition.table_key


@dataclass
class LoadRejects:
    """All rows of a load that are rejected so far."""

    store: ObjectStore
    job: BulkJob
    splits: Sequence[Split]
    results: Sequence[SplitResult]
    locator: RowLocator
    duplicates: list[DuplicateIds] = field(default_factory=list)
    rows: list[RejectedGroup] = field(default_factory=list)

    @property
    def misformed(self) -> int:
        return sum(result.misformed for result in self.results)

    @property
    def unparsed(self) -> int:
        return sum(result.misformed + result.refused for result in self.results)

    def __len__(self) -> int:
        return self.unparsed + sum(len(positions) for positions in self.positions().values())

    def positions(self) -> dict[TableKey, Positions]:
        """Every rejected row that was parsed, once."""
        import numpy as np

        by_table: dict[TableKey, list[Positions]] = {}
        every_kind: list[DuplicateIds | RejectedGroup] = [*self.duplicates, *self.rows]
        for one in every_kind:
            by_table.setdefault(one.key, []).append(one.positions)
        found = {}
        for key, parts in by_table.items():
            every = Positions.concat(parts)
            rows = np.unique(np.stack([every.splits, every.stretches, every.ordinals]), axis=1)
            found[key] = Positions(rows[0], rows[1], rows[2])
        return found

    def error(self) -> InvalidInput | ConstraintViolation:
        """All of it as one error: InvalidInput if some lines are not rows at all."""
        return self._invalid_input() if self.misformed else self.violation()

    def summary(self) -> tuple[Rejection, ...]:
        """How many rows of which type were rejected for what; a row with two reasons is counted for both."""
        counts: dict[tuple[str, str], int] = {}
        for result in self.results:
            for one in read_rejected(self.store, self.job, result.split) if result.misformed or result.refused else ():
                if isinstance(one.reason, Violation):
                    name = one.reason.type_name, one.reason.constraint
                else:
                    name = "", "no readable entity"
                counts[name] = counts.get(name, 0) + 1
        for two in self.duplicates:
            name = two.definition.name, "id given twice"
            counts[name] = counts.get(name, 0) + len(two.positions)
        for rows in self.rows:
            name = rows.key.partition(":")[2], rows.violation.constraint
            counts[name] = counts.get(name, 0) + len(rows.positions)
        return tuple(Rejection(*name, count) for name, count in sorted(counts.items()))

    # As an error.

    def _invalid_input(self) -> InvalidInput:
        found: dict[InputPlace, str] = {}
        for place, why in self._at_places(DUPLICATES_LISTED_MAX):
            found.setdefault(place, why if isinstance(why, str) else rejection_reason(why))
            if len(found) >= PROBLEMS_SHOWN_MAX:
                break
        for rows in self.rows:
            for place in self._first_places(rows):
                found.setdefault(place, rejection_reason(rows.violation))
        listed = sorted(found.items(), key=lambda one: (one[0].source, one[0].number))[:PROBLEMS_SHOWN_MAX]
        return InvalidInput(tuple((str(place), why) for place, why in listed), len(self))

    def violation(self) -> ConstraintViolation:
        """The constraints that are broken."""
        gathered = _ViolationGroups()
        for place, why in self._at_places(DUPLICATES_LISTED_MAX):
            assert isinstance(why, Violation)
            gathered.add(replace(why, places=(str(place),)))
        for two in self.duplicates:
            gathered.add_unlisted(two, DUPLICATES_LISTED_MAX)
        for rows in self.rows:
            gathered.add_whole(self._placed(rows))
        error = combine_violations(gathered.listed(), gathered.unlisted)
        assert error is not None, "nothing was rejected"
        return truncate_violations(error)

    def _placed(self, rows: RejectedGroup) -> Violation:
        some = rows.positions.take(slice(0, IDS_KEPT_MAX))
        return replace(rows.violation, places=tuple(map(str, self.locator.places(rows.key, some))))

    def _first_places(self, rows: RejectedGroup) -> list[InputPlace]:
        """Where the rows are that come first in the input, as many as an error lists; some more do no harm."""
        import numpy as np

        of_split = {
            split.number: nth
            for nth, split in enumerate(sorted(self.splits, key=lambda split: (split.shown, split.number)))
        }
        where = rows.positions
        turns = np.array([of_split[split] for split in where.splits.tolist()], np.int64)
        order = np.lexsort((where.ordinals, turns))
        first = [
            order[where.stretches[order] == stretch][:PROBLEMS_SHOWN_MAX] for stretch in np.unique(where.stretches)
        ]
        return self.locator.places(rows.key, where.take(np.concatenate(first))) if first else []

    def _at_places(self, twice_max: int) -> Iterator[tuple[InputPlace, str | Violation]]:
        """Everything that was found about single lines, in the order of the files' names and of their lines."""
        repeated = self._duplicate_violations(twice_max)
        order = sorted(self.splits, key=lambda split: (split.shown, split.number))
        unparsed = {result.split for result in self.results if result.misformed or result.refused}
        for split in order:
            entries: list[tuple[InputPlace, str | Violation]] = list(repeated.get(split.number, ()))
            if split.number in unparsed:
                for one in read_rejected(self.store, self.job, split.number):
                    entries.append((self.locator.place(split.number, one.number), one.reason))
            yield from sorted(entries, key=lambda entry: entry[0].number)

    def _duplicate_violations(self, at_most: int) -> dict[int, list[tuple[InputPlace, Violation]]]:
        """Rows whose id occurred before, by split, each with its own violation."""
        found: dict[int, list[tuple[InputPlace, Violation]]] = {}
        for two in self.duplicates:
            some, firsts = two.positions.take(slice(0, at_most)), two.firsts.take(slice(0, at_most))
            places = self.locator.places(two.key, Positions.concat([some, firsts]))
            own, others = places[: len(some)], places[len(some) :]
            for split, entity, place, other in zip(some.splits.tolist(), two.ids, own, others, strict=False):
                found.setdefault(split, []).append((place, repeated_id_violation(two.definition, entity, str(other))))
        return found

    # As a file.

    def write(self, path: Path) -> None:
        """One JSON object a line: where the row was, why it was rejected, and its text."""
        try:
            with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
                for entry in self._entries():
                    file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        except OSError as error:
            raise BadRequest(
                f"The rejected rows can't be written to {path} ({error.strerror}): nothing was loaded, "
                "name another file for them."
            ) from error

    def _entries(self) -> Iterator[dict[str, Any]]:
        rejected = self.positions()
        reasons = self._reasons()
        unparsed = {result.split for result in self.results if result.misformed or result.refused}
        splits = sorted(unparsed.union(*(set(positions.splits.tolist()) for positions in rejected.values())))
        for start in range(0, len(splits), SPLITS_AT_A_TIME):
            some = splits[start : start + SPLITS_AT_A_TIME]
            found = self.locator.locate(_of_splits(rejected, some), texts=True)
            for split in some:
                unread = read_rejected(self.store, self.job, split) if split in unparsed else iter(())
                yield from self._entries_of(split, unread, found.get(split), reasons)

    def _entries_of(
        self, split: int, unread: Iterator[RejectedLine], found: RowLocations | None, reasons: Mapping[Any, list[str]]
    ) -> Iterator[dict[str, Any]]:
        lines: dict[int, tuple[list[str], Any]] = {}
        for one in unread:
            why = one.reason if isinstance(one.reason, str) else rejection_reason(one.reason)
            lines.setdefault(one.number, ([], one.raw))[0].append(why)
        for (key, stretch, ordinal), number in ({} if found is None else found.numbers).items():
            why_not = reasons[key, split, stretch, ordinal]
            lines.setdefault(number, ([], found.texts.get(number) if found else None))[0].extend(why_not)
        for number, (why_all, raw) in sorted(lines.items()):
            yield {"place": str(self.locator.place(split, number)), "reasons": why_all} | original_to_json(raw)

    def _reasons(self) -> dict[Any, list[str]]:
        """Why each row was left out, by its position."""
        found: dict[Any, list[str]] = {}
        for two in self.duplicates:
            others = self.locator.places(two.key, two.firsts)
            for where, other in zip(_each(two.positions), others, strict=True):
                found.setdefault((two.key, *where), []).append(
                    rejection_reason(repeated_id_violation(two.definition, "", str(other)))
                )
        for rows in self.rows:
            text = rejection_reason(rows.violation)
            for where in _each(rows.positions):
                found.setdefault((rows.key, *where), []).append(text)
        return found


class _ViolationGroups:
    """Violations of single lines as groups, so many of them as a report keeps; the others are counted."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str], list[Violation]] = {}
        self._ids: dict[tuple[str, str, str], set[str]] = {}
        self._whole: list[Violation] = []
        self._more: set[Any] = set()
        self._more_rows = 0

    @property
    def unlisted(self) -> tuple[int, int]:
        return len(self._more), self._more_rows

    def add(self, violation: Violation) -> None:
        name = violation.constraint, violation.problem, violation.table_key
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= VIOLATIONS_KEPT_MAX:
                self._more.add(hash(name))
                self._more_rows += violation.count
                return
            group = self._groups[name] = []
            self._ids[name] = set()
        new = set(violation.entity_ids) - self._ids[name]
        self._ids[name] |= new
        if len(group) < IDS_KEPT_MAX:
            group.append(violation)
        else:
            last = group[-1]
            rows = last.count + violation.count - len(last.offenders)
            group[-1] = replace(last, more_ids=last.more_ids + len(new), more_rows=rows)

    def add_unlisted(self, two: DuplicateIds, found: int) -> None:
        """Count rows beyond those that are listed one by one."""
        rest = len(two.positions) - found
        if rest > 0:
            self._more.update(hash((two.key, *where)) for where in _each(two.firsts.take(slice(found, None))))
            self._more_rows += rest

    def add_whole(self, violation: Violation) -> None:
        self._whole.append(violation)

    def listed(self) -> list[Violation]:
        return [*(one for group in self._groups.values() for one in group), *self._whole]


def _each(positions: Positions) -> Iterator[tuple[int, int, int]]:
    return zip(positions.splits.tolist(), positions.stretches.tolist(), positions.ordinals.tolist(), strict=True)


def _of_splits(rows: Mapping[TableKey, Positions], splits: Sequence[int]) -> dict[TableKey, Positions]:
    import numpy as np

    found = {}
    for key, positions in rows.items():
        here = np.isin(positions.splits, np.array(splits))
        if here.any():
            found[key] = positions.take(here)
    return found
