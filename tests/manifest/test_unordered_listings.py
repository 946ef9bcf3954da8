"""Rule `monotone-and-complete-listings`: what is found by a listing is found on a store that lists in no order.

Every store here lists a few keys to a page in an order that changes (see `conftest.py`); these tests have so many of
everything that a listing resumed "after the last key" would miss some.
"""

from __future__ import annotations

import pytest

from omnigraph.manifest.store.manifest_store import HINT_EVERY

from .schedules import Client, World

MANY = 12
NAMES = sorted(f"b{number}" for number in range(MANY))


@pytest.fixture
def client(world: World) -> Client:
    return world.client("client")


def test_every_branch_is_listed(world: World, client: Client) -> None:
    for name in NAMES:
        client.graph.branches.create(name)
    for name in NAMES[::2]:
        client.graph.branches.delete(name)

    assert world.client("fresh").graph.branches.list() == [*NAMES[1::2], "main"]


def test_the_newest_life_of_a_name_is_found_among_many(world: World, client: Client) -> None:
    for life in range(MANY):
        client.graph.branches.create("b")
        client.insert(f"p{life}", branch="b")
        if life < MANY - 1:
            client.graph.branches.delete("b")

    assert world.client("fresh").people("b") == [f"p{MANY - 1}"]


def test_every_tag_is_listed_and_keeps_its_commit(world: World, client: Client) -> None:
    commits = [client.insert(f"p{number}") for number in range(MANY)]
    for name, commit in zip(NAMES, commits, strict=True):
        client.graph.tags.create(name, commit.id)

    tags = world.client("fresh").graph.tags.list()

    assert [(tag.name, tag.commit_id) for tag in tags] == [
        (name, commit.id) for name, commit in zip(NAMES, commits, strict=True)
    ]
    assert len(client.repository.tags.pins()) == MANY


def test_the_head_is_found_from_the_hint_not_from_a_listing(world: World, client: Client) -> None:
    for number in range(HINT_EVERY + 5):
        client.insert(f"p{number}")

    fresh = world.cold_client("fresh")
    with fresh.start(fresh.people) as reading:
        calls = reading.run_to_end()

    assert "list" not in {call.method for call in calls}
    assert fresh.head().manifest_version == HINT_EVERY + 6
