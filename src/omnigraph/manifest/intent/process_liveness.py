"""The process that owns a long write, and whether it is alive.

A driver that was killed leaves an intent that looks alive for a quarter of an hour. A process on the same machine can
see that the owner is gone, and take the job over at once.
"""

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Owner:
    token: str  # new each time an intent is acquired, so that an owner recognises its own
    host: str  # for people
    machine: str  # identifies one boot of one machine, and one container in it
    pid: int
    started: str  # process ids are reused, but not with the same start time


def this_process(token: str) -> Owner:
    pid = os.getpid()
    return Owner(token, socket.gethostname(), _machine(), pid, _start_time(pid) or "")


def is_gone(owner: Owner) -> bool:
    """Whether the process has certainly ended. Nothing is known about processes on other machines."""
    if not owner.machine or owner.machine != _machine():
        return False
    started = _start_time(owner.pid)
    return started is None or started != owner.started


@cache
def _machine() -> str:
    """Empty where the system does not provide it: then only a timeout shows that an owner is dead."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """When the process began, in ticks since boot; None if there is none, or only its remains."""
    try:
        # The second field is the command in parentheses and may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]
