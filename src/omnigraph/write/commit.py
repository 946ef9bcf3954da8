"""The whole path of a write: open, check, stage, publish."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from omnigraph.errors import BadRequest, PreconditionFailed
from omnigraph.manifest.model import MAIN, CommitId, TableKey, TxnId
from omnigraph.manifest.plan import Append, Change, Check, Create, Overwrite, PublishPlan, Stance, TableAction, Upsert
from omnigraph.manifest.publish import PublishedCommit, Recourse
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.txn import WriteTxn
from omnigraph.schema.catalog import Catalog
from omnigraph.storage import meter
from omnigraph.write.checks import run_checks
from omnigraph.write.stage import Stager

if TYPE_CHECKING:
    import pyarrow as pa

OnConflict: TypeAlias = Literal["retry", "fail"]


@dataclass(frozen=True, slots=True)
class Changes:
    """What one commit is to change, and what it relies on."""

    actions: tuple[TableAction, ...]
    checks: tuple[Check, ...] = ()
    read_rows: frozenset[TableKey] = frozenset()  # tables whose rows went into the actions


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
    return None if published is None else replace(published, cost=operation.cost)


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
    own_id = repository.runtime.ids.txn_id() if txn_id is None else txn_id
    stager = Stager(repository.tables, repository.runtime.ids)

    def plan_on(base: WriteTxn) -> PublishPlan:
        changes = planner(base) if callable(planner) else planner
        plan = PublishPlan(
            txn_id=own_id,
            stance=Stance.STRICT if strict else Stance.CONSTRUCTIVE,
            effect=Change(kind, tuple(_normalized(base.catalog, action) for action in changes.actions)),
            actor=actor,
            checks=changes.checks,
            read_rows=changes.read_rows,
            if_commit=if_commit,
            idempotent=txn_id is not None,
        )
        if base is txn:  # rule 6: a held base may be old, and a violation in it no longer true
            repository.publisher.refuse_early(base, plan)
        run_checks(changes.checks, base, repository.tables)
        return stager.stage(base, plan)

    def validate(base: WriteTxn, plan: PublishPlan) -> None:
        run_checks(plan.checks, base, repository.tables)

    base = txn or repository.open_txn(branch)
    published = repository.publisher.landed_earlier(base, txn_id) if txn_id else None
    if published is not None:
        return published
    if txn is None and if_commit not in (None, base.commit_id):
        raise PreconditionFailed(str(if_commit), base.commit_id)
    # Rule 11: rows that were computed outside can't be computed again, so losing them is a conflict.
    again = plan_on if callable(planner) or not planner.read_rows else None
    recourse = Recourse(stager.restage, validate, None if strict else again)
    return repository.publisher.publish(base, plan_on(base), recourse)


def _normalized(catalog: Catalog, action: TableAction) -> TableAction:
    """The action with its rows in the columns of its type, whatever order they were given in."""
    definition = catalog.type_of(action.table)
    if not isinstance(action, Append | Upsert | Create | Overwrite):
        return action
    from omnigraph.schema.arrow import arrow_schema

    wanted = arrow_schema(definition)
    unknown = [name for name in action.rows.column_names if name not in wanted.names]
    if unknown:
        raise BadRequest(f"{definition.name} has no column {unknown[0]!r}: its columns are {', '.join(wanted.names)}.")
    return replace(action, rows=_cast(action.rows, wanted, definition.name))


def _cast(rows: "pa.Table", wanted: "pa.Schema", type_name: str) -> "pa.Table":
    import pyarrow as pa

    columns = []
    for field in wanted:
        if field.name not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        try:
            columns.append(rows.column(field.name).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadRequest(f"{type_name}.{field.name} must be {field.type}: {error}.") from error
    for name in ("id", "src", "dst"):
        if name in wanted.names and columns[wanted.get_field_index(name)].null_count:
            raise BadRequest(f"Every {type_name} row needs the column {name!r}, and a value in it.")
    return pa.table(columns, schema=wanted)
