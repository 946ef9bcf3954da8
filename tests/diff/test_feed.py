"""The change feed: everything once and in order, for a reader that keeps its cursor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.diff.feed import FeedPage
from omnigraph.errors import BadRequest, BranchNotFound, CursorExpired, CursorRefused
from omnigraph.graph.graph import Graph
from support.cleanup import clean
from support.history import compact, content, delete, expire, make_graph, person, run, update


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return make_graph(tmp_path / "graph")


def brief(page: Any) -> list[str]:
    return [f"{item.change.operation} {item.change.id}" for item in page]


def read_on(graph: Graph, page: FeedPage, limit: int = 2) -> list[str]:
    """All that is there behind a page, some at a time."""
    found = []
    while True:
        page = graph.poll_changes(page.cursor, limit=limit)
        found += brief(page)
        if not page.more:
            return found


def test_a_feed_starts_now_by_default(graph: Graph) -> None:
    run(graph, person("ada"))
    begun = graph.poll_changes()
    run(graph, person("bob"))

    assert brief(begun) == []
    assert brief(graph.poll_changes(begun.cursor)) == ["insert bob"]


def test_from_the_beginning_every_commit_is_returned_in_order(graph: Graph) -> None:
    run(graph, person("bob"))
    second = run(graph, person("ada") + update("bob", age=1))
    run(graph, delete("bob"))

    page = graph.poll_changes(start="beginning")

    assert brief(page) == ["insert bob", "insert ada", "update bob", "delete bob"]
    assert [item.commit.id for item in page][1:3] == [second, second]
    assert not page.more
    assert brief(graph.poll_changes(page.cursor)) == []


def test_a_feed_can_begin_behind_a_commit_or_a_tag(graph: Graph) -> None:
    first = run(graph, person("ada"))
    graph.tags.create("v1", first)
    run(graph, person("bob"))

    assert brief(graph.poll_changes(start=first)) == brief(graph.poll_changes(start="v1")) == ["insert bob"]


def test_a_page_may_end_within_a_commit(graph: Graph) -> None:
    run(graph, person("a") + person("b") + person("c"))

    first = graph.poll_changes(start="beginning", limit=2)
    second = graph.poll_changes(first.cursor, limit=2)

    assert (brief(first), first.more) == (["insert a", "insert b"], True)
    assert (brief(second), second.more) == (["insert c"], False)


def test_each_change_has_the_cursor_to_go_on_behind_it(graph: Graph) -> None:
    run(graph, person("a") + person("b"))
    run(graph, person("c"))
    page = graph.poll_changes(start="beginning")

    rest = [brief(graph.poll_changes(item.cursor)) for item in page]

    assert rest == [["insert b", "insert c"], ["insert c"], []]


def test_the_same_cursor_gives_the_same_changes_again(graph: Graph) -> None:
    begun = graph.poll_changes()
    run(graph, person("ada"))

    assert graph.poll_changes(begun.cursor).changes == graph.poll_changes(begun.cursor).changes


def test_maintenance_moves_the_cursor_and_tells_nothing(graph: Graph) -> None:
    run(graph, person("ada"))
    begun = graph.poll_changes()
    compact(graph)
    page = graph.poll_changes(begun.cursor)

    assert brief(page) == []
    assert page.cursor != begun.cursor


def test_the_feed_of_a_branch_includes_its_history_through_its_fork_points(graph: Graph) -> None:
    run(graph, person("ada"))
    graph.branches.create("dev")
    run(graph, person("bob"))
    run(graph, person("cy"), "dev")
    graph.branches.create("deeper", "dev")
    run(graph, person("dan"), "deeper")

    page = graph.poll_changes(start="beginning", branch="deeper", limit=1)

    assert [*brief(page), *read_on(graph, page, 1)] == ["insert ada", "insert cy", "insert dan"]


def test_a_merge_appears_in_the_feed_as_its_changes(graph: Graph) -> None:
    run(graph, person("ada"))
    graph.branches.create("dev")
    run(graph, person("bob"), "dev")
    run(graph, person("cy"))
    graph.branches.merge("dev")

    assert brief(graph.poll_changes(start="beginning")) == ["insert ada", "insert cy", "insert bob"]


def test_the_feed_can_be_iterated(graph: Graph) -> None:
    run(graph, person("ada"))
    run(graph, person("bob"))

    assert brief(graph.follow_changes(start="beginning")) == ["insert ada", "insert bob"]


# What is no longer readable


def test_a_cursor_before_the_oldest_retained_commit_says_how_to_restart(graph: Graph) -> None:
    page = graph.poll_changes(start="beginning")
    run(graph, person("ada"))
    run(graph, person("bob"))
    run(graph, person("cy"))
    expire(graph, 3)
    run(graph, person("dan"))

    with pytest.raises(CursorExpired, match=r"export --at .* as the new baseline and continue with `--start") as raised:
        graph.poll_changes(page.cursor)

    baseline = raised.value.baseline
    assert baseline is not None
    at_baseline = {key[1] for key in content(graph, baseline)}
    assert at_baseline == {"ada", "bob"}
    assert brief(graph.poll_changes(start=baseline)) == ["insert cy", "insert dan"]


@pytest.mark.parametrize("limit", [1, 10])
def test_the_feed_continues_after_a_tagged_commit_though_the_maintenance_after_it_has_expired(
    graph: Graph, limit: int
) -> None:
    first = run(graph, person("ada"))
    graph.tags.create("kept", first)
    clean(graph)
    clean(graph)  # two fences between the commits
    run(graph, person("bob") + person("eve"))
    clean(graph)

    page = graph.poll_changes(start=first, limit=limit)

    assert brief(page) + (read_on(graph, page, limit) if page.more else []) == ["insert bob", "insert eve"]


def test_a_cursor_at_the_oldest_retained_commit_continues(graph: Graph) -> None:
    run(graph, person("ada"))
    begun = graph.poll_changes()
    run(graph, person("bob"))
    expire(graph, 2)

    assert brief(graph.poll_changes(begun.cursor)) == ["insert bob"]


def test_a_cursor_of_a_branch_that_was_made_again_is_refused(graph: Graph) -> None:
    graph.branches.create("dev")
    begun = graph.poll_changes(branch="dev")
    graph.branches.delete("dev")

    with pytest.raises(BranchNotFound):
        graph.poll_changes(begun.cursor)
    graph.branches.create("dev")
    with pytest.raises(CursorRefused, match="deleted and made again"):
        graph.poll_changes(begun.cursor)


def test_a_cursor_of_another_graph_is_refused(graph: Graph, tmp_path: Path) -> None:
    other = make_graph(tmp_path / "other")

    with pytest.raises(CursorRefused, match="its branch 'main' is another graph's"):
        graph.poll_changes(other.poll_changes().cursor)


def test_a_cursor_belongs_to_its_branch(graph: Graph) -> None:
    graph.branches.create("dev")
    begun = graph.poll_changes(branch="dev")

    with pytest.raises(CursorRefused, match="belongs to the branch 'dev', not to 'main'"):
        graph.poll_changes(begun.cursor, branch="main")


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "ä", "eyJ2IjoxfQ"])
def test_what_is_no_cursor_is_refused(graph: Graph, cursor: str) -> None:
    with pytest.raises(BadRequest, match="Invalid cursor"):
        graph.poll_changes(cursor)


def test_an_altered_cursor_leads_nowhere_else(graph: Graph) -> None:
    cursor = graph.poll_changes().cursor
    place = len(cursor) // 2
    altered = cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]

    with pytest.raises(BadRequest, match="Invalid cursor"):
        graph.poll_changes(altered)


def test_a_start_that_is_not_in_the_branchs_history_is_refused(graph: Graph) -> None:
    graph.branches.create("dev")
    elsewhere = run(graph, person("ada"), "dev")

    with pytest.raises(BadRequest, match="is not in the history of 'main'"):
        graph.poll_changes(start=elsewhere)


@pytest.mark.parametrize("options", [{"limit": 0}, {"cursor": "x", "start": "now"}])
def test_a_question_that_makes_no_sense_is_refused(graph: Graph, options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        graph.poll_changes(**options)


# Exactly once

STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "two", "compact", "poll"]), st.integers(1, 3)), min_size=4, max_size=10
)


@settings(max_examples=20, deadline=None)
@given(steps=STEPS)
def test_a_reader_that_stores_its_cursor_sees_each_change_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """The reader keeps a copy of the graph by applying every change, however often it polls and whatever its limit."""
    graph = make_graph(tmp_path_factory.mktemp("store") / "graph")
    copy: dict[str, Any] = {}
    cursor = graph.poll_changes(start="beginning").cursor

    def take(limit: int) -> bool:
        nonlocal cursor
        page = graph.poll_changes(cursor, limit=limit)
        for item in page:
            change = item.change
            assert copy.get(change.id) == change.before, "a change was returned twice, or one was left out"
            copy[change.id] = change.after
        cursor = page.cursor
        return page.more

    for number, (verb, amount) in enumerate(steps, 1):
        if verb == "write":
            run(graph, person(f"p{number}", age=amount) + (update("p1", age=number) if "p1" in _slugs(graph) else ""))
        elif verb == "two":
            run(graph, person(f"p{number}") + person(f"q{number}"))
        elif verb == "compact" and _slugs(graph):
            compact(graph)
        else:
            take(amount)
    while take(1):
        pass
    assert copy == {key[1]: image for key, image in content(graph).items()}


def _slugs(graph: Graph) -> set[str]:
    return {key[1] for key in content(graph)}


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_merge_that_brings_another_type_of_the_same_name_is_in_the_feed_completely(graph: Graph, limit: int) -> None:
    graph.schema.apply("node Tag { name: String @key }")
    graph.load([{"type": "Tag", "data": {"name": name}} for name in "ab"])
    start = graph.poll_changes()
    graph.branches.create("b")
    graph.schema.apply("node Other { name: String @key }", branch="b")
    graph.schema.apply("node Tag { name: String @key  size: I32? }", branch="b")
    graph.load([{"type": "Tag", "data": {"name": "_"}}], branch="b")
    graph.branches.merge("b")

    assert read_on(graph, start, limit) == ["delete a", "delete b", "insert _"]
