"""Tags: names for commits, which cleanup keeps for as long as a tag names them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omnigraph.errors import (
    AlreadyExists,
    BadRequest,
    BranchNotFound,
    CommitNotFound,
    ConflictError,
    Damaged,
    ReadOnly,
    TagNotFound,
)
from omnigraph.graph.graph import open as open_graph
from omnigraph.manifest.model.manifest import Manifest, Position
from omnigraph.manifest.model.paths import parse_commit_id
from omnigraph.storage.objects.object_store import ReplaceOutcome
from support.documents import sealed
from support.steps import LoseAnswer, LoseRequest, returning

from .schedules import (
    AN_INNER_RETRY_SAYS_EXISTS,
    APPLIED_ANSWER_LOST,
    NEITHER_APPLIED_NOR_ANSWERED,
    Client,
    World,
    stand_in_cleanup,
    stand_in_retire,
)

LOSE_SWAP_APPLIED, LOSE_SWAP = (
    LoseAnswer(returning(ReplaceOutcome.UNKNOWN)),
    LoseRequest(returning(ReplaceOutcome.UNKNOWN)),
)


@pytest.fixture
def client(world: World) -> Client:
    return world.client("client")


def test_a_tag_names_a_commit_wherever_one_is_named(client: Client) -> None:
    ada = client.insert("ada", actor="ada")
    client.insert("bob")

    tag = client.graph.tags.create("v1", ada.id, actor="eve")

    assert (tag.name, tag.commit_id, tag.actor) == ("v1", ada.id, "eve")
    assert client.people(at="v1") == client.people(at="tag:v1") == ["ada"]
    assert client.graph.commit("v1") == ada.commit
    assert client.graph.tags.list() == [tag]


def test_without_a_commit_the_newest_one_of_the_branch_is_tagged(client: Client) -> None:
    client.graph.branches.create("dev")
    ada = client.insert("ada", branch="dev")

    assert client.graph.tags.create("v1", branch="dev").commit_id == ada.id


def test_maintenance_at_the_head_is_not_what_is_tagged(client: Client) -> None:
    ada = client.insert("ada")
    stand_in_cleanup(client, retire=False, oldest_retained=1)

    assert client.graph.tags.create("v1").commit_id == ada.id


def test_tags_are_listed_by_name_and_seen_by_other_clients(client: Client, world: World) -> None:
    ada = client.insert("ada")
    for name in ("b", "a/x", "c.1"):
        client.graph.tags.create(name, ada.id)

    assert [tag.name for tag in world.client("other").graph.tags.list()] == ["a/x", "b", "c.1"]


def test_a_name_is_used_once(client: Client) -> None:
    ada, bob = client.insert("ada"), client.insert("bob")
    client.graph.tags.create("v1", ada.id)

    with pytest.raises(AlreadyExists, match=f"tag 'v1' of commit {ada.id} already exists"):
        client.graph.tags.create("v1", bob.id)
    assert client.people(at="v1") == ["ada"]


def test_a_deleted_tag_is_gone_and_its_name_free(client: Client) -> None:
    ada, bob = client.insert("ada"), client.insert("bob")
    client.graph.tags.create("v1", ada.id)

    client.graph.tags.delete("v1")

    assert client.graph.tags.list() == []
    with pytest.raises(BadRequest, match="neither a commit id, a tag nor a time"):
        client.people(at="v1")
    with pytest.raises(TagNotFound, match="no tag 'v1'"):
        client.people(at="tag:v1")
    with pytest.raises(TagNotFound):
        client.graph.tags.delete("v1")
    client.graph.tags.create("v1", bob.id)


# Names


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "use up to 200 letters"),
        ("a b", "use up to 200 letters"),
        ("../x", "use up to 200 letters"),
        ("tag:x", "use up to 200 letters"),
        ("aaaaaaaaaaaaa.1", "reads as a commit id or a time"),
        ("2026-01-31", "reads as a commit id or a time"),
        ("20260131", "reads as a commit id or a time"),
        ("now", "a place in the feed"),
        ("beginning", "a place in the feed"),
    ],
)
def test_a_name_that_could_be_taken_for_something_else_is_refused(client: Client, name: str, reason: str) -> None:
    ada = client.insert("ada")

    with pytest.raises(BadRequest, match=reason):
        client.graph.tags.create(name, ada.id)


def test_a_tag_does_not_take_the_name_of_a_branch(client: Client) -> None:
    client.graph.branches.create("dev")

    for name in ("main", "dev"):
        with pytest.raises(AlreadyExists, match="choose a name for the tag that no branch has"):
            client.graph.tags.create(name)


def test_a_branch_that_took_the_name_of_a_tag_goes_first_where_both_may_stand(client: Client) -> None:
    ada = client.insert("ada")
    client.graph.tags.create("x", ada.id)
    client.insert("bob")
    client.graph.branches.create("x")

    client.graph.branches.create("from-branch", "x")
    client.graph.branches.create("from-tag", "tag:x")

    assert client.people("from-branch") == ["ada", "bob"]
    assert client.people("from-tag") == client.people(at="x") == ["ada"]


# What can be tagged


@pytest.mark.parametrize("reference", ["aaaaaaaaaaaaa.1", "nothing", "{main}.9"])
def test_a_commit_that_is_not_there_is_not_tagged(client: Client, world: World, reference: str) -> None:
    with pytest.raises(CommitNotFound):
        client.graph.tags.create("v1", reference.format(main=world.main_id))


def test_an_expired_commit_is_not_tagged(client: Client) -> None:
    ada = client.insert("ada")
    client.insert("bob")
    stand_in_cleanup(client, retire=False)

    with pytest.raises(CommitNotFound, match="expired it, so it can't be tagged"):
        client.graph.tags.create("v1", ada.id)
    assert client.graph.tags.list() == []


def test_a_commit_of_a_deleted_branch_is_not_tagged(client: Client) -> None:
    client.graph.branches.create("dev")
    ada = client.insert("ada", branch="dev")
    client.graph.branches.delete("dev")

    with pytest.raises(CommitNotFound, match="its branch 'dev' was deleted"):
        client.graph.tags.create("v1", ada.id)


def test_a_cleanup_that_passes_while_a_tag_is_made_wins(client: Client, world: World) -> None:
    """It had listed the tags before this one was there, so the second look refuses and takes the tag back."""
    ada = client.insert("ada")
    client.insert("bob")
    cleaner = world.client("cleaner")

    with client.start(lambda: client.graph.tags.create("v1", ada.id)) as stalled:
        stalled.run_until(lambda call: call == ("create", "__tags/v1.json"))
        stand_in_cleanup(cleaner)
        stalled.run_to_end()
        with pytest.raises(CommitNotFound, match="expired"):
            stalled.result()

    assert client.graph.tags.list() == []


def test_a_tag_that_is_there_before_a_cleanup_looks_keeps_its_commit_readable(client: Client, world: World) -> None:
    ada = client.insert("ada")
    client.insert("bob")
    client.graph.tags.create("v1", ada.id)
    cleaner = world.client("cleaner")

    _cleanup_with_tags(cleaner)

    assert client.people(at="v1") == client.people(at=ada.id) == ["ada"]
    client.graph.tags.create("v2", ada.id)
    client.graph.tags.delete("v1")
    assert client.people(at="v2") == ["ada"]
    client.graph.tags.delete("v2")
    with pytest.raises(CommitNotFound, match="expired"):
        client.people(at=ada.id)


def test_a_branch_can_be_forked_from_a_tagged_commit_that_cleanup_passed(client: Client, world: World) -> None:
    ada = client.insert("ada")
    client.insert("bob")
    client.graph.tags.create("v1", ada.id)
    _cleanup_with_tags(world.client("cleaner"))

    client.graph.branches.create("old", "v1")
    client.insert("eve", branch="old")

    assert client.people("old") == ["ada", "eve"]


def _cleanup_with_tags(cleaner: Client) -> None:
    """A cleanup that expires all but the head and what tags pin."""
    fence = stand_in_cleanup(cleaner, retire=False)
    pinned = {point.manifest_version for point in cleaner.repository.tags.pins()}
    for number in set(range(1, fence.oldest_retained)) - pinned:
        stand_in_retire(cleaner, fence.branch_id, range(number, number + 1))


# Forks at older commits


def test_a_branch_is_forked_from_an_older_commit(client: Client) -> None:
    ada = client.insert("ada")
    client.insert("bob")

    client.graph.branches.create("old", ada.id)
    client.insert("eve", branch="old")

    assert client.people("old") == ["ada", "eve"]
    assert client.people() == ["ada", "bob"]
    assert [commit.id for commit in client.graph.commits("old")][1:] == [
        ada.id,
        f"{parse_commit_id(ada.id).branch_id}.1",
    ]


@pytest.mark.parametrize("made_again", [False, True])
def test_a_commit_of_a_deleted_branch_is_not_forked_and_nothing_is_reserved(
    client: Client, world: World, made_again: bool
) -> None:
    client.graph.branches.create("dev")
    ada = client.insert("ada", branch="dev")
    client.graph.branches.delete("dev")
    if made_again:
        client.graph.branches.create("dev")

    for someone in (client, world.client("another")):
        with pytest.raises(CommitNotFound, match="its branch 'dev' was deleted, so it can't be forked"):
            someone.graph.branches.create("old", ada.id)

    assert client.graph.branches.create("old").requests <= 4


def test_a_tagged_commit_is_forked_though_its_branch_was_deleted(client: Client, world: World) -> None:
    client.graph.branches.create("dev")
    ada = client.insert("ada", branch="dev")
    client.graph.tags.create("v1", ada.id, branch="dev")
    client.graph.branches.delete("dev")

    client.graph.branches.create("old", "v1")
    world.client("another").graph.branches.create("older", ada.id)
    client.insert("eve", branch="old")

    assert (client.people("old"), client.people("older")) == (["ada", "eve"], ["ada"])


def test_a_branch_is_forked_from_an_older_state_of_another_branch(client: Client) -> None:
    client.clock.pass_time(hours=1)
    ada = client.insert("ada")
    client.clock.pass_time(hours=1)
    client.insert("bob")

    client.graph.branches.create("then", "main", ada.commit.authored_at)
    client.graph.branches.create("there", at=ada.id)

    assert client.people("then") == client.people("there") == ["ada"]


def test_a_fork_pins_the_commit_that_it_starts_from(client: Client, world: World) -> None:
    ada = client.insert("ada")
    client.insert("bob")

    client.graph.branches.create("old", ada.id)

    ref = client.repository.refs.read("old", 1)
    assert ref.fork == parse_commit_id(ada.id)
    head = client.head("old")
    assert isinstance(head, Manifest)
    assert head.ancestry[world.main_id] == Position(2)


def test_an_expired_commit_is_not_forked(client: Client) -> None:
    ada = client.insert("ada")
    client.insert("bob")
    stand_in_cleanup(client, retire=False)

    with pytest.raises(CommitNotFound, match="expired"):
        client.graph.branches.create("old", ada.id)
    with pytest.raises(BranchNotFound):
        client.people("old")


def test_a_cleanup_that_passes_the_fork_point_meanwhile_wins(client: Client, world: World) -> None:
    ada = client.insert("ada")
    client.insert("bob")
    cleaner = world.client("cleaner")

    with client.start(lambda: client.graph.branches.create("old", ada.id)) as stalled:
        stalled.run_until(lambda call: call == ("create", "__refs/old/1.json"))
        stand_in_cleanup(cleaner)
        stalled.run_to_end()
        with pytest.raises(ConflictError, match="A cleanup passed manifest 2"):
            stalled.result()


# Faults


@pytest.mark.parametrize("fault", [APPLIED_ANSWER_LOST, NEITHER_APPLIED_NOR_ANSWERED, AN_INNER_RETRY_SAYS_EXISTS])
def test_a_lost_answer_is_settled_by_reading(client: Client, fault: Any) -> None:
    ada = client.insert("ada")

    with client.start(lambda: client.graph.tags.create("v1", ada.id)) as stalled:
        stalled.run_until(lambda call: call == ("create", "__tags/v1.json"))
        stalled.step(fault)
        stalled.run_to_end()
        assert stalled.result().commit_id == ada.id

    assert [tag.name for tag in client.graph.tags.list()] == ["v1"]


def test_a_damaged_tag_is_named(client: Client, world: World) -> None:
    ada = client.insert("ada")
    client.graph.tags.create("v1", ada.id)
    path = world.root / "__tags" / "v1.json"
    document = json.loads(path.read_text())
    path.write_bytes(sealed(document | {"commit": "elsewhere"}))

    with pytest.raises(Damaged, match="tag 'v1'"):
        client.people(at="v1")


def test_a_graph_that_was_opened_to_read_makes_no_tags(client: Client, world: World) -> None:
    client.insert("ada")
    graph = open_graph(str(world.root), read_only=True)

    with pytest.raises(ReadOnly):
        graph.tags.create("v1")
    with pytest.raises(ReadOnly):
        graph.tags.delete("v1")


# A tag that is deleted and created again.


def test_a_delete_that_arrives_late_leaves_the_tag_that_was_created_since(world: World) -> None:
    slow, other = world.client("slow"), world.client("other")
    first, second = slow.insert("ada"), slow.insert("bob")
    slow.graph.tags.create("v1", first.id)

    with slow.start(lambda: slow.graph.tags.delete("v1")) as stalled:
        stalled.run_until(lambda call: call.method in ("replace", "delete"))
        other.graph.tags.delete("v1")
        other.graph.tags.create("v1", second.id)
        stalled.run_to_end()
        stalled.result()  # the tag that it was to delete is gone

    assert [tag.commit_id for tag in world.client("fresh").graph.tags.list()] == [second.id]


def test_a_withdrawal_that_arrives_late_leaves_the_tag_that_was_created_since(world: World) -> None:
    """A creation that a cleanup has overtaken withdraws its own tag, and no other."""
    slow, other = world.client("slow"), world.client("other")
    first, second = slow.insert("ada"), slow.insert("bob")

    with slow.start(lambda: slow.graph.tags.create("v1", first.id)) as stalled:
        stalled.run_until(lambda call: call == ("create", "__tags/v1.json"))
        stalled.step()
        stand_in_cleanup(other, oldest_retained=3, retire=False)
        stalled.run_until(lambda call: call.method in ("replace", "delete"))
        other.graph.tags.delete("v1")
        other.graph.tags.create("v1", second.id)
        stalled.run_to_end()
        with pytest.raises(CommitNotFound):
            stalled.result()

    assert [tag.commit_id for tag in world.client("fresh").graph.tags.list()] == [second.id]


@pytest.mark.parametrize("fault", [LOSE_SWAP_APPLIED, LOSE_SWAP], ids=["applied", "not applied"])
def test_a_lost_answer_to_a_delete_or_a_second_creation_is_settled(world: World, fault: Any) -> None:
    client = world.client("client")
    first, second = client.insert("ada"), client.insert("bob")
    client.graph.tags.create("v1", first.id)

    def again() -> None:
        client.graph.tags.delete("v1")
        client.graph.tags.create("v1", second.id)

    with client.start(again) as running:
        for _ in range(2):
            running.run_until(lambda call: call.method == "replace")
            running.step(fault)
        running.run_to_end()
        running.result()

    assert [tag.commit_id for tag in world.client("fresh").graph.tags.list()] == [second.id]


def test_a_name_can_be_used_for_many_tags_one_after_another(world: World) -> None:
    client = world.client("client")
    for number in range(4):
        commit = client.insert(f"p{number}")
        client.graph.tags.create("v1", commit.id)
        assert client.graph.commit("v1").id == commit.id
        with pytest.raises(AlreadyExists):
            client.graph.tags.create("v1")
        client.graph.tags.delete("v1")
        assert client.graph.tags.list() == []
        assert client.repository.tags.pins() == []
        with pytest.raises(TagNotFound):
            client.graph.tags.delete("v1")


def test_a_tag_that_an_earlier_release_stored_is_read_deleted_and_created_again(world: World) -> None:
    client = world.client("client")
    ada = client.insert("ada")
    stored = {"format": 1, "tag": "v1", "commit": ada.id, "created_at": "2026-01-01T00:00:00.000000Z"}
    path = world.root / "__tags" / "v1.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**stored, "actor": None, "txn_id": "01JEARLIER"}))

    assert [(tag.name, tag.commit_id) for tag in client.graph.tags.list()] == [("v1", ada.id)]
    client.graph.tags.delete("v1")
    assert client.graph.tags.list() == []
    assert client.graph.tags.create("v1").commit_id == ada.id
