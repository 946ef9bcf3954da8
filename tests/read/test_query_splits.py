"""Answers are the same for every split of the data between stored tables and tails of small commits."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Delete, TableAction, Upsert
from omnigraph.manifest.settings import Settings
from omnigraph.query.compile import compile_queries
from omnigraph.read.execute import run_query
from omnigraph.read.graph import adjacency as adjacency_module
from omnigraph.read.search.embedding import OfflineEmbedder
from omnigraph.schema.arrow import arrow_schema
from omnigraph.schema.catalog import Catalog

from . import random_cases
from .graphs import CATALOG, KNOWS, MODES, NOW, PERSON, Row, edge, names, person, reader_of, run, split, table
from .test_agreement import check, queries
from .test_search import CATALOG as DOCS
from .test_search import DOC

STORED = Settings(inline_rows=0)  # every commit makes table versions
INLINE = Settings(maintenance=0)  # small commits stay in manifests


@contextmanager
def split_graph(
    catalog: Catalog, stored: Sequence[TableAction], tail: Sequence[Sequence[TableAction]]
) -> Iterator[Graph]:
    """A graph with some rows in tables, and what a number of small commits then do to them in manifests."""
    with tempfile.TemporaryDirectory() as folder:
        first = omnigraph.init(f"{folder}/g", catalog, {"fsync": "false"}, settings=STORED)
        if stored:
            first.write(list(stored))
        graph = omnigraph.open(f"{folder}/g", {"fsync": "false"}, settings=INLINE)
        before = {key: ref.stored for key, ref in graph.repository.snapshot().manifest.tables.items()}
        for actions in tail:
            graph.write(list(actions))
        after = graph.repository.snapshot().manifest.tables
        assert {key: ref.stored for key, ref in after.items() if ref.stored is not None} == before
        yield graph


# All operators ----------------------------------------------------------------------------------------------


def small_commits(
    rng: Random, key: str, stored: Sequence[Row], final: Sequence[Row], stale: Sequence[Row]
) -> list[list[TableAction]]:
    """Commits that make `final` of what is stored: rows come, are replaced and go, some of them more than once."""
    there = {row["id"] for row in stored}
    wanted = {row["id"]: row for row in final}
    was = {row["id"]: row for row in stored}
    steps: list[list[TableAction]] = []
    for row in stale:
        if rng.random() < 0.5:
            steps.append([Upsert(key, table(key, [row]))])
            was[row["id"]] = row
    rest: list[list[TableAction]] = []
    for id_, row in wanted.items():
        if was.get(id_) != row:
            new = id_ not in was and id_ not in there
            rest.append([Append(key, table(key, [row])) if new else Upsert(key, table(key, [row]))])
    rest += [[Delete(key, (id_,))] for id_ in was if id_ not in wanted]
    rng.shuffle(rest)
    while len(rest) > 1 and rng.random() < 0.3:
        rest[0] += rest.pop()  # in one commit
    return steps + rest


def spread(rng: Random) -> tuple[Any, list[TableAction], list[list[TableAction]]]:
    """A graph, what of it is stored, and the commits that make up for the rest."""
    data, other = random_cases.graph(rng), random_cases.graph(rng)
    stored: list[TableAction] = []
    commits: list[list[list[TableAction]]] = []
    for key, rows in data.items():
        share = rng.choice([0.0, 0.5, 0.8, 1.0])
        ids = {row["id"] for row in rows if rng.random() < share}
        stale = [row for row in other[key] if rng.random() < 0.3]
        kept, _ = split(rows, ids, stale, other[key] if rng.random() < 0.4 else [], key)
        in_tables = kept if rng.random() < 0.8 else []
        if in_tables:
            stored.append(Append(key, table(key, in_tables)))
        commits.append(small_commits(rng, key, in_tables, rows, stale))
    mixed = []
    while left := [steps for steps in commits if steps]:
        mixed.append(rng.choice(left).pop(0))
    return data, stored, mixed


def check_queries(seed: int) -> None:
    rng = Random(seed)
    data, stored, commits = spread(rng)
    with split_graph(CATALOG, stored, commits) as graph:
        readers = {mode: reader_of(graph, **options) for mode, options in MODES.items()}
        for text, query in queries(rng):
            check(readers, data, text, query)


# Search -----------------------------------------------------------------------------------------------------

WORDS = ["graph", "graphs", "storage", "object", "objects", "table", "tables", "cat", "running", "runs", "lake"]
FILTERS = [
    'search($d.body, "cat table")',
    'match_text($d.body, "object storage")',
    'fuzzy($d.body, "objekt storag", 1)',
    'search($d.body, "run")  $d.year > 2',
]
NEAREST = 'nearest($d.vec, "storage of graphs")'
BM25 = 'bm25($d.body, "object storage")'
DOC_COLUMNS = arrow_schema(DOCS.type_of(DOC))


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIGRAPH_EMBED_PROVIDER", "offline")
        patch.delenv("OMNIGRAPH_EMBED_MODEL", raising=False)
        yield


def documents(texts: dict[str, tuple[str | None, int]]) -> pa.Table:
    definition = DOCS.type_of(DOC)
    known = [text for text, _ in texts.values() if text is not None]
    vectors = dict(zip(known, OfflineEmbedder().embed(known, 64), strict=True)) if known else {}
    columns: dict[str, Any] = {
        "id": list(texts),
        definition.column("slug"): list(texts),
        definition.column("body"): [text for text, _ in texts.values()],
        definition.column("year"): [year for _, year in texts.values()],
        definition.column("vec"): [None if text is None else vectors[text] for text, _ in texts.values()],
    }
    return pa.Table.from_pydict(columns, schema=DOC_COLUMNS)


def found(graph: Graph, text: str) -> list[Any]:
    query = compile_queries(f"query q() {{ {text} }}", DOCS).bind_read({}, now=NOW)
    one, *others = [names(run_query(reader_of(graph, **options), query).rows) for options in MODES.values()]
    assert all(other == one for other in others), text
    return one


def a_text(rng: Random) -> tuple[str | None, int]:
    words = None if rng.random() < 0.1 else " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))
    return words, rng.randint(0, 4)


def check_searches(seed: int) -> None:
    rng = Random(seed)
    final = {f"d{i:02}": a_text(rng) for i in range(24)}
    stored = {id_: text for id_, text in final.items() if rng.random() < rng.choice([0.0, 0.6, 0.9])}
    only_new = rng.random() < 0.4
    first = dict(stored)
    if not only_new:
        first |= {id_: a_text(rng) for id_ in stored if rng.random() < 0.3}
        first |= {f"gone{i}": a_text(rng) for i in range(3) if stored}
    tail: list[list[TableAction]] = [
        [Upsert(DOC, documents({id_: text}))] for id_, text in final.items() if first.get(id_) != text
    ]
    gone = tuple(id_ for id_ in first if id_ not in final)
    tail += [[Delete(DOC, gone)]] if gone else []
    rng.shuffle(tail)
    whole = [Append(DOC, documents(final))]
    with (
        split_graph(DOCS, whole, []) as reference,
        split_graph(DOCS, [Append(DOC, documents(first))] if first else [], tail) as graph,
    ):
        for condition in FILTERS:
            text = f"match {{ $d: Doc {condition} }} return {{ $d.id }}"
            assert found(graph, text) == found(reference, text), condition
        near = f"match {{ $d: Doc }} return {{ $d.id }} order {{ {NEAREST} }} limit 10"
        assert found(graph, near) == found(reference, near)
        for rank, limit in ((BM25, ""), (f"rrf({NEAREST}, {BM25})", " limit 100")):
            text = f"match {{ $d: Doc }} return {{ $d.id }} order {{ {rank} }}{limit}"
            ours, theirs = found(graph, text), found(reference, text)
            assert sorted(ours) == sorted(theirs), rank
            if only_new:  # then the statistics are the same, and so is the order
                assert ours == theirs, rank


# Cost -------------------------------------------------------------------------------------------------------


def test_a_small_commit_is_laid_over_the_adjacency_instead_of_building_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    people = [person(f"p{i}") for i in range(50)]
    edges = [edge(f"p{i}", f"p{(i + 1) % 50}") for i in range(50)]
    built: list[object] = []
    build = adjacency_module.build_adjacency

    def counted(*given: Any) -> Any:
        built.append(given)
        return build(*given)

    monkeypatch.setattr(adjacency_module, "build_adjacency", counted)
    stored = [Append(PERSON, table(PERSON, people)), Append(KNOWS, table(KNOWS, edges))]
    with split_graph(CATALOG, stored, []) as graph:
        reader = reader_of(graph)
        for number in range(4):
            graph.write([Append(KNOWS, table(KNOWS, [edge("p0", f"p{10 + number}", f"more{number}")]))])
            graph.write([Upsert(PERSON, table(PERSON, [person(f"new{number}")]))])
            now = reader_of(graph, caches=reader.caches)
            answer = run(now, 'match { $p: Person { slug: "p0" }  $p knows $f } return { $f.id as f }').rows
            assert names(answer) == sorted(["p1", *(f"p{10 + n}" for n in range(number + 1))])

    assert len(built) == 1


def test_a_type_that_was_never_stored_can_be_queried() -> None:
    with split_graph(CATALOG, [], [[Append(PERSON, table(PERSON, [person("a"), person("b")]))]]) as graph:
        graph.write([Append(KNOWS, table(KNOWS, [edge("a", "b")]))])
        for options in MODES.values():
            reader = reader_of(graph, **options)
            assert names(run(reader, "match { $p: Person  $p knows $f } return { $f.id as f }").rows) == ["b"]
            assert reader.state(PERSON).at is None
            assert reader.state(PERSON).rows == 2


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_queries_answer_the_same_for_every_split(seed: int) -> None:
    check_queries(seed)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_searches_find_the_same_for_every_split(seed: int) -> None:
    check_searches(seed)


@pytest.mark.soak
@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_hundreds_of_other_splits_answer_the_same(seed: int) -> None:
    check_queries(seed)
    check_searches(seed)
