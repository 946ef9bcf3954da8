"""Consistency of a manifest with itself and with the one before it, as pure functions.

The rules are `unique-numbers`, `changed-at`, `fence-tokens`, `monotone-and-complete-listings` and `whole-tail`.

Each function yields sentences about the manifest, without its name.
"""

from collections.abc import Iterator

from omnigraph.errors import CommitNotFound
from omnigraph.manifest.model.ancestry import contains_commit
from omnigraph.manifest.model.manifest import (
    NOTHING,
    WHOLE,
    Commit,
    CommitClass,
    CommitId,
    Manifest,
    Point,
    Position,
    TableKey,
    TableRef,
)
from omnigraph.manifest.model.paths import commit_id, commit_position, parse_commit_id
from omnigraph.schema.catalog import Catalog
from omnigraph.storage.table.table_content import Tail

_FOLDING = ("fold", "optimize")  # the kinds of commits that write tails into stored versions


def manifest_problems(manifest: Manifest, branch: str) -> Iterator[str]:
    """Problems within one manifest."""
    if manifest.branch != branch:
        yield f"it says that its branch is {manifest.branch!r}, not {branch!r}"
    if manifest.ancestry.get(manifest.branch_id) != Position(manifest.manifest_version):
        yield f"it is not its own newest ancestor: {dict(manifest.ancestry)}"
    if not 1 <= manifest.oldest_retained <= manifest.manifest_version:
        yield f"oldest_retained is {manifest.oldest_retained}, which is outside its branch"
    if manifest.fenced_at > manifest.manifest_version:
        yield f"its newest fence is {manifest.fenced_at}, which is in the future"
    if manifest.fence is not None and manifest.fenced_at != manifest.manifest_version:
        yield f"it is a fence, but names {manifest.fenced_at} as the newest"
    if manifest.inline and len(manifest.inline) != len(manifest.commits):
        yield f"it has {len(manifest.commits)} commits, but inline rows of {len(manifest.inline)}"
    yield from _commit_problems(manifest)
    for key, ref in manifest.tables.items():
        yield from _tail_problems(manifest, key, ref)


def _commit_problems(manifest: Manifest) -> Iterator[str]:
    wanted = [commit_id(manifest.point, index) for index in range(len(manifest.commits))]
    if len(wanted) == 1:
        wanted = [commit_id(manifest.point)]
    found = [commit.id for commit in manifest.commits]
    if found != wanted:
        yield f"its commits are {found}, not {wanted}"
    times = [commit.authored_at for commit in manifest.commits]
    if times != sorted(times) or (times and times[-1] != manifest.authored_at):
        yield "its authored_at is not that of its newest commit, or its commits are out of order"
    for commit in manifest.commits:
        yield from _merged_parent_problems(manifest, commit)


def _merged_parent_problems(manifest: Manifest, commit: Commit) -> Iterator[str]:
    if commit.merged_parent is None:
        return
    if _point_of(commit.merged_parent) is None or not contains_commit(manifest.ancestry, commit.merged_parent):
        yield f"{commit.id} has the parent {commit.merged_parent}, which is none of its ancestors"


def _tail_problems(manifest: Manifest, key: TableKey, ref: TableRef) -> Iterator[str]:
    """`whole-tail`: no entry occurs twice, entries of a branch are in order, and none is in the future."""
    if ref.stored is None and not ref.tail:
        yield f"{key} has neither a stored version nor rows in manifests"
    points = [(entry.branch_id, entry.manifest_version) for entry in ref.tail]
    if len(set(points)) != len(points):
        yield f"the tail of {key} names a manifest twice: {points}"
    newest: dict[str, int] = {}
    for branch_id, number in points:
        if number < newest.get(branch_id, 0):
            yield f"the tail of {key} is out of order: {points}"
            break
        newest[branch_id] = number
    for entry in ref.tail:
        place = Position(entry.manifest_version, WHOLE if entry.commits is None else entry.commits)
        if manifest.ancestry.get(entry.branch_id, place) < place:
            yield f"the tail of {key} names {entry.branch_id}.{entry.manifest_version}, which is none of its ancestors"
    if _point_of(ref.changed_at) is None:
        yield f"{key} was changed at {ref.changed_at!r}, which is no commit id"
    inline = any(key in group for group in manifest.inline)
    own = bool(points) and points[-1] == (manifest.branch_id, manifest.manifest_version)
    if inline and not own:
        yield f"it carries rows of {key}, but their tail does not end with it"


def schema_problems(manifest: Manifest, catalog: Catalog) -> Iterator[str]:
    """Tables of types that the schema does not have."""
    for key in manifest.tables:
        if key not in catalog.by_key:
            yield f"it has a table of {key}, which its schema does not know"


def link_problems(before: Manifest, after: Manifest) -> Iterator[str]:
    """Problems between a manifest and the one before it."""
    if before.tombstone is not None:
        yield "it follows the end of its branch"
    if after.authored_at < before.authored_at:
        yield f"it was authored at {after.authored_at}, before its parent ({before.authored_at})"
    if after.oldest_retained < before.oldest_retained:
        yield f"oldest_retained falls from {before.oldest_retained} to {after.oldest_retained}"
    if after.oldest_retained > before.oldest_retained and after.fence is None:
        yield "oldest_retained rises without a fence"
    yield from _fence_problems(before, after)
    yield from _ancestry_problems(before, after)
    yield from _parent_problems(before, after)
    for key, ref in after.tables.items():
        old = before.tables.get(key)
        if old is not None:
            yield from _table_problems(before, after, key, old, ref)


def _fence_problems(before: Manifest, after: Manifest) -> Iterator[str]:
    if after.fence is None:
        if after.fenced_at != before.fenced_at:
            yield f"the newest fence is {before.fenced_at}, but it names {after.fenced_at}"
    elif after.fence.previous != before.fenced_at:
        yield f"the fence before it is {before.fenced_at}, but it names {after.fence.previous}"


def _ancestry_problems(before: Manifest, after: Manifest) -> Iterator[str]:
    for branch_id, place in before.ancestry.items():
        now = after.ancestry.get(branch_id)
        if now is None and after.fence is None:
            yield f"it has lost the ancestor {branch_id}.{place.number}"
        elif now is not None and now < place:
            yield f"its newest ancestor on {branch_id} falls from {place} to {now}"


def _parent_problems(before: Manifest, after: Manifest) -> Iterator[str]:
    """The parent of each commit is the newest logical one, and the last of those is the logical head."""
    newest: CommitId = before.logical_head
    for commit in after.commits:
        if commit.parent != newest:
            yield f"the parent of {commit.id} is {commit.parent}, not {newest}"
        if commit.commit_class is CommitClass.LOGICAL:
            newest = commit.id
    if after.logical_head != newest:
        yield f"logical_head is {after.logical_head}, not {newest}"


def _table_problems(before: Manifest, after: Manifest, key: TableKey, old: TableRef, new: TableRef) -> Iterator[str]:
    logical = any(commit.commit_class is CommitClass.LOGICAL for commit in after.commits)
    if not logical and new.changed_at != old.changed_at:
        yield f"maintenance says that it changed {key}: {old.changed_at} became {new.changed_at}"
    same_content = new.changed_at == old.changed_at
    if same_content and new.rows != old.rows and after.schema == before.schema:
        yield f"{key} has {new.rows:,} rows instead of {old.rows:,}, though no commit changed it"
    merged = any(commit.merged_parent is not None for commit in after.commits)
    if not merged and after.schema == before.schema:
        yield from _tail_step_problems(after, key, old, new)


def _tail_step_problems(after: Manifest, key: TableKey, old: TableRef, new: TableRef) -> Iterator[str]:
    """`whole-tail`: rows that are folded leave the tail, and no others do."""
    rest: Tail = new.tail
    if rest and (rest[-1].branch_id, rest[-1].manifest_version) == (after.branch_id, after.manifest_version):
        rest = rest[:-1]
    front_left = len(rest) < len(old.tail) and rest == old.tail[len(old.tail) - len(rest) :]
    if new.stored == old.stored and rest != old.tail and not (front_left and _may_cancel(after, key)):
        yield f"the tail of {key} lost entries, though its stored version is the same"
    elif new.stored != old.stored and rest != old.tail and not front_left:
        yield f"the tail of {key} has entries that the one before had not"


def _may_cancel(after: Manifest, key: TableKey) -> bool:
    """Whether folded commits may have been inserts and their deletes, which leave the stored version unchanged."""
    if any(key in changes for changes in after.inline):
        return False  # nothing was folded
    return any(
        commit.kind in _FOLDING if commit.commit_class is CommitClass.MAINTENANCE else key in commit.touched
        for commit in after.commits
    )


def fork_problems(fork: Manifest, first: Manifest) -> Iterator[str]:
    """Problems of the first manifest of a branch, which must copy the state from which it was forked."""
    if first.schema != fork.schema:
        yield "its schema is not that of its fork point"
    whole = first.logical_head == fork.logical_head  # or it was forked inside a group of commits
    if set(first.tables) != set(fork.tables) if whole else not set(first.tables) <= set(fork.tables):
        yield "its types with rows are not those of its fork point"
    for branch_id, place in fork.ancestry.items():
        wanted = place if whole or branch_id != fork.branch_id else commit_position(first.logical_head)[1]
        if first.ancestry.get(branch_id, NOTHING) < wanted:
            yield f"it lacks the ancestor {branch_id}.{place.number} of its fork point"
    if first.authored_at < fork.authored_at and not first.commits:
        yield "it was authored before its fork point"


def _point_of(commit: CommitId) -> Point | None:
    try:
        return parse_commit_id(commit)
    except CommitNotFound:
        return None
