"""Writes that meet trouble on their way (a deadline, somebody faster, a silent store) are told what happened."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import omnigraph
from omnigraph.cancellation import Stopped, StopToken, stop_scope
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.publish import PublishPolicy
from omnigraph.manifest.model.manifest import Manifest
from omnigraph.manifest.repository import Repository
from omnigraph.server.settings import GraphSource, ServerSettings
from support.proxy import Drop, Hang, Proxy, creates
from support.s3 import S3Location
from support.server import ADD, SCHEMA, SET_AGE, Served, served

OLDER = "update Person set {{ age: {} }} where slug = 'ada'"
LATE = {"Request-Timeout": "0.05"}


def inside(server: Served) -> Repository:
    return server.service.hosted.open("people").repository


@pytest.fixture
def slow(server: Served, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Between opening its base and its put, every write takes a moment longer than the deadline."""
    repository = inside(server)

    def before(_: Manifest) -> bool:
        time.sleep(0.15)
        return False

    monkeypatch.setattr(repository, "before_write", before)
    return repository


# Deadlines


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/mutate", {"query": ADD, "params": {"slug": "cy"}}),
        ("/load", None),
    ],
)
def test_a_write_is_stopped_at_its_deadline_before_its_commit_is_sent(
    slow: Repository, http: httpx.Client, graph: Graph, path: str, body: Any
) -> None:
    before = graph.snapshot().commit_id
    line = '{"type": "Person", "data": {"slug": "cy"}}\n'

    answer = http.post(path, headers=LATE, **({"content": line} if body is None else {"json": body}))

    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), answer.text
    assert "longer than 0.05 s" in answer.json()["details"]["stopped"]
    assert "nothing was written" in answer.json()["error"]
    assert graph.snapshot().commit_id == before


def test_without_a_deadline_of_its_own_a_write_takes_the_time_it_needs(slow: Repository, http: httpx.Client) -> None:
    made = http.post("/mutate", json={"query": ADD, "params": {"slug": "cy"}})

    assert made.json()["commit"]["kind"] == "mutation"


def test_a_deadline_that_is_none_is_refused_before_anything_is_written(http: httpx.Client, graph: Graph) -> None:
    before = graph.snapshot().commit_id
    answer = http.post("/mutate", json={"query": ADD, "params": {"slug": "cy"}}, headers={"Request-Timeout": "soon"})

    assert answer.status_code == 400
    assert graph.snapshot().commit_id == before


def test_a_stop_that_comes_behind_the_put_changes_nothing_about_the_answer(graph: Graph) -> None:
    stop = StopToken()
    graph.repository.publisher.listeners.append(lambda _: stop.set(Stopped("it is late", "hurry")))
    with stop_scope(stop):
        made = graph.mutate(ADD, params={"slug": "cy"})
        assert made is not None
        assert graph.repository.branches.find("main").head.logical_head == made.id
        with pytest.raises(Stopped, match="nothing was written"):
            graph.mutate(ADD, params={"slug": "dee"})

    assert graph.snapshot().commit_id == made.id


def test_who_shares_a_manifest_with_one_that_is_stopped_does_not_stop(graph: Graph) -> None:
    """Writes that meet ride together; each has its own deadline."""
    stop = StopToken()
    stop.set(Stopped("it is late", "hurry"))

    def write(number: int) -> str | None:
        with stop_scope(stop if number % 2 else StopToken()):
            try:
                made = graph.mutate(ADD, params={"slug": f"p{number}"})
            except Stopped:
                return None
            return None if made is None else made.id

    with ThreadPoolExecutor(12) as pool:
        made = list(pool.map(write, range(24)))

    assert [made_one is not None for made_one in made] == [not number % 2 for number in range(24)]
    here = {row["slug"] for row in graph.query("query q() { match { $p: Person } return { $p.slug as slug } }").rows}
    assert here == {"ada", "bob"} | {f"p{number}" for number in range(0, 24, 2)}


# Bodies, field by field, of errors that really happened


def faster(repository: Repository, other: Graph) -> Any:
    """Somebody else commits between the base of a write and its put, once."""

    def before(_: Manifest) -> bool:
        repository.before_write = None
        other.mutate(SET_AGE, params={"slug": "ada", "age": 50})
        return False

    return before


def test_a_race_that_was_lost_names_the_table_and_both_commits(
    server: Served, http: httpx.Client, graph: Graph
) -> None:
    expected = graph.snapshot().commit_id
    inside(server).before_write = faster(inside(server), graph)

    answer = http.post("/mutate", json={"query": SET_AGE, "params": {"slug": "ada", "age": 40}, "on_conflict": "fail"})

    body = answer.json()
    assert (answer.status_code, set(body), body["code"]) == (409, {"error", "code", "details"}, "conflict")
    assert body["details"] == {
        "manifest_conflict": {
            "table_key": "node:Person",
            "expected": expected,
            "actual": graph.snapshot().commit_id,
        }
    }


def test_a_condition_that_stopped_holding_on_the_way_is_412_with_both_commits(
    server: Served, http: httpx.Client, graph: Graph
) -> None:
    expected = graph.snapshot().commit_id
    inside(server).before_write = faster(inside(server), graph)

    answer = http.post("/mutate", json={"query": ADD, "params": {"slug": "cy"}}, headers={"If-Graph-Commit": expected})

    assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed")
    assert answer.json()["details"] == {"expected": expected, "actual": graph.snapshot().commit_id}


@pytest.mark.parametrize(
    ("entity", "expected"),
    [
        ({"type": "Person", "data": {"slug": "ada"}}, ("@key", "Person", None, ["ada"])),
        ({"type": "Person", "data": {"slug": "x", "age": 200}}, ("@range", "Person", "age", ["x"])),
        ({"type": "Person", "data": {"slug": "x", "email": "taken"}}, ("@unique", "Person", "email", None)),
        ({"edge": "Knows", "from": "ada", "to": "nobody", "data": {}}, ("Knows", "Person", None, ["nobody"])),
    ],
)
def test_every_kind_of_constraint_has_the_same_four_fields(
    http: httpx.Client, entity: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    http.post("/load", content=json.dumps({"type": "Person", "data": {"slug": "zed", "email": "taken"}}))
    answer = http.post("/load", content=json.dumps(entity))

    details = answer.json()["details"]
    assert (answer.status_code, answer.json()["code"]) == (422, "constraint_violation")
    assert {"constraint", "type_name", "property", "entity_ids"} <= set(details)
    constraint, type_name, property_name, ids = expected
    assert constraint.strip("@") in details["constraint"]
    assert details["type_name"] == type_name
    assert property_name is None or details["property"] == property_name
    assert ids is None or details["entity_ids"] == ids


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        ("insert Person { slug: 'new', age: 1 }", "insert Person { slug: 'new', age: 2 }", "DivergentInsert"),
        (OLDER.format(1), OLDER.format(2), "DivergentUpdate"),
        ("delete Person where slug = 'bob'", "update Person set { age: 2 } where slug = 'bob'", "DeleteVsUpdate"),
        ("delete Person where slug = 'bob'", "insert Knows { from: 'bob', to: 'ada' }", "OrphanEdge"),
        ("insert Person { slug: 'a1', email: 'e' }", "insert Person { slug: 'a2', email: 'e' }", "UniqueViolation"),
    ],
)  # fmt: skip
def test_every_kind_of_merge_conflict_has_the_same_five_fields(
    http: httpx.Client, graph: Graph, ours: str, theirs: str, kind: str
) -> None:
    assert http.post("/branches", json={"name": "b"}).status_code == 200
    for branch, text in (("main", ours), ("b", theirs)):
        done = http.post(
            "/mutate", json={"query": f"query q() {{ {text.replace(chr(39), chr(34))} }}", "branch": branch}
        )
        assert done.status_code == 200, done.text
    before = graph.snapshot().commit_id

    answer = http.post("/branches/merge", json={"source": "b"})

    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    conflicts = answer.json()["details"]["merge_conflicts"]
    assert kind in {one["kind"] for one in conflicts}
    for one in conflicts:
        assert set(one) == {"entity_kind", "type_name", "entity_id", "kind", "message"}
        assert one["entity_kind"] in ("node", "edge")
        assert all(isinstance(value, str) and value for value in one.values())
    assert graph.snapshot().commit_id == before


def test_edges_that_are_too_many_together_are_reported_by_the_node_that_has_them(tmp_path: Path) -> None:
    schema = "node Person { slug: String @key }\nedge Boss: Person -> Person @card(0..1)"
    graph = omnigraph.init(tmp_path / "own", schema)
    graph.load([{"type": "Person", "data": {"slug": slug}} for slug in ("ada", "bob", "cy")])
    graph.branches.create("b")
    graph.mutate('query q() { insert Boss { from: "ada", to: "bob" } }')
    graph.mutate('query q() { insert Boss { from: "ada", to: "cy" } }', branch="b")

    assert the_conflict(tmp_path / "own") == ("node", "Person", "ada", "CardinalityViolation")


def test_a_row_that_a_constraint_of_the_other_side_forbids_is_reported(tmp_path: Path) -> None:
    before = "node Person { slug: String @key  age: I32? }"
    graph = omnigraph.init(tmp_path / "own", before)
    graph.load([{"type": "Person", "data": {"slug": "ada"}}])
    graph.branches.create("b")
    graph.schema.apply(before.replace("I32? }", "I32?  @range(age, 0..100) }"))
    graph.mutate('query q() { insert Person { slug: "eve", age: 300 } }', branch="b")

    assert the_conflict(tmp_path / "own") == ("node", "Person", "eve", "ValueConstraintViolation")


def the_conflict(store: Path) -> tuple[str, ...]:
    """The one conflict that merging b into main is refused with, but for its message."""
    with served({"people": store}, ServerSettings(grace_s=1.0, spark=False)) as server, server.client() as client:
        answer = client.post("/graphs/people/branches/merge", json={"source": "b"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    (conflict,) = answer.json()["details"]["merge_conflicts"]
    assert conflict.pop("message")
    assert list(conflict) == ["entity_kind", "type_name", "entity_id", "kind"]
    return tuple(conflict.values())


# A store that does not answer


@pytest.fixture
def remote(s3_proxied: S3Location, proxy: Proxy) -> Iterator[tuple[Served, httpx.Client, Proxy]]:
    omnigraph.init(s3_proxied.uri, SCHEMA, s3_proxied.options)
    source = GraphSource(s3_proxied.uri, s3_proxied.options)
    with served({"people": source}, ServerSettings(grace_s=2.0)) as server, server.client() as client:
        client.base_url = httpx.URL(f"{server.url}/graphs/people")
        yield server, client, proxy
        proxy.reset()


def test_a_put_under_way_at_the_deadline_is_waited_for(remote: tuple[Served, httpx.Client, Proxy]) -> None:
    _, http, proxy = remote
    hang = Hang()
    proxy.on(creates(), hang)

    def let_go_late() -> None:
        hang.arrived.wait(20)
        time.sleep(0.4)
        hang.release.set()

    threading.Thread(target=let_go_late, daemon=True).start()

    made = http.post("/mutate", json={"query": ADD, "params": {"slug": "cy"}}, headers={"Request-Timeout": "0.3"})

    assert made.status_code == 200, made.text
    assert http.get("/snapshot").json()["commit_id"] == made.json()["commit"]["id"]


def test_an_outcome_that_nobody_knows_is_504_with_what_is_needed_to_ask_again(
    remote: tuple[Served, httpx.Client, Proxy],
) -> None:
    server, http, proxy = remote
    inside(server).publisher._policy = PublishPolicy(time_limit_s=0.1)
    assert http.get("/snapshot").status_code == 200
    body, key = {"query": ADD, "params": {"slug": "cy"}}, {"Idempotency-Key": "order-1"}
    rule = proxy.on(creates(), Drop(), None)

    lost = http.post("/mutate", json=body, headers=key)

    assert (lost.status_code, set(lost.json()), lost.json()["code"]) == (
        504, {"error", "code", "details"}, "outcome_unknown",
    )  # fmt: skip
    assert lost.json()["details"] == {"txn_id": "order-1", "branch": "main", "number": 2}
    assert rule.hits

    proxy.reset()
    first = http.post("/mutate", json=body, headers=key).json()["commit"]
    again = http.post("/mutate", json=body, headers=key).json()["commit"]
    assert first["id"] == again["id"]
