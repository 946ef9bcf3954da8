"""From staged splits to a plan: versions assembled on a base, verified there, without rejected rows.

Everything here is derived from the split results and the base, so it can be derived again on another base: nothing
is parsed or written a second time but deletion files. Where what came to that base meets nothing of the load, nothing
need be verified again either (`concurrent_changes.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from omnigraph.manifest.commit.plan import StagedTable
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import RowCounts, TableKey
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.bulk.concurrent_changes import VerifiedLoad, can_publish_on, changes_between_bases
from omnigraph.pipeline.bulk.fold_base import FoldedBases
from omnigraph.pipeline.bulk.job import BulkJob, SplitResult
from omnigraph.pipeline.bulk.resume import first_table_id
from omnigraph.pipeline.bulk.staging.assemble import (
    Copies,
    Positions,
    ReplacedRows,
    StagedFragment,
    StagedVersion,
    assemble,
    delete_rows,
    has_only_minted_ids,
    staged_fragments,
    sum_by_table,
)
from omnigraph.pipeline.bulk.staging.stage import FLAWED, REPLACING, read_side, read_unchanged
from omnigraph.pipeline.bulk.verification import verification_sql as questions
from omnigraph.pipeline.bulk.verification.reject_locations import BY_LINE, RowLocator
from omnigraph.pipeline.bulk.verification.rejects import (
    DUPLICATES_LISTED_MAX,
    DuplicateIds,
    LoadRejects,
    RejectedGroup,
    Rejection,
)
from omnigraph.pipeline.bulk.verification.sql_engine import KeyColumns, SqlEngine
from omnigraph.pipeline.bulk.verification.verify_rows import Finding, StagedRows, Verifier
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.write.fragments import new_files, row_count, rows_at
from omnigraph.storage.util.runner import Runner
from omnigraph.threads import gather
from omnigraph.write.delta import texts
from omnigraph.write.load.input.input_splits import Split
from omnigraph.write.load.load_options import LoadOptions
from omnigraph.write.load.load_rows import match_constraint
from omnigraph.write.load.quarantine import max_errors_exceeded
from omnigraph.write.validate.validate import constraints_for

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class StagedPass:
    """The whole input, staged on one base."""

    txn: WriteTxn
    job: BulkJob
    splits: Sequence[Split]
    results: Sequence[SplitResult]


@dataclass
class PlannedLoad:
    """The plan of a load on one base."""

    staged: dict[TableKey, StagedTable] = field(default_factory=dict)
    rows: dict[TableKey, StagedRows] = field(default_factory=dict)  # what the load brings to each
    read_rows: frozenset[TableKey] = frozenset()
    rejects: LoadRejects | None = None
    counts: dict[str, int] = field(default_factory=dict)
    reports: list[str] = field(default_factory=list)
    summary: tuple[Rejection, ...] = ()  # computed now: its sources are deleted with the intent


class LoadPlanner:
    """Plans one staged pass on a base, and again on others."""

    def __init__(
        self,
        runner: Runner,
        engine: SqlEngine,
        repository: Repository,
        settled: FoldedBases,
        staged: StagedPass,
        options: LoadOptions,
    ) -> None:
        self._runner = runner
        self._engine = engine
        self._repository = repository
        self._store = repository.store
        self._folded_bases = settled
        self._job = staged.job
        self._staged = staged
        self._options = options
        self._pieces: dict[TableKey, list[StagedFragment]] = staged_fragments(staged.results)
        self._copies: Copies = {}
        self._replaced = ReplacedRows(staged.job.location)
        self._seen = sum_by_table(staged.results, "seen")

    def plan(self, txn: WriteTxn) -> PlannedLoad:
        """Assemble and verify; remove rejected rows, or raise them as an error."""
        round_ = _Verification(self, txn, self._assemble_all(txn))
        round_.reject_duplicate_ids()
        rejects = round_.rejects
        if rejects.misformed and not self._options.quarantines:
            raise rejects.error()
        while round_.find():
            if not self._options.quarantines:
                raise rejects.error()
            round_.remove_found()
        if rejects.unparsed + len(rejects.duplicates) and not self._options.quarantines:
            raise rejects.error()
        allowed, quarantine = self._options.max_errors, self._options.quarantine
        if allowed is not None and len(rejects) > allowed:
            raise max_errors_exceeded(rejects.error(), len(rejects), allowed)
        if quarantine is not None and len(rejects):
            rejects.write(quarantine)  # before the commit: after it nothing may fail
        return round_.result()

    def rebase_verified(
        self, before: WriteTxn, now: WriteTxn, planned: PlannedLoad
    ) -> dict[TableKey, StagedTable] | None:
        """What was planned on one base, on another: None if something that came there may have to do with it."""
        came = changes_between_bases(self._repository.tables, before, now, planned.read_rows.union(planned.staged))
        load = VerifiedLoad(self._engine, self._job.location, constraints_for(now), planned.rows, self.unchanged)
        if came is None or load.is_affected_by(came):
            return None
        moved = frozenset(key for key, staged in planned.staged.items() if not can_publish_on(staged, now.table(key)))
        return {**planned.staged, **self.rebase(now, planned, moved)}

    def rebase(self, txn: WriteTxn, planned: PlannedLoad, keys: frozenset[TableKey]) -> dict[TableKey, StagedTable]:
        """The same rows on other versions of these tables, in which only files have changed."""
        gone = {} if planned.rejects is None else planned.rejects.positions()
        parts = gather([partial(self._rebase_table, txn, key, gone.get(key)) for key in sorted(keys)])
        return dict(zip(sorted(keys), parts, strict=True))

    def _rebase_table(self, txn: WriteTxn, key: TableKey, gone: Positions | None) -> StagedTable:
        table = self._assemble(txn, key)
        if gone is not None:
            table = self.delete_rows(table, table.made.addresses(_written_positions(gone)))
        return self.finish(txn, key, table, self._verifier(txn, {key: table}))

    def _assemble_all(self, txn: WriteTxn) -> "dict[TableKey, _AssembledTable]":
        """Assemble all tables, in the order in which every write names its tables."""
        if self._job.mode == "overwrite":
            keys = [
                key for key in sorted(self._seen) if self._pieces.get(key) or (not self._seen[key] and txn.table(key))
            ]
        else:
            unchanged = {key for key, rows in sum_by_table(self._staged.results, "unchanged").items() if rows}
            keys = sorted(unchanged.union(self._pieces), reverse=True)
        return dict(zip(keys, gather([partial(self._assemble, txn, key) for key in keys]), strict=True))

    def _assemble(self, txn: WriteTxn, key: TableKey) -> "_AssembledTable":
        pieces, base = self._pieces.get(key, []), self._base(txn, key)
        made = assemble(self._runner, self._job, key, pieces, base, self._copies)
        return _AssembledTable(made, made.at)

    def _base(self, txn: WriteTxn, key: TableKey) -> TableVersion | None:
        """All rows of a type in this base.

        If it has no stored table here, it gets the one that the pass has for that on every base: the intent names it.
        """
        first = first_table_id(self._job.minter.salt, self._staged.txn.base.point, key)
        return self._folded_bases.version(txn, key, first)

    def unchanged(self, key: TableKey) -> "pa.Table | None":
        return read_unchanged(self._store, self._job, self._staged.results, key)

    def delete_rows(self, table: "_AssembledTable", addresses: "Numbers") -> "_AssembledTable":
        return _AssembledTable(table.made, delete_rows(self._runner, self._job.location, table.at, addresses)[0])

    def _verifier(self, txn: WriteTxn, tables: "Mapping[TableKey, _AssembledTable]") -> Verifier:
        rows = {key: self.rows(key, table) for key, table in tables.items()}
        return Verifier(self._engine, self._job.location, constraints_for(txn), rows, partial(self._base, txn))

    def rows(self, key: TableKey, table: "_AssembledTable") -> StagedRows:
        mode = self._job.mode
        return StagedRows(
            self._job.catalog.type_of(key),
            table.at,
            table.made.fragments(),
            table.made.base,
            replaces_all=mode == "overwrite",
            ids_must_be_new=mode == "append",
            only_fresh_ids=has_only_minted_ids(self._staged.results, key),
        )

    def finish(self, txn: WriteTxn, key: TableKey, table: "_AssembledTable", verifier: Verifier) -> StagedTable:
        """The version to publish: in a merge also without the stored rows that are replaced."""
        ref, location = txn.table(key), self._job.location
        before = 0 if ref is None else ref.rows
        replacing = table.made.fragments(REPLACING)
        updated, at = 0, table.at
        if replacing and ref is not None:
            addresses = self._replaced.find(key, table.made.base, partial(verifier.replaced, key, replacing))
            updated = len(addresses)
            at, _ = delete_rows(self._runner, location, at, addresses)
        rows = row_count(location, at)
        touch = RowCounts(inserted=rows - before, updated=updated)
        if self._job.mode == "overwrite":
            touch = RowCounts(inserted=rows, deleted=before)
        base, folded = (None, ()) if ref is None else (ref.stored, ref.tail)
        files = new_files(location, base, at)
        return StagedTable(at, rows, touch, base, folded, columns=txn.base.schema, files=files)


@dataclass(frozen=True)
class _AssembledTable:
    made: StagedVersion
    at: TableVersion  # without what was left out so far


class _Verification:
    """Verification on one base: what breaks a constraint, then what breaks one without that, until the rest holds."""

    def __init__(self, planner: LoadPlanner, txn: WriteTxn, tables: dict[TableKey, _AssembledTable]) -> None:
        self._planner, self._txn, self._tables = planner, txn, tables
        self._job, self._results = planner._job, planner._staged.results
        self._first = dict(tables)
        inquiry = RowLocator(planner._runner, planner._job, planner._staged.splits, self._results)
        self.rejects = LoadRejects(planner._store, planner._job, planner._staged.splits, self._results, inquiry)
        self._flawed = self._find_flawed_rows()
        self._findings: list[Finding] = []
        self._reads: set[TableKey] = set()

    def find(self) -> list[Finding]:
        """The constraints that are broken now."""
        verifier = self._planner._verifier(self._txn, self._tables)
        self._findings = verifier.findings(self._flawed)
        self._reads |= verifier.reads
        for finding in self._findings:
            key = finding.violation.table_key
            made = self._first[key].made if key in self._first else None
            positions = Positions.concat([]) if made is None else made.positions(finding.rows)
            self.rejects.rows.append(RejectedGroup(key, finding.violation, positions))
        return self._findings

    def remove_found(self) -> None:
        """Remove the rows that were found; raise a violation that no row of the load has caused."""
        by_table: dict[TableKey, list[Any]] = {}
        for finding in self._findings:
            if len(finding.rows):
                by_table.setdefault(finding.violation.table_key, []).append(finding.rows)
        if not by_table:
            blameless = self.rejects.rows[-len(self._findings) :]
            raise replace(self.rejects, results=(), duplicates=[], rows=blameless).violation()
        self._delete(by_table)
        self._flawed = {}

    def reject_duplicate_ids(self) -> None:
        """Reject rows whose id occurred before; they are not checked further."""
        by_table: dict[TableKey, list[Any]] = {}
        for key, table in self._tables.items():
            two, addresses = self._duplicate_ids(key, table)
            if two is not None:
                self.rejects.duplicates.append(two)
                by_table[key] = [addresses]
        self._delete(by_table)
        if self._job.mode != "overwrite":  # a type of which all rows are as they were has nothing else to ask
            self._tables = {key: table for key, table in self._tables.items() if table.made.staged}
        for key, rows in by_table.items():
            if key in self._flawed:
                import numpy as np

                self._flawed[key] = np.setdiff1d(self._flawed[key], rows[0])

    def result(self) -> PlannedLoad:
        """The plan of the rows that are left."""
        verifier = self._planner._verifier(self._txn, self._tables)
        tables = {
            key: self._planner.finish(self._txn, key, table, verifier)
            for key, table in self._tables.items()
            if table.made.rows or self._job.mode == "overwrite"
        }
        if self._job.mode == "merge":
            self._reads |= {key for key in self._first if self._reads_rows(key)}
        gone = {key: len(positions) for key, positions in self.rejects.positions().items()}
        taken = {key: rows - gone.get(key, 0) for key, rows in sum_by_table(self._results, "taken").items()}
        counts = {key.partition(":")[2]: rows for key, rows in sorted(taken.items(), reverse=True) if rows}
        summary = self.rejects.summary()
        rows = {key: self._planner.rows(key, self._tables[key]) for key in tables}
        return PlannedLoad(tables, rows, frozenset(self._reads), self.rejects, counts, self._reports(taken), summary)

    def _reads_rows(self, key: TableKey) -> bool:
        definition = self._job.catalog.type_of(key)
        known = match_constraint(definition) if definition.kind == "edge" else None
        return known is not None or not has_only_minted_ids(self._results, key)

    def _reports(self, taken: Mapping[TableKey, int]) -> list[str]:
        from omnigraph.write.load.load_modes import unchanged_type_note, unmatched_rows_notes

        if self._job.mode == "overwrite":
            seen = sum_by_table(self._results, "seen")
            return [
                unchanged_type_note(key, count) for key, count in sorted(seen.items()) if count and not taken.get(key)
            ]
        if self._job.mode != "merge":
            return []
        minted = dict(sum_by_table(self._results, "minted"))
        if len(self.rejects) - self.rejects.unparsed:
            for located in self.rejects.locator.locate(self.rejects.positions()).values():
                for key, count in located.minted.items():
                    minted[key] -= count
        every = sorted(minted.items(), reverse=True)
        return [text for key, count in every for text in unmatched_rows_notes(self._job.catalog.type_of(key), count)]

    def _delete(self, by_table: Mapping[TableKey, Sequence[Any]]) -> None:
        import numpy as np

        for key, parts in by_table.items():
            addresses = np.concatenate(parts)
            table = self._planner.delete_rows(self._tables[key], addresses[addresses >= 0])
            self._tables[key] = table
            if not self._remaining_fragments(table):  # a type whose every row was rejected is not touched for that
                del self._tables[key]

    def _remaining_fragments(self, table: _AssembledTable) -> "list[int]":
        from omnigraph.storage.table.write.fragments import fragment_rows

        there = fragment_rows(self._job.location, table.at)
        return [number for number in table.made.ids if number in there]

    def _find_flawed_rows(self) -> "dict[TableKey, Numbers]":
        """Where the rows are that tasks found to break a constraint by themselves."""
        import numpy as np

        found: dict[TableKey, list[Positions]] = {}
        for result in self._results:
            for key, table in result.tables.items():
                if table.flawed:
                    rows = read_side(self._planner._store, self._job, result.split, FLAWED, key)
                    stretches = np.asarray(rows.column("stretch").to_numpy(), np.int64)
                    ordinals = np.asarray(rows.column("ordinal").to_numpy(), np.int64)
                    splits = np.full(rows.num_rows, result.split, np.int64)
                    found.setdefault(key, []).append(Positions(splits, stretches, ordinals))
        return {key: np.sort(self._tables[key].made.addresses(Positions.concat(parts))) for key, parts in found.items()}

    def _duplicate_ids(self, key: TableKey, table: _AssembledTable) -> "tuple[DuplicateIds | None, Any]":
        unchanged = self._planner.unchanged(key)
        if unchanged is not None:
            return self._duplicate_or_unchanged_ids(key, table, unchanged)
        later = self._planner._verifier(self._txn, {key: table}).later_rows(key)
        if not later.num_rows:
            return None, None
        rows, firsts = later.column("rowaddr").to_numpy(), later.column("first_at").to_numpy()
        ids = texts(rows_at(self._job.location, table.at, rows[:DUPLICATES_LISTED_MAX], ["id"]), "id")
        definition = self._job.catalog.type_of(key)
        return DuplicateIds(definition, ids, table.made.positions(rows), table.made.positions(firsts)), rows

    def _duplicate_or_unchanged_ids(
        self, key: TableKey, table: _AssembledTable, unchanged: "pa.Table"
    ) -> "tuple[DuplicateIds | None, Any]":
        import numpy as np
        import pyarrow as pa

        pairs = list(zip(table.made.staged, table.made.ids, strict=True))
        known = pa.table(
            {
                "first_address": pa.array([number << 32 for _, number in pairs], pa.int64()),
                "split": pa.array([piece.split for piece, _ in pairs], pa.int64()),
                "start": pa.array([piece.start for piece, _ in pairs], pa.int64()),
            }
        )
        rows = KeyColumns(self._job.location, table.at, {"id": "id"}, table.made.fragments())
        inputs: dict[str, Any] = {"n": rows, "f": known, "u": unchanged}
        every = self._planner._engine.rows(questions.DUPLICATE_OR_UNCHANGED_IDS, inputs)
        if not every.num_rows:
            return None, None
        addresses, nth = every.column("rowaddr").to_numpy(), every.column("nth").to_numpy()
        where = _positions(table.made, addresses, every)
        later = np.flatnonzero(nth > 1)
        later = later[np.lexsort((where.ordinals[later], where.splits[later]))]
        first = np.maximum.accumulate(np.where(nth == 1, np.arange(len(nth)), 0))[later]
        ids = texts(every.select(["id"]).take(later[:DUPLICATES_LISTED_MAX]), "id")
        definition = self._job.catalog.type_of(key)
        return DuplicateIds(definition, ids, where.take(later), where.take(first)), addresses[later]


def _positions(made: StagedVersion, addresses: "Numbers", every: "pa.Table") -> Positions:
    """Rows that were written by their address, those that were not by the number of their line."""
    import numpy as np

    written = addresses >= 0
    found = Positions(
        np.array(every.column("split").to_numpy(), np.int64),
        np.full(len(addresses), BY_LINE, np.int64),
        np.array(every.column("number").to_numpy(), np.int64),
    )
    there = made.positions(addresses[written])
    found.stretches[written], found.ordinals[written] = there.stretches, there.ordinals
    return found


def _written_positions(positions: Positions) -> Positions:
    """Without rows that were never written."""
    here = positions.stretches != BY_LINE
    return positions.take(here)
