"""Faults of the simulated store, of processes and of clocks, and where in a run they strike.

A fault strikes at a place: the n-th scheduling point of an operation of a thread. The seeded source derives its
decision from the place alone, so that leaving out one operation or one fault does not move the others; the listed
source has exactly the faults that it is given, which is how a schedule is replayed and shrunk.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

Place: TypeAlias = tuple[str, int, int]  # thread, its operation, the operation's scheduling point

MINUTE = 60.0
HOUR = 3600.0
OUTAGE_SECONDS = (2.0, 10.0, 30.0, 70.0, 130.0)  # a request is repeated for some seconds, a commit for a minute
LATER_THAN_ALL = 0.2  # share of late effects that come when their client has long done other things


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` is one of KINDS; `steps` is how many scheduling decisions it lasts, `seconds` how far clocks move, or how
    long an outage lasts.
    """

    kind: str
    steps: int = 0
    seconds: float = 0.0


# Of requests.
FAIL = "fail"  # no effect, and an error
LOSE = "lose"  # the effect, and an error
LATE = "late"  # an error, and the effect some time later
DUPLICATE = "duplicate"  # the effect, and the same effect again some time later
OWN_EXISTS = "own-exists"  # a create answers "exists" because the client's own put created the object
OUTAGE = "outage"  # no effect, and for some time every request of the process fails
CUT_OFF = "cut-off"  # the effect, but the answer is lost, and from then on it is the same
NO_LISTINGS = "no-listings"  # for some time every listing of the process fails
CRASH_BEFORE = "crash-before"
CRASH_AFTER = "crash-after"
# Of threads, processes and clocks.
PAUSE = "pause"  # this thread is not scheduled for some steps
STOP = "stop"  # all threads of the process are stopped for some steps, and meanwhile time passes
STALL = "stall"  # a stop just before a commit, longer than an intent lives and shorter than a load is patient
DELAY = "delay"  # a pause just before a commit
ELAPSE = "elapse"  # time passes for everybody
CLOCK = "clock"  # the process's clock jumps
STORE_CLOCK = "store-clock"  # the store's clock jumps, and with it the disk's
STEP_BACK = "step-back"  # the store's clock, by an hour

REQUEST_KINDS = (FAIL, LOSE, LATE, DUPLICATE, OWN_EXISTS, OUTAGE, CUT_OFF, NO_LISTINGS, CRASH_BEFORE, CRASH_AFTER)
TIME_KINDS = (PAUSE, STOP, STALL, DELAY, ELAPSE, CLOCK, STORE_CLOCK, STEP_BACK)
KINDS = REQUEST_KINDS + TIME_KINDS
WRITES = frozenset({"create", "put", "replace", "delete"})


@dataclass(frozen=True, slots=True)
class Rates:
    """How often each kind of fault strikes, as a share of the scheduling points that it can strike at."""

    fail: float = 0.0
    lose: float = 0.0
    late: float = 0.0
    duplicate: float = 0.0
    own_exists: float = 0.0
    crash: float = 0.0
    outage: float = 0.0
    pause: float = 0.0
    stop: float = 0.0
    elapse: float = 0.0
    clock: float = 0.0
    store_clock: float = 0.0
    steps: int = 60  # the mean length of pauses and stops, and of how late an effect is
    commits: float = 4.0  # how much likelier pauses, stops, crashes and outages are at the put of a manifest
    crashes: Mapping[str, float] = field(default_factory=dict)  # kind of operation → share of its commits that crash
    stalls: Mapping[str, float] = field(default_factory=dict)  # kind of operation → share of its commits that stall
    delays: Mapping[str, float] = field(default_factory=dict)  # the same, for a pause
    steps_back: Mapping[str, float] = field(default_factory=dict)  # kind of operation → share of its requests at
    # which the store's clock steps back an hour
    long_delays: int = 1  # how much longer than other pauses those are
    late_deletes: bool = False  # late and duplicate deletions too


class FaultSource(Protocol):
    def request_fault(self, place: Place, verb: str, key: str, work: str) -> Fault | None:
        """What befalls the request that this thread is about to send; `work` is the kind of operation it is at."""

    def time_fault(self, place: Place, verb: str, key: str, work: str) -> Fault | None:
        """What happens to threads and clocks before that."""


class NoFaults:
    def request_fault(self, place: Place, verb: str, key: str, work: str) -> Fault | None:
        return None

    def time_fault(self, place: Place, verb: str, key: str, work: str) -> Fault | None:
        return None


@dataclass
class SeededFaults:
    """Faults by chance; what struck is kept in `struck`, for `ListedFaults`."""

    seed: str
    rates: Rates
    struck: dict[tuple[Place, str], Fault] = field(default_factory=dict)

    def request_fault(self, place: Place, verb: str, key: str, work: str) -> Fault | None:
        return self._drawn(place, "request", self._request_table(verb, key, work))

    def time_fault(self, place: Place, verb: str, key: str, work: str) -> Fault | None:
        rates = self.rates
        commits = _is_commit(verb, key)
        much = rates.commits if commits else 1.0
        table = (
            (STALL, rates.stalls.get(work, 0.0) if commits else 0.0),
            (DELAY, rates.delays.get(work, 0.0) if commits else 0.0),
            (PAUSE, rates.pause * much),
            (STOP, rates.stop * much),
            (ELAPSE, rates.elapse),
            (CLOCK, rates.clock),
            (STORE_CLOCK, rates.store_clock),
            (STEP_BACK, rates.steps_back.get(work, 0.0) if verb else 0.0),
        )
        return self._drawn(place, "time", table)

    def _request_table(self, verb: str, key: str, work: str) -> tuple[tuple[str, float], ...]:
        rates = self.rates
        commits = _is_commit(verb, key)
        much = rates.commits if commits else 1.0
        crash = rates.crash * much / 2
        crash_before = crash + (rates.crashes.get(work, 0.0) if commits else 0.0)
        table: tuple[tuple[str, float], ...]
        table = ((FAIL, rates.fail), (LOSE, rates.lose), (CRASH_BEFORE, crash_before), (CRASH_AFTER, crash))
        table += ((OUTAGE, rates.outage * much / 2), (CUT_OFF, rates.outage * much / 2))
        if verb == "list":
            table += ((NO_LISTINGS, rates.outage * 4),)
        if verb == "create":
            table += ((OWN_EXISTS, rates.own_exists),)
        if verb in WRITES and (verb != "delete" or rates.late_deletes):
            table += ((LATE, rates.late), (DUPLICATE, rates.duplicate))
        return table

    def _drawn(self, place: Place, what: str, table: tuple[tuple[str, float], ...]) -> Fault | None:
        drawn = _uniform(f"{self.seed} {place} {what}")
        for kind, rate in table:
            if drawn < rate:
                fault = self._made(kind, random.Random(f"{self.seed} {place} {what}"))
                self.struck[place, what] = fault
                return fault
            drawn -= rate
        return None

    def _made(self, kind: str, dice: random.Random) -> Fault:
        steps = 1 + int(dice.expovariate(1.0 / self.rates.steps))
        if kind in (LATE, DUPLICATE) and dice.random() < LATER_THAN_ALL:
            return Fault(kind, 20 * steps)
        if kind in (OUTAGE, CUT_OFF, NO_LISTINGS):
            return Fault(kind, 0, dice.choice(OUTAGE_SECONDS))
        if kind in (PAUSE, DELAY, LATE, DUPLICATE):
            return Fault(kind, steps) if kind != DELAY else Fault(PAUSE, steps * self.rates.long_delays)
        if kind == STALL:
            return Fault(STOP, 2 * steps, dice.choice((16 * MINUTE, 20 * MINUTE)))
        if kind == STOP:
            return Fault(kind, 2 * steps, dice.choice((5.0, 90.0, 16 * MINUTE, 20 * MINUTE, 2 * HOUR, 200 * HOUR)))
        if kind == ELAPSE:
            return Fault(kind, 0, dice.choice((1.0, 30.0, 2 * MINUTE, 16 * MINUTE, 3 * HOUR)))
        if kind == STEP_BACK:
            return Fault(STORE_CLOCK, 0, -HOUR)
        if kind in (CLOCK, STORE_CLOCK):
            return Fault(kind, 0, dice.choice((-HOUR, -HOUR, -120.0, -3.0, 3.0, 120.0, HOUR)))
        return Fault(kind)


@dataclass(frozen=True)
class ListedFaults:
    """Exactly these faults."""

    listed: Mapping[tuple[Place, str], Fault]

    def request_fault(self, place: Place, verb: str, key: str, work: str) -> Fault | None:
        return self.listed.get((place, "request"))

    def time_fault(self, place: Place, verb: str, key: str, work: str) -> Fault | None:
        return self.listed.get((place, "time"))


def _is_commit(verb: str, key: str) -> bool:
    return verb == "create" and key.startswith("__manifest/")


def _uniform(text: str) -> float:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big") / float(1 << 56)
