"""A put whose answer is lost is reported rightly every time, and never applied twice.

Real HTTP through the proxy, which loses, delays and falsifies the answers: `settle-by-reading` in docs/protocol.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import omnigraph
from omnigraph.errors import (
    AccessDenied,
    AlreadyExists,
    BranchNotFound,
    NotAGraph,
    OmnigraphError,
    OutcomeUnknown,
    Unavailable,
)
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.commit.publish import PublishedCommit
from support.catalogs import COMPANY, PERSON, company_rows, ids_of, people, person_rows
from support.clients import impatient
from support.proxy import (
    Action,
    Answer,
    ApplyLate,
    ApplyThenAnswer,
    ApplyThenDrop,
    Delay,
    Drop,
    Hang,
    Matcher,
    Proxy,
    Rule,
    creates,
    error_body,
    exists_answer,
    gets,
    puts,
)
from support.s3 import S3Location, keys

pytestmark = pytest.mark.s3

MANIFESTS, REFS, STAMP, SCHEMA = "/__manifest/", "/__refs/", "/_omnigraph.json", "/__schema/"
BUSY, BROKEN, CONFLICT = error_body("SlowDown"), error_body("InternalError"), error_body("ConditionalRequestConflict")
DENIED = Answer(403, error_body("AccessDenied"))
EXPIRED = Answer(400, error_body("ExpiredToken"))

FAULTS: dict[str, Action] = {
    "applied, connection dropped": ApplyThenDrop(),
    "not applied, connection dropped": Drop(),
    "applied late": ApplyLate(0.5),
    "applied, an inner retry answers exists": ApplyThenAnswer(412, exists_answer()),
    "applied, answers 500": ApplyThenAnswer(500, BROKEN),
    "not applied, answers 500": Answer(500, BROKEN),
    "applied, answers 503": ApplyThenAnswer(503, BUSY),
    "not applied, answers 503": Answer(503, BUSY),
    "applied, answers 409": ApplyThenAnswer(409, CONFLICT),
    "not applied, answers 409": Answer(409, CONFLICT),
}
every_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
# Only a conditional put can be told that the object exists.
PLAIN_FAULTS = {name: fault for name, fault in FAULTS.items() if "exists" not in name}
every_plain_fault = pytest.mark.parametrize("fault", PLAIN_FAULTS.values(), ids=PLAIN_FAULTS.keys())


@pytest.fixture
def rows() -> str:
    return "512"


@pytest.fixture
def place(s3: S3Location, s3_proxied: S3Location, rows: str, monkeypatch: pytest.MonkeyPatch) -> S3Location:
    """A graph with one commit, reached through the proxy. `rows`: how many of a commit ride in its manifest."""
    monkeypatch.setenv("OMNIGRAPH_INLINE_ROWS", rows)
    add(omnigraph.init(s3.uri, people(), s3.options), "first")
    return s3_proxied


@pytest.fixture
def graph(place: S3Location) -> Graph:
    return impatient(place)


@pytest.fixture
def others(place: S3Location, s3: S3Location) -> Graph:
    """Another process, as far as the store can tell, with a way of its own to it."""
    return omnigraph.open(s3.uri, s3.options)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def add(graph: Graph, id_: str, *, branch: str = "main", txn_id: str | None = None) -> PublishedCommit:
    """One row with this id in each of two tables."""
    rows = [Append(PERSON, person_rows(id_)), Append(COMPANY, company_rows(id_))]
    commit = graph.write(rows, branch=branch, txn_id=txn_id)
    assert commit is not None
    return commit


def assert_once(s3: S3Location, client: Graph, commit: PublishedCommit, *expected: str, branch: str = "main") -> None:
    """History has that commit exactly once, every row is there exactly once, and the client knows it as it is."""
    fresh = omnigraph.open(s3.uri, s3.options)
    history = fresh.commits(branch)
    assert [c.id for c in history if c.txn_id == commit.commit.txn_id] == [commit.id]
    assert len({c.txn_id for c in history}) == len(history)
    stored = fresh.snapshot(branch)
    for table in (PERSON, COMPANY):
        assert ids_of(stored.to_arrow(table)) == sorted(["first", *expected])
    assert client.snapshot(branch).pinned.manifest == stored.pinned.manifest
    assert client.snapshot(branch, at=commit.id).pinned == fresh.snapshot(branch, at=commit.id).pinned
    assert client.commits(branch) == history
    assert commit.commit in history


def lives(s3: S3Location, name: str) -> bool:
    return name in omnigraph.open(s3.uri, s3.options).branches.list()


# A commit


@pytest.mark.parametrize("rows", ["512", "0"], ids=["small", "staged"])
@every_fault
def test_a_commit_whose_answer_is_lost_is_made_exactly_once(
    fault: Action, proxy: Proxy, graph: Graph, s3: S3Location
) -> None:
    rule = proxy.on(creates(MANIFESTS), fault)

    commit = add(graph, "ada")
    proxy.settle()

    assert len(rule.hits) == 1
    assert_once(s3, graph, commit, "ada")
    assert_once(s3, graph, add(graph, "grace"), "ada", "grace")


@pytest.mark.parametrize("answers_lost", [2, 5])
def test_many_lost_answers_in_a_row_are_one_commit(
    answers_lost: int, proxy: Proxy, graph: Graph, s3: S3Location
) -> None:
    for fault in (Drop(), ApplyLate(0.3), Answer(500, BROKEN), ApplyLate(0.1), Drop())[:answers_lost]:
        proxy.on(creates(MANIFESTS), fault)

    commit = add(graph, "ada")
    proxy.settle()

    assert_once(s3, graph, commit, "ada")


@pytest.mark.parametrize("late_s", [1.5, pytest.param(10.0, marks=pytest.mark.soak)])
def test_a_late_put_finds_that_its_repetition_came_first(
    late_s: float, proxy: Proxy, graph: Graph, s3: S3Location
) -> None:
    late = proxy.on(creates(MANIFESTS), ApplyLate(late_s))

    commit = add(graph, "ada")

    assert late.hits[0].server_status is None, "the late put should not have been applied yet"
    assert_once(s3, graph, commit, "ada")
    later = add(graph, "grace")
    proxy.settle()
    assert late.hits[0].server_status == 412
    assert_once(s3, graph, later, "ada", "grace")


@pytest.mark.parametrize("late_s", [1.5, pytest.param(10.0, marks=pytest.mark.soak)])
def test_a_late_put_that_comes_before_its_repetition_is_recognised(
    late_s: float, proxy: Proxy, place: S3Location, s3: S3Location
) -> None:
    graph = impatient(place, settles_for_s=2 * late_s + 5)
    late = proxy.on(creates(MANIFESTS), ApplyLate(late_s))
    repeated = proxy.on(creates(MANIFESTS), Delay(late_s + 0.5))

    commit = add(graph, "ada")

    assert (late.hits[0].server_status, repeated.hits[0].server_status) == (200, 412)
    assert_once(s3, graph, commit, "ada")


@pytest.mark.parametrize("late_s", [1.5, pytest.param(10.0, marks=pytest.mark.soak)])
def test_a_late_put_whose_number_somebody_else_took_is_committed_after_it(
    late_s: float, proxy: Proxy, graph: Graph, others: Graph, s3: S3Location, pool: ThreadPoolExecutor
) -> None:
    late, look = proxy.on(creates(MANIFESTS), ApplyLate(late_s)), Hang()
    proxy.on(lambda request: bool(late.hits) and MANIFESTS in request.path, look)
    writing = pool.submit(add, graph, "ada")
    assert look.arrived.wait(10)
    between = add(others, "grace")
    look.release.set()

    commit = writing.result()

    assert commit.manifest_version == between.manifest_version + 1
    proxy.settle()
    assert late.hits[0].server_status == 412
    assert_once(s3, graph, commit, "ada", "grace")


def test_exists_after_a_lost_answer_is_not_taken_for_somebody_elses_commit(
    proxy: Proxy, graph: Graph, s3: S3Location
) -> None:
    proxy.on(creates(MANIFESTS), ApplyThenDrop())
    proxy.on(gets(MANIFESTS), Drop(), times=1)
    proxy.on(gets(MANIFESTS), Answer(404, error_body("NoSuchKey")), times=1)  # a read that is behind

    commit = add(graph, "ada")

    assert_once(s3, graph, commit, "ada")


def test_exists_for_somebody_elses_commit_is_a_lost_race(
    proxy: Proxy, graph: Graph, others: Graph, s3: S3Location, pool: ThreadPoolExecutor
) -> None:
    held = Hang()
    proxy.on(creates(MANIFESTS), held)
    writing = pool.submit(add, graph, "ada")
    assert held.arrived.wait(10)
    add(others, "grace")
    held.release.set()

    commit = writing.result()

    assert commit.manifest_version == 4
    assert_once(s3, graph, commit, "ada", "grace")


@pytest.mark.parametrize("rows", ["0"], ids=["staged"])
@pytest.mark.parametrize("table_object", ["/data/", "/_transactions/", "/_versions/"])
@every_plain_fault
def test_a_lost_answer_while_staging_is_one_commit_or_a_clean_failure(
    fault: Action, table_object: str, proxy: Proxy, graph: Graph, s3: S3Location
) -> None:
    before = [commit.id for commit in graph.commits()]
    rule = proxy.on(puts(table_object), fault)

    try:
        add(graph, "ada", txn_id="ada")
    except Unavailable:
        assert "409" in str(fault), "a passing fault should be met with patience"
        assert [commit.id for commit in graph.commits()] == before
    proxy.settle()

    assert len(rule.hits) == 1
    assert_once(s3, graph, add(graph, "ada", txn_id="ada"), "ada")


# The store goes away


LOST = {"applied": ApplyThenDrop(), "not applied": Drop(), "applied late": ApplyLate(0.3)}
every_loss = pytest.mark.parametrize("fault", LOST.values(), ids=LOST.keys())


@every_loss
def test_giving_up_on_an_answer_says_that_the_outcome_is_unknown(
    fault: Action, proxy: Proxy, place: S3Location, s3: S3Location
) -> None:
    graph = impatient(place, settles_for_s=0.2)
    before = graph.snapshot().manifest_version
    _lose_the_store_at(proxy, creates(MANIFESTS), fault)

    with pytest.raises(OutcomeUnknown) as unknown:
        add(graph, "ada", txn_id="ada-once")

    assert (unknown.value.txn_id, unknown.value.branch, unknown.value.number) == ("ada-once", "main", before + 1)
    _find_the_store(proxy)
    again = add(graph, "ada", txn_id=unknown.value.txn_id)
    assert_once(s3, graph, again, "ada")
    assert add(graph, "ada", txn_id=unknown.value.txn_id).id == again.id


@every_loss
def test_a_minted_txn_id_settles_an_unknown_outcome_from_another_process(
    fault: Action, proxy: Proxy, place: S3Location, s3: S3Location
) -> None:
    graph = impatient(place, settles_for_s=0.2)
    _lose_the_store_at(proxy, creates(MANIFESTS), fault)
    with pytest.raises(OutcomeUnknown) as unknown:
        add(graph, "ada")
    _find_the_store(proxy)
    elsewhere = omnigraph.open(s3.uri, s3.options)

    commit = add(elsewhere, "ada", txn_id=unknown.value.txn_id)

    assert_once(s3, elsewhere, commit, "ada")
    assert_once(s3, graph, commit, "ada")


def test_a_late_put_of_an_earlier_call_is_the_commit_of_the_next_call(
    proxy: Proxy, place: S3Location, s3: S3Location
) -> None:
    """The two calls staged different files; what counts from now on are those that the stored manifest names."""
    graph = impatient(place, settles_for_s=0.2)
    late = _lose_the_store_at(proxy, creates(MANIFESTS), ApplyLate(1.0))
    with pytest.raises(OutcomeUnknown) as unknown:
        add(graph, "ada")
    assert late.hits[0].server_status is None
    _find_the_store(proxy, settle=False)
    second = proxy.on(creates(MANIFESTS), Delay(1.5))

    commit = add(graph, "ada", txn_id=unknown.value.txn_id)

    assert [rule.hits[0].server_status for rule in (late, second)] == [200, 412]
    assert_once(s3, graph, commit, "ada")
    assert_once(s3, graph, add(graph, "grace"), "ada", "grace")


@pytest.mark.parametrize("refusal", [DENIED, EXPIRED, Answer(503, BUSY)], ids=["denied", "expired", "busy"])
def test_a_refused_look_after_a_lost_answer_is_no_failure(
    refusal: Answer, proxy: Proxy, place: S3Location, s3: S3Location
) -> None:
    graph = impatient(place, settles_for_s=0.2)
    lost = proxy.on(creates(MANIFESTS), ApplyThenDrop())
    proxy.on(lambda request: bool(lost.hits) and MANIFESTS in request.path, refusal, times=None)

    with pytest.raises(OutcomeUnknown) as unknown:
        add(graph, "ada")

    proxy.reset()
    assert_once(s3, graph, add(graph, "ada", txn_id=unknown.value.txn_id), "ada")


def test_a_denied_put_fails_at_once_even_if_looking_is_denied_too(proxy: Proxy, graph: Graph, s3: S3Location) -> None:
    denied = proxy.on(creates(MANIFESTS), DENIED, times=None)
    proxy.on(lambda request: bool(denied.hits), DENIED, times=None)

    with pytest.raises(AccessDenied):
        add(graph, "ada")

    assert len(denied.hits) == 1
    proxy.reset()
    assert_once(s3, graph, add(graph, "grace"), "grace")


def test_a_denial_after_a_lost_answer_is_no_failure(proxy: Proxy, place: S3Location, s3: S3Location) -> None:
    graph = impatient(place, settles_for_s=0.5)
    proxy.on(creates(MANIFESTS), ApplyLate(2.0))
    denied = proxy.on(creates(MANIFESTS), DENIED, times=None)

    with pytest.raises(OutcomeUnknown) as unknown:
        add(graph, "ada")

    assert denied.hits
    proxy.settle()
    proxy.reset()
    assert_once(s3, graph, add(graph, "ada", txn_id=unknown.value.txn_id), "ada")


# Branches


@every_fault
@pytest.mark.parametrize("lost", [REFS, MANIFESTS], ids=["ref", "manifest 1"])
def test_a_branch_whose_answer_is_lost_is_created_once(
    lost: str, fault: Action, proxy: Proxy, graph: Graph, s3: S3Location
) -> None:
    rule = proxy.on(creates(lost), fault)

    graph.branches.create("dev")
    proxy.settle()

    assert len(rule.hits) == 1
    assert graph.branches.list() == omnigraph.open(s3.uri, s3.options).branches.list() == ["dev", "main"]
    assert_once(s3, graph, add(graph, "ada", branch="dev"), "ada", branch="dev")
    assert [key.rsplit("/", 1)[1] for key in keys(s3.endpoint, s3.bucket) if "__refs/dev/" in key] == ["1.json"]
    with pytest.raises(AlreadyExists):
        graph.branches.create("dev")


@pytest.mark.parametrize(
    ("lost", "fault"),
    [pytest.param(MANIFESTS, fault, id=f"tombstone-{name}") for name, fault in FAULTS.items()]
    + [pytest.param(REFS, fault, id=f"marker-{name}") for name, fault in PLAIN_FAULTS.items()],
)
def test_a_delete_whose_answer_is_lost_deletes_once(
    lost: str, fault: Action, proxy: Proxy, graph: Graph, s3: S3Location
) -> None:
    graph.branches.create("dev")
    rule = proxy.on(puts(lost), fault)

    graph.branches.delete("dev")
    proxy.settle()

    assert len(rule.hits) == 1
    assert graph.branches.list() == omnigraph.open(s3.uri, s3.options).branches.list() == ["main"]
    with pytest.raises(BranchNotFound):
        graph.snapshot("dev")
    graph.branches.create("dev")
    assert_once(s3, graph, add(graph, "ada", branch="dev"), "ada", branch="dev")


@every_loss
def test_giving_up_on_manifest_1_of_a_branch_says_that_it_may_exist(
    fault: Action, proxy: Proxy, place: S3Location, s3: S3Location
) -> None:
    graph = impatient(place, settles_for_s=0.2)
    _lose_the_store_at(proxy, creates(MANIFESTS), fault)

    with pytest.raises(OutcomeUnknown) as unknown:
        graph.branches.create("dev")

    assert (unknown.value.branch, unknown.value.number) == ("dev", 1)
    _find_the_store(proxy)
    if lives(s3, "dev"):
        with pytest.raises(AlreadyExists):
            graph.branches.create("dev")
    else:
        graph.branches.create("dev")
    assert_once(s3, graph, add(graph, "ada", branch="dev"), "ada", branch="dev")


@every_loss
def test_giving_up_on_a_tombstone_says_that_the_branch_may_be_gone(
    fault: Action, proxy: Proxy, place: S3Location, s3: S3Location
) -> None:
    graph = impatient(place, settles_for_s=0.2)
    graph.branches.create("dev")
    _lose_the_store_at(proxy, creates(MANIFESTS), fault)

    with pytest.raises(OutcomeUnknown) as unknown:
        graph.branches.delete("dev")

    assert (unknown.value.branch, unknown.value.number) == ("dev", 2)
    _find_the_store(proxy)
    if lives(s3, "dev"):
        graph.branches.delete("dev")
    else:
        with pytest.raises(BranchNotFound):
            graph.branches.delete("dev")
    assert not lives(s3, "dev")


@every_loss
def test_giving_up_on_a_ref_is_a_failure_that_leaves_no_branch(
    fault: Action, proxy: Proxy, place: S3Location, s3: S3Location
) -> None:
    """Manifest 1 is the moment of creation, so without it nothing can have happened."""
    graph = impatient(place, settles_for_s=0.2)
    _lose_the_store_at(proxy, creates(REFS), fault)

    with pytest.raises(Unavailable):
        graph.branches.create("dev")

    _find_the_store(proxy)
    assert not lives(s3, "dev")
    graph.branches.create("dev")
    assert lives(s3, "dev")


def test_a_lost_marker_that_is_never_put_hides_no_death(proxy: Proxy, graph: Graph, s3: S3Location) -> None:
    graph.branches.create("dev")
    marker = proxy.on(puts(REFS), Drop(), times=None)

    graph.branches.delete("dev")

    assert marker.hits
    assert not lives(s3, "dev")
    proxy.reset()
    graph.branches.create("dev")
    assert lives(s3, "dev")


# Making a graph


@every_fault
@pytest.mark.parametrize("lost", [REFS, MANIFESTS, STAMP], ids=["ref", "manifest 1", "stamp"])
def test_a_graph_whose_answer_is_lost_is_made_once(
    lost: str, fault: Action, proxy: Proxy, s3_proxied: S3Location, s3: S3Location
) -> None:
    rule = proxy.on(puts(lost), fault)

    made = omnigraph.init(s3_proxied.uri, people(), s3_proxied.options)
    proxy.settle()

    assert len(rule.hits) == 1
    assert made.repository.stamp == omnigraph.open(s3.uri, s3.options).repository.stamp
    assert_once(s3, made, add(made, "first"))
    with pytest.raises(AlreadyExists):
        omnigraph.init(s3_proxied.uri, people(), s3_proxied.options)


@every_plain_fault
def test_a_lost_answer_for_the_schema_harms_nothing(
    fault: Action, proxy: Proxy, s3_proxied: S3Location, s3: S3Location
) -> None:
    rule = proxy.on(puts(SCHEMA), fault)

    made = omnigraph.init(s3_proxied.uri, people(), s3_proxied.options)
    proxy.settle()

    assert len(rule.hits) == 1
    assert_once(s3, made, add(made, "first"))


@every_loss
def test_giving_up_on_the_stamp_says_that_the_graph_may_exist(
    fault: Action, proxy: Proxy, s3_proxied: S3Location, s3: S3Location, quick_storage: None
) -> None:
    _lose_the_store_at(proxy, creates(STAMP), fault)

    with pytest.raises(OutcomeUnknown):
        omnigraph.init(s3_proxied.uri, people(), s3_proxied.options)

    _find_the_store(proxy)
    try:
        graph = omnigraph.open(s3.uri, s3.options)
    except NotAGraph:
        graph = omnigraph.init(s3.uri, people(), s3.options)
    assert_once(s3, graph, add(graph, "first"))


@pytest.mark.parametrize("lost", [SCHEMA, REFS], ids=["schema", "ref"])
def test_giving_up_before_the_stamp_is_a_failure_that_leaves_no_graph(
    lost: str, proxy: Proxy, s3_proxied: S3Location, s3: S3Location, quick_storage: None
) -> None:
    _lose_the_store_at(proxy, puts(lost), ApplyThenDrop())

    with pytest.raises(OmnigraphError):
        omnigraph.init(s3_proxied.uri, people(), s3_proxied.options)

    with pytest.raises(NotAGraph):
        omnigraph.open(s3.uri, s3.options)
    graph = omnigraph.init(s3.uri, people(), s3.options)
    assert_once(s3, graph, add(graph, "first"))


@pytest.fixture
def quick_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between attempts that a test can sit through; the attempts stay as many as they are."""
    monkeypatch.setattr("omnigraph.runtime.SystemClock.sleep", lambda self, seconds: threading.Event().wait(0.005))


def _lose_the_store_at(proxy: Proxy, match: Matcher, fault: Action) -> Rule:
    """Do `fault` to the next request that matches, and let nothing through after it."""
    rule = proxy.on(match, fault)
    proxy.on(lambda request: bool(rule.hits), Drop(), times=None)
    return rule


def _find_the_store(proxy: Proxy, *, settle: bool = True) -> None:
    if settle:
        proxy.settle()
    proxy.reset()
