"""On a file system that does not tell upper from lower case no branch, tag or job is taken for another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omnigraph.errors import BadRequest, BranchNotFound, OmnigraphError, TagNotFound
from omnigraph.manifest.intent.intent import State
from support.case_folding import fold_case

from .schedules import Client, World


@pytest.fixture
def client(world: World, monkeypatch: pytest.MonkeyPatch) -> Client:
    fold_case(monkeypatch)
    return world.client("client")


def test_a_branch_is_not_found_by_another_spelling(world: World, client: Client) -> None:
    client.graph.branches.create("agent")

    for one in (client, world.client("fresh")):
        for verb in (one.head, one.graph.branches.delete, lambda name, one=one: one.insert("ada", branch=name)):
            with pytest.raises(BranchNotFound, match="'Agent'"):
                verb("Agent")
        assert one.graph.branches.list() == ["agent", "main"]


@pytest.mark.parametrize("key", [None, "a key"], ids=["without a key", "with an idempotency key"])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_branch_whose_name_differs_in_case_only_is_refused(world: World, deleted: bool, key: str | None) -> None:
    client = world.client("client")
    client.graph.branches.create("agent", txn_id=key)
    client.insert("ada", branch="agent")
    if deleted:
        client.graph.branches.delete("agent")
    with pytest.MonkeyPatch.context() as monkeypatch:
        fold_case(monkeypatch)
        with pytest.raises(BadRequest, match="does not tell it from the branch 'agent'"):
            world.client("other").graph.branches.create("AGENT", txn_id=key)

    fresh = world.client("fresh")
    assert fresh.graph.branches.list() == (["main"] if deleted else ["agent", "main"])
    if not deleted:
        assert fresh.people("agent") == ["ada"]


def test_a_tag_is_not_found_by_another_spelling_and_such_a_name_is_refused(world: World, client: Client) -> None:
    ada = client.insert("ada")
    client.graph.tags.create("v1", ada.id)
    client.insert("bob")
    other = world.client("other")

    attempts: list[tuple[Callable[[], object], type[OmnigraphError]]] = [
        (lambda: other.graph.tags.delete("V1"), TagNotFound),
        (lambda: other.people(at="tag:V1"), TagNotFound),
        (lambda: other.graph.tags.create("V1"), BadRequest),
    ]
    for attempt, error in attempts:
        with pytest.raises(error):
            attempt()
    assert [(tag.name, tag.commit_id) for tag in other.graph.tags.list()] == [("v1", ada.id)]
    other.graph.tags.delete("v1")
    with pytest.raises(BadRequest, match="differs in more than upper and lower case"):
        other.graph.tags.create("V1")
    assert other.graph.tags.create("v1").name == "v1"


def test_a_job_whose_id_differs_in_case_only_is_refused_and_leaves_the_intent_of_the_other_alone(
    world: World, client: Client
) -> None:
    intents = client.graph.repository.intents
    held = intents.acquire(client.graph.repository.open_txn("main"), "load-nightly", kind="load")
    other = world.client("other").graph.repository

    for state in (State.WORKING, State.FINISHED):
        with pytest.raises(BadRequest, match="does not tell it from the job 'load-nightly'"):
            other.intents.acquire(other.open_txn("main"), "load-Nightly", kind="load")
        seen = intents.read("load-nightly")
        assert seen is not None
        assert seen.intent.state is state
        held.finish()
