"""The commit graph in ASCII: a column (lane) for each line of commits, `*` for a commit, edges for forks and merges."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnigraph.manifest.history.log_graph import LoggedCommit


def draw_commits(commits: "Iterable[LoggedCommit]") -> "Iterator[tuple[str, LoggedCommit | None]]":
    """Draw commits, each before its parents. Yields a line for each commit, and lines without one for the edges."""
    lanes: list[str] = []  # the commit that each lane leads to, from left to right
    for logged in commits:
        commit_id = logged.commit.id
        if commit_id not in lanes:
            lanes.append(commit_id)
        lane = lanes.index(commit_id)
        for other in [column for column, leads_to in enumerate(lanes) if leads_to == commit_id][:0:-1]:
            yield _draw_join(lanes, lane, other), None
            del lanes[other]
        yield " ".join("*" if column == lane else "|" for column in range(len(lanes))), logged
        first, *merged = logged.parents or ("",)
        lanes[lane] = first
        for parent in merged:
            if parent in lanes:
                yield _draw_crossing(lanes, lane, lanes.index(parent)), None
            else:
                lanes.insert(lane + 1, parent)
                yield _draw_fork(lanes, lane), None
        if not first:
            del lanes[lane]


def _draw_join(lanes: list[str], lane: int, other: int) -> str:
    """Lane `other` ends in `lane`, to its left; the lanes behind it move."""
    cells = _cells(lanes)
    for column in range(other, len(lanes)):
        cells[2 * column - 1 : 2 * column + 1] = ["/", " "]
    for gap in range(2 * lane + 1, 2 * other, 2):
        cells[gap] = "_" if gap < 2 * other - 1 else "/"
    return "".join(cells).rstrip()


def _draw_fork(lanes: list[str], lane: int) -> str:
    """The lane right of `lane` is new, and the lanes behind it have moved."""
    cells = _cells(lanes)
    cells[2 * lane + 1 : 2 * lane + 3] = ["\\", " "]
    for column in range(lane + 2, len(lanes)):
        cells[2 * column - 1 : 2 * column + 1] = ["\\", " "]
    return "".join(cells).rstrip()


def _draw_crossing(lanes: list[str], lane: int, other: int) -> str:
    """The merged parent has a lane already."""
    cells = _cells(lanes)
    left, right = sorted((lane, other))
    end = 2 * right - 1 if other > lane else 2 * left + 1
    for gap in range(2 * left + 1, 2 * right, 2):
        cells[gap] = ("\\" if other > lane else "/") if gap == end else "_"
    return "".join(cells).rstrip()


def _cells(lanes: list[str]) -> list[str]:
    return list(" ".join("|" for _ in lanes))
