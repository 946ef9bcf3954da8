"""Into the middle of a group: every commit of it is a state of its own, wherever a commit can be named."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from omnigraph.schema.lang.compile import compile_schema
from support.catalogs import PERSON

from .concurrent_writes import together
from .schedules import Client, World

SCHEMA = """
node Person { name: String @key  age: I64? }
node Note { text: String }
"""
NAMES = "query q() { match { $p: Person } return { $p.name as name, $p.age as age } order { name } }"


@pytest.fixture
def grouped(tmp_path: Path) -> tuple[World, Client, list[Any]]:
    """ada and bob in a commit of their own, later one put of three: cy comes, ada turns 36, bob goes."""
    world = World(tmp_path / "graph", compile_schema(SCHEMA).catalog)
    client = world.client("writer")
    client.graph.mutate('query q() { insert Person { name: "ada" } insert Person { name: "bob" } }')
    texts = [
        'query q() { insert Note { text: "first" } }',
        'query q() { insert Person { name: "cy" } }',
        'query q() { update Person set { age: 36 } where name = "ada" }',
        'query q() { delete Person where name = "bob" }',
    ]
    writes = [partial(client.graph.mutate, text, actor=f"w{n}") for n, text in enumerate(texts)]
    with together(client, *writes) as stepper:
        stepper.run_to_end()
        commits = stepper.result()
    assert [commit.id for commit in commits[1:]] == [f"{world.main_id}.4.{n}" for n in range(3)]
    return world, client, commits[1:]


STATES: list[list[tuple[str, int | None]]] = [
    [("ada", None), ("bob", None), ("cy", None)],
    [("ada", 36), ("bob", None), ("cy", None)],
    [("ada", 36), ("cy", None)],
]


def people_at(client: Client, **where: Any) -> list[tuple[str, int | None]]:
    return [(row["name"], row["age"]) for row in list(client.graph.query(NAMES, **where).rows)]


def test_a_query_at_each_commit_of_a_group_sees_what_came_up_to_it(grouped: tuple[World, Client, list[Any]]) -> None:
    world, client, commits = grouped
    for reader in (client, world.client("other")):
        assert [people_at(reader, at=commit.id) for commit in commits] == STATES
        assert [reader.graph.snapshot(at=commit.id).types[0].rows for commit in commits] == [3, 3, 2]
        assert people_at(reader) == STATES[-1]


def test_each_commit_of_a_group_is_shown_and_listed_as_its_own(grouped: tuple[World, Client, list[Any]]) -> None:
    world, _, commits = grouped
    graph = world.client("other").graph

    assert [graph.commit(commit.id) for commit in commits] == [commit.commit for commit in commits]
    assert [commit.id for commit in graph.commits()][:3] == [commit.id for commit in commits[::-1]]
    assert [commit.actor for commit in graph.commits()][:3] == ["w3", "w2", "w1"]
    assert [commit.touched for commit in commits] == [
        {PERSON: {"inserted": 1}},
        {PERSON: {"updated": 1}},
        {PERSON: {"deleted": 1}},
    ]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_tag_names_a_commit_within_a_group(grouped: tuple[World, Client, list[Any]], place: int) -> None:
    world, client, commits = grouped
    client.graph.tags.create("here", commits[place].id)

    assert people_at(world.client("other"), at="here") == STATES[place]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_branch_from_within_a_group_goes_on_from_there_and_merges_back_without_losing_a_change(
    grouped: tuple[World, Client, list[Any]], place: int
) -> None:
    world, client, commits = grouped
    graph = client.graph
    graph.branches.create("side", commits[place].id)
    assert people_at(world.client("other"), branch="side") == STATES[place]

    graph.mutate('query q() { insert Person { name: "dee" } }', branch="side")
    graph.mutate('query q() { insert Person { name: "eve" } }')
    graph.branches.merge("side")

    expected = [*STATES[-1], ("dee", None), ("eve", None)]
    assert people_at(client) == people_at(world.client("other")) == expected
    assert [commit.id for commit in graph.commits(branch="side")][1] == commits[place].id


def test_a_commit_within_a_group_can_be_reverted(grouped: tuple[World, Client, list[Any]]) -> None:
    world, client, commits = grouped
    client.graph.revert(commits[1].id)

    assert people_at(world.client("other")) == [("ada", None), ("cy", None)]
