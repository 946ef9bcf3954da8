"""Several commits in one manifest: history tells them one by one, as if each had its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.manifest.history.history import is_partial, state_at_commit, state_before
from omnigraph.manifest.model.manifest import Position
from support.catalogs import PERSON, person_rows
from support.catalogs import people as people_catalog
from support.commit_groups import together


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "graph", people_catalog(), {"fsync": "false"})


@pytest.fixture
def group(graph: Graph) -> list[str]:
    """After two commits by themselves three that share a manifest: bob comes, ada changes and dan comes, ada goes."""
    graph.write([Append(PERSON, person_rows("ada", "eve"))])
    _, *ids = together(
        graph,
        lambda: graph.write([Append(PERSON, person_rows("kay"))]),
        lambda: graph.write([Append(PERSON, person_rows("bob"))]),
        lambda: graph.write([Upsert(PERSON, person_rows("ada", "dan", age=2))]),
        lambda: graph.write([Delete(PERSON, ("ada",))]),
    )
    assert [one.rpartition(".")[2] for one in ids] == ["0", "1", "2"]
    return ids


OPERATIONS = [["insert bob"], ["update ada", "insert dan"], ["delete ada"]]


def people(graph: Graph, at: str | None = None, branch: str = "main") -> list[str]:
    ids: list[Any] = graph.snapshot(branch, at).to_arrow(PERSON).column("id").to_pylist()
    return sorted(ids)


def told(changes: Any) -> list[str]:
    return [f"{change.operation} {change.id}" for change in changes]


def test_each_commit_of_a_group_is_a_state(graph: Graph, group: list[str]) -> None:
    assert [people(graph, one) for one in group] == [
        ["ada", "bob", "eve", "kay"],
        ["ada", "bob", "dan", "eve", "kay"],
        ["bob", "dan", "eve", "kay"],
    ]
    assert people(graph) == people(graph, group[-1])


def test_a_state_in_the_middle_says_what_its_tables_are(graph: Graph, group: list[str]) -> None:
    manifests = graph.repository.manifests
    middle, last = state_at_commit(manifests, group[1]), state_at_commit(manifests, group[2])

    assert is_partial(middle)
    assert not is_partial(last)
    ref = middle.tables[PERSON]
    assert (ref.rows, ref.changed_at, ref.removed_at) == (5, group[1], None)
    assert last.tables[PERSON].removed_at == group[2]
    assert middle.logical_head == group[1]
    assert middle.ancestry[middle.branch_id] == Position(middle.manifest_version, 2)
    before = state_before(manifests, group[0])
    assert before is not None
    assert before.manifest_version == middle.manifest_version - 1
    assert state_before(manifests, group[1]) == state_at_commit(manifests, group[0])


def test_each_commit_tells_what_it_changed(graph: Graph, group: list[str]) -> None:
    assert [sorted(told(graph.commit_changes(one))) for one in group] == [sorted(one) for one in OPERATIONS]


def test_changes_between_any_two_states(graph: Graph, group: list[str]) -> None:
    start = graph.commits()[-1].id
    assert told(graph.changes(group[0], group[1])) == ["update ada", "insert dan"]
    assert told(graph.changes(group[1], group[0])) == ["update ada", "delete dan"]
    assert told(graph.changes(group[0], group[2])) == ["delete ada", "insert dan"]
    assert told(graph.changes(start, group[0])) == [f"insert {name}" for name in ("ada", "bob", "eve", "kay")]
    graph.write([Append(PERSON, person_rows("zoe"))])
    changes = graph.changes(group[0], "main")
    assert told(changes) == ["delete ada", "insert dan", "insert zoe"]
    assert (changes.explained.method, changes.explained.commits) == ("composed", 3)


def test_pages_go_on_in_the_middle_of_a_group(graph: Graph, group: list[str]) -> None:
    first = graph.changes(group[0], group[1], limit=1)
    assert told(first) == ["update ada"]
    rest = graph.changes(group[0], group[1], page=first.next_page)
    assert told(rest) == ["insert dan"]


def test_the_feed_tells_the_commits_of_a_group_one_after_another(graph: Graph, group: list[str]) -> None:
    every = [
        (told.commit.id, f"{told.change.operation} {told.change.id}")
        for told in graph.follow_changes(start="beginning")
    ]
    expected = [(one, what) for one, all_of in zip(group, OPERATIONS, strict=True) for what in all_of]
    assert every[3:] == expected

    cursor, seen = None, []
    while True:
        page = graph.poll_changes(cursor, "beginning" if cursor is None else None, limit=1)
        seen += [(one.commit.id, *told([one.change])) for one in page]
        cursor = page.cursor
        if not page.more:
            break
    assert seen == every


@pytest.mark.parametrize("place", range(3))
def test_the_feed_starts_behind_a_commit_of_a_group(graph: Graph, group: list[str], place: int) -> None:
    after = [change.commit.id for change in graph.follow_changes(start=group[place])]
    assert list(dict.fromkeys(after)) == group[place + 1 :]


def test_a_cursor_of_a_change_in_a_group_goes_on_behind_it(graph: Graph, group: list[str]) -> None:
    every = list(graph.follow_changes(start="beginning"))
    for number, change in enumerate(every):
        rest = list(graph.follow_changes(cursor=change.cursor))
        assert [one.change for one in rest] == [one.change for one in every[number + 1 :]]


def test_a_branch_from_the_middle_has_what_was_there_and_its_history(graph: Graph, group: list[str]) -> None:
    graph.branches.create("b", at=group[1])
    graph.write([Append(PERSON, person_rows("bee"))], branch="b")

    assert people(graph, branch="b") == ["ada", "bee", "bob", "dan", "eve", "kay"]
    ids = [commit.id for commit in graph.commits("b")]
    assert ids[1:3] == [group[1], group[0]]
    assert group[2] not in ids
    shown = [entry.commit.id for entry in graph.commit_graph(["b"])]
    assert group[2] not in shown
    both = [entry.commit.id for entry in graph.commit_graph(["main", "b"])]
    assert sorted(both) == sorted({*ids, *group, *both})
    assert both.index(ids[0]) < both.index(group[1]) < both.index(group[0])
    feed = told(one.change for one in graph.follow_changes(start="beginning", branch="b"))
    came = ["insert ada", "insert eve", "insert kay", "insert bob", "update ada", "insert dan", "insert bee"]
    assert feed == came
    with pytest.raises(BadRequest, match="not in the history"):
        graph.poll_changes(start=group[2], branch="b")


def test_a_branch_from_the_middle_merges_both_ways(graph: Graph, group: list[str]) -> None:
    graph.branches.create("b", at=group[1])
    graph.write([Append(PERSON, person_rows("bee"))], branch="b")

    graph.branches.merge("b")
    assert people(graph) == ["bee", "bob", "dan", "eve", "kay"]
    graph.branches.merge("main", "b")
    assert people(graph, branch="b") == ["bee", "bob", "dan", "eve", "kay"]


def test_one_commit_of_a_group_is_reverted(graph: Graph, group: list[str]) -> None:
    graph.revert(group[2])
    assert people(graph) == ["ada", "bob", "dan", "eve", "kay"]
    graph.branches.create("b", at=group[0])
    graph.revert(group[0], branch="b")
    assert people(graph, branch="b") == ["ada", "eve", "kay"]
    with pytest.raises(BadRequest, match="not in the history"):
        graph.revert(group[1], branch="b")
