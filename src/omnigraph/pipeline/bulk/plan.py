"""From staged splits to a plan: versions assembled on a base, verified there, without what can't be taken.

Everything here is derived from the split results and the base, so it can be derived again on another base: nothing
is parsed or written a second time but deletion files. Where what came to that base meets nothing of the load, nothing
need be verified again either (`arrivals.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from omnigraph.manifest.commit.plan import StagedTable
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import RowCounts, TableKey
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.bulk.concurrent_changes import Beside, arrivals, lands
from omnigraph.pipeline.bulk.fold_base import Settled
from omnigraph.pipeline.bulk.job import BulkJob, SplitResult
from omnigraph.pipeline.bulk.resume import first_table_id
from omnigraph.pipeline.bulk.staging.assemble import (
    Assembled,
    Copies,
    Piece,
    Positions,
    ReplacedRows,
    assemble,
    counted,
    delete_rows,
    minted_only,
    pieces_of,
)
from omnigraph.pipeline.bulk.staging.stage import FLAWED, REPLACING, read_side, unchanged_rows
from omnigraph.pipeline.bulk.verification import verification_sql as questions
from omnigraph.pipeline.bulk.verification.reject_locations import BY_NUMBER, Inquiry
from omnigraph.pipeline.bulk.verification.rejects import TWICE_TOLD_MAX, RejectedRows, Rejection, Rejects, Twice
from omnigraph.pipeline.bulk.verification.sql_engine import KeyEngine, Keys
from omnigraph.pipeline.bulk.verification.verify_rows import Finding, StagedRows, Verifier
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.write.fragments import new_files, row_count, rows_at
from omnigraph.storage.util.parallel import gather
from omnigraph.storage.util.runner import Runner
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
class Pass:
    """The whole input, staged on one base."""

    txn: WriteTxn
    job: BulkJob
    splits: Sequence[Split]
    results: Sequence[SplitResult]


@dataclass
class Planned:
    """What a load comes to on one base."""

    staged: dict[TableKey, StagedTable] = field(default_factory=dict)
    rows: dict[TableKey, StagedRows] = field(default_factory=dict)  # what the load brings to each
    read_rows: frozenset[TableKey] = frozenset()
    rejects: Rejects | None = None
    counts: dict[str, int] = field(default_factory=dict)
    reports: list[str] = field(default_factory=list)
    summary: tuple[Rejection, ...] = ()  # told now: what it is told from goes with the intent


class Planner:
    """Plans one staged pass on a base, and again on others."""

    def __init__(
        self,
        runner: Runner,
        engine: KeyEngine,
        repository: Repository,
        settled: Settled,
        staged: Pass,
        options: LoadOptions,
    ) -> None:
        self._runner = runner
        self._engine = engine
        self._repository = repository
        self._store = repository.store
        self._settled = settled
        self._job = staged.job
        self._staged = staged
        self._options = options
        self._pieces: dict[TableKey, list[Piece]] = pieces_of(staged.results)
        self._copies: Copies = {}
        self._replaced = ReplacedRows(staged.job.location)
        self._seen = counted(staged.results, "seen")

    def plan(self, txn: WriteTxn) -> Planned:
        """Assemble, verify, leave out, and put together; raises what can't be taken."""
        round_ = _Round(self, txn, self._assembled(txn))
        round_.reject_repeated()
        rejects = round_.rejects
        if rejects.misformed and not self._options.quarantines:
            raise rejects.error()
        while round_.found():
            if not self._options.quarantines:
                raise rejects.error()
            round_.leave_out()
        if rejects.unparsed + len(rejects.twice) and not self._options.quarantines:
            raise rejects.error()
        allowed, quarantine = self._options.max_errors, self._options.quarantine
        if allowed is not None and len(rejects) > allowed:
            raise max_errors_exceeded(rejects.error(), len(rejects), allowed)
        if quarantine is not None and len(rejects):
            rejects.write(quarantine)  # before the commit: after it nothing may fail
        return round_.planned()

    def beside(self, before: WriteTxn, now: WriteTxn, planned: Planned) -> dict[TableKey, StagedTable] | None:
        """What was planned on one base, on another: None if something that came there may have to do with it."""
        came = arrivals(self._repository.tables, before, now, planned.read_rows.union(planned.staged))
        load = Beside(self._engine, self._job.location, constraints_for(now), planned.rows, self.unchanged)
        if came is None or load.meets(came):
            return None
        moved = frozenset(key for key, staged in planned.staged.items() if not lands(staged, now.table(key)))
        return {**planned.staged, **self.again(now, planned, moved)}

    def again(self, txn: WriteTxn, planned: Planned, keys: frozenset[TableKey]) -> dict[TableKey, StagedTable]:
        """The same rows of these tables on other versions of theirs: nothing was changed in them but files."""
        gone = {} if planned.rejects is None else planned.rejects.positions()
        parts = gather([partial(self._again, txn, key, gone.get(key)) for key in sorted(keys)])
        return dict(zip(sorted(keys), parts, strict=True))

    def _again(self, txn: WriteTxn, key: TableKey, gone: Positions | None) -> StagedTable:
        table = self._made(txn, key)
        if gone is not None:
            table = self.without(table, table.made.addresses(_written(gone)))
        return self.finished(txn, key, table, self._verifier(txn, {key: table}))

    def _assembled(self, txn: WriteTxn) -> "dict[TableKey, _Table]":
        """In the order in which every write speaks of its tables."""
        if self._job.mode == "overwrite":
            keys = [
                key for key in sorted(self._seen) if self._pieces.get(key) or (not self._seen[key] and txn.table(key))
            ]
        else:
            unchanged = {key for key, rows in counted(self._staged.results, "unchanged").items() if rows}
            keys = sorted(unchanged.union(self._pieces), reverse=True)
        return dict(zip(keys, gather([partial(self._made, txn, key) for key in keys]), strict=True))

    def _made(self, txn: WriteTxn, key: TableKey) -> "_Table":
        pieces, base = self._pieces.get(key, []), self._base(txn, key)
        made = assemble(self._runner, self._job, key, pieces, base, self._copies)
        return _Table(made, made.at)

    def _base(self, txn: WriteTxn, key: TableKey) -> TableVersion | None:
        """All rows of a type in this base.

        If it has no stored table here, it gets the one that the pass has for that on every base: the intent names it.
        """
        first = first_table_id(self._job.minter.salt, self._staged.txn.base.point, key)
        return self._settled.base(txn, key, first)

    def unchanged(self, key: TableKey) -> "pa.Table | None":
        return unchanged_rows(self._store, self._job, self._staged.results, key)

    def without(self, table: "_Table", addresses: "Numbers") -> "_Table":
        return _Table(table.made, delete_rows(self._runner, self._job.location, table.at, addresses)[0])

    def _verifier(self, txn: WriteTxn, tables: "Mapping[TableKey, _Table]") -> Verifier:
        rows = {key: self.rows(key, table) for key, table in tables.items()}
        return Verifier(self._engine, self._job.location, constraints_for(txn), rows, partial(self._base, txn))

    def rows(self, key: TableKey, table: "_Table") -> StagedRows:
        mode = self._job.mode
        return StagedRows(
            self._job.catalog.type_of(key),
            table.at,
            table.made.fragments(),
            table.made.base,
            replaces_all=mode == "overwrite",
            ids_must_be_new=mode == "append",
            only_fresh_ids=minted_only(self._staged.results, key),
        )

    def finished(self, txn: WriteTxn, key: TableKey, table: "_Table", verifier: Verifier) -> StagedTable:
        """The version to publish: in a merge also without the stored rows that are replaced."""
        ref, location = txn.table(key), self._job.location
        before = 0 if ref is None else ref.rows
        replacing = table.made.fragments(REPLACING)
        updated, at = 0, table.at
        if replacing and ref is not None:
            addresses = self._replaced.of(key, table.made.base, partial(verifier.replaced, key, replacing))
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
class _Table:
    made: Assembled
    at: TableVersion  # without what was left out so far


class _Round:
    """Verification on one base: what breaks a constraint, then what breaks one without that, until the rest holds."""

    def __init__(self, planner: Planner, txn: WriteTxn, tables: dict[TableKey, _Table]) -> None:
        self._planner, self._txn, self._tables = planner, txn, tables
        self._job, self._results = planner._job, planner._staged.results
        self._first = dict(tables)
        inquiry = Inquiry(planner._runner, planner._job, planner._staged.splits, self._results)
        self.rejects = Rejects(planner._store, planner._job, planner._staged.splits, self._results, inquiry)
        self._flawed = self._flawed_rows()
        self._findings: list[Finding] = []
        self._reads: set[TableKey] = set()

    def found(self) -> list[Finding]:
        """What does not hold now."""
        verifier = self._planner._verifier(self._txn, self._tables)
        self._findings = verifier.findings(self._flawed)
        self._reads |= verifier.reads
        for finding in self._findings:
            key = finding.violation.table_key
            made = self._first[key].made if key in self._first else None
            positions = Positions.together([]) if made is None else made.positions(finding.rows)
            self.rejects.rows.append(RejectedRows(key, finding.violation, positions))
        return self._findings

    def leave_out(self) -> None:
        """Go on without the rows that were found; an error that no row of the load is to blame for ends it."""
        by_table: dict[TableKey, list[Any]] = {}
        for finding in self._findings:
            if len(finding.rows):
                by_table.setdefault(finding.violation.table_key, []).append(finding.rows)
        if not by_table:
            blameless = self.rejects.rows[-len(self._findings) :]
            raise replace(self.rejects, results=(), twice=[], rows=blameless).violation()
        self._delete(by_table)
        self._flawed = {}

    def reject_repeated(self) -> None:
        """Rows whose id came before: nothing else is asked about them."""
        by_table: dict[TableKey, list[Any]] = {}
        for key, table in self._tables.items():
            two, addresses = self._repeated(key, table)
            if two is not None:
                self.rejects.twice.append(two)
                by_table[key] = [addresses]
        self._delete(by_table)
        if self._job.mode != "overwrite":  # a type of which all rows are as they were has nothing else to ask
            self._tables = {key: table for key, table in self._tables.items() if table.made.pieces}
        for key, rows in by_table.items():
            if key in self._flawed:
                import numpy as np

                self._flawed[key] = np.setdiff1d(self._flawed[key], rows[0])

    def planned(self) -> Planned:
        """What is left, as versions that can be published."""
        verifier = self._planner._verifier(self._txn, self._tables)
        tables = {
            key: self._planner.finished(self._txn, key, table, verifier)
            for key, table in self._tables.items()
            if table.made.rows or self._job.mode == "overwrite"
        }
        if self._job.mode == "merge":
            self._reads |= {key for key in self._first if self._reads_rows(key)}
        gone = {key: len(positions) for key, positions in self.rejects.positions().items()}
        taken = {key: rows - gone.get(key, 0) for key, rows in counted(self._results, "taken").items()}
        counts = {key.partition(":")[2]: rows for key, rows in sorted(taken.items(), reverse=True) if rows}
        summary = self.rejects.summary()
        rows = {key: self._planner.rows(key, self._tables[key]) for key in tables}
        return Planned(tables, rows, frozenset(self._reads), self.rejects, counts, self._reports(taken), summary)

    def _reads_rows(self, key: TableKey) -> bool:
        definition = self._job.catalog.type_of(key)
        known = match_constraint(definition) if definition.kind == "edge" else None
        return known is not None or not minted_only(self._results, key)

    def _reports(self, taken: Mapping[TableKey, int]) -> list[str]:
        from omnigraph.write.load.load_modes import unchanged_type_note, unmatched_rows_notes

        if self._job.mode == "overwrite":
            seen = counted(self._results, "seen")
            return [
                unchanged_type_note(key, count) for key, count in sorted(seen.items()) if count and not taken.get(key)
            ]
        if self._job.mode != "merge":
            return []
        minted = dict(counted(self._results, "minted"))
        if len(self.rejects) - self.rejects.unparsed:
            for told in self.rejects.inquiry.ask(self.rejects.positions()).values():
                for key, count in told.minted.items():
                    minted[key] -= count
        every = sorted(minted.items(), reverse=True)
        return [text for key, count in every for text in unmatched_rows_notes(self._job.catalog.type_of(key), count)]

    def _delete(self, by_table: Mapping[TableKey, Sequence[Any]]) -> None:
        import numpy as np

        for key, parts in by_table.items():
            addresses = np.concatenate(parts)
            table = self._planner.without(self._tables[key], addresses[addresses >= 0])
            self._tables[key] = table
            if not self._live(table):  # a type whose every row was rejected is not touched for that
                del self._tables[key]

    def _live(self, table: _Table) -> "list[int]":
        from omnigraph.storage.table.write.fragments import fragment_rows

        there = fragment_rows(self._job.location, table.at)
        return [number for number in table.made.ids if number in there]

    def _flawed_rows(self) -> "dict[TableKey, Numbers]":
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
        return {
            key: np.sort(self._tables[key].made.addresses(Positions.together(parts))) for key, parts in found.items()
        }

    def _repeated(self, key: TableKey, table: _Table) -> "tuple[Twice | None, Any]":
        unchanged = self._planner.unchanged(key)
        if unchanged is not None:
            return self._repeated_or_unchanged(key, table, unchanged)
        later = self._planner._verifier(self._txn, {key: table}).later_rows(key)
        if not later.num_rows:
            return None, None
        rows, firsts = later.column("rowaddr").to_numpy(), later.column("first_at").to_numpy()
        ids = texts(rows_at(self._job.location, table.at, rows[:TWICE_TOLD_MAX], ["id"]), "id")
        definition = self._job.catalog.type_of(key)
        return Twice(definition, ids, table.made.positions(rows), table.made.positions(firsts)), rows

    def _repeated_or_unchanged(self, key: TableKey, table: _Table, unchanged: "pa.Table") -> "tuple[Twice | None, Any]":
        import numpy as np
        import pyarrow as pa

        pairs = list(zip(table.made.pieces, table.made.ids, strict=True))
        known = pa.table(
            {
                "first_address": pa.array([number << 32 for _, number in pairs], pa.int64()),
                "split": pa.array([piece.split for piece, _ in pairs], pa.int64()),
                "start": pa.array([piece.start for piece, _ in pairs], pa.int64()),
            }
        )
        rows = Keys(self._job.location, table.at, {"id": "id"}, table.made.fragments())
        inputs: dict[str, Any] = {"n": rows, "f": known, "u": unchanged}
        every = self._planner._engine.rows(questions.ID_TWICE_OR_UNCHANGED, inputs)
        if not every.num_rows:
            return None, None
        addresses, nth = every.column("rowaddr").to_numpy(), every.column("nth").to_numpy()
        where = _positions(table.made, addresses, every)
        later = np.flatnonzero(nth > 1)
        later = later[np.lexsort((where.ordinals[later], where.splits[later]))]
        first = np.maximum.accumulate(np.where(nth == 1, np.arange(len(nth)), 0))[later]
        ids = texts(every.select(["id"]).take(later[:TWICE_TOLD_MAX]), "id")
        definition = self._job.catalog.type_of(key)
        return Twice(definition, ids, where.at(later), where.at(first)), addresses[later]


def _positions(made: Assembled, addresses: "Numbers", every: "pa.Table") -> Positions:
    """Rows that were written by their address, those that were not by the number of their line."""
    import numpy as np

    written = addresses >= 0
    found = Positions(
        np.array(every.column("split").to_numpy(), np.int64),
        np.full(len(addresses), BY_NUMBER, np.int64),
        np.array(every.column("number").to_numpy(), np.int64),
    )
    there = made.positions(addresses[written])
    found.stretches[written], found.ordinals[written] = there.stretches, there.ordinals
    return found


def _written(positions: Positions) -> Positions:
    """Without rows that were never written."""
    here = positions.stretches != BY_NUMBER
    return positions.at(here)
