"""Expensive queries: they end at their deadline, keep to their memory, and leave the processors to other clients."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hostile.conftest import target_of
from hostile.siege import EVERY_DAY, GRAPH, JSON, STRICT, Bounds, Target, at_once, besiege
from support.http_load import resident_mib

DEADLINE_S = 4
REST_S = 1.0
NOISE_MIB = 48  # of allocators and of the interpreter
BOMBS = {
    "an ordered product": "match { $a: Person { age: 1 }  $b: Person } return { $b.slug, $a.slug as a } "
    "order { $b.text desc, $a.name } limit 5",
    "a larger one": "match { $a: Person  $b: Person  $b.age < 50 } return { $b.slug, $a.slug as a } "
    "order { $b.text desc, $a.name } limit 5",
    "a grouped product": "match { $a: Person  $b: Person  $b.age < 30 } return { $a.text, $b.age, count($a) as n } "
    "order { n desc } limit 5",
    "a sum over a product": "match { $a: Person  $b: Person  $b.age < 30 } return { $a.age, sum($b.age) as n, "
    "min($b.text) as least } order { n desc } limit 5",
    "a chain": "match { $a knows $b  $b knows $c  $c knows $d  $d knows $e  $e knows $f  $f knows $g  $g knows $h } "
    "return { $a.slug, $h.slug as h } order { h, $a.slug } limit 5",
    "a chain from all to all": "match { $a <knows> $b  $b <knows> $c  $c <knows> $d  $d <knows> $e  $e <knows> $f } "
    "return { $a.slug, $f.age as f, count($c) as n } order { n desc } limit 5",
    "long paths": "match { $a knows{1,30} $b } return { $b.age, count($a) as n } order { n desc } limit 5",
    "paths of any length": "match { $a <knows>{2,} $b } return { $a.slug, $b.text } order { $b.text } limit 5",
    "a join by order": "match { $a: Person  $b: Person  $a.text < $b.text } return { $a.slug, $b.slug as b } "
    "order { $a.text, $b.slug } limit 5",
    "a join by texts": "match { $a: Person  $b: Person  $a.text contains $b.name } return { count($a) as n }",
}


def explode(target: Target, text: str, deadline_s: float = DEADLINE_S) -> float:
    """The seconds until the answer, which may be a refusal."""
    headers = {**JSON, "Request-Timeout": f"{deadline_s:.3f}"}
    with target.client("reader") as client:
        started = time.monotonic()
        answer = client.post(f"{GRAPH}/query", json={"query": f"query bomb() {{ {text} }}"}, headers=headers)
    took_s = time.monotonic() - started
    assert answer.status_code in (200, 400, 503), answer.text
    if answer.status_code == 400:
        assert "add a filter" in answer.json()["error"]
    return took_s


def computed_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Without turns, others waited for half a minute.
ROUGH = replace(EVERY_DAY, healthz_s=8.0, point_p95_s=8.0, point_s=12.0)


@pytest.mark.parametrize(
    "bounds", [ROUGH, pytest.param(STRICT, marks=[pytest.mark.soak, pytest.mark.alone])], ids=["usual", "strict"]
)
def test_ten_expensive_queries_at_once_delay_nobody_and_all_end(target: Target, bounds: Bounds) -> None:
    pid = target.process.process.pid

    def attack(target: Target) -> None:
        for _ in range(bounds.scale):
            with at_once([partial(explode, target, text) for text in BOMBS.values()]):
                pass

    for text in BOMBS.values():
        explode(target, text, 0.3)  # what a process loads and reads once
    besiege(target, attack, bounds)

    before_s = computed_s(pid)
    time.sleep(REST_S)
    assert computed_s(pid) - before_s < REST_S / 4, "something goes on"


@pytest.mark.parametrize("name", BOMBS)
def test_an_expensive_query_ends_soon_after_its_deadline_with_all_its_threads(target: Target, name: str) -> None:
    pid = target.process.process.pid
    explode(target, BOMBS[name], 0.3)  # what it needs of the tables is in memory
    time.sleep(0.5)

    before_s = computed_s(pid)
    took_s = explode(target, BOMBS[name], 0.5)
    asked_s = computed_s(pid) - before_s
    time.sleep(REST_S)
    late_s = computed_s(pid) - before_s - asked_s

    assert late_s < REST_S / 2, "it goes on after its answer"
    assert min(took_s, asked_s) < 0.5 + 1.5  # processor time, where the machine is busy


def test_expensive_queries_keep_to_their_memory(large_store: Path, tmp_path: Path) -> None:
    limit_mib = 128
    with target_of(large_store, tmp_path, OMNIGRAPH_QUERY_BYTES=str(limit_mib << 20)) as target:
        for text in BOMBS.values():
            explode(target, text, 0.5)  # what queries share, and what a process keeps of its first ones
        pid = target.process.process.pid
        before_mib, peaks_mib = resident_mib(pid), {}
        for name, text in BOMBS.items():
            with at_once([partial(explode, target, text, 2)]):
                peaks_mib[name] = max(resident_mib(pid) for _ in _ticks(2.2))

    assert max(peaks_mib.values()) < before_mib + 1.1 * limit_mib + NOISE_MIB, peaks_mib


def _ticks(span_s: float) -> Iterator[None]:
    end = time.monotonic() + span_s
    while time.monotonic() < end:
        yield
        time.sleep(0.01)
