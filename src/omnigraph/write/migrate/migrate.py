"""`schema plan` and `schema apply`: a change of the schema, checked against the stored rows and applied.

It is one atomic, strict commit: a concurrent commit to a table that the change has read or reshapes is a conflict. A
write that was planned on the old schema is planned again or refused, so no row is ever read by the wrong schema.
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
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.stale_base import retry_if_base_swept
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.commit.write_op import WriteOp
from omnigraph.manifest.model.manifest import MAIN, CommitId, RowCounts, TableKey, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.schema.evolve.migration import MigrationPlan, TypeChange, column_fills, plan_migration
from omnigraph.schema.evolve.migration_step import Step
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.table_content import make_content
from omnigraph.storage.util.parallel import gather
from omnigraph.write.commit import CommitOptions
from omnigraph.write.migrate.migration_checks import check_migration
from omnigraph.write.migrate.reshape import needs_reshape, reshape
from omnigraph.write.validate.violations import raise_violations

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
