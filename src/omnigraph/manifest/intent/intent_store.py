"""Intents: what a long write leaves on the store, so that cleanup spares its files and it can be resumed.

    held = intents.acquire(txn, txn_id, kind="load", actor=actor, details={…}, tables=…)  # a new one, or a dead one's
    with intents.keep_refreshed(held):                                                 # refreshed once a minute
        …stage…
        guard = JobGuard(manifests, held, held.base)
        publisher.publish(txn, PublishPlan(txn_id, …, intent=held.intent.tokens[0], guard=guard))
        held.finish()

An intent is not a lock: two processes that believe they own it do no harm, because every put is preceded by a search of
the log and a read of the intent (`guard.py`). It names the files that are not garbage, and saves work done twice.

Its object is changed by compare-and-swap only: nothing → open → (closed →) ended → open … An ended intent stays, for a
new start to replace or for cleanup to delete when it is old: not every store has a conditional delete, and a late one
could hit the next start's intent. Only the intent of an id that can't be used again is deleted at once.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from omnigraph.errors import (
    AlreadyExists,
    BadRequest,
    DiscardUnsettled,
    JobDiscarded,
    JobEnding,
    JobLost,
    JobRunning,
    NotFound,
    OmnigraphError,
    Unavailable,
)
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.intent.intent import CLOSED, Intent, State, StoredIntent, decode_intent, encode_intent
from omnigraph.manifest.intent.process_liveness import is_gone, this_process
from omnigraph.manifest.model.manifest import Point, Token, TxnId
from omnigraph.manifest.model.paths import RECOVERY, intent_key, intent_txn, recovery_folder
from omnigraph.runtime import Runtime
from omnigraph.storage.objects.object_store import ETag, ObjectStore, ReplaceOutcome, StoredObject
from omnigraph.threads import gather

DEAD_AFTER = timedelta(minutes=15)
REFRESH_EVERY_S = 60.0
ATTEMPTS_MAX = 8
_CLOCK_KEY = f"{RECOVERY}/_clock"
_ENDED: Mapping[str, Any] = {"state": State.FINISHED, "details": {}, "tables": frozenset()}


class OwnedIntent:
    """An intent that this start owns, until another takes it over or discards it: then every call here says so."""

    def __init__(
        self, store: ObjectStore, runtime: Runtime, intent: Intent, tag: ETag | None, *, adopted: bool
    ) -> None:
        """Without a tag it is lost already."""
        self.resumed = adopted  # it was begun before: what was staged then can be used
        self._store = store
        self._runtime = runtime
        self._intent = intent
        self._tag = tag
        self._lost = tag is None
        self._lock = threading.Lock()

    @property
    def intent(self) -> Intent:
        return self._intent

    @property
    def txn_id(self) -> TxnId:
        return self._intent.txn_id

    @property
    def token(self) -> Token:
        return self._intent.token

    @property
    def base(self) -> Point:
        return self._intent.base

    @property
    def first_put(self) -> datetime:
        assert self._intent.first_put is not None
        return self._intent.first_put

    @property
    def lost(self) -> bool:
        return self._lost

    def check(self) -> None:
        """Raise if it was lost: to be asked between the steps of a long write, it costs nothing."""
        if self._lost:
            raise JobLost(self.txn_id)

    def record_first_put(self, moment: datetime) -> None:
        """The store's own answer to when the intent appeared: what is newer in the store may be its work."""
        with self._lock:
            self._change(first_put=moment)

    def is_owned(self) -> bool:
        """Whether the store's object is open and carries this start's token: one read, before every put."""
        stored = self._store.get(intent_key(self.txn_id))
        found = None if stored is None else decode_intent(stored.data, self.txn_id)
        if found is None or found.state in CLOSED or found.token != self.token:
            self._lost = True
        return not self._lost

    def refresh(
        self, details: Mapping[str, Any] | None = None, *, tables: Set[str] = frozenset(), prefix: str | None = None
    ) -> None:
        """Show that this process is at work, and optionally its progress; `tables` are added to those named before."""
        changes: dict[str, Any] = {"state": State.WORKING}
        if details is not None:
            changes["details"] = dict(details)
        if prefix is not None:
            changes["prefix"] = prefix
        with self._lock:
            if self._intent.state in CLOSED and not self._lost:
                return  # its owner has ended it while the refresh waited: nothing reopens an intent
            named = self._intent.tables
            self._change(**changes, tables=None if named is None else named | tables)

    def claim(self) -> None:
        """This process goes on with the start, and says so."""
        with self._lock:
            self._change(owner=this_process(self.token), state=State.WORKING)

    def add_tables(self, tables: Set[str]) -> None:
        """Before anything is written there; costs nothing where they are named already."""
        named = self._intent.tables
        if named is not None and not tables <= named:
            self.refresh(tables=tables)

    def finish(self) -> bool:
        """Its commit is there, or there was nothing to do. False if another start owns it, which will find that too."""
        return self._end()

    def discard(self) -> bool:
        """Its owner gives it up: none of its puts is under way, and what it staged is garbage."""
        return self._end()

    def release(self) -> bool:
        """Release it: the next start may take it over at once."""
        with self._lock:
            if self._lost or self._intent.state is not State.WORKING:
                return False
            with suppress(JobLost):
                self._change(state=State.RELEASED)
                return True
            return False

    def _end(self) -> bool:
        with self._lock:
            if self._lost:
                return False
            try:
                if self._intent.state is not State.FINISHED:
                    self._change(**_ENDED)
            except JobLost:
                return False
            if not self._intent.named:
                self._store.delete(intent_key(self.txn_id))
            return True

    def _change(self, **changes: Any) -> None:
        """One conditional replace; a lost answer, or a change by nobody else, is settled by reading."""
        self.check()
        assert self._tag is not None
        for attempt in range(ATTEMPTS_MAX):
            wanted = replace(self._intent, refreshes=self._intent.refreshes + 1, **changes)
            data = encode_intent(wanted)
            swap = self._store.replace(intent_key(self.txn_id), data, self._tag)
            stored = self._store.get(intent_key(self.txn_id))  # a put tells no tag that all stores agree on
            found = None if stored is None else decode_intent(stored.data, self.txn_id)
            if stored is None or found is None or found.token != self.token:
                self._lost = True
                raise JobLost(self.txn_id)
            if found.state in CLOSED and stored.data != data:  # it still carries this token, and is never reopened
                self._lost = True
                raise JobLost(self.txn_id)
            self._intent, self._tag = found, stored.etag
            if swap is ReplaceOutcome.REPLACED or stored.data == data:
                return
            self._runtime.clock.sleep(self._runtime.jitter(0.05 * 2.0**attempt))
        raise Unavailable(f"the intent of {self.txn_id}", "no answer to its refresh arrived")


class Intents:
    visible_branch: Callable[[str], bool] | None = None  # None where everything may be seen

    def __init__(self, store: ObjectStore, runtime: Runtime, dead_after: timedelta = DEAD_AFTER) -> None:
        self._store = store
        self._runtime = runtime
        self._dead_after = dead_after

    def acquire(
        self,
        txn: WriteTxn,
        txn_id: TxnId,
        *,
        kind: str,
        actor: str | None = None,
        details: Mapping[str, Any] | None = None,
        tables: Set[str] = frozenset(),
        named: bool = True,
    ) -> OwnedIntent:
        """Begin a long write, or take over the one of this id that no process works on any more, for the same branch.

        That is the branch of `txn`, or the one that `details` name as the target, to be forked from there.
        """
        target = str((details or {}).get("target") or txn.branch)
        if named:
            self._require_own(txn_id)
        for _ in range(ATTEMPTS_MAX):
            with suppress(NotFound):
                if named:
                    return self._take_over_for(txn_id, txn, target)
            with suppress(JobRunning):  # another start began it a moment ago; taking that over names its process
                return self.create(txn_id, txn.branch, txn.base.point, kind, actor, details, tables=tables, named=named)
        return self._take_over_for(txn_id, txn, target)

    def _require_own(self, txn_id: TxnId) -> None:
        """Tell somebody who may not see all branches of no job on another, and take none over."""
        seen = self.read(txn_id) if self.visible_branch is not None else None
        if seen is not None and not seen.ended and self.visible_branch and not self.visible_branch(seen.intent.target):
            raise AlreadyExists(f"A job {txn_id!r}", "take another id")

    def _take_over_for(self, txn_id: TxnId, txn: WriteTxn, target: str) -> OwnedIntent:
        held = self.take_over(txn_id)
        if held.intent.is_for(target, txn.base.branch_id):
            return held
        held.release()
        if held.intent.target == target:
            raise BadRequest(
                f"The job {txn_id} was begun on a branch {target!r} that was deleted since: discard it first "
                f"(`recover --discard {txn_id}`), or take another job id."
            )
        raise BadRequest(
            f"The job {txn_id} was begun on the branch {held.intent.target!r}: go on with it there, discard it first "
            f"(`recover --discard {txn_id}`), or take another job id."
        )

    def resume(self, begun: Intent) -> OwnedIntent:
        """The intent of a start that goes on here, perhaps in another process than it began in, under its own token.

        If another start has taken it over, or it was ended, it is lost already: the log tells what became of it.
        """
        stored = self._store.get(intent_key(begun.txn_id))
        found = None if stored is None else decode_intent(stored.data, begun.txn_id)
        if stored is None or found is None or found.state in CLOSED or found.token != begun.token:
            return OwnedIntent(self._store, self._runtime, begun, None, adopted=True)
        held = OwnedIntent(self._store, self._runtime, found, stored.etag, adopted=True)
        with suppress(JobLost):
            held.claim()
        return held

    def create(
        self,
        txn_id: TxnId,
        branch: str,
        base: Point,
        kind: str,
        actor: str | None = None,
        details: Mapping[str, Any] | None = None,
        *,
        tables: Set[str] = frozenset(),
        named: bool = True,
    ) -> OwnedIntent:
        """Put a new intent. Nothing may be staged before this has returned, and nothing in tables that it leaves out.

        An ended intent of the same id is replaced, on the condition that it is unchanged: of two starts one does it.
        """
        owner = this_process(self._runtime.ids.short_id())
        intent = Intent(
            txn_id, branch, base, kind, actor, owner, details=dict(details or {}), tables=frozenset(tables), named=named
        )
        key, data = intent_key(txn_id), encode_intent(intent)
        ended: StoredObject | None = None
        for attempt in range(ATTEMPTS_MAX):
            if ended is None:
                self._store.create(key, data)
            else:
                self._store.replace(key, data, ended.etag)
            stored, ended = self._store.get(key), None
            if stored is not None:
                found = decode_intent(stored.data, txn_id)
                if found.token == owner.token and found.state in CLOSED:
                    raise JobDiscarded(txn_id)  # this start was held up, and given up before it had staged anything
                if found.token == owner.token:
                    held = OwnedIntent(self._store, self._runtime, found, stored.etag, adopted=False)
                    held.record_first_put(stored.modified)
                    return held
                if found.state is State.DISCARDED:
                    raise JobEnding(txn_id)
                if found.state is not State.FINISHED:
                    seen = self.read(txn_id)
                    raise _job_running(seen) if seen else JobRunning(txn_id, found.owner.host, found.owner.pid, 0.0)
                ended = stored
            if ended is None or attempt:
                self._runtime.clock.sleep(self._runtime.jitter(0.05 * 2.0**attempt))
        raise Unavailable(f"the intent of {txn_id}", "it could not be put")

    def take_over(self, txn_id: TxnId) -> OwnedIntent:
        """Take over an intent whose owner is dead: released, not refreshed for long, or gone on this machine."""
        for attempt in range(ATTEMPTS_MAX):
            seen = self.read(txn_id)
            if seen is None or seen.ended:
                raise NotFound(f"There is no unfinished job {txn_id}: it has ended, or never began.")
            if seen.closed:
                raise JobEnding(txn_id)
            if seen.alive:
                raise _job_running(seen)
            token = self._runtime.ids.short_id()
            mine = replace(
                seen.intent,
                owner=this_process(token),
                tokens=(*seen.intent.tokens, token),
                state=State.WORKING,
                first_put=seen.first_put,
                refreshes=seen.intent.refreshes + 1,
            )
            self._store.replace(intent_key(txn_id), encode_intent(mine), seen.tag)
            stored = self._store.get(intent_key(txn_id))
            found = None if stored is None else decode_intent(stored.data, txn_id)
            if stored is not None and found is not None and found.token == token and found.state not in CLOSED:
                return OwnedIntent(self._store, self._runtime, found, stored.etag, adopted=True)
            self._runtime.clock.sleep(self._runtime.jitter(0.05 * 2.0**attempt))
        raise Unavailable(f"the intent of {txn_id}", "it could not be taken over")

    def read(self, txn_id: TxnId) -> StoredIntent | None:
        stored = self._store.get(intent_key(txn_id))
        if stored is None:
            return None
        # The time is asked for after the intent was read: one that is refreshed in between changes its tag.
        return self._to_stored(decode_intent(stored.data, txn_id), stored.etag, stored.modified, self.store_now())

    def list(self) -> list[StoredIntent]:
        """All intents, closed ones included, oldest transaction id first."""
        found = sorted(filter(None, (intent_txn(listed.key) for listed in self._store.list(RECOVERY))))
        documents = gather([lambda txn_id=txn_id: self._store.get(intent_key(txn_id)) for txn_id in found])  # type: ignore[misc]
        if not found:
            return []
        now = self.store_now()
        return [
            self._to_stored(decode_intent(stored.data, txn_id), stored.etag, stored.modified, now)
            for txn_id, stored in zip(found, documents, strict=True)
            if stored is not None
        ]

    def is_abandoned(self, seen: StoredIntent) -> bool:
        """Whether no process will continue it by itself: it was not refreshed for long, or its process is gone.

        One that was released may be taken up again any moment, by the process that released it.
        """
        return not seen.alive and (seen.age >= self._dead_after or is_gone(seen.intent.owner))

    def close(self, seen: StoredIntent) -> StoredIntent | None:
        """The first step of a discard: it can't be resumed from now on. None if it has changed since it was seen.

        An answer that was lost is settled by reading, and by the same put again where nothing has changed. The discard
        is then recorded in the branch, and `remove` comes last (`gc/recovery.py`).
        """
        if seen.closed:
            return seen
        known = seen.intent
        closed = replace(known, state=State.DISCARDED, refreshes=known.refreshes + 1)
        key, data = intent_key(known.txn_id), encode_intent(closed)
        for attempt in range(ATTEMPTS_MAX):
            swap = self._store.replace(key, data, seen.tag)
            stored = self._store.get(key)
            if stored is not None and stored.data == data:
                return replace(seen, intent=closed, tag=stored.etag)
            if swap is ReplaceOutcome.REPLACED:  # and ended by another that helped; `remove` will find that
                return replace(seen, intent=closed)
            if stored is None:
                return None
            if stored.etag != seen.tag:
                found = decode_intent(stored.data, known.txn_id)
                if found.state is not State.DISCARDED or found.tokens != known.tokens:
                    return None
                return replace(seen, intent=found, tag=stored.etag)  # another discards it too
            # It is as it was seen, and may yet be closed by a put that is late: only the same put tells.
            self._runtime.clock.sleep(self._runtime.jitter(0.05 * 2.0**attempt))
        raise DiscardUnsettled(known.txn_id)

    def remove(self, seen: StoredIntent) -> bool:
        """End an intent exactly as it was seen, then what its job kept to be resumed by; False if it has changed.

        Tables are left to cleanup, and so is all that a process leaves that is killed in here.
        """
        intent = seen.intent
        if not seen.ended:
            ended = replace(intent, refreshes=intent.refreshes + 1, **_ENDED)
            if (
                self._store.replace(intent_key(intent.txn_id), encode_intent(ended), seen.tag)
                is not ReplaceOutcome.REPLACED
            ):
                return False
        self.delete_job_objects(intent)
        if not intent.named:
            self._store.delete(intent_key(intent.txn_id))
        return True

    def delete_ended(self, seen: StoredIntent) -> None:
        """Delete the object of an ended intent, unless it has changed since it was read: a new start may have it.

        Not all stores can delete on a condition: what such a start puts in between is lost, and stops it at its put.
        """
        key = intent_key(seen.intent.txn_id)
        stored = self._store.get(key)
        if stored is not None and stored.etag == seen.tag:
            self._store.delete(key)

    def delete_job_objects(self, intent: Intent) -> None:
        """Remove what a job kept to be resumed by. Its prefix is its own: no other start of the job id uses it."""
        if intent.prefix == recovery_folder(intent.txn_id):
            return  # of format 1, which all starts of a job shared: cleanup removes what no open intent names
        keys = [listed.key for listed in self._store.list(intent.prefix)]
        gather([lambda key=key: self._store.delete(key) for key in keys])  # type: ignore[misc]

    @contextmanager
    def keep_refreshed(
        self,
        held: OwnedIntent,
        on_lost: Callable[[], None] | None = None,
        every_s: float = REFRESH_EVERY_S,
    ) -> Iterator[OwnedIntent]:
        """Refresh in a thread, which calls `on_lost` if another start takes the intent; release on an error."""
        over = threading.Event()
        keeper = threading.Thread(
            target=_refresh_periodically, args=(held, over, on_lost, every_s), name="intent keeper", daemon=True
        )
        keeper.start()
        try:
            yield held
        except BaseException:
            _stop(keeper, over)
            with suppress(OmnigraphError):
                held.release()
            raise
        finally:
            _stop(keeper, over)

    def _to_stored(self, intent: Intent, tag: ETag, modified: datetime, now: datetime) -> StoredIntent:
        age = max(now - modified, timedelta())
        alive = intent.state is State.WORKING and age < self._dead_after and not is_gone(intent.owner)
        return StoredIntent(intent, tag, modified, age, alive)

    def store_now(self) -> datetime:
        """The store's clock, by its own answer; of a store that may only be read, this machine's must do."""
        if not self._store.read_only:
            self._store.put(_CLOCK_KEY, b"", durable=False)
            listed = self._store.head(_CLOCK_KEY)
            if listed is not None:
                return listed.modified
        return self._runtime.clock.now()


def _refresh_periodically(
    held: OwnedIntent, over: threading.Event, on_lost: Callable[[], None] | None, every_s: float
) -> None:
    while not over.wait(every_s):
        if held.intent.state is not State.WORKING:
            return
        try:
            held.refresh()
        except JobLost:
            if on_lost is not None:
                on_lost()
            return
        except OmnigraphError:
            continue  # the store may serve the next one; if it does not, the others see an intent that ages


def _stop(keeper: threading.Thread, over: threading.Event) -> None:
    over.set()
    if keeper is not threading.current_thread():
        keeper.join()


def _job_running(seen: StoredIntent) -> JobRunning:
    owner = seen.intent.owner
    return JobRunning(seen.intent.txn_id, owner.host, owner.pid, seen.age.total_seconds())
