"""Looking back along a branch: was this transaction committed or discarded, did every fence honour this token?"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from omnigraph.errors import CommitNotFound
from omnigraph.manifest.model.manifest import Entry, Manifest, Point, Token, TxnId, txn_ids
from omnigraph.manifest.model.paths import parse_commit_id
from omnigraph.manifest.model.request_key import seen_before
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.threads import gather

IDEMPOTENCY_WINDOW = timedelta(hours=24)
READ_AHEAD = 16


def read_entries_back(manifests: Manifests, newest: int, oldest: int, branch_id: str) -> Iterator[Entry]:
    """The entries of a branch from `newest` down to `oldest`, read some at once."""
    number = newest
    while number >= oldest:
        batch = range(number, max(oldest, number - READ_AHEAD + 1) - 1, -1)
        for entry in gather([lambda n=n: manifests.read(Point(branch_id, n)) for n in batch]):  # type: ignore[misc]
            if entry is not None:
                yield entry
        number = batch[-1] - 1


def find_txn(manifests: Manifests, head: Manifest, txn_id: TxnId, now: datetime) -> Entry | None:
    """The entry that carries a transaction, if it landed on this branch within the window.

    Needed only for ids that callers supply: a fresh id can't have landed before. Stubs count. The window
    ends at the earlier of our clock and the head's time, so that one wrong clock does not hide a commit; for an id
    whose maker had seen a commit of this branch, behind that.
    """
    oldest = min(now, head.authored_at) - IDEMPOTENCY_WINDOW
    for entry in read_entries_back(manifests, head.manifest_version, _first_possible(head, txn_id), head.branch_id):
        if txn_id in txn_ids(entry):
            return entry
        if entry.authored_at < oldest:
            return None
    return None


def _first_possible(head: Manifest, txn_id: TxnId) -> int:
    """The number of the first manifest that may carry a transaction."""
    before = seen_before(txn_id)
    if before is None:
        return 1
    try:
        seen = parse_commit_id(before)
    except CommitNotFound:
        return 1
    return seen.manifest_version + 1 if seen.branch_id == head.branch_id else 1


def find_txn_since(manifests: Manifests, base: Point, head: Manifest, txn_id: TxnId) -> Entry | None:
    """The entry between a base and a newer head that carries the transaction. Stubs count, however old."""
    since = read_entries_back(manifests, head.manifest_version, base.manifest_version + 1, base.branch_id)
    return next((entry for entry in since if txn_id in txn_ids(entry)), None)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What the log says of a long write: the entry that committed it, and the one that discarded a start of it."""

    committed: Entry | None = None
    discarded: Entry | None = None


def find_job_record(manifests: Manifests, base: Point, head: Manifest, txn_id: TxnId, token: Token) -> JobRecord:
    """After a base and up to a head. Stubs count, as they keep both. A commit takes precedence over discards."""
    discarded: Entry | None = None
    for entry in read_entries_back(manifests, head.manifest_version, base.manifest_version + 1, base.branch_id):
        if txn_id in txn_ids(entry):
            return JobRecord(committed=entry)
        if token in entry.discards:
            discarded = entry
    return JobRecord(discarded=discarded)


def fences_honour(manifests: Manifests, base: Manifest, head: Manifest, token: Token) -> bool:
    """`fence-tokens`: staged work survives only if every fence since its base honoured the token it was staged under.

    A fence that has since become a stub honoured none.
    """
    number = head.fenced_at
    while number != base.fenced_at:
        entry = manifests.read(Point(head.branch_id, number))
        if not isinstance(entry, Manifest) or entry.fence is None or token not in entry.fence.honoured:
            return False
        number = entry.fence.previous
    return True
