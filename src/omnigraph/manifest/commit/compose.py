"""What a plan makes of its base: the next manifest. Pure; the clock's reading is an argument."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from omnigraph.manifest.commit.conflicts import is_tail_prefix
from omnigraph.manifest.commit.plan import (
    ConflictPolicy,
    CreateBranch,
    DataChange,
    DeleteBranch,
    DiscardStarts,
    Drop,
    EmptyBranch,
    InlineTable,
    PublishPlan,
    RaiseFence,
    Reserve,
    Reshape,
    StagedTable,
    fence_of,
)
from omnigraph.manifest.model.ancestry import all_ancestors
from omnigraph.manifest.model.manifest import (
    NO_FILES,
    Ancestry,
    BranchId,
    Commit,
    CommitClass,
    CommitId,
    Files,
    InlineChange,
    Manifest,
    Point,
    Position,
    Reservation,
    RowCounts,
    TableKey,
    TableRef,
    Tombstone,
)
from omnigraph.manifest.model.paths import commit_id
from omnigraph.manifest.model.request_key import request_of
from omnigraph.manifest.store.inline_rows import change_size
from omnigraph.storage.table.table_content import TailEntry


def compose_manifest(base: Manifest | EmptyBranch, plan: PublishPlan, now: datetime) -> Manifest:
    """Manifest N+1: the base with the plan on top."""
    now = truncate_to_ms(now)
    change = plan.change
    if isinstance(change, DataChange) and isinstance(base, Manifest):
        rows_alone = change.inline and not change.staged and change.schema is None and change.merged is None
        return append_commit(base, base, plan, None, now) if rows_alone else _compose_change(base, change, plan, now)
    match change, base:
        case CreateBranch() as birth, EmptyBranch():
            return _first_manifest(base, birth, plan, now)
        case DeleteBranch(), _:
            return _tombstone_manifest(base, plan, now)
        case RaiseFence() as raising, Manifest():
            successor = _without_changes(base, plan, now, "cleanup")
            return replace(
                successor,
                fenced_at=successor.manifest_version,
                fence=fence_of(base, raising),
                # It never falls (`monotone-and-complete-listings`), and no fence expires the state that it stands on.
                oldest_retained=max(base.oldest_retained, min(raising.oldest_retained, base.manifest_version)),
                ancestry=_drop(successor.ancestry, raising.forgotten - {base.branch_id}),
            )
        case DiscardStarts(kind, tokens), Manifest():
            return replace(_without_changes(base, plan, now, kind), discards=tokens)
        case Reserve(txn_id, wait_ms), Manifest():
            return replace(_without_changes(base, plan, now, "turn"), reservation=Reservation(txn_id, wait_ms))
    raise AssertionError(f"{type(plan.change).__name__} can't follow {type(base).__name__}")


def truncate_to_ms(now: datetime) -> datetime:
    """A time as it is shown, so that a shown time finds the commit."""
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def append_commit(base: Manifest, before: Manifest, plan: PublishPlan, index: int | None, now: datetime) -> Manifest:
    """A manifest in the making with one more commit in it, whose rows ride in it and which does nothing else.

    `before` is the base itself for the first; `index` is None for the only one.
    """
    assert isinstance(plan.change, DataChange)
    assert not plan.change.staged
    point = Point(base.branch_id, base.manifest_version + 1)
    name = commit_id(point, index)
    tables, touched, rows = dict(before.tables), {}, {}
    for key, made in plan.change.inline.items():
        if made.counts:
            touched[key], rows[key] = made.counts, made.change
            tables[key] = _with_inline(tables.get(key), key, made, point, name)
    commit = _commit(base, plan, now, plan.change.kind, touched, name, before.logical_head)
    if index:
        return _next_manifest(base, (*before.commits, commit), tables, (*before.inline, rows))
    return _next_manifest(base, (commit,), tables, (rows,) if rows else ())


def _compose_change(base: Manifest, change: DataChange, plan: PublishPlan, now: datetime) -> Manifest:
    touched = {key: touch for key, touch in change.row_counts.items() if touch}
    for action in change.actions:
        if isinstance(action, Drop) and action.table in base.tables:
            touched[action.table] = RowCounts(deleted=base.tables[action.table].rows)
    for key, adopted in (change.merged.adopted if change.merged else {}).items():
        touched[key] = _row_difference(base.tables.get(change.origins.get(key, key)), adopted.ref)
    point = Point(base.branch_id, base.manifest_version + 1)
    tables = _tables(base, change, plan, point)
    rows = {key: made.change for key, made in change.inline.items() if made.counts}
    name = commit_id(point)
    commit = _commit(base, plan, now, change.kind, touched, name, base.logical_head, change.merged_parent)
    successor = _next_manifest(base, (commit,), tables, (rows,) if rows else (), _files(change, tables))
    if change.merged is None and change.schema is None:
        return successor
    ancestry = all_ancestors(successor.ancestry, change.merged.ancestry if change.merged else {})
    return replace(successor, schema=change.schema or base.schema, ancestry=ancestry)


def _files(change: DataChange, tables: Mapping[TableKey, TableRef]) -> Files:
    """The files that were written for versions that the manifest names."""
    made = {key: (staged.at, staged.files) for key, staged in change.staged.items()}
    for key, adopted in (change.merged.adopted if change.merged else {}).items():
        if adopted.ref.stored is not None:
            made[key] = (adopted.ref.stored, adopted.files)
    return {
        at.table_id: files for key, (at, files) in made.items() if files and key in tables and tables[key].stored == at
    }


def _with_inline(ref: TableRef | None, key: TableKey, made: InlineTable, point: Point, commit: CommitId) -> TableRef:
    """The table with one more entry in its tail, or with more rows in the last one."""
    if made.changed_at != (None if ref is None else ref.changed_at):
        raise AssertionError(f"{key} was counted at {made.changed_at}, the base has {ref}")
    touch, size = made.counts, change_size(made.change)
    if ref is None:
        entry = TailEntry(point.branch_id, point.manifest_version, key, size)
        return TableRef(None, touch.inserted - touch.deleted, commit, (entry,), commit if touch.deleted else None)
    tail, last = ref.tail, ref.tail[-1] if ref.tail else None
    if last is not None and last.manifest_version == point.manifest_version and last.branch_id == point.branch_id:
        tail, size = tail[:-1], size + last.size
    entry = TailEntry(point.branch_id, point.manifest_version, key, size)
    rows = ref.rows + touch.inserted - touch.deleted
    removed_at = commit if touch.deleted else ref.removed_at
    return TableRef(ref.stored, rows, commit, (*tail, entry), removed_at, ref.columns)


def _row_difference(before: TableRef | None, after: TableRef) -> RowCounts:
    """All that is known of a table that is adopted unread: how many rows it has more, or fewer."""
    more = after.rows - (0 if before is None else before.rows)
    return RowCounts(inserted=max(more, 0), deleted=max(-more, 0))


def _drop(ancestry: Ancestry, branches: frozenset[BranchId]) -> Ancestry:
    return {branch: position for branch, position in ancestry.items() if branch not in branches}


def _tables(base: Manifest, change: DataChange, plan: PublishPlan, point: Point) -> dict[TableKey, TableRef]:
    commit = commit_id(point)
    tables = _rename_tables(base, change)
    reshaped = {action.table for action in change.actions if isinstance(action, Reshape)}
    for key, staged in change.staged.items():
        ref = tables.get(key)
        keeps_content = plan.policy is ConflictPolicy.MAINTENANCE or key in reshaped
        if ref is not None and not staged.counts and not keeps_content:
            continue  # it changes no row: the stored version stays as it is
        stored = _with_staged(ref, key, staged, commit, keeps_content=keeps_content)
        tables[key] = replace(stored, columns=staged.columns or base.schema)
    for key, made in change.inline.items():
        if made.counts:
            tables[key] = _with_inline(tables.get(key), key, made, point, commit)
    for key, adopted in (change.merged.adopted if change.merged else {}).items():
        ref = adopted.ref
        tables[key] = replace(ref, changed_at=commit, removed_at=commit) if adopted.converted else ref
    return tables


def _with_staged(
    ref: TableRef | None, key: TableKey, staged: StagedTable, commit: CommitId, *, keeps_content: bool
) -> TableRef:
    """`whole-tail`: the staged version has the tail of its base in it. What came on top since stays there."""
    if staged.base != (None if ref is None else ref.stored) or not is_tail_prefix(staged.folded, ref):
        raise AssertionError(f"rebase: {key} was derived from {staged.base} and {staged.folded}, the base has {ref}")
    if ref is None:
        return TableRef(staged.at, staged.rows, commit, removed_at=commit if staged.counts.deleted else None)
    came = ref.tail[len(staged.folded) :]
    rows = staged.rows
    if came or keeps_content:  # what is not in the staged version is counted by those who wrote it
        rows = ref.rows + staged.counts.inserted - staged.counts.deleted
    # `changed-at`: maintenance copies changed_at as it is; a first table is a change even without rows.
    if keeps_content:
        return TableRef(staged.at, rows, ref.changed_at, came, ref.removed_at)
    return TableRef(staged.at, rows, commit, came, commit if staged.counts.deleted else ref.removed_at)


def _rename_tables(base: Manifest, change: DataChange) -> dict[TableKey, TableRef]:
    """The base's tables without those that go, renamed types under their new keys."""
    leaving = {action.table for action in change.actions if isinstance(action, Drop)}
    leaving.update(change.origins.values())
    if not leaving:
        return dict(base.tables)
    tables = {key: ref for key, ref in base.tables.items() if key not in leaving}
    return tables | {key: base.tables[origin] for key, origin in change.origins.items() if origin in base.tables}


def _commit(
    base: Manifest,
    plan: PublishPlan,
    now: datetime,
    kind: str,
    touched: Mapping[TableKey, RowCounts],
    name: CommitId,
    parent: CommitId,
    merged_parent: CommitId | None = None,
) -> Commit:
    maintenance = plan.policy is ConflictPolicy.MAINTENANCE
    return Commit(
        id=name,
        txn_id=str(plan.txn_id),
        parent=parent,
        merged_parent=merged_parent,
        actor=plan.actor,
        authored_at=max(now, base.authored_at),  # `monotone-and-complete-listings`: never before the parent's
        kind=kind,
        commit_class=CommitClass.MAINTENANCE if maintenance else CommitClass.LOGICAL,
        touched=touched,
        recovered=plan.recovered,
        token=plan.token,
        input=plan.input,
        request=request_of(plan.txn_id) if plan.idempotent else None,
    )


def _next_manifest(
    base: Manifest,
    commits: tuple[Commit, ...],
    tables: Mapping[TableKey, TableRef],
    inline: tuple[Mapping[TableKey, InlineChange], ...] = (),
    files: Files = NO_FILES,
) -> Manifest:
    """The base under the next number with these commits, tables and rows."""
    last, number = commits[-1], base.manifest_version + 1
    return Manifest(
        branch=base.branch,
        branch_id=base.branch_id,
        manifest_version=number,
        schema=base.schema,
        logical_head=base.logical_head if last.commit_class is CommitClass.MAINTENANCE else last.id,
        authored_at=last.authored_at,
        ancestry={**base.ancestry, base.branch_id: Position(number)},
        fenced_at=base.fenced_at,
        oldest_retained=base.oldest_retained,
        commits=commits,
        tables=tables,
        inline=inline,
        fork=base.fork,
        files=files,
    )


def _without_changes(base: Manifest, plan: PublishPlan, now: datetime, kind: str) -> Manifest:
    """The base with a commit that touches no table."""
    name = commit_id(Point(base.branch_id, base.manifest_version + 1))
    return _next_manifest(base, (_commit(base, plan, now, kind, {}, name, base.logical_head),), base.tables)


def _first_manifest(unborn: EmptyBranch, birth: CreateBranch, plan: PublishPlan, now: datetime) -> Manifest:
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
            ancestry={**fork.ancestry, point.branch_id: Position(1)},
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
        ancestry={point.branch_id: Position(1)},
        commits=(first,),
    )


def _tombstone_manifest(base: Manifest | EmptyBranch, plan: PublishPlan, now: datetime) -> Manifest:
    grave = Tombstone(str(plan.txn_id), plan.actor, request_of(plan.txn_id))
    if isinstance(base, EmptyBranch):
        return Manifest(
            branch=base.branch,
            branch_id=base.branch_id,
            manifest_version=1,
            schema="",
            logical_head="",
            authored_at=now,
            ancestry={base.branch_id: Position(1)},
            tombstone=grave,
        )
    number = base.manifest_version + 1
    return replace(
        base,
        manifest_version=number,
        authored_at=max(now, base.authored_at),
        ancestry={**base.ancestry, base.branch_id: Position(number)},
        commits=(),
        tables={},
        inline=(),
        fence=None,
        reservation=None,
        tombstone=grave,
        discards=(),
        files=NO_FILES,
    )
