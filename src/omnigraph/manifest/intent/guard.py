"""What the plan of a long write checks before every put at a new number (`intent-tokens`).

In this order: search the log up to the manifest that the put goes on top of, then read the intent, then put at exactly
the next number. A discard closes the intent first and takes the next number afterwards. So a start that read its
intent before that finds the number taken, and the discard in the log; one that reads it later finds it closed.
"""

from omnigraph.errors import ConflictError, JobDiscarded, JobLost
from omnigraph.manifest.history.txn_lookup import JobRecord, find_job_record
from omnigraph.manifest.intent.intent_store import OwnedIntent
from omnigraph.manifest.model.manifest import Entry, Manifest, Point, Token, TxnId
from omnigraph.manifest.store.manifest_store import Manifests


class LogSearch:
    """Searches the log after a point for a transaction and for a discard of a token; reads nothing twice."""

    def __init__(self, manifests: Manifests, since: Point, txn_id: TxnId, token: Token) -> None:
        self._manifests = manifests
        self._searched = since
        self._txn_id, self._token = txn_id, token
        self._found = JobRecord()

    def search_up_to(self, head: Manifest) -> JobRecord:
        if head.branch_id != self._searched.branch_id:
            raise ConflictError(
                f"The job {self._txn_id} was begun on a branch {head.branch!r} that was deleted since: nothing was "
                "written, run it again with another job id."
            )
        if head.manifest_version > self._searched.manifest_version:
            later = find_job_record(self._manifests, self._searched, head, self._txn_id, self._token)
            self._found = JobRecord(self._found.committed or later.committed, self._found.discarded or later.discarded)
            self._searched = head.point
        return self._found


class JobGuard:
    """Of the start of a long write that owns its intent; `since` is from where on the transaction may be in the log."""

    def __init__(self, manifests: Manifests, held: OwnedIntent, since: Point) -> None:
        self._manifests = manifests
        self._held = held
        self._log = LogSearch(manifests, since, held.txn_id, held.token)

    def search(self, head: Manifest) -> Entry | None:
        """The entry that committed the transaction, by whichever start; raises if this start was discarded."""
        fate = self._log.search_up_to(head)
        if fate.committed is None and fate.discarded is not None:
            raise JobDiscarded(self._held.txn_id)
        return fate.committed

    def check(self, head: Manifest) -> Entry | None:
        """The same, then that the intent is open and this start's; if not, the log says once more how it ended."""
        committed = self.search(head)
        if committed is not None or self._held.is_owned():
            return committed
        committed = self.search(self._manifests.refresh_head(head))
        if committed is None:
            raise self._ended(head)
        return committed

    def _ended(self, head: Manifest) -> ConflictError:
        """How a start ended that does not own its intent: a discard is recorded where its job was begun, if the branch
        that it was to fork was not there yet."""
        begun = self._held.base
        source = None if begun.branch_id == head.branch_id else self._manifests.read_head(begun.branch_id)
        if source is None:
            return JobLost(self._held.txn_id)
        fate = find_job_record(self._manifests, begun, source, self._held.txn_id, self._held.token)
        return JobLost(self._held.txn_id) if fate.discarded is None else JobDiscarded(self._held.txn_id)


class HasCommitted(Exception):
    """A discard finds that the transaction was committed."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.entry = entry


class DiscardGuard:
    """Of the record of a discard: it is put once, and only while the transaction is not in the log."""

    def __init__(self, manifests: Manifests, since: Point, txn_id: TxnId, token: Token) -> None:
        self._log = LogSearch(manifests, since, txn_id, token)

    def search(self, head: Manifest) -> Entry | None:
        """The entry that recorded it already; raises `HasCommitted`."""
        fate = self._log.search_up_to(head)
        if fate.committed is not None:
            raise HasCommitted(fate.committed)
        return fate.discarded

    def check(self, head: Manifest) -> Entry | None:
        return self.search(head)
