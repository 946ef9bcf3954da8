"""The progress of a bulk job: what a terminal shows of it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass

import pytest

from omnigraph.pipeline.progress import Progress, ProgressRunner, StageProgress, format_count, format_duration
from omnigraph.storage.util.runner import LocalRunner


@dataclass(frozen=True)
class Answer:
    rows: int


class TestLine:
    def test_it_has_stage_share_rows_rate_and_time_left(self) -> None:
        state = StageProgress("staging", tasks=4, done=1, rows=500_000, started_s=10.0)

        assert state.line(now_s=15.0) == "staging [██████··················]  25% · 500k rows · 100k rows/s · 15 s left"

    def test_before_the_first_answer_nothing_is_guessed(self) -> None:
        assert StageProgress("staging", tasks=4, started_s=0.0).line(now_s=60.0) == f"staging [{'·' * 24}]   0%"

    def test_a_stage_of_unknown_length_shows_how_long_it_runs(self) -> None:
        assert StageProgress("starting Spark", started_s=0.0).line(now_s=7.0) == "starting Spark · 7 s"

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (0, "0"),
            (999, "999"),
            (1_000, "1.00k"),
            (12_345, "12.3k"),
            (999_960, "1.00M"),
            (5e6, "5.00M"),
            (2e10, "20.0G"),
        ],
    )
    def test_numbers_have_three_digits(self, value: float, shown: str) -> None:
        assert format_count(value) == shown

    @pytest.mark.parametrize(("seconds", "shown"), [(59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")])
    def test_durations_have_two_units(self, seconds: float, shown: str) -> None:
        assert format_duration(seconds) == shown


class TestWatching:
    def test_answers_are_counted_with_their_rows(self) -> None:
        progress = Progress(clock=lambda: 0.0)
        heard: list[Answer] = []

        answers = ProgressRunner(LocalRunner(), progress).run(Answer, [3, 4], stage="staging", on_done=heard.append)

        assert answers == heard == [Answer(3), Answer(4)]
        assert progress.state == StageProgress("staging", tasks=2, done=2, rows=7)

    def test_answers_without_rows_are_counted_too(self) -> None:
        progress = Progress(clock=lambda: 0.0)

        ProgressRunner(LocalRunner(), progress).run(str, [1, 2], stage="checks")

        assert (progress.state.done, progress.state.rows) == (2, 0)

    def test_each_stage_begins_at_zero(self) -> None:
        progress = Progress(clock=lambda: 0.0)
        runner = ProgressRunner(LocalRunner(), progress)

        runner.run(Answer, [3], stage="staging")
        runner.run(Answer, [1, 1, 1], stage="deleting")

        assert progress.state == StageProgress("deleting", tasks=3, done=3, rows=3)


SCRIPT = """
import time
from omnigraph.cli.progress import progress_bar
from omnigraph.pipeline.progress import Progress
progress = Progress()
with progress_bar("Loading", "people", progress=progress):
    time.sleep(0.6)
    progress.stage("staging", 2)
    progress.done(rows=1000)
    time.sleep(0.6)
print("done")
"""


class TestDrawing:
    def test_a_terminal_shows_the_stage_and_is_left_clean(self) -> None:
        parent, child = pty.openpty()
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRIPT)],
            stderr=child,
            stdout=subprocess.PIPE,
            timeout=60,
            check=True,
        )
        os.close(child)
        drawn = os.read(parent, 1 << 16).decode()
        os.close(parent)

        assert done.stdout == b"done\n"
        assert re.search(r"Loading people \[·*█·*\] \d s", drawn)
        assert re.search(r"Loading people: staging \[█{12}·{12}\]  50% · 1\.00k rows", drawn)
        assert drawn.endswith("\r\x1b[K")

    def test_a_file_shows_nothing(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, timeout=60, check=True
        )

        assert (done.stdout, done.stderr) == (b"done\n", b"")
