"""Search from the text of a query to its rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append
from omnigraph.query.compile import compile_queries
from omnigraph.read.execute import run_query
from omnigraph.read.reader import ReadOptions, SnapshotReader
from omnigraph.read.search.embedding import OFFLINE_MODEL, OfflineEmbedder
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.schema.arrow import arrow_schema
from omnigraph.schema.catalog import Catalog, catalog_from_json, catalog_to_json
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.table.overlay import Overlay

SCHEMA = """
node Doc { slug: String @key  body: String? @index  year: I32?  vec: Vector(64)? @embed("body") }
edge Cites: Doc -> Doc
"""
DOC, CITES = "node:Doc", "edge:Cites"
BODIES: dict[str, tuple[str | None, int]] = {
    "a": ("graphs in object storage", 2020),
    "b": ("storage of graphs and tables", 2021),
    "c": ("running cats and dogs", 2022),
    "d": (None, 2023),
    "e": ("object storage object storage", 2024),
}
LINKS = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("e", "b")]


def catalog_of(model: str = OFFLINE_MODEL) -> Catalog:
    """With the model that made the vectors recorded, as `embed` does."""
    stored = catalog_to_json(compile_schema(SCHEMA).catalog)
    (vec,) = [prop for prop in stored["types"][0]["properties"] if prop["name"] == "vec"]
    vec["embed"] |= {"provider": "offline", "model": model}
    return catalog_from_json(stored)


CATALOG = catalog_of()


def docs(*ids: str) -> pa.Table:
    definition = CATALOG.type_of(DOC)
    texts = [BODIES[id_][0] for id_ in ids]
    columns: dict[str, Any] = {
        "id": list(ids),
        definition.column("slug"): list(ids),
        definition.column("body"): texts,
        definition.column("year"): [BODIES[id_][1] for id_ in ids],
        definition.column("vec"): [None if t is None else OfflineEmbedder().embed([t], 64)[0] for t in texts],
    }
    return pa.Table.from_pydict(columns, schema=arrow_schema(definition))


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return graph_of(tmp_path, CATALOG)


def graph_of(folder: Path, catalog: Catalog) -> Graph:
    graph = omnigraph.init(str(folder / "g"), catalog, {"fsync": "false"})
    ends = {"id": [f"{a}{b}" for a, b in LINKS], "src": [a for a, _ in LINKS], "dst": [b for _, b in LINKS]}
    links = pa.Table.from_pydict(ends, schema=arrow_schema(catalog.type_of(CITES)))
    graph.write([Append(DOC, docs("a", "b", "c", "d")), Append(CITES, links.slice(0, 4))])
    graph.write([Append(DOC, docs("e")), Append(CITES, links.slice(4))])
    return graph


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIGRAPH_EMBED_PROVIDER", "offline")
    monkeypatch.delenv("OMNIGRAPH_EMBED_MODEL", raising=False)


def answers(graph: Graph, text: str, overlays: Mapping[str, Overlay] | None = None) -> list[Any]:
    """The first column of a query's result, the same however it is run."""
    snapshot = graph.repository.snapshot("main")
    compiled = compile_queries(f"query q() {{ {text} }}", snapshot.catalog)
    query = compiled.bind_read({}, now=datetime(2026, 1, 1, tzinfo=UTC))
    found = []
    for mode in ("auto", "csr", "index"):
        options = ReadOptions(expand=mode)
        reader = SnapshotReader(graph.repository.tables, snapshot, ReadCache(), overlays or {}, options=options)
        found.append([next(iter(row.values())) for row in run_query(reader, query).rows])
    assert found[0] == found[1] == found[2]
    return found[0]


def test_texts_as_filters(graph: Graph) -> None:
    assert answers(graph, 'match { $d: Doc search($d.body, "cat table") } return { $d.id }') == ["b", "c"]
    assert answers(graph, 'match { $d: Doc match_text($d.body, "object storage") } return { $d.id }') == ["a", "e"]
    assert answers(graph, 'match { $d: Doc fuzzy($d.body, "objekt storag", 1) } return { $d.id }') == ["a", "e"]
    cited = 'match { $d: Doc search($d.body, "cats") $d cites $o } return { $o.id }'
    assert answers(graph, cited) == ["a"]
    alone = 'match { $d: Doc not { $d cites $o search($o.body, "storage") } } return { $d.id }'
    assert answers(graph, alone) == ["b"]


def test_bm25_orders_best_first_and_drops_rows_it_does_not_find(graph: Graph) -> None:
    ranked = 'match { $d: Doc } return { $d.id } order { bm25($d.body, "object storage") }'

    assert answers(graph, ranked) == ["e", "a", "b"]
    assert answers(graph, f"{ranked} limit 1") == ["e"]
    assert answers(graph, ranked.replace("Doc }", "Doc $d.year < 2022 }")) == ["a", "b"]


def test_nearest_finds_the_nearest_of_the_rows_that_match(graph: Graph) -> None:
    ranked = 'match { $d: Doc } return { $d.id } order { nearest($d.vec, "storage of graphs") } limit 2'

    assert answers(graph, ranked) == ["b", "a"]
    assert answers(graph, ranked.replace("Doc }", "Doc $d.year > 2021 }")) == ["e", "c"]


def test_ranks_are_fused(graph: Graph) -> None:
    fused = 'rrf(nearest($d.vec, "storage of graphs"), bm25($d.body, "object storage"))'

    found = answers(graph, f"match {{ $d: Doc }} return {{ $d.id }} order {{ {fused} }} limit 5")

    # nearest: b a e c; bm25: e a b; d has neither
    places = {"a": (2, 2), "b": (1, 3), "c": (4,), "e": (3, 1)}
    fused_by_hand = {id_: sum(1 / (60 + place) for place in both) for id_, both in places.items()}
    assert found == sorted(places, key=lambda id_: (-fused_by_hand[id_], id_))


def test_rows_on_top_are_searched_like_the_others(graph: Graph) -> None:
    body = CATALOG.type_of(DOC).column("body")
    images = docs("c")
    changed = images.set_column(images.schema.get_field_index(body), body, pa.array(["objects in storage"]))
    overlays = {DOC: Overlay.of(changed, ["e"])}

    assert answers(graph, 'match { $d: Doc search($d.body, "objects") } return { $d.id }', overlays) == ["a", "c"]
    ranked = 'match { $d: Doc } return { $d.id } order { bm25($d.body, "object") }'
    assert answers(graph, ranked, overlays) == ["c", "a"]


def test_a_text_is_not_compared_with_vectors_of_another_model(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, catalog_of("other-model"))

    with pytest.raises(BadRequest, match=r"Doc\.vec was embedded by 'other-model' of offline, the environment names"):
        answers(graph, 'match { $d: Doc } return { $d.id } order { nearest($d.vec, "x") } limit 2')


def test_without_a_provider_the_missing_key_is_named(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMNIGRAPH_EMBED_PROVIDER", "OMNIGRAPH_EMBED_API_KEY", "OPENAI_API_KEY", "OMNIGRAPH_EMBED_URL"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(BadRequest, match="set OMNIGRAPH_EMBED_API_KEY or OPENAI_API_KEY"):
        answers(graph, 'match { $d: Doc } return { $d.id } order { nearest($d.vec, "x") } limit 2')
