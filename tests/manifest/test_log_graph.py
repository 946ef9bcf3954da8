"""History through both parents: every commit once, none before a commit that came from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph
from omnigraph.manifest.history.log_graph import LoggedCommit
from support.history import compact, expire, make_graph, person, run

from .schedules import World


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return make_graph(tmp_path / "graph")


def ids(log: list[LoggedCommit]) -> list[str]:
    return [logged.commit.id for logged in log]


def require_sound(log: list[LoggedCommit]) -> None:
    """Each once, parents after their children, and what they are."""
    place = {logged.commit.id: number for number, logged in enumerate(log)}
    assert len(place) == len(log), "a commit came twice"
    for number, logged in enumerate(log):
        for parent in logged.parents:
            assert place[parent] > number, f"{parent} came before {logged.commit.id}"
        named = [parent for parent in (logged.commit.parent, logged.commit.merged_parent) if parent is not None]
        assert set(logged.parents) >= set(named), "a parent is missing"


def test_a_branch_that_was_merged_is_part_of_the_history(graph: Graph) -> None:
    base = run(graph, person("ada"))
    graph.branches.create("dev")
    on_dev = run(graph, person("bob"), "dev")
    on_main = run(graph, person("cy"))
    graph.branches.merge("dev")
    merge = graph.commits(limit=1)[0].id

    log = graph.commit_graph(["main"])

    require_sound(log)
    assert ids(log)[0] == merge
    assert log[0].parents == (on_main, on_dev)
    assert set(ids(log)[1:3]) == {on_main, on_dev}
    assert ids(log)[3] == base


def test_without_a_branch_all_living_ones_are_shown(graph: Graph) -> None:
    run(graph, person("ada"))
    graph.branches.create("dev")
    on_dev = run(graph, person("bob"), "dev")

    assert on_dev in ids(graph.commit_graph())
    assert on_dev not in ids(graph.commit_graph(["main"]))


def test_maintenance_is_shown_on_request(graph: Graph) -> None:
    run(graph, person("ada"))
    compaction = compact(graph)
    last = run(graph, person("bob"))

    log = graph.commit_graph(maintenance=True)

    assert ids(log)[:2] == [last, compaction]
    assert log[0].parents == (compaction,)
    assert compaction not in ids(graph.commit_graph())


def test_expired_commits_stay_in_the_log(graph: Graph) -> None:
    first = run(graph, person("ada"))
    run(graph, person("bob"))
    expire(graph, 3)

    assert first in ids(graph.commit_graph())


def test_commits_of_one_clock_tick_are_in_the_order_of_their_lines_main_first(world: World) -> None:
    """The world's clock stands still, and branch ids are random: neither says which commit comes first."""
    client = world.client("client")
    expected = [client.insert("ada").id]
    for name in ("a", "b", "n", "y", "z"):
        client.graph.branches.create(name)
        on_main, merged = client.insert(f"{name} on main"), client.insert(name, branch=name)
        client.graph.branches.merge(name)
        expected = [client.head().logical_head, on_main.id, merged.id, *expected]

    everywhere, on_main_only = client.graph.commit_graph(), client.graph.commit_graph(["main"])

    assert len({logged.commit.authored_at for logged in everywhere}) == 1
    assert ids(everywhere)[: len(expected)] == ids(on_main_only)[: len(expected)] == expected
    require_sound(everywhere)


def test_wrong_clocks_do_not_turn_history_round(world: World) -> None:
    """The one client's clock is far ahead: what was merged is younger by the clock than the merge."""
    ahead, behind = world.client("ahead"), world.client("behind")
    ahead.clock.pass_time(days=30)
    behind.graph.branches.create("dev")
    for name in ("a", "b"):
        ahead.insert(name, branch="dev")
    behind.insert("c")
    behind.graph.branches.merge("dev")

    require_sound(behind.graph.commit_graph())


def test_a_limit_ends_the_log_and_a_negative_one_is_refused(graph: Graph) -> None:
    run(graph, person("ada"))

    assert len(graph.commit_graph(limit=1)) == 1
    with pytest.raises(BadRequest, match="limit of -1"):
        graph.commit_graph(limit=-1)


@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["write", "write", "merge"]), st.integers(0, 2)), max_size=12
    )
)
def test_any_history_is_logged_soundly_and_completely(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str, int]]
) -> None:
    graph = make_graph(tmp_path_factory.mktemp("store") / "graph")
    names = ["main", "b1", "b2"]
    run(graph, person("ada"))
    for name in names[1:]:
        graph.branches.create(name)
    made = set()
    for number, (branch, verb, other) in enumerate(steps):
        if verb == "write":
            made.add(run(graph, person(f"p{number}"), names[branch]))
        elif branch != other:
            commit = graph.branches.merge(names[other], names[branch]).commit
            made |= {commit.id} if commit is not None else set()

    log = graph.commit_graph(limit=None)

    require_sound(log)
    assert made <= set(ids(log))
