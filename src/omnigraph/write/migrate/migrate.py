"""`schema plan` and `schema apply`: a change of the schema, looked at with the rows that are there, and made.

One atomic commit. It is strict: a write that lands first on a table that the change looked at or reshapes refuses it,
and a write that planned on the old schema plans again or is refused, so nothing is ever read by the wrong schema.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from omnigraph.errors import PreconditionFailed, SchemaChangeRefused
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
from omnigraph.manifest.commit.publish import PublishedCommit, Recourse
from omnigraph.manifest.commit.stale_base import retry_if_base_swept
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import MAIN, CommitId, Manifest, RowCounts, TableKey, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.schema.evolve.migration import MigrationPlan, TypeChange, column_fills, plan_migration
from omnigraph.schema.evolve.migration_step import Step
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.table_content import make_content
from omnigraph.storage.util.parallel import gather
from omnigraph.write.migrate.migration_checks import check_migration
from omnigraph.write.migrate.reshape import needs_reshape, reshape
from omnigraph.write.validate.violations import raise_violations

KIND = "schema_apply"


@dataclass(frozen=True, slots=True)
class SchemaApplied:
    """What was done: the steps, and the commit that made them, or none where there was nothing to change."""

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
    """The steps to a wanted schema, each decided with the rows of the branch; changes nothing."""
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
    """Make a schema the branch's. What is not supported, and what rows would break, is refused before any write."""
    repository.require_writable("Changing the schema")
    stood_on: list[Manifest] = []

    def once() -> tuple[MigrationPlan, PublishedCommit | None]:
        base = repository.open_txn(branch)
        stood_on[:] = (base.base,)
        published = repository.publisher.find_earlier_commit(base, txn_id) if txn_id else None
        plan = plan_migration(base.schema, text, name)
        if published is not None:
            return plan, published
        if if_commit not in (None, base.commit_id):
            raise PreconditionFailed(str(if_commit), base.commit_id)
        migration = _Migration(repository, plan, allow_data_loss, stood_on)
        return _commit_migration(migration, base, actor=actor, if_commit=if_commit, txn_id=txn_id)

    with meter.operation(KIND) as operation:
        plan, published = retry_if_base_swept(repository, once, stood_on, can_plan_again=False)
    return SchemaApplied(plan, published, operation.cost)


def _commit_migration(
    migration: "_Migration", base: WriteTxn, *, actor: str | None, if_commit: CommitId | None, txn_id: TxnId | None
) -> tuple[MigrationPlan, PublishedCommit | None]:
    repository, plan = migration.repository, migration.plan
    if not plan.steps:
        return plan, None
    assessed = check_migration(repository.tables, base, plan)
    if assessed.refused:
        raise SchemaChangeRefused(
            assessed.plan.to_json(), tuple((s.subject, s.message, s.code) for s in assessed.refused)
        )
    raise_violations(assessed.violations)
    tasks: list[Callable[[], Any]] = [partial(migration.staged, base), partial(repository.schemas.write, plan.wanted)]
    staged: dict[TableKey, StagedTable] = gather(tasks)[0]
    publish = PublishPlan(
        txn_id=repository.runtime.ids.txn_id() if txn_id is None else txn_id,
        policy=ConflictPolicy.STRICT,
        change=migration.change(base, staged),
        actor=actor,
        read_rows=migration.reads,
        if_commit=if_commit,
        idempotent=txn_id is not None,
    )
    published = repository.publisher.publish(base, publish, Recourse(restage=migration.restage))
    return assessed.plan, published


class _Migration:
    """What a plan means for tables."""

    def __init__(self, repository: Repository, plan: MigrationPlan, physical: bool, stands_on: list[Manifest]) -> None:
        self.repository, self.plan, self.physical = repository, plan, physical
        self.stands_on = stands_on  # the base that the work is done on
        self.changes = {change.after.table_key: change for change in plan.kept_types}

    @property
    def reads(self) -> frozenset[TableKey]:
        """Tables whose rows, or whose absence, the steps rely on, by their names in the accepted schema."""
        looked_at = {step.table for step in self.plan.steps if step.requirement is not None and step.table is not None}
        made = {change.before.table_key for change in self.plan.kept_types if change.renamed or _has_fillings(change)}
        return frozenset(looked_at | made)

    def change(self, base: WriteTxn, staged: Mapping[TableKey, StagedTable]) -> DataChange:
        """The effect on one base. That nothing is staged for a type was decided from how the base stores it."""
        drops = [Drop(definition.table_key) for definition in self.plan.dropped]
        moves = [Move(one.after.table_key, one.before.table_key) for one in self.plan.kept_types if one.renamed]
        actions: tuple[TableAction, ...] = (*drops, *moves, *(Reshape(key) for key in staged))
        unstaged: dict[TableKey, TableVersion | None] = {}
        for key, one in self.changes.items():
            if key not in staged and one.before != one.after:
                ref = base.base.tables.get(one.before.table_key)
                unstaged[key] = None if ref is None else ref.stored
        return DataChange(KIND, actions, staged, schema=self.plan.wanted.hash, unstaged=unstaged)

    def staged(self, base: WriteTxn) -> dict[TableKey, StagedTable]:
        made = gather([partial(self.one, base, change) for change in self.changes.values()])
        return {key: table for key, table in zip(self.changes, made, strict=True) if table is not None}

    def restage(self, base: WriteTxn, plan: PublishPlan, keys: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        """Some tables were moved: derive again what was made of them, and whether anything is (`rebase`)."""
        self.stands_on[:] = (base.base,)
        again = sorted(keys)
        made = gather([partial(self.one, base, self.changes[key]) for key in again])
        renewed = {key: table for key, table in zip(again, made, strict=True) if table is not None}
        kept = {key: table for key, table in plan.staged.items() if key not in keys}
        return replace(plan, change=self.change(base, {**kept, **renewed}))

    def one(self, base: WriteTxn, change: TypeChange) -> StagedTable | None:
        ref = base.base.tables.get(change.before.table_key)
        if ref is None or change.before == change.after:
            return None
        content = make_content(ref.stored, ref.tail)
        if content is None or not needs_reshape(ref.stored, change, self.physical):
            return None
        tables, ids = self.repository.tables, self.repository.runtime.ids
        made = reshape(tables, ids, content, change, self.physical)
        if made == ref.stored:
            return None
        files = tables.new_files(ref.stored, made)
        return StagedTable(
            made, ref.rows, RowCounts(), ref.stored, ref.tail, columns=self.plan.wanted.hash, files=files
        )


def _has_fillings(change: TypeChange) -> bool:
    return bool(column_fills(change.before, change.after))
