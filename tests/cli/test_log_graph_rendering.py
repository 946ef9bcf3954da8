"""History as a drawing: lines part at a merge and meet where branches were forked."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from omnigraph.cli.commands.history import draw_commits
from omnigraph.manifest.history.log_graph import LoggedCommit
from omnigraph.manifest.model.manifest import Commit, CommitClass

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def logged(line: str) -> LoggedCommit:
    """`commit: parent merged`."""
    own, _, parents = line.partition(":")
    commit = Commit(own, own, None, None, None, NOW, "mutation", CommitClass.LOGICAL)
    return LoggedCommit(commit, "main", tuple(parents.split()))


CRISS_CROSS = (
    ["m5:m4 d5", "d5:d4 m3", "m4:m3 d3", "d4:d3", "d3:m2", "m3:m2", "m2:m1", "m1"],
    r"""
*  m5
|\
| *  d5
| |\
* | |  m4
|\ \ \
| | * |  d4
| |/ /
| * |  d3
|_|/
* |  m3
|/
*  m2
*  m1
""",
)
THREE_HEADS = (
    ["c:base", "b:base", "a:base", "base"],
    r"""
*  c
| *  b
| | *  a
|_|/
|/
*  base
""",
)
MERGED_FROM_A_LINE_TO_THE_LEFT = (
    ["x2:x1", "y2:y1 x1", "y1:r", "x1:r", "r"],
    r"""
*  x2
| *  y2
|/|
| *  y1
* |  x1
|/
*  r
""",
)
ONE_LINE = (["b:a", "a"], "\n*  b\n*  a\n")
CUT_SHORT = (["b:a x"], "\n*  b\n|\\\n")


@pytest.mark.parametrize(
    ("history", "drawing"), [CRISS_CROSS, THREE_HEADS, MERGED_FROM_A_LINE_TO_THE_LEFT, ONE_LINE, CUT_SHORT]
)
def test_a_history_is_drawn(history: list[str], drawing: str) -> None:
    lines = [
        line if commit is None else f"{line}  {commit.commit.id}" for line, commit in draw_commits(map(logged, history))
    ]

    assert "\n" + "\n".join(lines) + "\n" == drawing
