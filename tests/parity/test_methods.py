"""Every method of the façade, on the embedded graph and on one that a server serves: the same answers, the same errors.

The cases are held against the protocol: a method without one fails the last test here.
"""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.api import interface as protocol
from omnigraph.api.interface import GraphLike
from omnigraph.errors import OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.pipeline.progress import Progress
from omnigraph.remote.graph import RemoteGraph
from parity.pairs import Pair
from parity.seeds import ADD, ENTITIES, MORE, OLDER, PEOPLE, SCHEMA, SET_AGE, WHOLE, Alike, differences, plain

Case = Callable[[GraphLike, Path], Any]
CASES: dict[str, Case] = {}
SUB_OBJECTS = {"branches": protocol.BranchesLike, "schema": protocol.SchemaLike, "tags": protocol.TagsLike}
RESULTS = {"snapshot()": protocol.SnapshotLike}
IN_PROCESS_ONLY = {"begin", "write"}  # they take tables and functions of this process
OF_GRAPH = {"repository", "cost", "maintenance", "cache_counts"}  # what it is made of
OF_REMOTE = {"cost", "close", "server_version", "jobs", "queries"}  # a connection's, and what only servers have


def case(name: str) -> Callable[[Case], Case]:
    def keep(function: Case) -> Case:
        assert name not in CASES, f"{name} is there twice"
        CASES[name] = function
        return function

    return keep


def both(*calls: Callable[[], Any]) -> list[Any]:
    """What each call gives: a result or an error."""
    return [outcome(call) for call in calls]


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return plain(call())
    except OmnigraphError as error:
        return [type(error).__name__, error.exit_code, error.to_json()]


CASES |= {
    "query": lambda g, _: both(
        lambda: g.query(PEOPLE),
        lambda: g.query(WHOLE, branch="agent"),
        lambda: g.query(OLDER, "older", {"age": 30, "since": date(2020, 1, 1)}),
        lambda: g.query(PEOPLE, at="v1", explain=True),
        lambda: g.query("query none() { match { $p: Person { slug: \"nobody\" } } return { $p } }"),
        lambda: g.query(f"{PEOPLE}\n{WHOLE}", "whole", at=datetime(2100, 1, 1, tzinfo=UTC)),
        lambda: g.query(f"{PEOPLE}\n{WHOLE}"),
        lambda: g.query(PEOPLE, "nope"),
        lambda: g.query(ADD, params={"slug": "x"}),
        lambda: g.query("query q() {\n match { $p: Persn } return { $p } }"),
        lambda: g.query("query q() { match"),
        lambda: g.query(OLDER, params={"age": "x"}),
        lambda: g.query(OLDER, params={}),
        lambda: g.query(PEOPLE, branch="nope"),
        lambda: g.query(PEOPLE, at="nope"),
    ),
    "mutate": lambda g, _: both(
        lambda: g.mutate(ADD, params={"slug": "eve", "age": 3}, txn_id="one"),
        lambda: g.mutate(ADD, params={"slug": "eve", "age": 3}, txn_id="one"),
        lambda: g.mutate(SET_AGE, "older", {"slug": "nobody", "age": 3}),
        lambda: g.mutate(ADD, params={"slug": "eve", "age": 999}),
        lambda: g.mutate(ADD, params={"slug": "eve", "age": 3}, if_commit="x.1"),
        lambda: g.mutate('query e() { insert Knows { from: "ada", to: "nobody" } }'),
        lambda: g.mutate(PEOPLE),
        lambda: g.mutate(ADD, params={"slug": "y"}, branch="nope"),
        lambda: g.query(PEOPLE).rows,
    ),
    "load": lambda g, folder: both(*loads(g, folder)),
    "export": lambda g, folder: both(*exports(g, folder)),
    "snapshot": lambda g, _: both(
        lambda: snapshot_facts(g.snapshot()),
        lambda: snapshot_facts(g.snapshot("agent")),
        lambda: snapshot_facts(g.snapshot(at="v1")),
        lambda: g.snapshot("nope"),
        lambda: g.snapshot(at="nope"),
    ),
    "snapshot().to_arrow": lambda g, _: both(
        lambda: g.snapshot().to_arrow("node:Person").sort_by("id"),
        lambda: g.snapshot().to_arrow("edge:Knows", ["id", "src", "dst"]).sort_by("id"),
    ),
    "snapshot().lookup": lambda g, _: both(
        lambda: g.snapshot().lookup("node:Person", ["ada", "nobody"]),
        lambda: g.snapshot().lookup("node:Person", iter(["bob"]), ["id", "age"]),
    ),
    "branches.create": lambda g, _: both(
        lambda: g.branches.create("a/b") and None,
        lambda: g.branches.create("old", at="v1") and None,
        lambda: g.branches.create("tagged", "v1") and None,
        lambda: g.branches.create("a/b"),
        lambda: g.branches.create("main"),
        lambda: g.branches.create("../x"),
        lambda: g.branches.create("x", "nope"),
        lambda: g.branches.list(),
        lambda: g.query(PEOPLE, branch="old").rows,
    ),
    "branches.list": lambda g, _: both(g.branches.list),
    "branches.delete": lambda g, _: both(
        lambda: g.branches.delete("agent") and None,
        lambda: g.branches.delete("agent"),
        lambda: g.branches.delete("main"),
        lambda: g.branches.delete(".."),
        lambda: g.branches.delete("a b"),
        lambda: g.branches.list(),
    ),
    "branches.merge": lambda g, _: both(
        lambda: g.branches.merge("agent", dry_run=True),
        lambda: g.branches.merge("clash", dry_run=True),
        lambda: g.branches.merge("clash"),
        lambda: g.branches.merge("agent", if_commit="x.1"),
        lambda: g.branches.merge("agent", delete_branch=True),
        lambda: g.branches.merge("main", "main"),
        lambda: g.branches.merge("nope"),
        lambda: g.branches.list(),
        lambda: g.query(PEOPLE).rows,
    ),
    "schema.show": lambda g, _: both(
        g.schema.show, lambda: g.schema.show("agent", "v1"), lambda: g.schema.show("nope")
    ),
    "schema.plan": lambda g, _: both(
        lambda: g.schema.plan(MORE),
        lambda: g.schema.plan(SCHEMA),
        lambda: g.schema.plan(SCHEMA.replace("age: I32?", "age: I32"), name="x.pg"),
        lambda: g.schema.plan("node Person {", name="x.pg"),
        lambda: g.schema.plan(3),  # type: ignore[arg-type]  # what a caller may do wrong
    ),
    "schema.apply": lambda g, _: both(
        lambda: g.schema.apply(MORE, txn_id="s"),
        lambda: g.schema.apply(MORE),
        lambda: g.schema.apply(SCHEMA.replace("age: I32?", "age: I64?")),
        lambda: g.schema.apply(SCHEMA.replace("score: F64?", "score: Date?")),
        lambda: g.schema.apply(SCHEMA, True, "agent", if_commit="x.1"),
        lambda: g.schema.apply("node {"),
        lambda: g.schema.show(),
    ),
    "tags.create": lambda g, _: both(
        lambda: g.tags.create("v2"),
        lambda: g.tags.create("v3", "v1"),
        lambda: g.tags.create("v2"),
        lambda: g.tags.create("agent"),
        lambda: g.tags.create(".."),
        lambda: g.tags.create("v4", "nope"),
        lambda: g.tags.create("v5", branch="agent"),
        lambda: g.tags.list(),
    ),
    "tags.list": lambda g, _: both(g.tags.list),
    "tags.delete": lambda g, _: both(
        lambda: g.tags.delete("v1"), lambda: g.tags.delete("v1"), lambda: g.tags.delete("a?b"), lambda: g.tags.list()
    ),
    "commits": lambda g, _: both(
        g.commits,
        lambda: g.commits("agent", None),
        lambda: g.commits(limit=1),
        lambda: g.commits(limit=0),
        lambda: g.commits(actor="ada"),
        lambda: g.commits(kind="load", types=["Person"], maintenance=True),
        lambda: g.commits(types=["Nope"]),
        lambda: g.commits(at="v1"),
        lambda: g.commits("nope"),
        lambda: g.commits(limit=-1),
    ),
    "commit_graph": lambda g, _: both(
        g.commit_graph, lambda: g.commit_graph(["clash"], 2), lambda: g.commit_graph(["nope"])
    ),
    "commit": lambda g, _: both(lambda: g.commit("v1"), lambda: g.commit(g.commits()[0].id), lambda: g.commit("nope")),
    "commit_details": lambda g, _: both(
        lambda: g.commit_details("v1"), lambda: g.commit_details("a.b/../c"), lambda: g.commit_details("..")
    ),
    "changes": lambda g, _: both(
        lambda: g.changes("v1", "main"),
        lambda: g.changes("main", "agent"),
        lambda: g.changes("agent", "clash", ["node"], ["Person"], ["update"]),
        lambda: g.changes("v1", "agent", kinds=[]),
        lambda: paged(g),
        lambda: g.changes("v1", "nope"),
        lambda: g.changes("v1", "main", ["nodes"]),
        lambda: g.changes("v1", "main", types="Person"),
        lambda: g.changes("v1", "main", limit=0),
        lambda: g.changes("v1", "main", page="nonsense"),
    ),
    "commit_changes": lambda g, _: both(
        lambda: g.commit_changes("v1"),
        lambda: g.commit_changes(g.commits()[0].id, operations=["update"]),
        lambda: g.commit_changes("nope"),
    ),
    "poll_changes": lambda g, _: both(
        lambda: g.poll_changes(start="beginning"),
        lambda: g.poll_changes(start="v1"),
        lambda: g.poll_changes(),
        lambda: g.poll_changes(g.poll_changes(start="beginning", limit=2).cursor, limit=1),
        lambda: g.poll_changes(start="beginning", branch="agent"),
        lambda: g.poll_changes("nonsense"),
        lambda: g.poll_changes(start="nope"),
        lambda: g.poll_changes(limit=0),
    ),
    "follow_changes": lambda g, _: both(
        lambda: list(g.follow_changes(start="beginning")), lambda: list(g.follow_changes(start="nope"))
    ),
    "revert": lambda g, _: both(
        lambda: g.revert(g.commits()[0].id, txn_id="r"),
        lambda: g.revert(g.commits()[1].id),
        lambda: g.revert("v1", "clash"),
        lambda: g.revert("nope"),
        lambda: g.query(PEOPLE).rows,
    ),
    "analyze": lambda g, _: both(
        lambda: g.analyze("pagerank"),
        lambda: g.analyze("components", ["Knows"], limit=None),
        lambda: g.analyze("degrees", direction="in", limit=0),
        lambda: g.analyze("triangles", at="v1"),
        lambda: g.analyze("pagerank", write="Person.rank", txn_id="a"),
        lambda: g.analyze("pagerank", ["Nope"]),
        lambda: g.analyze("pagerank", write="Person.nope"),
    ),
    "embed": lambda g, _: both(
        lambda: g.embed(dry_run=True, price_per_1k=0.5),
        lambda: g.embed("Note", "vec"),
        lambda: g.embed(),
        lambda: g.embed("Person"),
    ),
    "optimize": lambda g, _: both(
        g.optimize, g.optimize, lambda: g.optimize("agent", ["Person"]), lambda: g.optimize(types=["Nope"])
    ),
    "cleanup": lambda g, _: both(
        g.cleanup,
        lambda: g.cleanup("0s", 1),
        lambda: g.cleanup(timedelta(), 1, False, intent_ttl=timedelta(days=1)),
        lambda: g.cleanup("soon"),
        lambda: g.commits(),
    ),
    "recover": lambda g, _: both(g.recover, lambda: g.recover(complete=["nope"]), lambda: g.recover(all=True)),
    "verify": lambda g, _: both(g.verify, lambda: g.verify("agent", full=True, seed=3), lambda: g.verify("nope")),
}  # fmt: skip


def snapshot_facts(found: protocol.SnapshotLike) -> Any:
    return [found.branch, found.commit_id, found.manifest_version, plain(found.types)]


def paged(graph: GraphLike) -> Any:
    pages, token = [], None
    while True:
        page = graph.changes("main", "agent", limit=1, page=token)
        pages.append([change.to_json() for change in page])
        token = page.next_page
        if token is None:
            return pages


def loads(graph: GraphLike, folder: Path) -> Iterator[Callable[[], Any]]:
    """Every kind of source, good and bad."""
    people = [{"type": "Person", "data": {"slug": f"p{number}", "born": date(2000, 1, 31)}} for number in range(3)]
    yield lambda: graph.load(people, txn_id="l")
    yield lambda: graph.load(people, txn_id="l")
    yield lambda: graph.load(people)
    yield lambda: graph.load(iter(people), "merge")
    yield lambda: graph.load({"Person": pa.table({"slug": ["t1", "t2"], "photo": [b"\x00", None]})})
    yield lambda: graph.load({"Person": pa.table({"slug": ["ada"], "age": [999]})}, "merge")
    (folder / "more.jsonl").write_text(json.dumps(ENTITIES[0] | {"data": {"slug": "m1"}}) + "\n")
    (folder / "Person.csv").write_text('slug,age,tags\nc1,1,"[""x""]"\nc2,,\n')
    yield lambda: graph.load([folder / "more.jsonl", folder / "Person.csv"], progress=Progress())
    yield lambda: graph.load(folder / "Person.csv", "append", "fresh", from_="agent")
    yield lambda: graph.load(str(folder / "*.jsonl"), type="Person")
    yield lambda: graph.load(folder / "nothing.jsonl")
    (folder / "bad.jsonl").write_text('{"type":"Person","data":{"slug":"b1"}}\nnope\n{"type":"Robot","data":{}}\n')
    yield lambda: graph.load(folder / "bad.jsonl")
    yield lambda: quarantined(graph.load(folder / "bad.jsonl", on_error="quarantine"))
    yield lambda: graph.load(folder / "bad.jsonl", "merge", on_error="quarantine", max_errors=1)
    (folder / "odd.jsonl").write_text('{"edge":"Knows","from":"ada","to":"nobody"}\n')
    yield lambda: graph.load(folder / "odd.jsonl")
    yield lambda: quarantined(graph.load([{"type": "Person", "data": {"slug": "ada"}}], on_error="quarantine"))
    yield lambda: graph.load(folder / "more.jsonl", "overwrite", if_commit="x.1")
    yield lambda: graph.load(folder / "more.jsonl", "merge", "agent", "local", job_id="j1")
    yield lambda: graph.load(folder / "more.jsonl", "merge", "agent", "local", job_id="j1")
    yield lambda: graph.load(folder / "more.jsonl", "merge", "agent", "local", job_id="j2", txn_id="t")
    yield lambda: graph.load(folder / "more.jsonl", "merge", "main", "local", job_id="no/job")
    yield lambda: graph.load(people, "merge", "agent", "local", job_id="j3")
    yield lambda: graph.load(5)  # type: ignore[arg-type]  # what a caller may do wrong
    parts = folder / "parts" / "Person"
    parts.mkdir(parents=True, exist_ok=True)
    (parts / "part-0.csv").write_text("slug,age\nq0,1\n")
    (parts / "part-1.csv").write_text("slug,age\nq1,2\nq2,999\n")
    yield lambda: graph.load(folder / "parts")
    yield lambda: graph.query(PEOPLE).rows


def quarantined(result: Any) -> Any:
    path: Path = result.quarantine
    lines = path.read_text().splitlines()
    path.unlink()
    return [plain(result), [json.loads(line) for line in lines]]


def exports(graph: GraphLike, folder: Path) -> Iterator[Callable[[], Any]]:
    """One file of each kind, a directory of each, and what is refused."""

    def written(name: str, **options: Any) -> Any:
        done = graph.export(folder / name, **options)
        files = sorted(path for path in (folder / name).rglob("*") if path.is_file()) or [folder / name]
        found = [plain(done)]
        for path in files:
            binary = path.suffix in (".parquet", ".gz")
            found.append([path.relative_to(folder).as_posix(), None if binary else path.read_text()])
        return found

    yield lambda: written("all.jsonl")
    yield lambda: written("all.jsonl.gz", at="v1")
    yield lambda: written("people.csv", types=["Person"], branch="agent")
    yield lambda: written("people.parquet", types=["Person"])
    yield lambda: written("folder", format="jsonl")
    yield lambda: written("folder", format="jsonl")
    yield lambda: written("folder", format="csv", overwrite=True)
    yield lambda: written("both.csv")
    yield lambda: written("nope.jsonl", types=["Nope"])
    yield lambda: written("nope.jsonl", branch="nope")
    yield lambda: written("nope.jsonl", engine="spark")
    stream = io.BytesIO()
    yield lambda: [plain(graph.export(stream, types=["Knows"])), stream.getvalue()]


@pytest.mark.parametrize("name", CASES)
def test_both_ways_answer_the_same(name: str, pair: Pair, tmp_path: Path) -> None:
    answers = []
    with pair.graphs() as graphs:
        for number, graph in enumerate(graphs):
            folder = tmp_path / str(number) / "files"
            folder.mkdir(parents=True)
            found = json.dumps(Alike().document(plain(CASES[name](graph, folder))), default=repr, indent=1)
            answers.append(found.replace(str(folder), "FOLDER"))
    assert differences(*answers) == ""


def methods(of: type) -> set[str]:
    return {name for name, value in vars(of).items() if not name.startswith("_") and inspect.isfunction(value)}


def test_every_method_of_the_protocol_has_a_case() -> None:
    wanted = methods(protocol.GraphLike)
    for prefix, part in {**SUB_OBJECTS, **RESULTS}.items():
        wanted |= {f"{prefix}.{name}" for name in methods(part)}
    assert set(CASES) == wanted


@pytest.mark.parametrize(("implementation", "own"), [(Graph, OF_GRAPH | IN_PROCESS_ONLY), (RemoteGraph, OF_REMOTE)])
def test_the_protocol_is_all_that_a_graph_has(implementation: type, own: set[str], pair: Pair) -> None:
    with pair.graphs() as graphs:
        graph = next(graph for graph in graphs if isinstance(graph, implementation))
        public = {name for name in dir(graph) if not name.startswith("_")}
    known = {name for name in dir(protocol.GraphLike) if not name.startswith("_")}
    assert public - own == known


def signature(of: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(of).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters if parameter.name != "self"]


@pytest.mark.parametrize("name", sorted(methods(protocol.GraphLike)))
def test_the_signatures_are_the_same(name: str) -> None:
    wanted = signature(getattr(protocol.GraphLike, name))
    assert [signature(getattr(of, name)) for of in (Graph, RemoteGraph)] == [wanted, wanted]


@pytest.mark.parametrize("part", SUB_OBJECTS)
def test_the_parts_are_the_same(part: str, pair: Pair) -> None:
    wanted = {name: signature(getattr(SUB_OBJECTS[part], name)) for name in methods(SUB_OBJECTS[part])}
    with pair.graphs() as graphs:
        for graph in graphs:
            found = getattr(graph, part)
            public = {name for name in dir(found) if not name.startswith("_")}
            assert {name: signature(getattr(found, name)) for name in public} == wanted
