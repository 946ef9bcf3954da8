"""Many seeds, in parallel: `python -m simulation.run --seeds 1..20000`, or one with all that happened in it.

--seeds A..B     these seeds; exits with 1 if one of them fails
--seed N         one seed, with its schedule
--mix NAME       one mix for all seeds; by default several in rotation (`inline`, `tables-all`: those of one kind)
--shrink         reduce the first failure to a short schedule
--workers N      processes; by default WORKERS of the environment, or 2
--without NAME   take back one fix of `reverts.py`: exits with 0 if a seed fails that passes with the fix
--stop-at-first  end at the first failure
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from simulation.mixes import INLINE_MIXES, MIXES, TABLE_MIXES, Mix, mix_of
from simulation.reverts import REVERTS, taken_back
from simulation.schedule import Schedule, scheduled
from simulation.simulate import run
from simulation.verdict import Verdict, judge, told, verdict_on

CHUNK = 8
CHUNKS_PER_WORKER = 40  # then the worker is replaced: Lance keeps some memory for every table
FAILURES_MAX = 20
LINES_MAX = 400


@dataclass
class Summary:
    """What came of many seeds."""

    seeds: int = 0
    steps: int = 0
    verified: int = 0
    seconds: float = 0.0
    failures: list[Verdict] = field(default_factory=list)

    @property
    def per_minute(self) -> float:
        return 60.0 * self.seeds / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        return (
            f"{self.seeds} seeds with {self.steps} operations in {self.seconds:.0f} s ({self.per_minute:.0f} seeds a "
            f"minute), {self.verified} of them verified in full: {len(self.failures)} failed"
        )


def mix_named(name: str | None) -> Callable[[int], Mix]:
    """Which mix a seed has: one for all, those of one kind in turn, or all in rotation."""
    if name is None:
        return mix_of
    if name in ("inline", "tables-all"):
        turn = INLINE_MIXES if name == "inline" else TABLE_MIXES
        return lambda seed: turn[seed % len(turn)]
    if name not in MIXES:
        raise SystemExit(f"Unknown mix {name!r}: use {', '.join(MIXES)}, inline or tables-all.")
    return lambda _: MIXES[name]


def run_seeds(
    seeds: Iterable[int],
    mix: str | None = None,
    workers: int = 1,
    *,
    failures_max: int = FAILURES_MAX,
    on_verdict: Callable[[Verdict], None] | None = None,
    without: str | None = None,
) -> Summary:
    """Judge every seed, perhaps without one of the fixes; ends early after so many failures."""
    summary, start = Summary(), time.monotonic()
    for verdict in _verdicts(seeds, mix, workers, without):
        summary.seeds += 1
        summary.steps += verdict.steps
        summary.verified += verdict.verified
        summary.seconds = time.monotonic() - start
        if verdict.problems:
            summary.failures.append(verdict)
        if on_verdict is not None:
            on_verdict(verdict)
        if len(summary.failures) >= failures_max:
            break
    return summary


def _verdicts(seeds: Iterable[int], mix: str | None, workers: int, without: str | None) -> Iterator[Verdict]:
    if workers <= 1:
        yield from (_judged(seed, mix, without) for seed in seeds)
        return
    chunks = ((mix, without, chunk) for chunk in _chunked(seeds))
    context = multiprocessing.get_context("spawn")  # Lance does not survive a fork
    with context.Pool(workers, maxtasksperchild=CHUNKS_PER_WORKER) as pool:
        for verdicts in pool.imap(_judge_chunk, chunks):
            yield from verdicts


def _chunked(seeds: Iterable[int]) -> Iterator[list[int]]:
    left = iter(seeds)
    while chunk := list(islice(left, CHUNK)):
        yield chunk


def _judge_chunk(chunk: tuple[str | None, str | None, list[int]]) -> list[Verdict]:
    mix, without, seeds = chunk
    return [_judged(seed, mix, without) for seed in seeds]


def _judged(seed: int, mix: str | None, without: str | None) -> Verdict:
    with taken_back(without):
        return judge(scheduled(seed, mix_named(mix)(seed)))


def shown(schedule: Schedule, *, everything: bool = False) -> tuple[Verdict, str]:
    """A run of the schedule, and what happened in it for people: calls and faults, or every scheduling point."""
    with run(schedule, tracing=True) as found:
        verdict = verdict_on(found, verify=True)
        lines = [
            f"{step:6d} {thread:<10} {what}"
            for step, thread, _, what in found.world.trace
            if everything
            or what.startswith(("BEGINS", "ENDS", "FAULT", "CRASHES", "late", "duplicate", "create __man"))
        ]
    if len(lines) > LINES_MAX and not everything:
        lines = [
            *lines[: LINES_MAX // 4],
            f"   ... {len(lines) - LINES_MAX} lines left out",
            *lines[-3 * LINES_MAX // 4 :],
        ]
    return verdict, "\n".join(line[:400] for line in lines)


def _span(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="simulation.run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=_span)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--mix")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--trace", action="store_true", help="show every scheduling point")
    parser.add_argument("--workers", type=int, default=int(os.environ.get("WORKERS", "2")))
    parser.add_argument("--failures", type=int, default=FAILURES_MAX, help="stop after so many")
    parser.add_argument("--stop-at-first", action="store_true")
    parser.add_argument("--without", choices=sorted(REVERTS))
    given = parser.parse_args(arguments)
    if given.seed is not None:
        with taken_back(given.without):
            verdict, lines = shown(scheduled(given.seed, mix_named(given.mix)(given.seed)), everything=given.trace)
            print(lines)
            print(told(verdict))
            return _end([verdict] if verdict.problems else [], given)
    if given.seeds is None:
        parser.error("give --seeds A..B or --seed N")
    summary = run_seeds(
        given.seeds,
        given.mix,
        given.workers,
        failures_max=1 if given.stop_at_first else given.failures,
        on_verdict=lambda verdict: print(told(verdict), flush=True) if verdict.problems else None,
        without=given.without,
    )
    if given.without is not None:
        print(summary)
        return _end_without(summary, given)
    if summary.failures and not given.shrink:
        first = summary.failures[0]
        print(f"\nThe schedule of seed {first.seed}:")
        print(shown(scheduled(first.seed, MIXES[first.mix]))[1])
    print(summary)
    return _end(summary.failures, given)


def _end(failures: list[Verdict], given: argparse.Namespace) -> int:
    if failures and given.shrink:
        from simulation.shrink import main as shrink

        shrink(failures[0])
    if failures:
        again = "" if given.mix is None else f" --mix {given.mix}"
        again += "" if given.without is None else f" --without {given.without}"
        print(f"Again: python -m simulation.run --seed {failures[0].seed}{again} [--shrink]")
    return 1 if failures else 0


def _end_without(summary: Summary, given: argparse.Namespace) -> int:
    """Whether a failure was found that is due to the missing fix: with it, the same seed must pass."""
    if not summary.failures:
        print(f"Not found: {REVERTS[given.without].bug}")
        return 1
    seed, mix = summary.failures[0].seed, summary.failures[0].mix
    with_fix = judge(scheduled(seed, MIXES[mix]))
    print(f"Found after {1 + seed - given.seeds[0]} seeds, by the mix {mix}: {REVERTS[given.without].bug}")
    print(f"With the fix: {told(with_fix)}")
    return 1 if with_fix.problems else 0


if __name__ == "__main__":
    sys.exit(main())
