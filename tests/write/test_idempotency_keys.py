"""An idempotency key belongs to an actor and a request: the same key for anything else is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import omnigraph
from omnigraph.errors import KeyReused, OutcomeUnknown
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Upsert
from omnigraph.manifest.commit.publish import Publisher
from omnigraph.manifest.model.codec import decode_entry, encode_entry
from omnigraph.manifest.model.manifest import FreshTxnId, Manifest
from omnigraph.manifest.model.request_key import RequestKey, digest_of

QUICK = {"fsync": "false"}
SCHEMA = "node Person { slug: String @key  age: I32?  rank: F64? }\nedge Knows: Person -> Person"
ADD = "query add($slug: String) { insert Person { slug: $slug } }"
KEY = "order-4711"


@dataclass(frozen=True)
class Request:
    """One verb, with a body that it may have instead."""

    name: str
    call: Callable[[Graph, Any, dict[str, Any]], Any]
    body: Any
    other: Any

    def __str__(self) -> str:
        return self.name


def person(slug: str) -> dict[str, Any]:
    return {"type": "Person", "data": {"slug": slug}}


def rows(slug: str) -> Upsert:
    return Upsert("node:Person", pa.table({"id": [slug], "slug": [slug], "age": pa.nulls(1, pa.int32())}))


COMMITS = [
    Request("mutate", lambda g, slug, o: g.mutate(ADD, params={"slug": slug}, **o), "x", "y"),
    Request("mutate text", lambda g, gq, o: g.mutate(gq, params={"slug": "x"}, **o), ADD, ADD.replace("add", "put")),
    Request("write", lambda g, slug, o: g.write([rows(slug)], **o), "x", "y"),
    Request("load", lambda g, slug, o: g.load([person(slug)], **o).commit, "x", "y"),
    Request("load mode", lambda g, mode, o: g.load([person("x")], mode, **o).commit, "append", "merge"),
    Request("load table", lambda g, slug, o: g.load({"Person": pa.table({"slug": [slug]})}, **o).commit, "x", "y"),
    Request("schema", lambda g, t, o: g.schema.apply(SCHEMA + t, **o).commit, " node A { }", " node B { }"),
    Request("merge", lambda g, name, o: g.branches.merge(name, **o).commit, "b1", "b2"),
    Request("revert", lambda g, n, o: g.revert([c for c in g.commits() if c.kind == "mutation"][-n].id, **o), 1, 2),
    Request(
        "analyze",
        lambda g, d, o: g.analyze("pagerank", write="Person.rank", damping=d, engine="local", **o).commit,
        0.85,
        0.5,
    ),
]
NAMES = [
    Request("branch create", lambda g, source, o: g.branches.create("new", source, **o), "main", "b1"),
    Request("tag create", lambda g, branch, o: g.tags.create("t", branch=branch, **o), "main", "b1"),
]


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    made = omnigraph.init(tmp_path / "graph", SCHEMA, QUICK)
    made.mutate(ADD, params={"slug": "ada"})
    made.mutate(ADD, params={"slug": "bob"})
    for name in ("b1", "b2"):
        made.branches.create(name)
        made.mutate(ADD, params={"slug": name}, branch=name)
    return made


def heads(graph: Graph) -> dict[str, str]:
    return {name: graph.snapshot(name).commit_id for name in graph.branches.list()}


@pytest.mark.parametrize("request_", COMMITS, ids=str)
def test_a_retry_by_the_same_actor_returns_the_first_commit(graph: Graph, request_: Request) -> None:
    first = request_.call(graph, request_.body, {"actor": "ann", "txn_id": KEY})
    graph.mutate(ADD, params={"slug": "later"})

    again = request_.call(omnigraph.open(graph.uri, QUICK), request_.body, {"actor": "ann", "txn_id": KEY})

    assert again.id == first.id


@pytest.mark.parametrize("request_", COMMITS, ids=str)
@pytest.mark.parametrize("actor", ["bob", None])
def test_the_key_of_another_actor_is_refused(graph: Graph, request_: Request, actor: str | None) -> None:
    request_.call(graph, request_.body, {"actor": "ann", "txn_id": KEY})
    before = heads(graph)

    with pytest.raises(KeyReused, match=KEY):
        request_.call(graph, request_.body, {"actor": actor, "txn_id": KEY})

    assert heads(graph) == before


@pytest.mark.parametrize("request_", COMMITS, ids=str)
def test_a_key_with_another_body_is_refused(graph: Graph, request_: Request) -> None:
    request_.call(graph, request_.body, {"actor": "ann", "txn_id": KEY})
    before = heads(graph)

    with pytest.raises(KeyReused):
        request_.call(graph, request_.other, {"actor": "ann", "txn_id": KEY})

    assert heads(graph) == before


@pytest.mark.parametrize("request_", COMMITS[1:], ids=str)
def test_a_key_with_another_verb_is_refused(graph: Graph, request_: Request) -> None:
    graph.mutate(ADD, params={"slug": "first"}, actor="ann", txn_id=KEY)

    with pytest.raises(KeyReused):
        request_.call(graph, request_.body, {"actor": "ann", "txn_id": KEY})


@pytest.mark.parametrize("request_", NAMES, ids=str)
def test_the_key_of_a_name_is_its_creators(graph: Graph, request_: Request) -> None:
    request_.call(graph, request_.body, {"actor": "ann", "txn_id": KEY})
    request_.call(omnigraph.open(graph.uri, QUICK), request_.body, {"actor": "ann", "txn_id": KEY})

    for body, actor in ((request_.body, "bob"), (request_.other, "ann")):
        with pytest.raises(KeyReused):
            request_.call(graph, body, {"actor": actor, "txn_id": KEY})


def test_the_key_of_a_deletion_is_that_of_who_deleted(graph: Graph) -> None:
    graph.branches.delete("b1", actor="ann", txn_id=KEY)
    graph.branches.delete("b1", actor="ann", txn_id=KEY)

    with pytest.raises(KeyReused):
        graph.branches.delete("b1", actor="bob", txn_id=KEY)


def test_a_deletion_is_not_taken_for_a_commit_that_has_its_key(graph: Graph) -> None:
    """The branch moved on under this very key, in another process, after this one had looked."""
    graph.snapshot("b1")
    other = omnigraph.open(graph.uri, QUICK)
    other.mutate(ADD, params={"slug": "x"}, branch="b1", actor="ann", txn_id=KEY)

    with pytest.raises(KeyReused):
        graph.repository.branches._delete("b1", "ann", RequestKey(KEY, "ann", "of a deletion"))

    assert "b1" in other.branches.list()


def test_a_key_is_for_one_branch(graph: Graph) -> None:
    one = graph.mutate(ADD, params={"slug": "x"}, actor="ann", txn_id=KEY)
    other = graph.mutate(ADD, params={"slug": "y"}, branch="b1", actor="bob", txn_id=KEY)

    assert one is not None
    assert other is not None
    assert one.id != other.id


def test_what_does_not_change_the_request_may_differ(graph: Graph) -> None:
    first = graph.mutate(ADD, params={"slug": "x"}, actor="ann", txn_id=KEY)
    assert first is not None
    again = graph.mutate(
        ADD, params={"slug": "x"}, actor="ann", txn_id=KEY, if_commit=first.commit.parent, on_conflict="fail"
    )

    assert again is not None
    assert again.id == first.id


def test_a_fresh_key_is_compared_too(graph: Graph) -> None:
    seen = graph.snapshot().commit_id
    graph.mutate(ADD, params={"slug": "x"}, actor="ann", txn_id=FreshTxnId(KEY, seen))

    with pytest.raises(KeyReused):
        graph.mutate(ADD, params={"slug": "y"}, actor="ann", txn_id=FreshTxnId(KEY, seen))


def test_a_commit_without_a_digest_answers_as_before(graph: Graph) -> None:
    """It was made by an older release."""
    made = graph.mutate(ADD, params={"slug": "x"}, actor="ann", txn_id=KEY)
    assert made is not None
    assert made.commit.request is not None
    path = next(path for path in Path(graph.uri.removeprefix("file://")).rglob("*.json") if KEY in path.read_text())
    entry = decode_entry(path.read_bytes(), "a manifest")
    assert isinstance(entry, Manifest)
    path.chmod(0o644)
    path.write_bytes(encode_entry(replace(entry, commits=(replace(entry.commits[0], request=None),))))

    again = omnigraph.open(graph.uri, QUICK).mutate(ADD, params={"slug": "y"}, actor="bob", txn_id=KEY)

    assert again is not None
    assert again.id == made.id


def test_a_write_without_a_key_records_no_digest(graph: Graph) -> None:
    made = graph.mutate(ADD, params={"slug": "x"}, actor="ann")

    assert made is not None
    assert made.commit.request is None


@pytest.fixture(params=["small", "bulk"])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """A load of a file, in this process or split by split: both are one request."""
    from omnigraph.pipeline.bulk.load import bulk_load
    from omnigraph.storage.util.runner import LocalRunner
    from omnigraph.write.load.load_options import LoadOptions

    def run(graph: Graph, slug: str, bulk: bool = request.param == "bulk", **options: Any) -> Any:
        path = tmp_path / "people.jsonl"
        path.write_text(json.dumps(person(slug)) + "\n")
        if bulk:
            return bulk_load(graph.repository, LocalRunner(), str(path), LoadOptions(**options)).commit
        return graph.load(str(path), engine="local", **options).commit

    return run


def test_a_load_of_files_is_compared_by_their_content(graph: Graph, load: Callable[..., Any]) -> None:
    first = load(graph, "x", actor="ann", txn_id=KEY)
    assert load(graph, "x", actor="ann", txn_id=KEY).id == first.id
    assert load(graph, "x", bulk=True, actor="ann", txn_id=KEY).id == first.id

    for slug, actor in (("y", "ann"), ("x", "bob")):
        with pytest.raises(KeyReused):
            load(graph, slug, actor=actor, txn_id=KEY)


def test_a_bulk_load_and_a_mutation_do_not_share_a_key(graph: Graph, load: Callable[..., Any]) -> None:
    graph.mutate(ADD, params={"slug": "first"}, actor="ann", txn_id=KEY)
    with pytest.raises(KeyReused):
        load(graph, "x", actor="ann", txn_id=KEY)

    load(graph, "x", actor="ann", txn_id="another")
    with pytest.raises(KeyReused):
        graph.mutate(ADD, params={"slug": "y"}, actor="ann", txn_id="another")


def test_a_key_that_is_the_id_of_a_job_does_not_answer_with_its_commit(graph: Graph, load: Callable[..., Any]) -> None:
    load(graph, "x", bulk=True, actor="ann", job_id="nightly")

    with pytest.raises(KeyReused):
        graph.mutate(ADD, params={"slug": "y"}, actor="ann", txn_id="load-nightly")


def test_a_job_may_be_restarted_by_another_actor(graph: Graph, load: Callable[..., Any]) -> None:
    first = load(graph, "x", bulk=True, actor="ann", job_id="nightly")

    assert load(graph, "x", bulk=True, actor="bob", job_id="nightly").id == first.id


def test_a_load_that_recovery_completes_keeps_its_key(
    graph: Graph, load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise OutcomeUnknown(KEY, "main", 9)

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "publish", lost)
        with pytest.raises(OutcomeUnknown):
            load(graph, "x", bulk=True, actor="ann", txn_id=KEY)
    with pytest.raises(KeyReused):
        load(graph, "x", bulk=True, actor="bob", txn_id=KEY)
    other = omnigraph.open(graph.uri, QUICK)
    recovered = other.recover(complete=KEY).ended[0]

    assert recovered.outcome == "completed"
    assert load(graph, "x", actor="ann", txn_id=KEY).id == recovered.commit_id
    for slug, actor in (("y", "ann"), ("x", "bob")):
        with pytest.raises(KeyReused):
            load(graph, slug, actor=actor, txn_id=KEY)


def test_a_digest_does_not_depend_on_the_order_of_a_mapping() -> None:
    assert digest_of("v", {"a": 1, "b": [2]}) == digest_of("v", {"b": [2], "a": 1})


def test_a_digest_reads_all_of_an_array() -> None:
    """Numpy prints long arrays in part."""
    one = np.zeros(2_000, np.float32)
    other = one.copy()
    other[1_000] = 1

    assert digest_of({"v": one}) == digest_of({"v": one.copy()}) != digest_of({"v": other})


def test_a_key_survives_pickling() -> None:
    key = RequestKey("k", "ann", "d", "abc.1", anyone=True)

    copied = pickle.loads(pickle.dumps(key))

    assert (copied, copied.actor, copied.digest, copied.seen, copied.anyone) == ("k", "ann", "d", "abc.1", True)
