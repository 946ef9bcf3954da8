"""`schema plan` and `schema apply`: a change of the schema, checked against the stored rows and applied.

It is one atomic, strict commit: a concurrent commit to a table that the change has read or reshapes is a conflict. A
write that was planned on the old schema is planned again or refused, so no row is ever read by the wrong schema.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.errors import PreconditionFailed, SchemaChangeRefused, Violation
from omnigraph.manifest.commit.plan import (
    ConflictPolicy,
    DataChange,
    Drop,
    Move,
    PublishPlan,
    Reshape,
    StagedTable,
    TableAction,
)
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.stale_base import retry_if_base_swept
from omnigraph.manifest.commit.txn import Snapshot, WriteOp, WriteTxn
from omnigraph.manifest.model.manifest import MAIN, CommitId, RowCounts, TableKey, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.schema.constraints import Cardinality, Constraint, Unique
from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.evolve.migration import MigrationPlan, TypeChange, column_fills, plan_migration
from omnigraph.schema.evolve.migration_step import ConstraintHolds, NoNulls, NoRows, Step
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.table_content import TableContent, make_content
from omnigraph.storage.table.tables import Tables
from omnigraph.storage.util.duckdb_stream import BatchStreams
from omnigraph.threads import gather
from omnigraph.write.commit import CommitOptions
from omnigraph.write.migrate.reshape import filled_column, needs_reshape, reshape
from omnigraph.write.validate.row_checks import value_violations, violation_of
from omnigraph.write.validate.violations import raise_violations

if TYPE_CHECKING:
    import pyarrow as pa

    Batches: TypeAlias = Callable[[], Iterator[pa.RecordBatch]]


KIND = "schema_apply"


@dataclass(frozen=True, slots=True)
class SchemaApplied:
    """The steps, and the commit that applied them; no commit if there was nothing to change."""

    plan: MigrationPlan
    commit: PublishedCommit | None
    cost: Cost = field(default_factory=Cost)

    @property
    def applied(self) -> bool:
        return self.commit is not None

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.plan.steps


def plan_schema(repository: Repository, text: str, *, branch: str = MAIN, name: str = "schema.pg") -> MigrationPlan:
    """The steps to another schema, each decided from the rows of the branch; changes nothing."""
    with meter.operation("schema_plan"):
        snapshot = repository.snapshot(branch)
        return check_migration(repository.tables, snapshot, plan_migration(snapshot.schema, text, name)).plan


def apply_schema(
    repository: Repository,
    text: str,
    *,
    allow_data_loss: bool = False,
    branch: str = MAIN,
    actor: str | None = None,
    if_commit: CommitId | None = None,
    txn_id: TxnId | None = None,
    name: str = "schema.pg",
) -> SchemaApplied:
    """Change the schema of a branch. Unsupported steps and constraint violations are refused before any write."""
    repository.require_writable("Changing the schema")
    options = CommitOptions(branch, actor, if_commit, txn_id)
    change = _SchemaChange(repository, text, name, options, allow_data_loss=allow_data_loss)
    with meter.operation(KIND) as operation:
        published = retry_if_base_swept(repository, change.commit, change.bases_in_use, can_replan=False)
    return SchemaApplied(change.migration, published, operation.cost)


class _SchemaChange(WriteOp):
    """One change of the schema, as changes of tables. It is strict, and never planned again."""

    migration: MigrationPlan  # from the schema of the base to the new one

    def __init__(
        self, repository: Repository, text: str, name: str, options: CommitOptions, *, allow_data_loss: bool
    ) -> None:
        self._repository = repository
        self._text, self._name = text, name
        self._options = options
        self._physical = allow_data_loss
        self._changes: dict[TableKey, TypeChange] = {}  # by the new keys of their tables

    def commit(self) -> PublishedCommit | None:
        publisher, options = self._repository.publisher, self._options
        txn = self._repository.open_txn(options.branch)
        self.base = txn.base
        earlier = publisher.find_earlier_commit(txn, options.txn_id) if options.txn_id else None
        self.migration = plan_migration(txn.schema, self._text, self._name)
        self._changes = {change.after.table_key: change for change in self.migration.kept_types}
        if earlier is not None:
            return earlier
        if options.if_commit not in (None, txn.commit_id):
            raise PreconditionFailed(str(options.if_commit), txn.commit_id)
        return publisher.publish(txn, self.plan(txn), self) if self.migration.steps else None

    def plan(self, txn: WriteTxn) -> PublishPlan:
        repository, options = self._repository, self._options
        assessed = check_migration(repository.tables, txn, self.migration)
        if assessed.refused:
            raise SchemaChangeRefused(
                assessed.plan.to_json(), tuple((s.subject, s.message, s.code) for s in assessed.refused)
            )
        raise_violations(assessed.violations)
        tasks: list[Callable[[], Any]] = [
            partial(self._stage, txn),
            partial(repository.schemas.write, self.migration.wanted),
        ]
        staged: dict[TableKey, StagedTable] = gather(tasks)[0]
        change = self._change(txn, staged)
        self.migration = assessed.plan
        return PublishPlan(
            txn_id=repository.runtime.ids.txn_id() if options.txn_id is None else options.txn_id,
            policy=ConflictPolicy.STRICT,
            change=change,
            actor=options.actor,
            read_rows=self._reads,
            if_commit=options.if_commit,
            idempotent=options.txn_id is not None,
        )

    @property
    def _reads(self) -> frozenset[TableKey]:
        """Tables whose rows, or whose absence, the steps depend on, by their keys in the old schema."""
        checked = {
            step.table for step in self.migration.steps if step.requirement is not None and step.table is not None
        }
        made = {
            change.before.table_key for change in self.migration.kept_types if change.renamed or _has_fillings(change)
        }
        return frozenset(checked | made)

    def _change(self, base: WriteTxn, staged: Mapping[TableKey, StagedTable]) -> DataChange:
        """The change on one base, with the versions of tables for which nothing had to be staged."""
        drops = [Drop(definition.table_key) for definition in self.migration.dropped]
        moves = [Move(one.after.table_key, one.before.table_key) for one in self.migration.kept_types if one.renamed]
        actions: tuple[TableAction, ...] = (*drops, *moves, *(Reshape(key) for key in staged))
        unstaged: dict[TableKey, TableVersion | None] = {}
        for key, one in self._changes.items():
            if key not in staged and one.before != one.after:
                ref = base.base.tables.get(one.before.table_key)
                unstaged[key] = None if ref is None else ref.stored
        return DataChange(KIND, actions, staged, schema=self.migration.wanted.hash, unstaged=unstaged)

    def _stage(self, base: WriteTxn) -> dict[TableKey, StagedTable]:
        made = gather([partial(self._stage_one, base, change) for change in self._changes.values()])
        return {key: table for key, table in zip(self._changes, made, strict=True) if table is not None}

    def restage(self, base: WriteTxn, plan: PublishPlan, keys: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        """Stage tables again that a concurrent commit changed (`rebase`); some may need no change now."""
        again = sorted(keys)
        made = gather([partial(self._stage_one, base, self._changes[key]) for key in again])
        renewed = {key: table for key, table in zip(again, made, strict=True) if table is not None}
        kept = {key: table for key, table in plan.staged.items() if key not in keys}
        return replace(plan, change=self._change(base, {**kept, **renewed}))

    def _stage_one(self, base: WriteTxn, change: TypeChange) -> StagedTable | None:
        ref = base.base.tables.get(change.before.table_key)
        if ref is None or change.before == change.after:
            return None
        content = make_content(ref.stored, ref.tail)
        if content is None or not needs_reshape(ref.stored, change, self._physical):
            return None
        tables, ids = self._repository.tables, self._repository.runtime.ids
        made = reshape(tables, ids, content, change, self._physical)
        if made == ref.stored:
            return None
        files = tables.new_files(ref.stored, made)
        return StagedTable(
            made, ref.rows, RowCounts(), ref.stored, ref.tail, columns=self.migration.wanted.hash, files=files
        )


def _has_fillings(change: TypeChange) -> bool:
    return bool(column_fills(change.before, change.after))


IDS_REPORTED_MAX = 10_000  # for one constraint; all rows are counted


@dataclass(frozen=True)
class CheckedMigration:
    """A plan whose steps are decided, and the violations of the constraints that it adds."""

    plan: MigrationPlan
    violations: tuple[Violation, ...]

    @property
    def refused(self) -> tuple[Step, ...]:
        """Steps that are not supported, whatever the rows are."""
        return tuple(
            step for step in self.plan.steps if not step.supported and not isinstance(step.requirement, ConstraintHolds)
        )


@dataclass(frozen=True, slots=True)
class _CountedViolation:
    violation: Violation
    count: int

    @property
    def with_count(self) -> Violation:
        """The violation, with the full count if it does not list all ids."""
        one = self.violation
        if len(one.entity_ids) == self.count:
            return one
        return replace(one, problem=f"{one.problem} ({_format_rows(self.count)} in all)")


def check_migration(tables: Tables, base: WriteTxn | Snapshot, plan: MigrationPlan) -> CheckedMigration:
    """Decide every step from the rows of the base. Only tables that a step depends on are read."""
    changes = {change.before.table_key: change for change in plan.kept_types}
    tasks = [
        partial(_check_table, tables, base.content(key), changes[key], constraints)
        for key, constraints in _constraints_by_table(plan).items()
    ]
    findings: dict[str, _CountedViolation] = {}
    for found in gather(tasks):
        findings |= found
    decide = [partial(_decide_step, tables, base, step, findings) for step in plan.steps]
    steps = tuple(gather(decide))
    return CheckedMigration(plan.with_steps(steps), tuple(counted.with_count for counted in findings.values()))


def _constraints_by_table(plan: MigrationPlan) -> dict[str, list[Constraint]]:
    """The new constraints that stored rows must fulfil, by table."""
    constraints: dict[str, list[Constraint]] = {}
    for step in plan.steps:
        if isinstance(step.requirement, ConstraintHolds) and step.table is not None and step.supported:
            constraints.setdefault(step.table, []).append(step.requirement.constraint)
    return constraints


def _decide_step(
    tables: Tables, base: WriteTxn | Snapshot, step: Step, findings: Mapping[str, _CountedViolation]
) -> Step:
    ref = None if step.table is None else base.table(step.table)
    rows = 0 if ref is None else ref.rows
    needs = step.requirement
    if not step.supported or ref is None or not rows:
        return step
    match needs:
        case NoRows(code):
            return step.refuse(code, f"{step.message}; {step.type_name} has {_format_rows(rows)}", rows)
        case NoNulls(column, code):
            nulls = _count_nulls(tables, base, step, column)
            message = (
                f"{_format_rows(nulls)} of {step.type_name} {'has' if nulls == 1 else 'have'} null: give them a value"
            )
            return step.refuse(code, message, nulls) if nulls else step
        case ConstraintHolds(constraint, code) if constraint.name in findings:
            counted = findings[constraint.name]
            return step.refuse(code, _violation_message(counted), counted.count)
        case None if step.counts_rows:
            return replace(step, count=rows)
        case _:
            return step


def _count_nulls(tables: Tables, base: WriteTxn | Snapshot, step: Step, column: str) -> int:
    from omnigraph.schema.arrow import arrow_schema

    assert step.table is not None
    schema = arrow_schema(base.catalog.type_of(step.table))
    return tables.count(base.content(step.table), f"`{column}` IS NULL", schema=schema)


def _violation_message(counted: _CountedViolation) -> str:
    one = counted.violation
    named = ", ".join(map(repr, one.entity_ids[:3]))
    return f"{_format_rows(counted.count)} of {one.type_name} would violate it, {named} {one.problem}: {one.remedy}"


def _check_table(
    tables: Tables, content: TableContent | None, change: TypeChange, constraints: Sequence[Constraint]
) -> dict[str, _CountedViolation]:
    """The violations of the rows of one table, by the name of the constraint."""
    if content is None:
        return {}
    found: dict[str, _CountedViolation] = {}
    alone = [one for one in constraints if not isinstance(one, Unique | Cardinality)]
    if alone:
        found |= _check_values(_read_rows_after(tables, content, change, alone), change.after, alone)
    for constraint in constraints:
        rows = _read_rows_after(tables, content, change, [constraint])
        counted = None
        if isinstance(constraint, Unique):
            counted = _check_unique(rows, constraint)
        elif isinstance(constraint, Cardinality):
            counted = _check_cardinality(rows, constraint)
        if counted is not None:
            found[constraint.name] = counted
    return found


@dataclass(frozen=True, slots=True)
class _RowSource:
    """Rows in the columns of some constraints, which can be read any number of times."""

    schema: "pa.Schema"
    batches: "Batches"


def _read_rows_after(
    tables: Tables, content: TableContent, change: TypeChange, constraints: Iterable[Constraint]
) -> _RowSource:
    """The rows after the change, in the columns of these constraints."""
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    names = tuple(dict.fromkeys(("id", *(column for one in constraints for column in one.columns))))
    whole = arrow_schema(change.after)
    schema = pa.schema([whole.field(name) for name in names])
    coming = {entry.column: filled_column(entry) for entry in column_fills(change.before, change.after)}
    sources = [coming[name].source or "id" if name in coming else name for name in names]

    def batches() -> "Iterator[pa.RecordBatch]":
        for batch in tables.batches(content, list(dict.fromkeys(sources)), schema=arrow_schema(change.before)):
            columns = [coming[name].of(batch) if name in coming else batch.column(name) for name in names]
            yield pa.record_batch(columns, schema=schema)

    return _RowSource(schema, batches)


def _check_values(
    rows: _RowSource, definition: TypeDef, constraints: Sequence[Constraint]
) -> dict[str, _CountedViolation]:
    import pyarrow as pa

    found: dict[str, _CountedViolation] = {}
    for batch in rows.batches():
        for violation in value_violations(constraints, definition, pa.Table.from_batches([batch])):
            before = found.get(violation.constraint, _CountedViolation(replace(violation, entity_ids=()), 0))
            ids = (*before.violation.entity_ids, *violation.entity_ids)[:IDS_REPORTED_MAX]
            count = before.count + len(violation.entity_ids)
            found[violation.constraint] = _CountedViolation(replace(before.violation, entity_ids=ids), count)
    return found


def _check_unique(rows: _RowSource, constraint: Unique) -> _CountedViolation | None:
    """Rows that agree in all columns. Their ids are read in a second pass, if there are any."""
    columns = ", ".join(map(_quote, constraint.columns))
    given = " AND ".join(f"{_quote(column)} IS NOT NULL" for column in constraint.columns)
    twice = f"SELECT {columns}, count(*) AS n FROM rows WHERE {given} GROUP BY {columns} HAVING count(*) > 1"
    with _DuckDbQuery(rows) as query:
        query.run(f"CREATE TEMP TABLE twice AS {twice}")
        ((count,),) = query.run("SELECT coalesce(sum(n), 0)::BIGINT FROM twice")
        if not count:
            return None
        same = " AND ".join(f"rows.{name} = twice.{name}" for name in map(_quote, constraint.columns))
        found = query.reload().run(
            f"SELECT rows.id FROM rows JOIN twice ON {same} ORDER BY {_order_by(constraint)} LIMIT {IDS_REPORTED_MAX}"
        )
        ids = [str(row[0]) for row in found]
    named = ", ".join(constraint.properties)
    problem = f"has a {named} that another one has too"
    violation = violation_of(constraint, ids, problem, "give each its own value, or remove one of them")
    return None if violation is None else _CountedViolation(violation, int(count))


def _order_by(constraint: Unique) -> str:
    return ", ".join([*(f"rows.{_quote(column)}" for column in constraint.columns), "rows.id"])


def _check_cardinality(rows: _RowSource, constraint: Cardinality) -> _CountedViolation | None:
    """Sources with too many or too few edges; nodes without any edge are not checked."""
    source = _quote(constraint.columns[0])
    low, high = constraint.minimum, constraint.maximum
    beyond = f"count(*) < {low}" + ("" if high is None else f" OR count(*) > {high}")
    with _DuckDbQuery(rows) as query:
        query.run(
            f"CREATE TEMP TABLE odd AS SELECT {source} AS id, count(*) AS n FROM rows GROUP BY {source} HAVING {beyond}"
        )
        ((count,),) = query.run("SELECT count(*) FROM odd")
        found = query.run(f"SELECT id, n FROM odd ORDER BY id LIMIT {IDS_REPORTED_MAX}")
    if not found:
        return None
    bound = constraint.name.rpartition(" ")[2]
    problem = f"has {found[0][1]} {constraint.type_name} edges"
    violation = violation_of(constraint, [str(row[0]) for row in found], problem, f"keep within @card({bound})")
    if violation is None:
        return None
    return _CountedViolation(replace(violation, type_name=constraint.source_table.partition(":")[2]), int(count))


class _DuckDbQuery:
    """DuckDB over a stream of rows; `reload` starts the stream again."""

    def __init__(self, rows: _RowSource) -> None:
        self._rows = rows
        self._streams = BatchStreams()

    def __enter__(self) -> "_DuckDbQuery":
        import duckdb

        self._connection: Any = duckdb.connect()
        return self.reload()

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def reload(self) -> "_DuckDbQuery":
        self._connection.register("rows", self._streams.reader(self._rows.schema, self._rows.batches()))
        return self

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        with self._streams.original_errors():
            rows: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
        return rows


def _quote(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _format_rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
