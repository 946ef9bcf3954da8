"""The report of a soak run: tests say what they measured, `make soak` keeps it in docs/soak.md.

Where OMNIGRAPH_SOAK_REPORT is not set, nothing is written, so that a soak test can be tried alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

REPORT_VARIABLE = "OMNIGRAPH_SOAK_REPORT"
INTRODUCTION = """# Soak report

Written by `make soak`, which runs the tests that take too long for every day: every figure here was
measured by a test that also asserts its bounds.
"""


class SoakReport:
    """Markdown under the heading of one test; sections appear in the order in which tests end."""

    def __init__(self, title: str, path: Path | None) -> None:
        self._title = title
        self._path = path
        self._lines: list[str] = []

    def line(self, text: str) -> None:
        self._lines.append(text)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self._lines += ["", _row(headings), _row(["---"] * len(headings)), *map(_row, rows), ""]

    def save(self) -> None:
        """Append in one write, so that tests in several processes do not mix their lines."""
        if self._path is None or not self._lines:
            return
        with suppress(FileExistsError), self._path.open("x") as file:
            file.write(INTRODUCTION + f"\nRun on {datetime.now(UTC):%Y-%m-%d}.\n")
        body = "\n".join(self._lines).strip("\n")
        with self._path.open("a") as file:
            file.write(f"\n## {self._title}\n\n{body}\n")


@pytest.fixture
def soak_report(request: pytest.FixtureRequest) -> Iterator[SoakReport]:
    """What this test wants remembered: `soak_report.line("…")`, `soak_report.table(headings, rows)`."""
    name = os.environ.get(REPORT_VARIABLE)
    title = request.node.name.removeprefix("test_").replace("_", " ")
    report = SoakReport(title, Path(name) if name else None)
    yield report
    report.save()


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"
