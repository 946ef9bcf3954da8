"""How large a local Spark may be: cores, memory and scratch space of this machine, or of its container."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omnigraph.errors import StorageFull

GIB = 1 << 30
HEAP_MIN = GIB // 2
HEAP_MAX = 8 * GIB
WORKER_MEMORY = GIB  # for each Python worker, which holds the rows; Java's heap does not
SCRATCH_MIN = GIB
SCRATCH_ENOUGH = 20 * GIB
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class LocalSize:
    """The resources of a local session."""

    cores: int
    heap_bytes: int
    scratch: Path

    @property
    def heap(self) -> str:
        return f"{self.heap_bytes >> 20}m"


def measure_machine() -> LocalSize:
    """A size that fits what is free on this machine now."""
    heap, cores = divide_memory(usable_cores(), free_memory())
    return LocalSize(cores, heap, choose_scratch(scratch_directories()))


def divide_memory(cores: int, memory: int) -> tuple[int, int]:
    """Java's heap and the number of workers: a quarter of the memory, and one worker for each core that has room."""
    heap = min(max(memory // 4, HEAP_MIN), HEAP_MAX)
    return heap, max(1, min(cores, (memory - heap) // WORKER_MEMORY))


def usable_cores() -> int:
    """The cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _words(_CGROUP / "cpu.max")
    if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal():
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def free_memory() -> int:
    """The bytes that this process and its children may still take."""
    free = _available_memory()
    limit, used = _words(_CGROUP / "memory.max"), _words(_CGROUP / "memory.current")
    if limit and used and limit[0].isdecimal() and used[0].isdecimal():
        free = min(free, max(0, int(limit[0]) - int(used[0])))
    return free


def scratch_directories() -> list[Path]:
    """Where Spark may put shuffle files, the preferred directory first."""
    named = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    places = [Path(place) for place in named if place] or [Path(tempfile.gettempdir()), Path("/var/tmp")]
    return [place for place in places if place.is_dir() and os.access(place, os.W_OK)]


def choose_scratch(places: Sequence[Path]) -> Path:
    """The first directory with enough room, else the one with the most; StorageFull if that is too little."""
    free = {place: shutil.disk_usage(place).free for place in places}
    for place, size in free.items():
        if size >= SCRATCH_ENOUGH:
            return place
    best = max(free, key=free.__getitem__, default=None)
    if best is None:
        raise StorageFull("Spark's scratch files", "no temporary directory is writable; set TMPDIR to one")
    if free[best] < SCRATCH_MIN:
        raise StorageFull("Spark's scratch files", f"{free[best] / GIB:.1f} GiB are free in {best}; or set TMPDIR")
    return best


def _available_memory() -> int:
    for line in _lines(Path("/proc/meminfo")):
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # not Linux: half of all there is


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
