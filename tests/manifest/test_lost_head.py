"""A head that the store has lost: nobody who knows better serves what is left as the head, or uses a number again."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from omnigraph.diff.feed import poll
from omnigraph.errors import CommitNotFound, CursorRefused, Damaged, HeadLost
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.model.document import encode_document
from omnigraph.manifest.model.paths import hint_key
from omnigraph.manifest.store.head_search import Hint, decode_hint, encode_hint
from omnigraph.manifest.store.manifest_store import HEAD_UNSEEN_MAX_S, HINT_EVERY
from support.catalogs import PERSON, person_rows
from support.lost_heads import bring_back, lose, lose_hint, lose_newest, numbers

from .schedules import Client, World, stand_in_cleanup


def committed(world: World, *ids: str) -> Client:
    client = world.client("writer")
    for one in ids:
        client.insert(one)
    return client


def hinted(world: World, extra: int = 2) -> Client:
    """A branch whose hint is a few manifests below its head."""
    client = world.client("writer")
    while client.head().manifest_version < HINT_EVERY + extra:
        stand_in_cleanup(client, oldest_retained=1)
    put_hint(client, world.main_id, HINT_EVERY)
    return client


def put_hint(client: Client, branch_id: str, number: int) -> None:
    client.repository.store.put(hint_key(branch_id), encode_hint(branch_id, number))


def idle(client: Client) -> None:
    client.clock.sleep(HEAD_UNSEEN_MAX_S + 1)


# The error.


def test_the_error_names_the_branch_the_head_the_evidence_and_what_to_do() -> None:
    error = HeadLost("main", 50, 57, "tag 'v1' names it")

    assert str(error) == (
        "Branch 'main' has lost its head (its newest manifest is 50, but number 57 was used, because tag 'v1' names "
        "it): nothing was written, restore its manifests up to 57 from a copy or from earlier versions of the objects, "
        "or start a new branch from what is left (`branch create NAME --from COMMIT`, in a new process), see `verify`."
    )
    assert (error.code, error.exit_code, error.http_status) == ("internal", 1, 500)
    assert error.details == {
        "kind": "HeadLost",
        "branch": "main",
        "head": 50,
        "used": 57,
        "evidence": "tag 'v1' names it",
    }
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (HeadLost, str(error))


# A process that has seen more than is left.


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_warm_reader_does_not_serve_what_is_left_as_the_head(any_world: World, count: int) -> None:
    reader = committed(any_world, "ada", "bob", "cyd")
    lose_newest(reader.repository.store, any_world.main_id, count)
    idle(reader)

    with pytest.raises(HeadLost) as refused:
        reader.people()

    assert (refused.value.branch, refused.value.head, refused.value.used) == ("main", 4 - count, 4)


def test_a_warm_reader_still_serves_a_commit_that_is_named(any_world: World) -> None:
    reader = any_world.client("writer")
    first = reader.insert("ada")
    reader.insert("bob")
    lose_newest(reader.repository.store, any_world.main_id, 1)
    idle(reader)

    assert reader.people(at=first.id) == ["ada"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_warm_writer_that_was_idle_refuses(any_world: World, count: int) -> None:
    writer = committed(any_world, "ada", "bob", "cyd")
    lose_newest(writer.repository.store, any_world.main_id, count)
    idle(writer)

    with pytest.raises(HeadLost):
        writer.insert("eve")

    assert numbers(writer.repository.store, any_world.main_id) == list(range(1, 5 - count))


def test_a_held_base_does_not_take_a_number_that_its_process_has_seen_used(any_world: World) -> None:
    writer = any_world.client("writer")
    txn = writer.repository.open_txn()
    writer.insert("ada")
    writer.insert("bob")
    lose_newest(writer.repository.store, any_world.main_id, 2)

    with pytest.raises(HeadLost):
        writer.graph.write([Append(PERSON, person_rows("eve"))], txn=txn)

    assert numbers(writer.repository.store, any_world.main_id) == [1]


def test_a_writer_that_is_many_manifests_behind_what_it_has_seen_refuses(any_world: World) -> None:
    writer = any_world.client("writer")
    old = writer.head()
    for number in range(8):
        writer.insert(f"p{number}")
    lose_newest(writer.repository.store, any_world.main_id, 2)

    with pytest.raises(HeadLost) as refused:
        writer.repository.manifests.refresh_head(old)

    assert (refused.value.head, refused.value.used) == (7, 9)


def test_a_branch_of_which_nothing_is_left_is_lost_too(any_world: World) -> None:
    reader = committed(any_world, "ada")
    lose_newest(reader.repository.store, any_world.main_id, 2)
    idle(reader)

    with pytest.raises(HeadLost, match="it has no manifest"):
        reader.people()


def test_once_the_manifests_are_restored_everybody_goes_on(any_world: World) -> None:
    writer = committed(any_world, "ada", "bob")
    store = writer.repository.store
    lost = lose_newest(store, any_world.main_id, 1)
    idle(writer)
    with pytest.raises(HeadLost):
        writer.people()

    bring_back(store, lost)

    writer.insert("cyd")
    assert writer.people() == ["ada", "bob", "cyd"]


def test_looking_for_the_head_after_a_pause_is_one_request_where_the_store_lists_in_order(any_world: World) -> None:
    client = committed(any_world, "ada")
    idle(client)
    with client.start(client.head) as confirming:
        calls = [call.method for call in confirming.run_to_end()]

    by_listing = client.repository.location.lists_in_name_order
    assert calls == (["list"] if by_listing else ["head", "get"])


# What others name.


def test_a_branch_forked_from_what_was_lost_contradicts_the_head_that_is_left(any_world: World) -> None:
    writer = committed(any_world, "ada", "bob")
    writer.graph.branches.create("side")
    lose_newest(writer.repository.store, any_world.main_id, 1)

    side_first = any_world.cold_client("side first")
    side_first.head("side")
    main_first = any_world.client("main first")
    main_first.head("side")

    for cold in (side_first, main_first):
        with pytest.raises(HeadLost, match="manifest 1 of branch 'side' descends from it"):
            cold.head()
        with pytest.raises(HeadLost):
            cold.insert("eve")
    assert numbers(writer.repository.store, any_world.main_id) == [1, 2]


def test_a_branch_that_merged_what_was_lost_contradicts_the_head_that_is_left(any_world: World) -> None:
    writer = any_world.client("writer")
    writer.graph.branches.create("work")
    writer.insert("ada", branch="work")
    work = writer.head("work").branch_id
    writer.graph.branches.merge("work")
    lose_newest(writer.repository.store, work, 1)

    cold = any_world.client("cold")

    with pytest.raises(HeadLost, match="of branch 'main' descends from it"):
        cold.insert("eve", branch="work")


def test_a_tag_of_what_was_lost_contradicts_the_head_that_is_left(any_world: World) -> None:
    writer = committed(any_world, "ada", "bob")
    writer.graph.tags.create("v1")
    lose_newest(writer.repository.store, any_world.main_id, 1)

    cold = any_world.client("cold")
    with pytest.raises(CommitNotFound):
        cold.people(at="v1")

    with pytest.raises(HeadLost, match="tag 'v1' names it"):
        cold.insert("eve")


def test_a_feed_refuses_a_cursor_behind_what_was_lost(any_world: World) -> None:
    writer = committed(any_world, "ada", "bob")
    cursor = poll(writer.repository, start="beginning").cursor
    lose_newest(writer.repository.store, any_world.main_id, 1)

    with pytest.raises(CursorRefused, match="ends at manifest 2, before the cursor's 3"):
        poll(any_world.client("cold").repository, cursor)


# The hint.


def test_a_cold_writer_refuses_below_the_hint_and_a_cold_reader_reads_what_is_left(any_world: World) -> None:
    writer = hinted(any_world)
    store = writer.repository.store
    writer.insert("ada")
    lose_newest(store, any_world.main_id, 5)  # the hint's manifest among them
    left = numbers(store, any_world.main_id)

    cold = any_world.client("cold")

    assert cold.head().manifest_version == left[-1] == HINT_EVERY - 2
    with pytest.raises(HeadLost, match="the hint beside its manifests names it") as refused:
        cold.insert("eve")
    assert (refused.value.head, refused.value.used) == (HINT_EVERY - 2, HINT_EVERY)
    assert numbers(store, any_world.main_id) == left


def test_what_is_left_can_be_gone_on_with_on_a_new_branch(any_world: World) -> None:
    writer = hinted(any_world)
    lose_newest(writer.repository.store, any_world.main_id, 5)
    cold = any_world.client("cold")

    cold.graph.branches.create("rescued", from_=cold.head().logical_head)
    cold.insert("eve", branch="rescued")

    assert cold.people("rescued") == ["eve"]


def test_what_is_left_can_be_gone_on_with_though_another_branch_knows_more(any_world: World) -> None:
    writer = committed(any_world, "ada", "bob")
    writer.graph.branches.create("side")
    lose_newest(writer.repository.store, any_world.main_id, 1)
    cold = any_world.client("cold")

    cold.graph.branches.create("rescued", from_=cold.head().logical_head)

    assert any_world.client("other").people("rescued") == ["ada"]


def test_a_loss_above_the_hint_that_nothing_contradicts_is_not_noticed(any_world: World) -> None:
    """As the docs say: a cold process has nothing to compare with."""
    writer = hinted(any_world)
    lose_newest(writer.repository.store, any_world.main_id, 1)

    any_world.client("cold").insert("eve")


def test_without_a_hint_a_cold_process_notices_nothing(any_world: World) -> None:
    writer = hinted(any_world)
    lose_newest(writer.repository.store, any_world.main_id, 5)
    lose_hint(writer.repository.store, any_world.main_id)

    any_world.client("cold").insert("eve")


def _flipped(data: bytes) -> bytes:
    place = data.index(b"manifest_version") + 19
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda branch_id: b"999999", id="a plain number, as format 1 wrote it"),
        pytest.param(lambda branch_id: _flipped(encode_hint(branch_id, 10)), id="a flipped bit"),
        pytest.param(lambda branch_id: encode_hint("a" * 13, 999), id="another branch's"),
        pytest.param(lambda branch_id: encode_document({"branch_id": branch_id}), id="no number"),
        pytest.param(lambda branch_id: b"\x00" * 64, id="zeros after a power cut"),
    ],
)
def test_a_damaged_hint_stops_neither_readers_nor_writers(any_world: World, damage: Callable[[str], bytes]) -> None:
    client = committed(any_world, "ada")
    client.repository.store.put(hint_key(any_world.main_id), damage(any_world.main_id))

    cold = any_world.client("cold")
    cold.insert("bob")

    assert cold.people() == ["ada", "bob"]


def test_a_hint_that_was_written_after_the_listing_is_no_contradiction(any_world: World) -> None:
    """The head is looked for while others go on: whatever the hint says by then, its manifest is there."""
    writer = committed(any_world, "ada")
    cold = any_world.cold_client("cold")
    original = cold.repository.manifests._search.highest_number

    def overtaken(branch_id: str) -> int | None:
        found = original(branch_id)
        cold.repository.manifests._search.highest_number = original  # type: ignore[method-assign]
        writer.insert("bob")
        put_hint(writer, any_world.main_id, 3)
        return found

    cold.repository.manifests._search.highest_number = overtaken  # type: ignore[method-assign]

    cold.insert("cyd")

    assert any_world.client("fresh").people() == sorted({"ada", "cyd", *writer.people()})


def test_hints_round_trip_and_only_a_checksum_makes_one_a_proof() -> None:
    branch_id = "b" * 13
    assert decode_hint(encode_hint(branch_id, 7), branch_id) == Hint(7, is_proof=True)
    assert decode_hint(b"7", branch_id) == Hint(7, is_proof=False)
    assert decode_hint(b"0", branch_id) is None
    assert decode_hint(b"", branch_id) is None


# Gaps: a manifest above what was lost.


def test_a_manifest_above_a_gap_keeps_its_process_from_filling_the_gap(world: World) -> None:
    """Where heads are found by galloping, a gap hides what is above it from those who know nothing of it."""
    writer = committed(world, "ada", "bob", "cyd")
    lose(writer.repository.store, world.main_id, [2, 3])
    seen = world.cold_client("seen")
    assert seen.stored(world.main_id, 4) is not None

    with pytest.raises(Damaged):
        seen.insert("eve")

    assert numbers(writer.repository.store, world.main_id) == [1, 4]
