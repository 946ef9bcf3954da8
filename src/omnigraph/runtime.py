"""The clock, random numbers and ids as arguments: everything that would make two runs differ.

The core takes a `Runtime` and never calls the system itself, so that a schedule can be replayed.
"""

import os
import random
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _CROCKFORD for second in _CROCKFORD]  # ten bits at a time
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_OF_BYTES = (_CROCKFORD * 8).encode("ascii")
_SUFFIX_LENGTH = 16  # of the 26 characters of a ULID
_AT_ONCE = 64
SHORT_ID_LENGTH = 13  # 65 bits: fresh per attempt, so that two writers never collide


class Clock(Protocol):
    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class IdSource(Protocol):
    def txn_id(self) -> str: ...

    def short_id(self) -> str: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    monotonic = staticmethod(time.monotonic)  # called several times by every commit


def ulid(milliseconds: int, entropy: int) -> str:
    """48 bits of time and 80 random bits in 26 characters that sort by time."""
    number = (milliseconds << 80) | entropy
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -1, -10)])


def _time_prefix(milliseconds: int) -> str:
    """The characters of a ULID that encode its time."""
    pairs, high, low = _PAIRS, milliseconds >> 20, milliseconds & 0xFFFFF
    return pairs[high >> 20] + pairs[high >> 10 & 1023] + pairs[high & 1023] + pairs[low >> 10] + pairs[low & 1023]


_suffixes: list[str] = []  # random ends of ids, 80 bits each, requested from the system many at a time
os.register_at_fork(after_in_child=_suffixes.clear)  # a forked child must not reuse those of its parent


def _refill_suffixes() -> str:
    """Five bits of each random byte, as characters."""
    fresh = os.urandom(_SUFFIX_LENGTH * _AT_ONCE).translate(_OF_BYTES).decode("ascii")
    ends = [fresh[at : at + _SUFFIX_LENGTH] for at in range(0, len(fresh), _SUFFIX_LENGTH)]
    _suffixes.extend(ends[1:])
    return ends[0]


class RandomIds:
    def __init__(self) -> None:
        self._time = (0, "")  # the last millisecond, and the prefix of its ids

    def txn_id(self) -> str:
        """A ULID."""
        now = time.time_ns() // 1_000_000
        milliseconds, begins = self._time
        if now != milliseconds:
            begins = _time_prefix(now)
            self._time = (now, begins)
        try:
            return begins + _suffixes.pop()
        except IndexError:
            return begins + _refill_suffixes()

    def short_id(self) -> str:
        return "".join(secrets.choice(_BASE32) for _ in range(SHORT_ID_LENGTH))


@dataclass(frozen=True, slots=True)
class Runtime:
    """The sources of non-determinism of a graph."""

    clock: Clock = field(default_factory=SystemClock)
    ids: IdSource = field(default_factory=RandomIds)
    rng: random.Random = field(default_factory=random.SystemRandom)

    def jitter(self, ceiling_s: float) -> float:
        """A wait between half the ceiling and the ceiling: spread out, but never zero."""
        return ceiling_s * (0.5 + self.rng.random() / 2)
