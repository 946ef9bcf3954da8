"""Medians of calls that take turns, and what a call spends its time on."""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

ROUNDS = 3
CALLS_MAX = 300


def timed_ms(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def medians_ms(calls: Mapping[str, Callable[[], object]], seconds: float = 0.4, warm: int = 5) -> dict[str, float]:
    """Warm medians. The calls take turns in a few rounds, so that a busy moment does not meet one of them alone."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        spent = 0.0
        for _ in range(warm):
            spent += timed_ms(call)
            if spent > 2 * seconds * 1000:
                break
    for _ in range(ROUNDS):
        for name, call in calls.items():
            spent, made = 0.0, 0
            while made < 2 or (spent < seconds * 1000 and made < CALLS_MAX):
                times[name].append(timed_ms(call))
                spent, made = spent + times[name][-1], made + 1
    return {name: statistics.median(found) for name, found in times.items()}


def parts_ms(call: Callable[[], Mapping[str, float]], seconds: float = 0.5) -> dict[str, float]:
    """The medians of what a call says that its parts took."""
    found: list[Mapping[str, float]] = []
    until = time.perf_counter() + seconds
    while len(found) < 10 or (time.perf_counter() < until and len(found) < CALLS_MAX):
        found.append(call())
    return {name: statistics.median(times[name] for times in found) for name in found[0]}


def dominates(call: Callable[[], object], most: int = 4, seconds: float = 1.0) -> str:
    """The functions with the largest share of a call's own time."""
    profile = cProfile.Profile()
    until = time.perf_counter() + seconds
    profile.enable()
    while time.perf_counter() < until:
        call()
    profile.disable()
    found: Any = pstats.Stats(profile)
    whole = found.total_tt
    ranked = sorted(found.stats.items(), key=lambda item: -item[1][2])[:most]
    return ", ".join(f"{_name(*key)} {100 * value[2] / whole:.0f} %" for key, value in ranked)


def _name(file: str, _line: int, function: str) -> str:
    if file == "~":
        inside = function.strip("<>").removeprefix("built-in method ").removeprefix("method ")
        return f"`{inside.split(' of ')[0]}`"
    parts = file.replace("\\", "/").rsplit("/", 2)
    return f"`{parts[-2]}/{parts[-1]}:{function}`" if len(parts) > 1 else f"`{function}`"
