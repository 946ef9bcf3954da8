"""Whether this process's clock is far ahead of the store's: then it must not stamp commits.

`authored_at` never falls, so one commit from the future stamps all later ones on its branch, and finding a state by its
time is of no use until that time has come. An object that this process has just put shows the store's time: its
`modified` lies between the moments before and after the put. The clocks are compared in the background while the first
write of a process is planned, and then once an hour with a manifest that was just put. Only the first put waits for the
result, if it is not there by then.

A local disk has this machine's own clock, so there is nothing to compare.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from omnigraph.errors import ClockAhead, OmnigraphError
from omnigraph.fork_safety import renew_after_fork
from omnigraph.manifest.model.paths import RECOVERY
from omnigraph.runtime import Runtime
from omnigraph.storage.objects.object_store import ObjectStore

EVERY_S = 3600.0
AGAIN_EVERY_S = 60.0  # while writes are refused: somebody may have set the clock
PROBE_KEY = f"{RECOVERY}/_clock"
_log = logging.getLogger("omnigraph.clock")


def make_clock_check(store: ObjectStore, runtime: Runtime, ahead_max_s: int) -> "ClockCheck | None":
    """None where there is nothing to compare: on a local disk, without a limit, or without the right to write."""
    if not ahead_max_s or store.location.is_local or store.read_only:
        return None
    return ClockCheck(store, runtime, ahead_max_s)


class ClockCheck:
    """Compares the clocks every hour, and refuses writes for as long as this process's is too far ahead."""

    def __init__(self, store: ObjectStore, runtime: Runtime, ahead_max_s: int) -> None:
        self._store = store
        self._runtime = runtime
        self._ahead_max = timedelta(seconds=ahead_max_s)
        self._next_s = float("-inf")  # when the clocks are to be compared again
        self._ahead: timedelta | None = None  # as last found, if that is too much
        self._begun = False
        self._awaited = False  # the first comparison was waited for
        renew_after_fork(self, ClockCheck._renew)

    def _renew(self) -> None:
        self._comparing: threading.Thread | None = None

    def begin(self) -> None:
        """Compare the clocks if that was not done yet; the first put waits for the answer."""
        if not self._begun:
            self._begun = self._start(self._probe_quietly)

    def before_put(self) -> datetime | None:
        """The time now, if the put that follows is to be compared with it; raises if no put may follow."""
        if not self._awaited:
            self.begin()
            self.wait()
            self._awaited = True
        now_s = self._runtime.clock.monotonic()
        if self._ahead is not None:
            if now_s >= self._next_s:
                self._probe(now_s)
            if self._ahead is not None:
                raise ClockAhead(int(self._ahead.total_seconds()), int(self._ahead_max.total_seconds()))
            return None
        return None if now_s < self._next_s else self._runtime.clock.now()

    def after_put(self, key: str, began: datetime) -> None:
        """Compare in the background with the object that this process has put under `key` after `began`."""
        self._next_s = self._runtime.clock.monotonic() + EVERY_S
        if not self._start(partial(self._compare, key, began)):
            self._next_s = float("-inf")  # the next put is compared

    def _start(self, compare: Callable[[], None]) -> bool:
        comparing = threading.Thread(target=compare, name="omnigraph-clock", daemon=True)
        try:
            comparing.start()
        except RuntimeError:  # no thread can be started
            return False
        self._comparing = comparing
        return True

    def wait(self) -> None:
        """Wait for a comparison that is under way."""
        if self._comparing is not None:
            self._comparing.join()

    def _compare(self, key: str, began: datetime) -> None:
        try:
            put = self._store.head(key)
        except OmnigraphError:
            self._next_s = float("-inf")
            return
        if put is not None:
            self._set_ahead(began - put.modified)

    def _probe_quietly(self) -> None:
        """Compare, and ignore errors: a process that may not write there gets the error from the write itself."""
        with suppress(OmnigraphError):
            self._probe(self._runtime.clock.monotonic())
            self._next_s = self._runtime.clock.monotonic() + (EVERY_S if self._ahead is None else AGAIN_EVERY_S)

    def _probe(self, now_s: float) -> None:
        """Put an object only to see its time: nothing else was put yet, or writes are refused."""
        self._next_s = now_s + AGAIN_EVERY_S
        began = self._runtime.clock.now()
        self._store.put(PROBE_KEY, b"", durable=False)
        put = self._store.head(PROBE_KEY)
        if put is not None:
            self._set_ahead(began - put.modified)

    def _set_ahead(self, ahead: timedelta) -> None:
        was, self._ahead = self._ahead, ahead if ahead > self._ahead_max else None
        if self._ahead is not None and was is None:
            self._next_s = self._runtime.clock.monotonic() + AGAIN_EVERY_S
            _log.warning("This machine's clock is %s ahead of the store's: writes are refused.", ahead)
