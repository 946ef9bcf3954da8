"""Loads in this process: files, entity dicts or tables as one atomic commit, validated like a mutation."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from omnigraph.errors import AlreadyExists, BranchNotFound, ConstraintViolation, PreconditionFailed, Violation
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.manifest.repository import Repository
from omnigraph.schema.catalog import Catalog
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.storage.objects.input_files import is_remote
from omnigraph.write.commit import Changes, CommitOptions, OnConflict, RowWrite
from omnigraph.write.delta import texts
from omnigraph.write.load.input.load_input import InputPlace, LoadInput, LoadLimits, Source, read_input
from omnigraph.write.load.load_modes import LoadPlan, plan_load
from omnigraph.write.load.load_options import LoadOptions
from omnigraph.write.load.load_rows import LoadRows, TypeRows, build_rows
from omnigraph.write.load.quarantine import Quarantine, default_quarantine_path, max_errors_exceeded
from omnigraph.write.validate.checks import run_checks
from omnigraph.write.validate.validate import checks_for
from omnigraph.write.validate.violations import add_places, violations_of


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The outcome of a load; `commit` is None if nothing changed."""

    commit: PublishedCommit | None
    counts: Mapping[str, int]  # rows loaded, by type
    rejected: int = 0
    quarantine: Path | None = None
    reports: tuple[str, ...] = ()
    cost: Cost = field(default_factory=Cost)
    job_id: str | None = None  # of a bulk load with a job id
    summary: tuple[tuple[str, str, int], ...] = ()  # rejected rows by type and reason
    phases: Mapping[str, float] = field(default_factory=dict)  # CPU seconds of a bulk load


def load(
    repository: Repository, source: Source, options: LoadOptions | None = None, *, limits: LoadLimits | None = None
) -> LoadResult:
    """Load everything or nothing; with `on_error="quarantine"` every row that is valid."""
    options = options or LoadOptions()
    options.check()
    repository.require_writable("Loading")
    with meter.operation("load") as operation:
        found = read_input(
            source,
            limits or LoadLimits(),
            catalog=partial(_catalog, repository, options),
            type_name=options.type_name,
            storage_options=repository.location.options,
        )
        options = options.with_request(lambda: found.content(repository.location.options))
        run = _Load(repository, found, options)
        if options.quarantines:
            local = [Path(file.path) for file in found.files if not is_remote(file.path)]
            run.quarantine_path = options.quarantine or default_quarantine_path(
                local, repository.runtime.ids.short_id()
            )
        if options.from_ is not None:
            _fork_if_missing(repository, run, options, options.from_)
        commit = run.load()
    commit = None if commit is None else replace(commit, cost=operation.cost)
    return replace(run.result(), commit=commit, cost=operation.cost)


def _catalog(repository: Repository, options: LoadOptions) -> Catalog:
    """The schema by which the columns of files are read: that of the branch they are loaded into."""
    try:
        return repository.snapshot(options.branch).catalog
    except BranchNotFound:
        if options.from_ is None:
            raise
        return repository.snapshot(options.from_).catalog


def _fork_if_missing(repository: Repository, run: "_Load", options: LoadOptions, from_: str) -> None:
    """Create the branch before anything is written, but only if the input can be loaded on the fork point."""
    try:
        repository.branches.find(options.branch)
        return
    except BranchNotFound:
        fork = repository.branches.find(from_).head
    base = WriteTxn(fork, repository.schemas.read(fork.schema))
    if options.if_commit not in (None, base.commit_id):
        raise PreconditionFailed(str(options.if_commit), base.commit_id)
    run.dry_run(base)
    try:
        repository.branches.create(options.branch, fork, options.actor)
    except AlreadyExists:
        pass  # another process has just created it


class _Load(RowWrite):
    """One load: read once, converted to rows once for each schema, planned once for each base."""

    def __init__(self, repository: Repository, input: LoadInput, options: LoadOptions) -> None:
        on_conflict: OnConflict = "fail" if options.mode == "overwrite" else "retry"
        commit = CommitOptions(options.branch, options.actor, options.if_commit, options.txn_id, on_conflict)
        super().__init__(repository, commit, kind="load")
        self._input = input
        self._options = options
        self._built: tuple[str, LoadRows] | None = None
        self._quarantine = Quarantine()
        self._planned: LoadPlan | None = None
        self.quarantine_path: Path | None = None

    def load(self) -> PublishedCommit | None:
        try:
            return self.commit_unmetered()
        except ConstraintViolation as error:
            raise add_places(error, self._row_places()) from None

    def result(self) -> LoadResult:
        planned = self._planned
        taken = {} if planned is None else planned.taken
        counts = {rows.definition.name: rows.rows.num_rows for rows in taken.values() if rows.rows.num_rows}
        wrote = self.quarantine_path if len(self._quarantine) else None
        reports = () if planned is None else tuple(planned.reports)
        return LoadResult(None, counts, len(self._quarantine), wrote, reports)

    def rows_for(self, schema: str, catalog: Catalog) -> LoadRows:
        """The input as rows of a schema. Without a quarantine, malformed lines end the load here."""
        if self._built is None or self._built[0] != schema:
            ids = self._repository.runtime.ids
            self._built = (schema, build_rows(self._input, catalog.by_name, lambda _: ids.txn_id()))
        rows = self._built[1]
        if rows.malformed and not self._options.quarantines:
            quarantine = Quarantine()
            quarantine.add_malformed(rows.malformed)
            quarantine.add_violations(rows.refused)
            raise quarantine.error()
        return rows

    def dry_run(self, txn: WriteTxn) -> None:
        """Raise what a commit on this base would raise; writes nothing but a quarantine."""
        try:
            run_checks(self.changes(txn).checks, txn, self._repository.tables)
        except ConstraintViolation as error:
            raise add_places(error, self._row_places()) from None

    def changes(self, txn: WriteTxn) -> Changes:
        rows = self.rows_for(txn.base.schema, txn.catalog)
        if self._options.quarantines:
            return self._plan_with_quarantine(txn, rows)
        planned = self._planned = plan_load(self._options.mode, txn, self._repository.tables, rows)
        refused = _in_input_order([*rows.refused, *planned.refused])
        broken = [replace(v, places=(str(place),)) for place, v in refused]
        return Changes(planned.delta.actions(), checks_for(txn, planned.delta, broken), planned.read_rows)

    def _plan_with_quarantine(self, txn: WriteTxn, rows: LoadRows) -> Changes:
        """Reject rows that violate a constraint, then rows that violate one without those, until the rest is valid."""
        quarantine = self._quarantine = Quarantine()
        quarantine.add_malformed(rows.malformed)
        quarantine.add_violations(_in_input_order(rows.refused))
        left = rows
        while True:
            planned = self._planned = plan_load(self._options.mode, txn, self._repository.tables, left)
            quarantine.add_violations(planned.refused)
            left = replace(left, types=planned.taken)
            checks = checks_for(txn, planned.delta)
            try:
                run_checks(checks, txn, self._repository.tables)
                break
            except ConstraintViolation as error:
                left, refused = _remove_rejected(left, error)
                if not refused:
                    raise
                quarantine.add_violations(refused)
        allowed = self._options.max_errors
        if allowed is not None and len(quarantine) > allowed:
            raise max_errors_exceeded(quarantine.error(), len(quarantine), allowed)
        if len(quarantine) and self.quarantine_path is not None:
            quarantine.write(self.quarantine_path, self._input.raw)  # before the commit: after it nothing may fail
        read = planned.read_rows.union(*(check.reads for check in checks))  # all of them decide which rows are rejected
        return Changes(planned.delta.actions(), checks, read)

    def _row_places(self) -> Callable[[TableKey, str], str | None]:
        """A function that finds the place in the input of the row with an id."""
        taken = {} if self._planned is None else self._planned.taken
        numbers = {key: _row_numbers(rows) for key, rows in taken.items()}

        def place(table_key: TableKey, entity: str) -> str | None:
            number = numbers.get(table_key, {}).get(entity)
            return None if number is None else str(taken[table_key].places[number])

        return place


def _remove_rejected(rows: LoadRows, error: ConstraintViolation) -> tuple[LoadRows, list[tuple[InputPlace, Violation]]]:
    """The rows without those that an error is about, and the places of those."""
    import numpy as np

    types = dict(rows.types)
    refused: list[tuple[InputPlace, Violation]] = []
    removed: dict[TableKey, set[int]] = {}
    for violation in violations_of(error):
        type_rows = types.get(violation.table_key)
        numbers = {} if type_rows is None else _row_numbers(type_rows)
        for entity in violation.offenders:
            if type_rows is not None and entity in numbers:
                removed.setdefault(violation.table_key, set()).add(numbers[entity])
                refused.append((type_rows.places[numbers[entity]], violation))
    for key, positions in removed.items():
        keep = np.ones(types[key].rows.num_rows, np.bool_)
        keep[list(positions)] = False
        types[key] = types[key].where(keep)
    return replace(rows, types=types), refused


def _in_input_order(refused: Iterable[tuple[InputPlace, Violation]]) -> list[tuple[InputPlace, Violation]]:
    """In the order of the input, which is the same for a load in this process and a bulk load."""
    return sorted(refused, key=lambda one: (one[0].source, one[0].number))


def _row_numbers(rows: TypeRows) -> dict[str, int]:
    return {entity: number for number, entity in enumerate(texts(rows.rows, "id"))}
