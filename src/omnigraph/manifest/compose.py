"""What a plan makes of its base: the next manifest. Pure; the clock's reading is an argument."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from omnigraph.manifest.keys import commit_id
from omnigraph.manifest.model import (
    BranchId,
    Commit,
    CommitClass,
    CommitId,
    Manifest,
    Point,
    TableKey,
    TableRef,
    Tombstone,
    Touch,
    Turn,
)
from omnigraph.manifest.plan import (
    AskForTurn,
    Birth,
    Bury,
    Change,
    Drop,
    PublishPlan,
    RaiseFence,
    Reshape,
    Stance,
    Unborn,
    fence_of,
)


def compose(base: Manifest | Unborn, plan: PublishPlan, now: datetime) -> Manifest:
    """Manifest N+1: the base with the plan on top."""
    now = now.replace(microsecond=now.microsecond // 1000 * 1000)  # as it is shown, so that a shown time finds it
    match plan.effect, base:
        case Birth() as birth, Unborn():
            return _born(base, birth, plan, now)
        case Bury(), _:
            return _buried(base, plan, now)
        case RaiseFence() as raising, Manifest():
            successor = _successor(base, plan, now, "cleanup", {})
            return replace(
                successor,
                fenced_at=successor.manifest_version,
                fence=fence_of(base, raising),
                # Rule 7: it never falls; and no fence may expire the state that it stands on.
                oldest_retained=max(base.oldest_retained, min(raising.oldest_retained, base.manifest_version)),
            )
        case AskForTurn(txn_id, wait_ms), Manifest():
            return replace(_successor(base, plan, now, "turn", {}), turn=Turn(txn_id, wait_ms))
        case Change() as change, Manifest():
            return _changed(base, change, plan, now)
    raise AssertionError(f"{type(plan.effect).__name__} can't follow {type(base).__name__}")


def _changed(base: Manifest, change: Change, plan: PublishPlan, now: datetime) -> Manifest:
    touched = {key: staged.touch for key, staged in change.staged.items() if staged.touch}
    for action in change.actions:
        if isinstance(action, Drop) and action.table in base.tables:
            touched[action.table] = Touch(deleted=base.tables[action.table].rows)
    for key, adopted in (change.merged.adopted if change.merged else {}).items():
        touched[key] = _more_rows(base.tables.get(change.origins.get(key, key)), adopted.ref)
    successor = _successor(base, plan, now, change.kind, touched, change.merged_parent)
    tables = _tables(base, change, plan, commit_id(successor.point))
    ancestry = _both(successor.ancestry, change.merged.ancestry if change.merged else {})
    return replace(successor, schema=change.schema or base.schema, tables=tables, ancestry=ancestry)


def _more_rows(before: TableRef | None, after: TableRef) -> Touch:
    """All that is known of a table that is adopted unread: how many rows it has more, or fewer."""
    more = after.rows - (0 if before is None else before.rows)
    return Touch(inserted=max(more, 0), deleted=max(-more, 0))


def _both(one: Mapping[BranchId, int], other: Mapping[BranchId, int]) -> dict[BranchId, int]:
    """The ancestors of either: the element-wise maximum of two version vectors."""
    return {branch: max(one.get(branch, 0), other.get(branch, 0)) for branch in {**one, **other}}


def _tables(base: Manifest, change: Change, plan: PublishPlan, commit: CommitId) -> dict[TableKey, TableRef]:
    tables = _rekeyed(base, change)
    reshaped = {action.table for action in change.actions if isinstance(action, Reshape)}
    for key, staged in change.staged.items():
        ref = tables.get(key)
        if staged.base != (None if ref is None else (ref.table_id, ref.table_version)):
            raise AssertionError(f"rule 9: {key} was derived from {staged.base}, the base has {ref}")
        keeps_content = plan.stance is Stance.MAINTENANCE or key in reshaped
        if ref is not None and not staged.touch and not keeps_content:
            continue  # it changes no row: the stored version stays as it is
        # Rule 4: maintenance copies changed_at as it is; a first table is a change even without rows.
        unchanged = ref is not None and keeps_content
        changed_at = ref.changed_at if ref is not None and unchanged else commit
        removed_at = commit if staged.touch.deleted and not unchanged else None if ref is None else ref.removed_at
        tables[key] = TableRef(staged.table_id, staged.table_version, staged.rows, changed_at, removed_at=removed_at)
    for key, adopted in (change.merged.adopted if change.merged else {}).items():
        ref = adopted.ref
        tables[key] = replace(ref, changed_at=commit, removed_at=commit) if adopted.converted else ref
    return tables


def _rekeyed(base: Manifest, change: Change) -> dict[TableKey, TableRef]:
    """The base's tables without those that go, renamed types under their new keys."""
    leaving = {action.table for action in change.actions if isinstance(action, Drop)}
    leaving.update(change.origins.values())
    tables = {key: ref for key, ref in base.tables.items() if key not in leaving}
    return tables | {key: base.tables[origin] for key, origin in change.origins.items() if origin in base.tables}


def _successor(
    base: Manifest,
    plan: PublishPlan,
    now: datetime,
    kind: str,
    touched: Mapping[TableKey, Touch],
    merged_parent: CommitId | None = None,
) -> Manifest:
    """The base under the next number with one more commit, its content as it was."""
    point = Point(base.branch_id, base.manifest_version + 1)
    maintenance = plan.stance is Stance.MAINTENANCE
    authored_at = max(now, base.authored_at)  # rule 7: never before the parent's
    commit = Commit(
        id=commit_id(point),
        txn_id=plan.txn_id,
        parent=base.logical_head,
        merged_parent=merged_parent,
        actor=plan.actor,
        authored_at=authored_at,
        kind=kind,
        commit_class=CommitClass.MAINTENANCE if maintenance else CommitClass.LOGICAL,
        touched=touched,
    )
    return replace(
        base,
        manifest_version=point.manifest_version,
        logical_head=base.logical_head if maintenance else commit.id,
        authored_at=authored_at,
        ancestry={**base.ancestry, base.branch_id: point.manifest_version},
        commits=(commit,),
        inline=(),
        fence=None,
        turn=None,
    )


def _born(unborn: Unborn, birth: Birth, plan: PublishPlan, now: datetime) -> Manifest:
    point = Point(unborn.branch_id, 1)
    if birth.fork is not None:
        fork = birth.fork
        return Manifest(
            branch=birth.branch,
            branch_id=point.branch_id,
            manifest_version=1,
            schema=fork.schema,
            logical_head=fork.logical_head,
            authored_at=fork.authored_at,
            ancestry={**fork.ancestry, point.branch_id: 1},
            tables=fork.tables,
            fork=fork.point,
        )
    first = Commit(
        id=commit_id(point),
        txn_id=plan.txn_id,
        parent=None,
        merged_parent=None,
        actor=plan.actor,
        authored_at=now,
        kind="init",
        commit_class=CommitClass.LOGICAL,
    )
    return Manifest(
        branch=birth.branch,
        branch_id=point.branch_id,
        manifest_version=1,
        schema=birth.schema,
        logical_head=first.id,
        authored_at=now,
        ancestry={point.branch_id: 1},
        commits=(first,),
    )


def _buried(base: Manifest | Unborn, plan: PublishPlan, now: datetime) -> Manifest:
    grave = Tombstone(plan.txn_id, plan.actor)
    if isinstance(base, Unborn):
        return Manifest(
            branch=base.branch,
            branch_id=base.branch_id,
            manifest_version=1,
            schema="",
            logical_head="",
            authored_at=now,
            ancestry={base.branch_id: 1},
            tombstone=grave,
        )
    number = base.manifest_version + 1
    return replace(
        base,
        manifest_version=number,
        authored_at=max(now, base.authored_at),
        ancestry={**base.ancestry, base.branch_id: number},
        commits=(),
        tables={},
        inline=(),
        fence=None,
        turn=None,
        tombstone=grave,
    )
