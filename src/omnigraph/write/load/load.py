"""In-process load: NDJSON, entity dicts or tables as one atomic commit, through the same validator as a mutation."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from omnigraph.errors import (
    AlreadyExists,
    BranchNotFound,
    ConstraintViolation,
    PreconditionFailed,
    Violation,
)
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.manifest.repository import Repository
from omnigraph.schema.catalog import Catalog
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.storage.objects.input_files import is_remote
from omnigraph.write.commit import Changes, land_changes
from omnigraph.write.delta import texts
from omnigraph.write.load.input.load_input import Input, Limits, Place, Source, read_input
from omnigraph.write.load.load_modes import Lowered, lower
from omnigraph.write.load.load_options import LoadOptions
from omnigraph.write.load.load_rows import Incoming, TypeRows, understood
from omnigraph.write.load.quarantine import Rejects, default_path, over_limit
from omnigraph.write.validate.checks import run_checks
from omnigraph.write.validate.validate import checks_for
from omnigraph.write.validate.violations import add_places, violations_of


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What became of a load; `commit` is None where nothing changed."""

    commit: PublishedCommit | None
    counts: Mapping[str, int]  # rows taken, by type
    rejected: int = 0
    quarantine: Path | None = None
    reports: tuple[str, ...] = ()
    cost: Cost = field(default_factory=Cost)
    job_id: str | None = None  # of a bulk load that was given one
    summary: tuple[tuple[str, str, int], ...] = ()  # rejected rows by type and reason
    phases: Mapping[str, float] = field(default_factory=dict)  # CPU seconds of a bulk load


def load(
    repository: Repository, source: Source, options: LoadOptions | None = None, *, limits: Limits | None = None
) -> LoadResult:
    """Load everything or nothing; with `on_error="quarantine"` everything that can be taken."""
    options = options or LoadOptions()
    options.check()
    repository.require_writable("Loading")
    with meter.operation("load") as operation:
        found = read_input(
            source,
            limits or Limits(),
            catalog=partial(_catalog, repository, options),
            type_name=options.type_name,
            storage_options=repository.location.options,
        )
        run = _Load(repository, found, options)
        if options.quarantines:
            local = [Path(file.path) for file in found.files if not is_remote(file.path)]
            run.quarantine = options.quarantine or default_path(local, repository.runtime.ids.short_id())
        if options.from_ is not None:
            _fork_if_missing(repository, run, options, options.from_)
        commit = run.land()
    commit = None if commit is None else replace(commit, cost=operation.cost)
    return replace(run.result(), commit=commit, cost=operation.cost)


def _catalog(repository: Repository, options: LoadOptions) -> Catalog:
    """The schema by which the columns of files are read: the one they are loaded into."""
    try:
        return repository.snapshot(options.branch).catalog
    except BranchNotFound:
        if options.from_ is None:
            raise
        return repository.snapshot(options.from_).catalog


def _fork_if_missing(repository: Repository, run: "_Load", options: LoadOptions, from_: str) -> None:
    """Fork before anything is written, but not for an input that can't be loaded on the fork point anyway."""
    try:
        repository.branches.find(options.branch)
        return
    except BranchNotFound:
        fork = repository.branches.find(from_).head
    base = WriteTxn(fork, repository.schemas.read(fork.schema))
    if options.if_commit not in (None, base.commit_id):
        raise PreconditionFailed(str(options.if_commit), base.commit_id)
    run.dry(base)
    try:
        repository.branches.create(options.branch, fork, options.actor)
    except AlreadyExists:
        pass  # somebody else has just made it: as good


class _Load:
    """One load: read once, understood once for each schema, lowered once for each base."""

    def __init__(self, repository: Repository, found: Input, options: LoadOptions) -> None:
        self._repository = repository
        self._found = found
        self._options = options
        self._understood: tuple[str, Incoming] | None = None
        self._rejects = Rejects()
        self._lowered: Lowered | None = None
        self.quarantine: Path | None = None

    def land(self) -> PublishedCommit | None:
        options = self._options
        try:
            return land_changes(
                self._repository,
                self.plan,
                branch=options.branch,
                txn=None,
                kind="load",
                actor=options.actor,
                if_commit=options.if_commit,
                txn_id=options.txn_id,
                on_conflict="fail" if options.mode == "overwrite" else "retry",
            )
        except ConstraintViolation as error:
            raise add_places(error, self._places()) from None

    def result(self) -> LoadResult:
        lowered = self._lowered
        taken = {} if lowered is None else lowered.taken
        counts = {rows.definition.name: rows.rows.num_rows for rows in taken.values() if rows.rows.num_rows}
        wrote = self.quarantine if len(self._rejects) else None
        reports = () if lowered is None else tuple(lowered.reports)
        return LoadResult(None, counts, len(self._rejects), wrote, reports)

    def incoming(self, schema: str, catalog: Catalog) -> Incoming:
        """The input in the terms of a schema; in a load that takes all or nothing, lines that are no rows end it."""
        if self._understood is None or self._understood[0] != schema:
            ids = self._repository.runtime.ids
            self._understood = (schema, understood(self._found, catalog.by_name, lambda _: ids.txn_id()))
        incoming = self._understood[1]
        if incoming.misformed and not self._options.quarantines:
            rejects = Rejects()
            rejects.misformed(incoming.misformed)
            rejects.refused(incoming.refused)
            raise rejects.error()
        return incoming

    def dry(self, txn: WriteTxn) -> None:
        """Raise what landing on this base would; writes nothing but a quarantine."""
        try:
            run_checks(self.plan(txn).checks, txn, self._repository.tables)
        except ConstraintViolation as error:
            raise add_places(error, self._places()) from None

    def plan(self, txn: WriteTxn) -> Changes:
        incoming = self.incoming(txn.base.schema, txn.catalog)
        if self._options.quarantines:
            return self._plan_what_can_be_taken(txn, incoming)
        lowered = self._lowered = lower(self._options.mode, txn, self._repository.tables, incoming)
        refused = _by_place([*incoming.refused, *lowered.refused])
        broken = [replace(v, places=(str(place),)) for place, v in refused]
        return Changes(lowered.delta.actions(), checks_for(txn, lowered.delta, broken), lowered.read_rows)

    def _plan_what_can_be_taken(self, txn: WriteTxn, incoming: Incoming) -> Changes:
        """Leave out what breaks a constraint, and then what breaks one without that, until the rest holds."""
        rejects = self._rejects = Rejects()
        rejects.misformed(incoming.misformed)
        rejects.refused(_by_place(incoming.refused))
        left = incoming
        while True:
            lowered = self._lowered = lower(self._options.mode, txn, self._repository.tables, left)
            rejects.refused(lowered.refused)
            left = replace(left, types=lowered.taken)
            checks = checks_for(txn, lowered.delta)
            try:
                run_checks(checks, txn, self._repository.tables)
                break
            except ConstraintViolation as error:
                left, refused = _without(left, error)
                if not refused:
                    raise
                rejects.refused(refused)
        allowed = self._options.max_errors
        if allowed is not None and len(rejects) > allowed:
            raise over_limit(rejects.error(), len(rejects), allowed)
        if len(rejects) and self.quarantine is not None:
            rejects.write(self.quarantine, self._found.raw)  # before the commit: after it nothing may fail
        read = lowered.read_rows.union(*(check.reads for check in checks))  # which rows stay depends on them all
        return Changes(lowered.delta.actions(), checks, read)

    def _places(self) -> Callable[[TableKey, str], str | None]:
        """Where the row of an id stands in the input."""
        taken = {} if self._lowered is None else self._lowered.taken
        numbers = {key: _numbers(rows) for key, rows in taken.items()}

        def place(table_key: TableKey, entity: str) -> str | None:
            number = numbers.get(table_key, {}).get(entity)
            return None if number is None else str(taken[table_key].places[number])

        return place


def _without(incoming: Incoming, error: ConstraintViolation) -> tuple[Incoming, list[tuple[Place, Violation]]]:
    """The input without the rows that an error is about, and those rows' places."""
    import numpy as np

    types = dict(incoming.types)
    refused: list[tuple[Place, Violation]] = []
    gone: dict[TableKey, set[int]] = {}
    for violation in violations_of(error):
        rows = types.get(violation.table_key)
        numbers = {} if rows is None else _numbers(rows)
        for entity in violation.offenders:
            if rows is not None and entity in numbers:
                gone.setdefault(violation.table_key, set()).add(numbers[entity])
                refused.append((rows.places[numbers[entity]], violation))
    for key, numbers_gone in gone.items():
        keep = np.ones(types[key].rows.num_rows, np.bool_)
        keep[list(numbers_gone)] = False
        types[key] = types[key].where(keep)
    return replace(incoming, types=types), refused


def _by_place(refused: Iterable[tuple[Place, Violation]]) -> list[tuple[Place, Violation]]:
    """In the order of the input, whatever the order in which it was read: a bulk load has another."""
    return sorted(refused, key=lambda one: (one[0].source, one[0].number))


def _numbers(rows: TypeRows) -> dict[str, int]:
    return {entity: number for number, entity in enumerate(texts(rows.rows, "id"))}
