"""The commit log and time travel: by id, by time, through fork points, and what has expired."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from omnigraph.errors import BadRequest, BranchNotFound, CommitNotFound
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.model.manifest import CommitClass, Manifest

from .schedules import START, Client, World, stand_in_cleanup, stand_in_retire

HOUR = timedelta(hours=1)


@pytest.fixture
def client(world: World) -> Client:
    return world.client("client")


def insert_hourly(client: Client, *people: str, branch: str = "main") -> list[PublishedCommit]:
    """One commit an hour, the first one an hour from now."""
    commits = []
    for person in people:
        client.clock.pass_time(hours=1)
        commits.append(client.insert(person, branch=branch, actor=person))
    return commits


def names(client: Client, branch: str = "main", **options: object) -> list[str | None]:
    """Who made the commits of a branch, newest first; `init` was nobody."""
    return [commit.actor for commit in client.graph.commits(branch, **options)]  # type: ignore[arg-type]


# By commit id


def test_reading_at_a_commit_ignores_what_was_written_later(client: Client) -> None:
    ada, bob, _ = insert_hourly(client, "ada", "bob", "cleo")

    assert client.people(at=ada.id) == ["ada"]
    assert client.people(at=bob.id) == ["ada", "bob"]
    assert client.people() == ["ada", "bob", "cleo"]


def test_a_commit_of_any_branch_can_be_read_whatever_branch_is_named(client: Client) -> None:
    client.graph.branches.create("b")
    (on_b,) = insert_hourly(client, "ada", branch="b")

    assert client.people(at=on_b.id) == ["ada"]
    assert client.people() == []


@pytest.mark.parametrize(
    "unknown",
    ["aaaaaaaaaaaaa.1", "{main}.99", "{main}.1.7", "{main}.18446744073709551615", "{main}.99999999999999999999"],
)
def test_a_commit_that_does_not_exist_is_not_found(client: Client, world: World, unknown: str) -> None:
    reference = unknown.format(main=world.main_id)
    with pytest.raises(CommitNotFound):
        client.graph.snapshot(at=reference)
    with pytest.raises(CommitNotFound):
        client.graph.commit(reference)


@pytest.mark.parametrize(
    "malformed", ["", "x", "{main}.0", "{main}.01", "{main}.-1", "../{main}.1", "{main}", "{main}.1\n"]
)
def test_what_is_neither_a_commit_nor_a_time_is_refused(client: Client, world: World, malformed: str) -> None:
    reference = malformed.format(main=world.main_id)
    with pytest.raises(BadRequest):
        client.graph.snapshot(at=reference)
    with pytest.raises(CommitNotFound):
        client.graph.commit(reference)


def test_an_expired_commit_is_refused_though_its_object_still_exists(client: Client, world: World) -> None:
    ada, bob = insert_hourly(client, "ada", "bob")
    stand_in_cleanup(client, oldest_retained=3, retire=False)
    assert isinstance(client.stored(world.main_id, ada.manifest_version), Manifest)

    for reference in (ada.id, ada.commit.authored_at):
        with pytest.raises(CommitNotFound, match="expired"):
            client.graph.snapshot(at=reference)
    assert client.people(at=bob.id) == ["ada", "bob"]


def test_an_expired_commit_is_refused_and_still_on_record_once_it_is_a_stub(client: Client) -> None:
    ada, bob = insert_hourly(client, "ada", "bob")
    stand_in_cleanup(client)

    with pytest.raises(CommitNotFound, match="expired"):
        client.graph.snapshot(at=ada.id)
    assert client.graph.commit(ada.id) == ada.commit
    assert names(client) == ["bob", "ada", None]
    assert client.people(at=bob.id) == ["ada", "bob"]


def test_a_commit_of_a_dead_branch_is_found_until_a_cleanup_takes_it(client: Client, world: World) -> None:
    client.graph.branches.create("b")
    branch_id = client.head("b").branch_id
    (on_b,) = insert_hourly(client, "ada", branch="b")
    client.graph.branches.delete("b")

    fresh = world.client("fresh")
    assert fresh.graph.commit(on_b.id) == on_b.commit
    assert fresh.people(at=on_b.id) == ["ada"]
    stand_in_retire(client, branch_id, range(1, 4))
    fresh = world.client("fresh later")
    assert fresh.graph.commit(on_b.id) == on_b.commit
    with pytest.raises(CommitNotFound, match="expired"):
        fresh.people(at=on_b.id)


# By time


def test_a_time_means_the_newest_commit_by_then(client: Client) -> None:
    insert_hourly(client, "ada", "bob", "cleo")  # at 1, 2 and 3 o'clock

    assert client.people(at=START) == []
    assert client.people(at=START + 0.5 * HOUR) == []
    assert client.people(at=START + HOUR) == ["ada"]
    assert client.people(at=START + 2.99 * HOUR) == ["ada", "bob"]
    assert client.people(at=START + 3 * HOUR) == client.people(at=START + 300 * HOUR) == ["ada", "bob", "cleo"]


def test_every_commit_of_a_long_branch_is_found_by_its_time(client: Client) -> None:
    for _ in range(20):
        client.clock.pass_time(hours=1)
        stand_in_cleanup(client, oldest_retained=1)

    found = [client.graph.snapshot(at=START + n * HOUR).manifest_version for n in range(21)]
    assert found == list(range(1, 22))


def test_of_commits_at_one_time_the_newest_counts(client: Client) -> None:
    for person in ("ada", "bob"):
        client.insert(person)

    assert client.people(at=START) == ["ada", "bob"]


@pytest.mark.parametrize("text", ["2026-01-01T01:30:00Z", "2026-01-01T01:30:00", "2026-01-01T03:30:00+02:00"])
def test_a_time_can_be_written_with_or_without_its_zone(client: Client, text: str) -> None:
    insert_hourly(client, "ada", "bob")

    assert client.people(at=text) == ["ada"]
    assert client.people(at=datetime.fromisoformat(text)) == ["ada"]


def test_a_time_without_a_zone_is_utc_wherever_the_process_runs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    insert_hourly(client, "ada", "bob")
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert client.people(at="2026-01-01T01:30:00") == ["ada"]
        assert client.people(at=datetime(2026, 1, 1, 1, 30)) == ["ada"]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_before_the_graph_existed_there_is_nothing_to_read(client: Client) -> None:
    for moment in (START - HOUR, "2025-12-31", datetime(1, 1, 1, tzinfo=UTC)):
        with pytest.raises(CommitNotFound, match="did not exist yet"):
            client.graph.snapshot(at=moment)


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", datetime(1, 1, 1, tzinfo=timezone(14 * HOUR))])
def test_a_time_that_no_calendar_has_in_utc_is_refused(client: Client, moment: str | datetime) -> None:
    with pytest.raises(BadRequest):
        client.graph.snapshot(at=moment)


def test_a_time_before_the_fork_is_looked_for_on_the_source(client: Client) -> None:
    insert_hourly(client, "ada", "bob")  # 1, 2
    client.graph.branches.create("b")
    insert_hourly(client, "cleo", branch="b")  # 3
    insert_hourly(client, "dan")  # 4, on main

    def at(hours: float) -> list[str]:
        return client.people("b", at=START + hours * HOUR)

    assert [at(0), at(1), at(2.5), at(3)] == [[], ["ada"], ["ada", "bob"], ["ada", "bob", "cleo"]]
    assert at(10) == ["ada", "bob", "cleo"], "what main did after the fork is not on this branch"


def test_a_time_is_looked_for_through_fork_after_fork_and_through_dead_branches(client: Client, world: World) -> None:
    insert_hourly(client, "ada")
    client.graph.branches.create("b")
    insert_hourly(client, "bob", branch="b")
    client.graph.branches.create("c", "b")
    insert_hourly(client, "cleo", branch="c")
    client.graph.branches.delete("b")

    fresh = world.client("fresh")
    found = [fresh.people("c", at=START + n * HOUR) for n in range(4)]
    assert found == [[], ["ada"], ["ada", "bob"], ["ada", "bob", "cleo"]]
    with pytest.raises(CommitNotFound, match="did not exist yet"):
        fresh.people("c", at=START - HOUR)


def test_a_time_before_an_expired_fork_point_is_refused(client: Client, world: World) -> None:
    insert_hourly(client, "ada", "bob")
    client.graph.branches.create("b")
    insert_hourly(client, "cleo")
    stand_in_cleanup(client)

    fresh = world.client("fresh")
    assert fresh.people("b", at=START + 2 * HOUR) == ["ada", "bob"], "the branch's own copy of the fork point"
    with pytest.raises(CommitNotFound, match="expired"):
        fresh.people("b", at=START + HOUR)


# The log


def test_the_log_is_newest_first_and_ends_with_init(client: Client) -> None:
    insert_hourly(client, "ada", "bob")

    commits = client.graph.commits()

    assert [commit.kind for commit in commits] == ["mutation", "mutation", "init"]
    assert names(client) == ["bob", "ada", None]
    assert [commit.parent for commit in commits] == [commits[1].id, commits[2].id, None]


def test_the_log_runs_on_through_the_fork_points(client: Client, world: World) -> None:
    insert_hourly(client, "ada")
    client.graph.branches.create("b")
    insert_hourly(client, "not-on-b")
    insert_hourly(client, "bob", branch="b")
    client.graph.branches.create("c", "b")
    insert_hourly(client, "cleo", branch="c")
    client.graph.branches.delete("b")

    assert names(world.client("fresh"), "c") == ["cleo", "bob", "ada", None]
    assert client.graph.commits("c")[0].parent == client.graph.commits("c")[1].id


def test_a_branch_without_commits_of_its_own_has_the_history_of_its_source(client: Client) -> None:
    insert_hourly(client, "ada")
    client.graph.branches.create("b")

    assert client.graph.commits("b") == client.graph.commits()
    assert client.graph.snapshot("b").commit_id == client.graph.snapshot().commit_id


def test_the_log_shows_maintenance_only_on_request(client: Client) -> None:
    insert_hourly(client, "ada")
    stand_in_cleanup(client)
    insert_hourly(client, "bob")

    assert names(client) == ["bob", "ada", None]
    classes = [commit.commit_class for commit in client.graph.commits(maintenance=True)]
    assert classes == [CommitClass.LOGICAL, CommitClass.MAINTENANCE, CommitClass.LOGICAL, CommitClass.LOGICAL]


def test_the_log_can_be_limited_and_filtered_by_actor(client: Client) -> None:
    insert_hourly(client, "ada", "bob", "cleo")

    assert names(client, limit=2) == ["cleo", "bob"]
    assert names(client, limit=0) == []
    assert names(client, limit=None) == ["cleo", "bob", "ada", None]
    assert names(client, limit=1, actor="ada") == ["ada"]
    assert names(client, actor="nobody") == []
    with pytest.raises(BadRequest):
        client.graph.commits(limit=-1)


def test_the_log_of_a_long_branch_is_whole(client: Client) -> None:
    for _ in range(40):
        stand_in_cleanup(client, oldest_retained=1)

    numbers = [int(commit.id.split(".")[1]) for commit in client.graph.commits(limit=None, maintenance=True)]
    assert numbers == list(range(41, 0, -1))


def test_the_log_of_no_branch_is_not_found(client: Client) -> None:
    with pytest.raises(BranchNotFound):
        client.graph.commits("nowhere")
