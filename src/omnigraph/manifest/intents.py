"""Intents: what a long write leaves on the store, so that cleanup spares its files and it can be resumed (rule 19).

    held = intents.take(txn, txn_id, kind="load", actor=actor, details={…})   # begins, or adopts a dead one
    with intents.keeping(held):                                             # refreshed once a minute
        …stage…
        publisher.publish(txn, PublishPlan(txn_id, …, intent=txn_id, intent_base=held.base))
        held.finish()

An intent is no lock: two who believe that they hold it do no harm, because both publish under its transaction id and
look for that since its first base before every put. It says whose files are not garbage, and spares work done twice.

Every change is conditional on what was seen, so a process that was asleep can neither refresh nor remove what another
has taken over. There is no conditional removal on all stores: what ends is first marked as closed, and nobody ever
replaces a closed intent, so removing one late removes nobody's.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from omnigraph.errors import BadRequest, JobLost, JobRunning, NotFound, OmnigraphError, Unavailable
from omnigraph.manifest.intent import CLOSED, Intent, State, decode_intent, encode_intent
from omnigraph.manifest.keys import RECOVERY, intent_key, intent_txn, recovery_folder
from omnigraph.manifest.model import Point, TxnId
from omnigraph.manifest.owners import is_gone, this_process
from omnigraph.manifest.txn import WriteTxn
from omnigraph.runtime import Runtime
from omnigraph.storage.objects import ObjectStore, Outcome, Swap, Tag
from omnigraph.storage.parallel import gather

DEAD_AFTER = timedelta(minutes=15)
REFRESH_EVERY_S = 60.0
ATTEMPTS_MAX = 8
_CLOCK_KEY = f"{RECOVERY}/_clock"


@dataclass(frozen=True, slots=True)
class SeenIntent:
    """An intent as it was read: what a later change of it is conditional on."""

    intent: Intent
    tag: Tag
    modified: datetime
    age: timedelta  # since it was last refreshed, by the store's clock
    alive: bool

    @property
    def closed(self) -> bool:
        return self.intent.state in CLOSED

    @property
    def first_put(self) -> datetime:
        return self.intent.first_put or self.modified


class HeldIntent:
    """An intent that this process holds, until somebody else takes it: then every call here says so."""

    def __init__(self, store: ObjectStore, runtime: Runtime, intent: Intent, tag: Tag, *, adopted: bool) -> None:
        self.adopted = adopted  # it was another run's: what that staged can be used
        self._store = store
        self._runtime = runtime
        self._intent = intent
        self._tag = tag
        self._lost = False
        self._lock = threading.Lock()

    @property
    def intent(self) -> Intent:
        return self._intent

    @property
    def txn_id(self) -> TxnId:
        return self._intent.txn_id

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

    def refresh(self, details: Mapping[str, Any] | None = None) -> None:
        """Say that this process is at work, and perhaps what has been done."""
        with self._lock:
            self._change(state=State.WORKING, **({} if details is None else {"details": dict(details)}))

    def finish(self) -> bool:
        """Its commit is there, or there was nothing to do. False if another has it by now, who will find that too."""
        return self._close(State.FINISHED)

    def discard(self) -> bool:
        """It will not be gone on with, and what it staged is garbage."""
        return self._close(State.DISCARDED)

    def release(self) -> bool:
        """Leave it to whoever goes on with it, at once."""
        with self._lock:
            if self._lost or self._intent.state is not State.WORKING:
                return False
            with suppress(JobLost):
                self._change(state=State.RELEASED)
                return True
            return False

    def _close(self, state: State) -> bool:
        with self._lock:
            if self._lost:
                return False
            try:
                if self._intent.state not in CLOSED:
                    self._change(state=state)
            except JobLost:
                return False
            self._store.delete(intent_key(self.txn_id))
            return True

    def _change(self, **changes: Any) -> None:
        """One conditional replace; a lost answer, or a change by nobody else, is settled by reading."""
        self.check()
        for attempt in range(ATTEMPTS_MAX):
            wanted = replace(self._intent, refreshes=self._intent.refreshes + 1, **changes)
            data = encode_intent(wanted)
            swap = self._store.replace(intent_key(self.txn_id), data, self._tag)
            stored = self._store.get(intent_key(self.txn_id))  # a put tells no tag that all stores agree on
            found = None if stored is None else decode_intent(stored.data, self.txn_id)
            if stored is None or found is None or found.owner.token != self._intent.owner.token:
                self._lost = True
                raise JobLost(self.txn_id)
            self._intent, self._tag = found, stored.tag
            if swap is Swap.REPLACED or stored.data == data:
                return
            self._runtime.clock.sleep(self._runtime.jitter(0.05 * 2.0**attempt))
        raise Unavailable(f"the intent of {self.txn_id}", "no answer to its refresh arrived")


class Intents:
    def __init__(self, store: ObjectStore, runtime: Runtime, dead_after: timedelta = DEAD_AFTER) -> None:
        self._store = store
        self._runtime = runtime
        self._dead_after = dead_after

    def take(
        self,
        txn: WriteTxn,
        txn_id: TxnId,
        *,
        kind: str,
        actor: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> HeldIntent:
        """Begin a long write, or go on with the one of this id that nobody works on any more."""
        for _ in range(ATTEMPTS_MAX):
            with suppress(NotFound):
                held = self.adopt(txn_id)
                if held.base.branch_id == txn.base.branch_id:
                    return held
                held.release()
                raise BadRequest(
                    f"The job {txn_id} was begun on the branch {held.intent.branch!r}: go on with it there, or take "
                    "another job id."
                )
            with suppress(JobRunning):  # by one who began it a moment ago; adopting it tells by whom
                return self.begin(txn_id, txn.branch, txn.base.point, kind, actor, details)
        return self.adopt(txn_id)

    def begin(
        self,
        txn_id: TxnId,
        branch: str,
        base: Point,
        kind: str,
        actor: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> HeldIntent:
        """Put a new intent. Nothing may be staged before this has returned: only what is newer is spared."""
        owner = this_process(self._runtime.ids.short_id())
        intent = Intent(txn_id, branch, base, kind, actor, owner, details=dict(details or {}))
        key, data = intent_key(txn_id), encode_intent(intent)
        for attempt in range(ATTEMPTS_MAX):
            answer = self._store.create(key, data)
            stored = self._store.get(key)
            if stored is not None:
                found = decode_intent(stored.data, txn_id)
                if found.owner.token == owner.token:
                    held = HeldIntent(self._store, self._runtime, found, stored.tag, adopted=False)
                    held.record_first_put(stored.modified)
                    return held
                if found.state not in CLOSED:
                    seen = self.read(txn_id)
                    raise _running(seen) if seen else JobRunning(txn_id, found.owner.host, found.owner.pid, 0.0)
                self._store.delete(key)  # its owner ended it and was killed before this
            if answer.outcome is Outcome.UNKNOWN or stored is None:
                self._runtime.clock.sleep(self._runtime.jitter(0.05 * 2.0**attempt))
        raise Unavailable(f"the intent of {txn_id}", answer.reason or "it could not be put")

    def adopt(self, txn_id: TxnId) -> HeldIntent:
        """Take over an intent whose owner is dead: released, not refreshed for long, or gone on this machine."""
        for attempt in range(ATTEMPTS_MAX):
            seen = self.read(txn_id)
            if seen is None or seen.closed:
                raise NotFound(f"There is no unfinished job {txn_id}: it has ended, or never began.")
            if seen.alive:
                raise _running(seen)
            token = self._runtime.ids.short_id()
            mine = replace(
                seen.intent,
                owner=this_process(token),
                state=State.WORKING,
                first_put=seen.first_put,
                refreshes=seen.intent.refreshes + 1,
            )
            self._store.replace(intent_key(txn_id), encode_intent(mine), seen.tag)
            stored = self._store.get(intent_key(txn_id))
            found = None if stored is None else decode_intent(stored.data, txn_id)
            if stored is not None and found is not None and found.owner.token == token:
                return HeldIntent(self._store, self._runtime, found, stored.tag, adopted=True)
            self._runtime.clock.sleep(self._runtime.jitter(0.05 * 2.0**attempt))
        raise Unavailable(f"the intent of {txn_id}", "it could not be taken over")

    def read(self, txn_id: TxnId) -> SeenIntent | None:
        stored = self._store.get(intent_key(txn_id))
        if stored is None:
            return None
        # The time is asked for after the intent was read: one that is refreshed in between changes its tag.
        return self._seen(decode_intent(stored.data, txn_id), stored.tag, stored.modified, self.store_now())

    def list(self) -> list[SeenIntent]:
        """All intents, closed ones included, oldest transaction id first."""
        found = sorted(filter(None, (intent_txn(listed.key) for listed in self._store.list(RECOVERY))))
        documents = gather([lambda txn_id=txn_id: self._store.get(intent_key(txn_id)) for txn_id in found])  # type: ignore[misc]
        if not found:
            return []
        now = self.store_now()
        return [
            self._seen(decode_intent(stored.data, txn_id), stored.tag, stored.modified, now)
            for txn_id, stored in zip(found, documents, strict=True)
            if stored is not None
        ]

    def is_abandoned(self, seen: SeenIntent) -> bool:
        """Whether nobody will go on with it by himself: not heard of for long, or of a process that is gone.

        One that was released may be taken up again any moment, by the process that let go of it.
        """
        return not seen.alive and (seen.age >= self._dead_after or is_gone(seen.intent.owner))

    def discard(self, seen: SeenIntent) -> bool:
        """End another's intent exactly as it was seen; False if it has changed since."""
        closed = self.close(seen, State.DISCARDED)
        if closed is not None:
            self.remove(closed)
        return closed is not None

    def close(self, seen: SeenIntent, state: State, details: Mapping[str, Any] | None = None) -> SeenIntent | None:
        """Mark another's intent as ended, exactly as it was seen; None if it has changed since. `remove` comes last."""
        if seen.closed:
            return seen
        known = seen.intent
        closed = replace(
            known, state=state, refreshes=known.refreshes + 1, details={**known.details, **(details or {})}
        )
        key, data = intent_key(known.txn_id), encode_intent(closed)
        if self._store.replace(key, data, seen.tag) is not Swap.REPLACED:
            stored = self._store.get(key)
            if stored is None or stored.data != data:
                return None
        return replace(seen, intent=closed)

    def remove(self, closed: SeenIntent) -> None:
        """Take a closed intent away, and what its job kept to be resumed by. Fragments are left to cleanup."""
        assert closed.closed
        txn_id = closed.intent.txn_id
        self.forget(txn_id)
        stored = self._store.get(intent_key(txn_id))
        if stored is not None and decode_intent(stored.data, txn_id).state in CLOSED:  # no new run under the same id
            self._store.delete(intent_key(txn_id))

    def forget(self, txn_id: TxnId) -> None:
        """Remove what a job kept to be resumed by."""
        keys = [listed.key for listed in self._store.list(recovery_folder(txn_id))]
        gather([lambda key=key: self._store.delete(key) for key in keys])  # type: ignore[misc]

    @contextmanager
    def keeping(
        self,
        held: HeldIntent,
        on_lost: Callable[[], None] | None = None,
        every_s: float = REFRESH_EVERY_S,
    ) -> Iterator[HeldIntent]:
        """Refresh in the background; `on_lost` is called (in that thread) if another takes the intent.

        Whoever leaves with an error leaves the intent too: it can be gone on with at once.
        """
        over = threading.Event()
        keeper = threading.Thread(target=_keep, args=(held, over, on_lost, every_s), name="intent keeper", daemon=True)
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

    def _seen(self, intent: Intent, tag: Tag, modified: datetime, now: datetime) -> SeenIntent:
        age = max(now - modified, timedelta())
        alive = intent.state is State.WORKING and age < self._dead_after and not is_gone(intent.owner)
        return SeenIntent(intent, tag, modified, age, alive)

    def store_now(self) -> datetime:
        """The store's clock, by its own answer; of a store that may only be read, this machine's must do."""
        if not self._store.read_only:
            self._store.put(_CLOCK_KEY, b"", durable=False)
            listed = self._store.head(_CLOCK_KEY)
            if listed is not None:
                return listed.modified
        return self._runtime.clock.now()


def _keep(held: HeldIntent, over: threading.Event, on_lost: Callable[[], None] | None, every_s: float) -> None:
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


def _running(seen: SeenIntent) -> JobRunning:
    owner = seen.intent.owner
    return JobRunning(seen.intent.txn_id, owner.host, owner.pid, seen.age.total_seconds())
