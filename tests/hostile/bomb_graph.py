"""The graph that expensive queries run on: every kind of property, skewed degrees, made from one seed.

A few vertices are hubs, in and out; most have few edges. Texts repeat words, so that every word has many hits, and
values repeat, so that groups and ties are large.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.settings import Settings
from omnigraph.schema.arrow import arrow_schema
from omnigraph.schema.catalog import Catalog
from omnigraph.schema.lang.compile import compile_schema

DIMENSION = 16
SCHEMA = f"""
node Person {{
    slug: String @key
    name: String? @index
    bio: String? @index
    age: I32?
    big: I64?
    score: F64?
    ok: Bool?
    role: enum(ops, lead, staff)?
    born: Date?
    seen: DateTime?
    tags: [String]?
    nums: [I32]?
    face: Vector({DIMENSION})? @index
}}
node City {{ name: String @key  size: I64? }}
edge Knows: Person -> Person {{ since: Date?  weight: F64?  note: String? }}
edge Follows: Person -> Person
edge LivesIn: Person -> City {{ kind: String? }}
"""
WORDS = 400
DAY_S = 24 * 3600

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Size:
    """How many rows; two thirds of the edges are `Knows`."""

    people: int
    edges: int
    cities: int = 100


SMALL = Size(10_000, 100_000)
LARGE = Size(100_000, 1_000_000)


def make_graph(folder: Path, size: Size) -> Graph:
    """A new graph, optimized: with indexes and saved adjacencies."""
    catalog = compile_schema(SCHEMA).catalog
    graph = omnigraph.init(folder, catalog, {"fsync": "false"}, settings=Settings(inline_rows=0))
    rng = np.random.default_rng(7)
    knows, follows = size.edges * 2 // 3, size.edges // 3
    tables = {
        "node:Person": _people(rng, size.people),
        "node:City": {"id": _ids("c", size.cities), "name": _ids("c", size.cities), "size": np.arange(size.cities)},
        "edge:Knows": _edges("k", _skewed(rng, knows, size.people), _skewed(rng, knows, size.people)),
        "edge:Follows": _edges("f", _skewed(rng, follows, size.people), _any(rng, follows, size.people)),
        "edge:LivesIn": _edges("l", np.arange(size.people), _skewed(rng, size.people, size.cities), target="c"),
    }
    tables["edge:Knows"] |= {
        "since": pa.array(rng.integers(10_000, 20_000, knows).astype(np.int32)).cast(pa.date32()),
        "weight": rng.integers(0, 50, knows) / 8,
        "note": _texts(rng, knows, 2),
    }
    tables["edge:LivesIn"]["kind"] = _texts(rng, size.people, 1)
    graph.write([Append(key, _table(catalog, key, columns)) for key, columns in tables.items()])
    graph.optimize()
    return graph


def _table(catalog: Catalog, key: str, columns: dict[str, Any]) -> pa.Table:
    definition = catalog.type_of(key)
    names = {prop.column: prop.name for prop in definition.properties}
    schema = arrow_schema(definition)
    arrays = [_column(columns[names.get(field.name, field.name)], field.type) for field in schema]
    return pa.table(arrays, schema=schema)


def _column(values: Any, kind: pa.DataType) -> Any:
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    return array if array.type == kind else array.cast(kind)


def _people(rng: np.random.Generator, count: int) -> dict[str, Any]:
    offsets: Any = pa.array((np.arange(count + 1) * 3).astype(np.int32))
    roles: Any = pa.array(["ops", "lead", "staff"])
    numbers: Any = pa.array(rng.integers(0, 90, 3 * count).astype(np.int32))
    faces = rng.standard_normal(count * DIMENSION).astype(np.float32)
    return {
        "id": _ids("p", count),
        "slug": _ids("p", count),
        "name": _texts(rng, count, 1),
        "bio": _texts(rng, count, 12),
        "age": _with_nulls(rng, rng.integers(0, 90, count)),
        "big": _with_nulls(rng, rng.integers(-(2**40), 2**40, count)),
        "score": _with_nulls(rng, rng.standard_normal(count)),
        "ok": _with_nulls(rng, rng.integers(0, 2, count).astype(np.bool_)),
        "role": roles.take(pa.array(rng.integers(0, 3, count))),
        "born": pa.array(rng.integers(-5_000, 20_000, count).astype(np.int32)).cast(pa.date32()),
        "seen": pa.array(rng.integers(0, 20_000 * DAY_S, count) * 1_000_000).cast(pa.timestamp("us", "UTC")),
        "tags": pa.ListArray.from_arrays(offsets, _texts(rng, 3 * count, 1)),
        "nums": pa.ListArray.from_arrays(offsets, numbers),
        "face": pa.FixedSizeListArray.from_arrays(pa.array(faces), DIMENSION),
    }


def _edges(prefix: str, sources: Numbers, targets: Numbers, target: str = "p") -> dict[str, Any]:
    return {"id": _ids(prefix, len(sources)), "src": _named("p", sources), "dst": _named(target, targets)}


def _skewed(rng: np.random.Generator, count: int, vertices: int) -> Numbers:
    """Numbers of vertices, the first ones much more often: a Pareto distribution with a uniform floor."""
    hubs = np.minimum(rng.pareto(0.8, count) * 3, vertices - 1).astype(np.int64)
    return np.where(rng.random(count) < 0.5, hubs, _any(rng, count, vertices))


def _any(rng: np.random.Generator, count: int, vertices: int) -> Numbers:
    return rng.integers(0, vertices, count)


def _ids(prefix: str, count: int) -> Any:
    return _named(prefix, np.arange(count))


def _named(prefix: str, numbers: Numbers) -> Any:
    digits: Any = pa.array(numbers).cast(pa.string())
    return pa.compute.binary_join_element_wise(prefix, digits, "")


def word(number: int) -> str:
    """The words of the vocabulary; few are similar to another."""
    digits = number * 7_919 % 160_000
    return "".join(
        "bcdfghklmnprstvwxzjq"[digits // 20**place % 20] + "aeiou"[digits // 20**place % 5] for place in range(4)
    )


def _texts(rng: np.random.Generator, count: int, words: int) -> Any:
    """Texts of `words` words, the first words of the vocabulary much more often."""
    vocabulary: Any = pa.array([word(number) for number in range(WORDS)])
    columns = [vocabulary.take(pa.array(_skewed(rng, count, WORDS))) for _ in range(words)]
    return columns[0] if words == 1 else pa.compute.binary_join_element_wise(*columns, " ")


def _with_nulls(rng: np.random.Generator, values: Numbers) -> Any:
    return pa.array(values, mask=rng.random(len(values)) < 0.1)
