"""The whole path of a write: open, check, stage, publish."""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from omnigraph.errors import (
    BadRequest,
    BranchNotFound,
    OmnigraphError,
    PreconditionFailed,
)
from omnigraph.fast_frozen import unguarded
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
from omnigraph.manifest.commit.publish import PublishedCommit, Recourse
from omnigraph.manifest.commit.stale_base import retry_if_base_swept
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import MAIN, CommitId, FreshTxnId, Manifest, TableKey, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.schema.catalog import Catalog
from omnigraph.storage import meter
from omnigraph.write.stage import Stager
from omnigraph.write.validate.checks import run_checks

if TYPE_CHECKING:
    import pyarrow as pa

OnConflict: TypeAlias = Literal["retry", "fail"]


@unguarded(frozen=True, slots=True)
class Changes:
    """What one commit is to change, and what it relies on."""

    actions: tuple[TableAction, ...]
    checks: tuple[Check, ...] = ()
    read_rows: frozenset[TableKey] = frozenset()  # tables whose rows went into the actions
    read_ids: Mapping[TableKey, frozenset[str]] = field(default_factory=dict)  # where those were read by id alone


Planner: TypeAlias = Callable[[WriteTxn], Changes]


def commit_changes(
    repository: Repository,
    planner: Changes | Planner,
    *,
    branch: str = MAIN,
    txn: WriteTxn | None = None,
    kind: str = "mutation",
    actor: str | None = None,
    if_commit: CommitId | None = None,
    txn_id: TxnId | None = None,
    on_conflict: OnConflict = "retry",
) -> PublishedCommit | None:
    """One atomic commit, metered; None where nothing changes.

    A planner is run again from the new head when the rules ask for it. A held `txn` can't be: its
    holder decided from what it saw, so the write is strict.
    """
    with meter.operation(kind) as operation:
        published = land_changes(
            repository,
            planner,
            branch=branch,
            txn=txn,
            kind=kind,
            actor=actor,
            if_commit=if_commit,
            txn_id=txn_id,
            on_conflict=on_conflict,
        )
    if published is None:
        return None
    return PublishedCommit(published.commit, published.branch, published.manifest_version, operation.cost)


def land_changes(
    repository: Repository,
    planner: Changes | Planner,
    *,
    branch: str,
    txn: WriteTxn | None,
    kind: str,
    actor: str | None,
    if_commit: CommitId | None,
    txn_id: TxnId | None,
    on_conflict: OnConflict,
) -> PublishedCommit | None:
    """As `commit_changes`, for a verb that does more than this and has an account of its own."""
    repository.require_writable("Writing")
    strict = txn is not None or on_conflict == "fail"
    own_id = repository.runtime.ids.txn_id() if txn_id is None else str(txn_id)
    stager = Stager(repository.tables, repository.runtime.ids, repository.settings)
    stood_on: list[Manifest] = []

    def plan_on(base: WriteTxn) -> PublishPlan:
        stood_on[:] = (base.base,)
        changes = planner(base) if callable(planner) else planner
        actions = tuple([_normalized(base.catalog, action) for action in changes.actions])

        def plan(inline: Mapping[TableKey, InlineTable]) -> PublishPlan:
            return PublishPlan(
                txn_id=own_id,
                policy=ConflictPolicy.STRICT if strict else ConflictPolicy.CONSTRUCTIVE,
                change=DataChange(kind, actions, {}, inline),
                actor=actor,
                checks=changes.checks,
                read_rows=changes.read_rows,
                read_ids=changes.read_ids,
                if_commit=if_commit,
                idempotent=txn_id is not None,
            )

        if base is txn:  # `confirmed-head`: a held base may be old, and a violation in it no longer true
            repository.publisher.refuse_if_lost(base, plan({}))
        run_checks(changes.checks, base, repository.tables)
        inline = stager.inline(base, actions)
        return stager.apart(base, plan({})) if inline is None else plan(inline)

    def restage(base: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        stood_on[:] = (base.base,)
        return stager.restage(base, plan, tables, from_scratch)

    def validate(base: WriteTxn, plan: PublishPlan) -> None:
        stood_on[:] = (base.base,)
        run_checks(plan.checks, base, repository.tables)

    # `replan-reads`: rows that were computed outside can't be computed again, so losing them is a conflict.
    from_outside = not callable(planner) and bool(planner.read_rows)
    again = None if from_outside else plan_on
    recourse = Recourse(restage, validate, None if strict else again)
    is_fresh = txn_id is None or isinstance(txn_id, FreshTxnId)
    tries_known = not strict and if_commit is None and is_fresh and not from_outside

    def once() -> PublishedCommit | None:
        newest: WriteTxn | None = None
        if tries_known:
            try:
                return _on_last_seen(repository, branch, txn_id, plan_on, recourse)
            except _StaleBase as stale:
                newest = stale.newest
        base = txn or newest or _opened(repository, branch)
        published = repository.publisher.find_earlier_commit(base, txn_id) if txn_id else None
        if published is not None:
            return published
        if txn is None and if_commit not in (None, base.commit_id):
            raise PreconditionFailed(str(if_commit), base.commit_id)
        return repository.publisher.publish(base, plan_on(base), recourse)

    return retry_if_base_swept(repository, once, stood_on, can_plan_again=recourse.plan_again is not None)


def _opened(repository: Repository, branch: str, *, confirmed: bool = True) -> WriteTxn:
    """The base of a write, after the maintenance that has to come before any further one."""
    txn = repository.open_txn(branch, confirmed=confirmed)
    if repository.before_write is not None and repository.before_write(txn.base):
        return repository.open_txn(branch, confirmed=confirmed)
    return txn


class _StaleBase(Exception):
    """What was decided on the last head that this process saw is not the last word."""

    def __init__(self, newest: WriteTxn | None = None) -> None:
        super().__init__(newest)
        self.newest = newest


def _on_last_seen(
    repository: Repository,
    branch: str,
    txn_id: TxnId | None,
    plan_on: Callable[[WriteTxn], PublishPlan],
    recourse: Recourse,
) -> PublishedCommit | None:
    """Plan on the newest head that this process knows of and go straight for the put, which finds out.

    `confirmed-head`: what planning refuses stands only if that head is still newest. What is refused after a lost put
    is refused on a head that was read in this call.
    """
    base = _opened(repository, branch, confirmed=False)
    if txn_id is not None and (landed := repository.publisher.find_commit_before(base.base, txn_id)):
        return landed
    try:
        plan = plan_on(base)
    except OmnigraphError:
        newest = repository.open_txn(branch)  # where that fails, what an older head would have refused is not known
        if newest.base.point != base.base.point:
            raise _StaleBase(newest) from None
        raise
    try:
        return repository.publisher.publish(base, plan, recourse)
    except BranchNotFound:
        raise _StaleBase from None  # the name may live again


def _normalized(catalog: Catalog, action: TableAction) -> TableAction:
    """The action with its rows in the columns of its type, whatever order they were given in."""
    definition = catalog.type_of(action.table)
    if not isinstance(action, Append | Upsert | Create | Overwrite):
        return action
    if isinstance(action, Append | Upsert) and action.overlay is not None:
        return action
    from omnigraph.schema.arrow import arrow_schema

    wanted = arrow_schema(definition)
    if action.rows.schema.equals(wanted) and not _lacks_ids(action.rows, len(definition.physical_columns)):
        return action
    unknown = [name for name in action.rows.column_names if name not in wanted.names]
    if unknown:
        raise BadRequest(f"{definition.name} has no column {unknown[0]!r}: its columns are {', '.join(wanted.names)}.")
    rows = _cast(action.rows, wanted, definition.name)
    return action.with_rows(rows) if isinstance(action, Append | Upsert) else replace(action, rows=rows)


def _lacks_ids(rows: "pa.Table", columns: int) -> bool:
    """Whether a row has no id, or no end: those columns are the first."""
    return any(rows.column(number).null_count for number in range(columns))


def _cast(rows: "pa.Table", wanted: "pa.Schema", type_name: str) -> "pa.Table":
    import pyarrow as pa

    columns = []
    for column in wanted:
        if column.name not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, column.type))
            continue
        try:
            columns.append(rows.column(column.name).cast(column.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadRequest(f"{type_name}.{column.name} must be {column.type}: {error}.") from error
    for name in ("id", "src", "dst"):
        if name in wanted.names and columns[wanted.get_field_index(name)].null_count:
            raise BadRequest(f"Every {type_name} row needs the column {name!r}, and a value in it.")
    return pa.table(columns, schema=wanted)
