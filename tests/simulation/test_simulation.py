"""The simulation itself, and the seeds that every test run has: real code, simulated store, one seeded scheduler."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulation.faults import Rates
from simulation.mixes import MIXES, ROTATION
from simulation.ops import MAIN, Committed, Mutate
from simulation.run import Summary, run_seeds
from simulation.schedule import Schedule, from_json, scheduled, to_json
from simulation.shrink import Shrinker, shrink
from simulation.simulate import run
from simulation.verdict import is_verified, told
from support.soak import SoakReport

TESTS = Path(__file__).resolve().parents[1]
SEED = 7
HASHED_SEEDS = (12, 15, 20, 21, 26, 29, 31, 32, 42, 45, 49, 57, 33, 81)  # all but the last two store no tables
PARTS, SEEDS_A_PART = 10, 20  # of every test run
SOAK_PARTS, SOAK_SEEDS_A_PART = 10, 500
FAILURES_SHOWN = 3


@pytest.mark.parametrize("mix", MIXES)
def test_a_seed_reproduces_a_run_exactly(mix: str) -> None:
    """The same schedule, the same history and, as far as Lance makes up no names, the same bytes."""
    digests = set()
    for _ in range(2):
        with run(scheduled(SEED, MIXES[mix])) as found:
            digests.add(found.digest())

    assert len(digests) == 1


@pytest.mark.parametrize("mix", MIXES)
def test_a_recorded_schedule_reproduces_the_run_that_it_was_recorded_from(mix: str) -> None:
    with run(scheduled(SEED, MIXES[mix])) as found:
        first, recorded = found.digest(), from_json(to_json(found.recorded))

    with run(recorded) as again:
        assert again.digest() == first


def test_a_run_does_not_depend_on_how_strings_are_hashed() -> None:
    """The order of a set must not decide in which order requests are sent, nor anything else."""
    source = "from simulation.schedule import scheduled\nfrom simulation.simulate import run\n"
    source += f"for seed in {HASHED_SEEDS}:\n    with run(scheduled(seed)) as found: print(seed, found.digest())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", source],
            env={**environment, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]

    one, other = (process.communicate(timeout=120)[0].splitlines() for process in running)

    assert len(one) == len(HASHED_SEEDS)
    assert one == other


def test_different_seeds_are_different_runs() -> None:
    digests = set()
    for seed in range(4):
        with run(scheduled(seed, MIXES["everyday"])) as found:
            digests.add(found.digest())

    assert len(digests) == 4


@pytest.mark.parametrize("mix", MIXES)
def test_a_seed_has_at_least_forty_operations(mix: str) -> None:
    for seed in range(50):
        assert scheduled(seed, MIXES[mix]).steps >= 40


def test_an_operation_can_be_left_out_of_a_recorded_schedule() -> None:
    with run(scheduled(SEED, MIXES["everyday"])) as found:
        recorded = found.recorded
    first = recorded.scripts[0]
    shorter = replace(first, operations=(first.operations[0], None, *first.operations[2:]))

    with run(replace(recorded, scripts=(shorter, *recorded.scripts[1:]))) as again:
        assert again.error is None
        assert f"{first.name}.1" not in again.history.calls
        assert f"{first.name}.2" in again.history.calls


def test_a_schedule_is_shrunk_to_what_the_failure_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here everything is wrong with a run that commits to a branch other than main."""
    with run(scheduled(SEED, MIXES["everyday"])) as found:
        recorded = found.recorded

    def fails(_: Shrinker, candidate: Schedule) -> bool:
        with run(candidate) as again:
            return any(
                isinstance(call.verb, Mutate) and call.verb.branch != MAIN and isinstance(call.outcome, Committed)
                for call in again.history.calls.values()
            )

    monkeypatch.setattr(Shrinker, "_fails", fails)

    short = Shrinker(recorded, frozenset()).shrunk()

    with run(short) as found:
        kinds = [type(call.verb).__name__ for call in found.history.calls.values()]
    assert short.steps <= 4, kinds
    assert "CreateBranch" in kinds


def assert_nothing_is_wrong(summary: Summary) -> None:
    shown = "\n".join(told(verdict) for verdict in summary.failures)
    assert not summary.failures, f"{shown}\n{summary}\nmake simulate SEEDS={summary.failures[0].seed} shows more"


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_in_two_hundred_seeds(part: int) -> None:
    """Every chain is linear, contents equal a serial replay of the log, refusals and no-ops are right, all is there."""
    first = 1 + part * SEEDS_A_PART

    assert_nothing_is_wrong(run_seeds(range(first, first + SEEDS_A_PART), failures_max=FAILURES_SHOWN))


@pytest.mark.soak
@pytest.mark.timeout(2900)
@pytest.mark.parametrize("part", range(SOAK_PARTS))
def test_nothing_is_lost_in_five_thousand_seeds(part: int, soak_report: SoakReport) -> None:
    first = 1 + part * SOAK_SEEDS_A_PART

    summary = run_seeds(range(first, first + SOAK_SEEDS_A_PART), failures_max=FAILURES_SHOWN)

    soak_report.line(f"Seeds {first} to {first + SOAK_SEEDS_A_PART - 1}: {summary}.")
    assert_nothing_is_wrong(summary)


def test_verify_gets_its_share_of_every_place_in_the_rotation() -> None:
    """One seed of every fifty: if the rotation is longer some day, this says whether a mix is left out."""
    verified = [seed for seed in range(5000) if is_verified(seed)]

    assert len(verified) == 100
    assert {seed % len(ROTATION) for seed in verified} == set(range(len(ROTATION)))


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_has_all_faults_of_requests(mix: str) -> None:
    rates = MIXES[mix].rates

    assert min(rates.fail, rates.lose, rates.late, rates.duplicate, rates.own_exists, rates.crash, rates.outage) > 0
    assert rates.late_deletes


def test_an_outage_ends_calls_without_an_answer() -> None:
    """Long enough that the time for a commit is over: its outcome is unknown, and the calls that follow fail."""
    mix = replace(MIXES["everyday"], rates=Rates(outage=0.01))
    outcomes = set()
    for seed in range(3):
        with run(scheduled(seed, mix)) as found:
            assert found.error is None
            assert found.checker.finish() == []
            outcomes |= {
                getattr(call.outcome, "error", type(call.outcome).__name__) for call in found.history.calls.values()
            }

    assert {"Unavailable", "Unknown"} <= outcomes


def test_a_failure_that_only_verify_sees_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "simulation.verdict._verified", lambda found: ["[verify] always"] if found.history.writes else []
    )
    schedule = scheduled(SEED, MIXES["everyday"])
    kept = replace(schedule, scripts=tuple(replace(one, operations=one.operations[:2]) for one in schedule.scripts))

    short, verdict = shrink(kept, seconds_max=20.0)

    assert verdict.checks == {"verify"}
    assert short.steps == 0
