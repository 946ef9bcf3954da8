"""Branches every day: make one, work on it, list, delete, make it again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.errors import AlreadyExists, BadRequest, BranchNotFound, OmnigraphError
from omnigraph.manifest.model.paths import check_branch_name, marker_key, parse_ref_key, ref_key

from .schedules import Client, World

BAD_NAMES = [
    "",
    ".",
    "..",
    "/",
    "a/",
    "/a",
    "a//b",
    "a/../b",
    "a/./b",
    "-a",
    "_a",
    ".a",
    "a b",
    "a\n",
    "ä",
    "a%2Fb",
    "a\\b",
]
GOOD_NAMES = ["b", "B", "0", "agent/42", "a.b-c_d", "a/b/c", "main2", "main/x", "x.dead", "1.json"]


@pytest.fixture
def client(world: World) -> Client:
    client = world.client("client")
    client.insert("ada")
    return client


def test_a_new_graph_has_main_and_nothing_else(world: World) -> None:
    assert world.client("client").graph.branches.list() == ["main"]


def test_a_branch_starts_as_its_source_is_and_goes_its_own_way(client: Client) -> None:
    client.graph.branches.create("b")
    assert client.people("b") == ["ada"]

    client.insert("bob", branch="b")
    client.insert("cleo")

    assert client.people("b") == ["ada", "bob"]
    assert client.people() == ["ada", "cleo"]


def test_a_branch_can_start_from_another_one(client: Client) -> None:
    client.graph.branches.create("b")
    client.insert("bob", branch="b")

    client.graph.branches.create("c", from_="b")

    assert client.people("c") == ["ada", "bob"]
    assert client.graph.branches.list() == ["b", "c", "main"]


def test_a_branch_can_start_from_an_older_commit(client: Client, world: World) -> None:
    older = client.repository.snapshot(at=f"{world.main_id}.1").manifest

    client.repository.branches.create("b", older)

    assert client.people("b") == []


def test_the_list_is_in_name_order(client: Client) -> None:
    for name in ("z", "a", "n"):
        client.graph.branches.create(name)

    assert client.graph.branches.list() == ["a", "main", "n", "z"]


def uses_of_a_deleted_branch(client: Client) -> list[Callable[[], object]]:
    return [
        lambda: client.people("b"),
        lambda: client.insert("x", branch="b"),
        lambda: client.graph.begin("b"),
        lambda: client.graph.branches.delete("b"),
        lambda: client.graph.branches.create("c", from_="b"),
    ]


def test_a_deleted_branch_is_gone_for_everybody(client: Client, world: World) -> None:
    warm = world.client("warm")
    client.graph.branches.create("b")
    warm.insert("bob", branch="b")

    client.graph.branches.delete("b")

    for reader in (client, warm, world.client("fresh")):
        assert reader.graph.branches.list() == ["main"]
        for use in uses_of_a_deleted_branch(reader):
            with pytest.raises(BranchNotFound):
                use()
    assert client.people() == ["ada"]


def test_a_name_can_be_used_again_many_times(client: Client, world: World) -> None:
    for life in range(20):
        client.graph.branches.create("b")
        assert client.people("b") == ["ada"], "nothing of the earlier life is left"
        client.insert(f"life-{life}", branch="b")
        client.graph.branches.delete("b")
    client.graph.branches.create("b")

    assert world.client("fresh").people("b") == ["ada"]
    assert "__refs/b/21.json" in world.keys("__refs/b")


def test_a_name_that_lives_is_taken(client: Client, world: World) -> None:
    client.graph.branches.create("b")

    for other in (client, world.client("fresh")):
        with pytest.raises(AlreadyExists, match="'b' already exists"):
            other.graph.branches.create("b")
    assert world.keys("__refs/b") == ["__refs/b/1.json"]


def test_main_always_exists(client: Client) -> None:
    with pytest.raises(AlreadyExists):
        client.graph.branches.create("main")
    with pytest.raises(BadRequest):
        client.graph.branches.delete("main")
    assert client.graph.branches.list() == ["main"]


def test_a_source_that_does_not_exist_is_named_and_nothing_is_reserved(client: Client, world: World) -> None:
    with pytest.raises(BranchNotFound) as refusal:
        client.graph.branches.create("b", from_="nowhere")

    assert refusal.value.branch == "nowhere"
    assert world.keys("__refs/b") == []


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_good_name_works_everywhere(client: Client, world: World, name: str) -> None:
    client.graph.branches.create(name)
    client.insert("bob", branch=name)

    fresh = world.client("fresh")
    assert fresh.graph.branches.list() == sorted(["main", name])
    assert fresh.people(name) == ["ada", "bob"]
    fresh.graph.branches.delete(name)
    assert client.graph.branches.list() == ["main"]


@pytest.mark.parametrize("name", [*BAD_NAMES, "a" * 201])
def test_a_bad_name_is_refused_and_writes_nothing(client: Client, world: World, name: str) -> None:
    before = world.keys()
    for use in (
        lambda: client.graph.branches.create(name),
        lambda: client.graph.branches.create("b", from_=name),
        lambda: client.graph.branches.delete(name),
        lambda: client.people(name),
        lambda: client.insert("x", branch=name),
    ):
        with pytest.raises(BadRequest, match="can't name a branch"):
            use()
    assert world.keys() == before


def test_a_name_of_200_characters_works(client: Client) -> None:
    client.graph.branches.create("a" * 200)

    assert client.graph.branches.list() == ["a" * 200, "main"]


def test_a_name_that_the_file_system_cant_hold_is_refused_clearly(client: Client) -> None:
    """Slashes are quoted to three characters each, so 200 characters can need 400 bytes."""
    name = "/".join(["a"] * 100)
    for use in (lambda: client.graph.branches.create(name), lambda: client.people(name)):
        with pytest.raises(OmnigraphError):
            use()
    assert client.graph.branches.list() == ["main"]


def test_one_name_in_two_cases_is_two_branches(client: Client) -> None:
    client.graph.branches.create("b")
    client.graph.branches.create("B")
    client.insert("bob", branch="B")

    assert client.people("b") == ["ada"]
    assert client.graph.branches.list() == ["B", "b", "main"]


def test_a_first_commit_on_a_branch_costs_what_it_costs_on_main(client: Client, world: World) -> None:
    def requests(branch: str, person: str) -> list[str]:
        with client.start(lambda: client.insert(person, branch=branch)) as stepper:
            return [call.split()[0] for call in world.told(stepper.run_to_end())]

    client.graph.branches.create("b")

    assert requests("b", "bob") == requests("main", "cleo") == ["create"]


def test_a_listing_does_not_look_at_branches_that_are_marked_dead(client: Client, world: World) -> None:
    for name in ("x", "y", "z"):
        client.graph.branches.create(name)
        client.graph.branches.delete(name)
    fresh = world.client("fresh")

    with fresh.start(fresh.graph.branches.list) as stepper:
        assert world.told(stepper.run_to_end()) == ["list __refs"]


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}", fullmatch=True), st.integers(1, 10**6))
def test_the_key_of_a_ref_says_its_branch_and_its_life(name: str, life: int) -> None:
    ref, marker = parse_ref_key(ref_key(name, life)), parse_ref_key(marker_key(name, life))

    assert ref is not None
    assert marker is not None
    assert (ref.branch, ref.life, ref.dead) == (name, life, False)
    assert (marker.branch, marker.life, marker.dead) == (name, life, True)


@given(st.text(max_size=30))
def test_a_name_is_good_or_refused_with_a_clear_error(name: str) -> None:
    try:
        assert check_branch_name(name) == name
        assert not {"", ".", ".."} & set(name.split("/"))
        assert name.isascii()
    except BadRequest:
        pass
