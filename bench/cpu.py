"""CPU seconds and peak memory of a process with all that it started: a Spark driver, its JVM and their workers."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_s(root: int | None = None) -> float:
    """User and system time of a process and its descendants, those that have ended and were waited for included."""
    children = _children()
    seen, todo, ticks = set(), [root or os.getpid()], 0
    while todo:
        pid = todo.pop()
        if pid in seen:
            continue
        seen.add(pid)
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        ticks += sum(int(field) for field in fields[11:15])  # utime stime cutime cstime
        todo += children.get(pid, [])
    return ticks / _TICKS


def peak_mib(pid: int | None = None) -> float:
    """The most memory that one process ever held."""
    for line in Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def forget_peak() -> None:
    """Begin to count this process's peak anew."""
    Path("/proc/self/clear_refs").write_text("5")


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            found.setdefault(parent, []).append(int(entry.name))
    return found
