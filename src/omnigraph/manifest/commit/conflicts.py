"""The conflict table of the design, row for row, as one pure function.

`publish` found that manifest N+1 is not its own and has read the new head. Everything that decides
is in the two manifests: `changed_at` names the commit that last changed a table's content, so one
read tells what the winners touched, however many they were.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from omnigraph.manifest.commit.plan import ConflictPolicy, DataChange, Delete, PublishPlan
from omnigraph.manifest.model.ancestry import contains_commit
from omnigraph.manifest.model.manifest import CommitId, Manifest, TableKey, TableRef
from omnigraph.storage.table.table_content import Tail

SCHEMA_KEY = "schema"  # stands for the table key where the schema is what moved


@dataclass(frozen=True, slots=True)
class Proceed:
    """The logical plan stands. Validate it again if asked, derive physical parts again, and put.

    `from_scratch`: a fence passed, so not even fragments that were only appended may be trusted.
    """

    validate: bool = False
    restage: frozenset[TableKey] = frozenset()
    from_scratch: bool = False


@dataclass(frozen=True, slots=True)
class Replan:
    """Nothing of the plan can be kept."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """A strict plan lost: `ExpectedVersionMismatch`, unless its verb can plan again (`merge-replans`)."""

    table_key: TableKey
    expected: CommitId | None
    actual: CommitId | None


@dataclass(frozen=True, slots=True)
class BranchDeleted:
    """Somebody deleted the branch."""


Decision: TypeAlias = Proceed | Replan | Refuse | BranchDeleted


Came: TypeAlias = Callable[[Tail], frozenset[str]]  # which rows the commits of these tail entries wrote


def decide(
    plan: PublishPlan, base: Manifest, head: Manifest, *, came: Came | None = None, intent_honoured: bool = False
) -> Decision:
    """What losing to `head` means for a plan made on `base`.

    `intent_honoured`: every fence between the two spared what this plan staged (`fence-tokens`). `came` says which rows
    small commits wrote meanwhile; without it they may have been any.
    """
    if head.tombstone is not None:
        return BranchDeleted()
    if plan.policy is ConflictPolicy.MAINTENANCE:
        return _decide_maintenance(plan, base, head)
    if plan.refers_to_another_branch and head.fenced_at != base.fenced_at:
        return Replan("a cleanup passed, and the plan refers to another branch")  # `other-branch-after-base`
    if _was_merged(plan, head):
        return Replan("somebody else has merged the same commit")
    if head.schema != base.schema:
        if plan.policy is ConflictPolicy.STRICT:
            return Refuse(SCHEMA_KEY, base.logical_head, head.logical_head)
        return Replan("the schema changed")
    touched = touched_since(base, head, plan.reads | plan.writes)
    if touched and plan.policy is ConflictPolicy.STRICT:
        key = touched[0]
        return Refuse(key, base.changed_at(key), head.changed_at(key))
    if read := [key for key in touched if key in plan.read_rows and not _spared(plan, base, head, key, came)]:
        return Replan(f"{read[0]} changed, and rows read there went into the plan")
    if isinstance(plan.change, DataChange) and plan.change.merged is not None and _undecided(plan.change, head):
        return Replan("a table moved that the merge would have left as it was")  # only a draft tells whose is taken
    if fence_passed(plan, base, head) and not intent_honoured:
        return Proceed(bool(touched), frozenset(plan.staged) | moved(plan, head), from_scratch=True)
    return Proceed(bool(touched), moved(plan, head) | _overtaken(plan, head, came))


def _was_merged(plan: PublishPlan, head: Manifest) -> bool:
    """Whether the head has what a merge would bring: a second commit of the same merge would change nothing."""
    parent = plan.change.merged_parent if isinstance(plan.change, DataChange) else None
    return parent is not None and contains_commit(head.ancestry, parent)


def _decide_maintenance(plan: PublishPlan, base: Manifest, head: Manifest) -> Decision:
    """A fence, a discard or a tombstone goes on any head. What was staged from a table version needs that version."""
    if not isinstance(plan.change, DataChange):
        return Proceed()
    if head.schema != base.schema:
        return Replan("the schema changed")
    if fence_passed(plan, base, head):
        return Replan("a cleanup passed")
    if gone := sorted(moved(plan, head)):  # `maintenance-rebase`; what came on top of what was folded stays there
        return Replan(f"{gone[0]} moved")
    return Proceed()


def may_have_removed(before: TableRef | None, after: TableRef | None) -> bool:
    """Whether rows of the older state may be missing in the newer one, told without reading either."""
    if before is None:
        return False
    if after is None or not _same_table(before, after):
        return True
    return before.changed_at != after.changed_at and before.removed_at != after.removed_at


def _same_table(before: TableRef, after: TableRef) -> bool:
    """Whether one came from the other: a type that was dropped and made again has another table, or another tail."""
    if before.changed_at == after.changed_at:
        return True
    if before.stored is None:
        return after.stored is None and after.tail[: len(before.tail)] == before.tail
    return after.stored is not None and before.stored.table_id == after.stored.table_id


def touched_since(base: Manifest, head: Manifest, keys: Iterable[TableKey]) -> list[TableKey]:
    """Which of these tables the winners changed: content, not storage. In name order."""
    return [key for key in sorted(keys) if base.changed_at(key) != head.changed_at(key)]


def moved(plan: PublishPlan, head: Manifest) -> frozenset[TableKey]:
    """`rebase`: tables whose physical part was derived from another version than the head's.

    That nothing is staged for a table is derived from its stored version too, whoever has replaced it since: a fold
    that stores the first rows, or another writer. Inline rows are derived from none, but what they amount to was
    counted. A delete from a type that had no table staged nothing, which was derived from its absence.
    """
    if not isinstance(plan.change, DataChange):
        return frozenset()
    origins = plan.change.origins
    found = {key for key, made in plan.inline.items() if made.changed_at != head.changed_at(key)}
    for key, staged in plan.staged.items():
        ref = head.tables.get(origins.get(key, key))
        if staged.base != (None if ref is None else ref.stored) or not is_tail_prefix(staged.folded, ref):
            found.add(key)
    found |= _undecided(plan.change, head)
    for action in plan.change.actions:
        key = action.table
        if isinstance(action, Delete) and key not in plan.staged and key not in plan.inline:
            found |= {key} & head.tables.keys()
    return frozenset(found)


def _undecided(change: DataChange, head: Manifest) -> set[TableKey]:
    """Tables for which nothing was staged, and whose stored version is another one now."""
    origins = change.origins
    refs = {key: head.tables.get(origins.get(key, key)) for key in change.unstaged}
    return {key for key, ref in refs.items() if change.unstaged[key] != (None if ref is None else ref.stored)}


def is_tail_prefix(folded: Tail, ref: TableRef | None) -> bool:
    """`maintenance-rebase`: the entries are still the front of the tail."""
    return folded == (() if ref is None else ref.tail[: len(folded)])


def _spared(plan: PublishPlan, base: Manifest, head: Manifest, key: TableKey, came: Came | None) -> bool:
    """`replan-reads`, by row: a plan that read rows by id stands if only small commits came, with other rows."""
    ids, before, after = plan.read_ids.get(key), base.tables.get(key), head.tables.get(key)
    if ids is None or came is None or after is None:
        return False
    stored, tail = (None, ()) if before is None else (before.stored, before.tail)
    return after.stored == stored and is_tail_prefix(tail, after) and not came(after.tail[len(tail) :]) & ids


def _overtaken(plan: PublishPlan, head: Manifest, came: Came | None) -> frozenset[TableKey]:
    """`rebase`: staged tables on top of which small commits have written the very rows that the plan writes."""
    found = set()
    origins = plan.change.origins if isinstance(plan.change, DataChange) else {}
    for key, staged in plan.staged.items():
        ref = head.tables.get(origins.get(key, key))
        later = () if ref is None else ref.tail[len(staged.folded) :]
        if later:
            written = plan.written_ids(key)
            if came is None or written is None or came(later) & written:
                found.add(key)
    return frozenset(found)


def fence_passed(plan: PublishPlan, base: Manifest, head: Manifest) -> bool:
    """`fence-tokens`: every manifest carries its newest fence, so a commit on top of a fence does not hide it.

    A plan that staged nothing has nothing to lose to a fence.
    """
    return bool(plan.staged) and head.fenced_at != base.fenced_at
