"""Which process works on a long write, and whether it still does.

A driver that was killed can't say so, and its intent would look alive for a quarter of an hour. On the machine where it
ran one can see that the process is gone, and go on at once.
"""

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Owner:
    token: str  # fresh for every taking of an intent: how one's own is recognised
    host: str  # for people
    machine: str  # tells one boot of one machine, and one container in it, from all others
    pid: int
    started: str  # process numbers come again; a process's number and start don't


def this_process(token: str) -> Owner:
    pid = os.getpid()
    return Owner(token, socket.gethostname(), _machine(), pid, _start_time(pid) or "")


def is_gone(owner: Owner) -> bool:
    """Whether the process is certainly no more. Of another machine's processes nothing is known here."""
    if not owner.machine or owner.machine != _machine():
        return False
    started = _start_time(owner.pid)
    return started is None or started != owner.started


@cache
def _machine() -> str:
    """Empty where the system does not tell it: then only time says that an owner is dead."""
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
