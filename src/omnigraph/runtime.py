"""The clock, the dice and the names: everything that would make two runs differ, as arguments.

The core takes a `Runtime` and never asks the system itself, so that a schedule can be replayed.
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
_AT_ONCE = 64
SHORT_ID_LENGTH = 13  # 65 bits: fresh per attempt, so that two writers never meet by chance


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

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def ulid(milliseconds: int, entropy: int) -> str:
    """48 bits of time and 80 of chance in 26 characters that sort by time."""
    number = (milliseconds << 80) | entropy
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -1, -10)])


class RandomIds:
    def __init__(self) -> None:
        self._chance: list[bytes] = []  # asked of the system many at a time
        self._process = 0

    def txn_id(self) -> str:
        return ulid(time.time_ns() // 1_000_000, int.from_bytes(self._entropy(), "big"))

    def _entropy(self) -> bytes:
        """Ten bytes that nobody else has: a forked child forgets those of its parent."""
        if self._process != os.getpid():
            self._chance, self._process = [], os.getpid()
        try:
            return self._chance.pop()
        except IndexError:
            fresh = os.urandom(10 * _AT_ONCE)
            self._chance += [fresh[start : start + 10] for start in range(10, len(fresh), 10)]
            return fresh[:10]

    def short_id(self) -> str:
        return "".join(secrets.choice(_BASE32) for _ in range(SHORT_ID_LENGTH))


@dataclass(frozen=True, slots=True)
class Runtime:
    """One of each, passed in at the outside."""

    clock: Clock = field(default_factory=SystemClock)
    ids: IdSource = field(default_factory=RandomIds)
    dice: random.Random = field(default_factory=random.SystemRandom)

    def jitter(self, ceiling_s: float) -> float:
        """A wait between half the ceiling and the ceiling: spread out, but never nothing."""
        return ceiling_s * (0.5 + self.dice.random() / 2)
