"""History as a drawing: a column for each line of commits, `*` where a commit is, lines where they part and meet."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnigraph.manifest.history.log_graph import LoggedCommit


def draw(commits: "Iterable[LoggedCommit]") -> "Iterator[tuple[str, LoggedCommit | None]]":
    """The drawing beside each commit, and between them lines that have no commit; commits come before their parents."""
    lanes: list[str] = []  # the commit that each column leads to, from left to right
    for logged in commits:
        own = logged.commit.id
        if own not in lanes:
            lanes.append(own)
        place = lanes.index(own)
        for other in [column for column, leads_to in enumerate(lanes) if leads_to == own][:0:-1]:
            yield _joining(lanes, place, other), None
            del lanes[other]
        yield _row(lanes, {place: "*"}), logged
        first, *merged = logged.parents or ("",)
        lanes[place] = first
        for parent in merged:
            if parent in lanes:
                yield _crossing(lanes, place, lanes.index(parent)), None
            else:
                lanes.insert(place + 1, parent)
                yield _parting(lanes, place), None
        if not first:
            del lanes[place]


def _row(lanes: list[str], marks: dict[int, str]) -> str:
    return " ".join(marks.get(column, "|") for column in range(len(lanes)))


def _joining(lanes: list[str], place: int, other: int) -> str:
    """Column `other` ends in the one at `place`, to its left; those behind it will move."""
    cells = _cells(lanes)
    for column in range(other, len(lanes)):
        cells[2 * column - 1 : 2 * column + 1] = ["/", " "]
    for gap in range(2 * place + 1, 2 * other, 2):
        cells[gap] = "_" if gap < 2 * other - 1 else "/"
    return "".join(cells).rstrip()


def _parting(lanes: list[str], place: int) -> str:
    """The column right of `place` is new, and those behind it have moved."""
    cells = _cells(lanes)
    cells[2 * place + 1 : 2 * place + 3] = ["\\", " "]
    for column in range(place + 2, len(lanes)):
        cells[2 * column - 1 : 2 * column + 1] = ["\\", " "]
    return "".join(cells).rstrip()


def _crossing(lanes: list[str], place: int, other: int) -> str:
    """What was merged lies on a column that is there already."""
    cells = _cells(lanes)
    left, right = sorted((place, other))
    ends = 2 * right - 1 if other > place else 2 * left + 1
    for gap in range(2 * left + 1, 2 * right, 2):
        cells[gap] = ("\\" if other > place else "/") if gap == ends else "_"
    return "".join(cells).rstrip()


def _cells(lanes: list[str]) -> list[str]:
    return list(" ".join("|" for _ in lanes))
