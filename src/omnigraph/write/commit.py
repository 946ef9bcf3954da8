"""The path of a write of rows: open a base, plan, check, stage, publish; again where a lost race asks for it."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from omnigraph.errors import BadRequest, BranchNotFound, OmnigraphError, PreconditionFailed
from omnigraph.manifest.commit.plan import (
    Append,
    Check,
    ConflictPolicy,
    Create,
    DataChange,
    InlineTable,
    Overwrite,
    PublishPlan,
    TableAction,
    Upsert,
)
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.stale_base import LOOKS_SWEPT, SweptBaseRetries
from omnigraph.manifest.commit.txn import WriteOp, WriteTxn
from omnigraph.manifest.model.manifest import MAIN, CommitId, TableKey, TxnId
from omnigraph.manifest.model.request_key import seen_before
from omnigraph.manifest.repository import Repository
from omnigraph.schema.catalog import Catalog
from omnigraph.storage import meter
from omnigraph.storage.table.align import align_table
from omnigraph.write.stage import Stager
from omnigraph.write.validate.checks import run_checks

if TYPE_CHECKING:
    pass

OnConflict: TypeAlias = Literal["retry", "fail"]


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """What a caller says about the commit of its write."""

    branch: str = MAIN
    actor: str | None = None
    if_commit: CommitId | None = None
    txn_id: TxnId | None = None
    on_conflict: OnConflict = "retry"


@dataclass(frozen=True, slots=True)
class Changes:
    """What one commit is to change, and what it relies on."""

    actions: tuple[TableAction, ...]
    checks: tuple[Check, ...] = ()
    read_rows: frozenset[TableKey] = frozenset()  # tables whose rows went into the actions
    read_ids: Mapping[TableKey, frozenset[str]] = field(default_factory=dict)  # where those were read by id alone


Planner: TypeAlias = Callable[[WriteTxn], Changes]


def content_of(changes: "Changes | Planner") -> object:
    """What a write under a key changes, for the digest of the request. Functions can't be compared."""
    if not isinstance(changes, Changes):
        return None
    found: list[object] = []
    for action in changes.actions:
        rows = action.rows.to_pylist() if isinstance(action, Append | Upsert | Create | Overwrite) else None
        found.append((type(action).__name__, action.table, rows, getattr(action, "ids", None)))
    return found


class _HeadMoved(Exception):
    """What was decided on the last head that this process saw does not hold any more."""

    def __init__(self, newest: WriteTxn | None = None) -> None:
        super().__init__(newest)
        self.newest = newest


class RowWrite(WriteOp):
    """A write of rows. Its kinds say what changes on a base (`changes`); everything else is the same for all.

    It is planned again from the new head when the conflict table asks for it. A held `txn` can't be: its holder decided
    from what it saw, so the write is strict.
    """

    def __init__(
        self, repository: Repository, options: CommitOptions, *, txn: WriteTxn | None = None, kind: str = "mutation"
    ) -> None:
        repository.require_writable("Writing")
        self._repository = repository
        self._commit_options = options
        self._held = txn
        self._kind = kind
        self._strict = txn is not None or options.on_conflict == "fail"
        self._txn_id = repository.runtime.ids.txn_id() if options.txn_id is None else options.txn_id
        self._stager = Stager(repository.tables, repository.runtime.ids, repository.settings)
        self.can_replan = not self._strict

    @abstractmethod
    def changes(self, txn: WriteTxn) -> Changes:
        """What the write changes on this base."""

    def commit(self) -> PublishedCommit | None:
        """One atomic commit, metered; None where nothing changes."""
        with meter.operation(self._kind) as operation:
            published = self.commit_unmetered()
        if published is None:
            return None
        return PublishedCommit(published.commit, published.branch, published.manifest_version, operation.cost)

    def commit_unmetered(self) -> PublishedCommit | None:
        """The same for a verb that does more than this and has an account of its own."""
        retries: SweptBaseRetries | None = None
        while True:
            try:
                return self._attempt()
            except LOOKS_SWEPT as damage:
                retries = retries or SweptBaseRetries(self._repository)
                retries.check(damage, self.bases_in_use(), can_replan=self.can_replan)

    def _attempt(self) -> PublishedCommit | None:
        options, newest = self._commit_options, self._held
        if self._is_optimistic():
            try:
                return self._commit_on_last_seen_head()
            except _HeadMoved as moved:
                newest = moved.newest
        base = newest or self._open_base()
        if options.txn_id is not None:
            earlier = self._repository.publisher.find_earlier_commit(base, options.txn_id)
            if earlier is not None:
                return earlier
        if self._held is None and options.if_commit not in (None, base.commit_id):
            raise PreconditionFailed(str(options.if_commit), base.commit_id)
        self.base = base.base
        return self._repository.publisher.publish(base, self.plan(base), self)

    def _is_optimistic(self) -> bool:
        """Whether to go straight for the put: it finds out whether the head that was last seen is still the newest."""
        options = self._commit_options
        is_fresh = options.txn_id is None or seen_before(options.txn_id) is not None
        return self.can_replan and options.if_commit is None and is_fresh

    def _commit_on_last_seen_head(self) -> PublishedCommit | None:
        """`confirmed-head`: what planning refuses holds only if that head is still the newest. What is refused after a
        lost put is refused on a head that was read in this call."""
        repository, txn_id = self._repository, self._commit_options.txn_id
        base = self._open_base(confirmed=False)
        if txn_id is not None and (earlier := repository.publisher.find_commit_before(base.base, txn_id)):
            return earlier
        try:
            self.base = base.base
            plan = self.plan(base)
        except OmnigraphError:
            newest = repository.open_txn(base.branch)  # if that fails, what an older head would have refused is unknown
            if newest.base.point != base.base.point:
                raise _HeadMoved(newest) from None
            raise
        try:
            return repository.publisher.publish(base, plan, self)
        except BranchNotFound:
            raise _HeadMoved from None  # the name may be in use again

    def _open_base(self, *, confirmed: bool = True) -> WriteTxn:
        """The base of the write, after the maintenance that has to come before any further write."""
        repository, branch = self._repository, self._commit_options.branch
        txn = repository.open_txn(branch, confirmed=confirmed)
        if repository.before_write is not None and repository.before_write(txn.base):
            return repository.open_txn(branch, confirmed=confirmed)
        return txn

    def plan(self, txn: WriteTxn) -> PublishPlan:
        changes = self.changes(txn)
        actions = tuple([_normalize(txn.schema.catalog, action) for action in changes.actions])
        if txn is self._held:  # `confirmed-head`: a held base may be old, and a violation in it no longer true
            self._repository.publisher.refuse_if_lost(txn, self._publish_plan(changes, actions, {}))
        if changes.checks:
            run_checks(changes.checks, txn, self._repository.tables)
        inline = self._stager.inline_rows(txn, actions)
        if inline is None:
            return self._stager.stage_tables(txn, self._publish_plan(changes, actions, {}))
        return self._publish_plan(changes, actions, inline)

    def restage(self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        return self._stager.restage(txn, plan, tables, from_scratch)

    def validate(self, txn: WriteTxn, plan: PublishPlan) -> None:
        run_checks(plan.checks, txn, self._repository.tables)

    def _publish_plan(
        self, changes: Changes, actions: tuple[TableAction, ...], inline: Mapping[TableKey, InlineTable]
    ) -> PublishPlan:
        options = self._commit_options
        return PublishPlan(
            txn_id=self._txn_id,
            policy=ConflictPolicy.STRICT if self._strict else ConflictPolicy.CONSTRUCTIVE,
            change=DataChange(self._kind, actions, {}, inline),
            actor=options.actor,
            checks=changes.checks,
            read_rows=changes.read_rows,
            read_ids=changes.read_ids,
            if_commit=options.if_commit,
            idempotent=options.txn_id is not None,
        )


class PlannedWrite(RowWrite):
    """A write whose changes are given, or computed by the caller's function of the base."""

    def __init__(
        self,
        repository: Repository,
        changes: Changes | Planner,
        options: CommitOptions | None = None,
        *,
        txn: WriteTxn | None = None,
        kind: str = "mutation",
    ) -> None:
        super().__init__(repository, options or CommitOptions(), txn=txn, kind=kind)
        self._changes = changes
        if isinstance(changes, Changes) and changes.read_rows:
            self.can_replan = False  # `replan-reads`: rows computed outside can't be computed again

    def changes(self, txn: WriteTxn) -> Changes:
        return self._changes(txn) if callable(self._changes) else self._changes


def _normalize(catalog: Catalog, action: TableAction) -> TableAction:
    """The action with its rows in the columns of its type, whatever order they were given in."""
    if isinstance(action, Append | Upsert) and action.overlay is not None:
        return action
    definition = catalog.type_of(action.table)
    if not isinstance(action, Append | Upsert | Create | Overwrite):
        return action
    from omnigraph.schema.arrow import arrow_schema

    rows = align_table(action.rows, arrow_schema(definition), name=definition.name)
    for number, name in enumerate(definition.physical_columns):  # the first columns
        if rows.column(number).null_count:
            raise BadRequest(f"Every {definition.name} row needs the column {name!r}, and a value in it.")
    if rows is action.rows:
        return action
    return action.with_rows(rows) if isinstance(action, Append | Upsert) else replace(action, rows=rows)
