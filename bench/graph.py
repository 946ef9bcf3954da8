"""The graph that query times are measured on: seeded, skewed degrees, loaded in a few big appends.

200k Person, 2M Knows (median out-degree 4, the largest 2,823; no two edges between one ordered pair, none to itself),
10k Company, 200k WorksAt, and 200k Document with a text and a vector of 64 numbers for search.

    python -m bench.graph PATH [SCALE]      make it
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append
from omnigraph.schema.arrow import arrow_schema
from omnigraph.schema.catalog import Catalog
from omnigraph.schema.lang.compile import compile_schema

DIMENSION = 64
SCHEMA = f"""
node Person {{
    slug: String @key
    name: String @index
    age: I32 @index
    city: String
}}
node Company {{ name: String @key  sector: String }}
node Document {{
    slug: String @key
    body: String @index
    bucket: I32 @index
    meaning: Vector({DIMENSION}) @index
}}
edge Knows: Person -> Person {{ since: Date  weight: F32 }}
edge WorksAt: Person -> Company {{ since: Date }}
"""
PEOPLE, EDGES, COMPANIES, DOCUMENTS = 200_000, 2_000_000, 10_000, 200_000
DEGREE_MAX, DEGREE_MEDIAN = 2_823, 4
BUCKETS = 100  # a bucket holds 1 % of the documents
WORDS, WORDS_IN_A_TEXT, TOPICS = 5_000, 12, 200
PARTS = 4  # appends of a graph's table; documents come in one, so that both sides search one index segment

Numbers = np.ndarray[Any, Any]


def catalog() -> Catalog:
    return compile_schema(SCHEMA).catalog


def degrees(rng: np.random.Generator, people: int, edges: int) -> Numbers:
    """Log-normal: a median of 4 and a mean of 10 need a sigma of sqrt(2 ln 2.5). They add up to `edges`."""
    largest = min(DEGREE_MAX, people // 4)
    raw = rng.lognormal(np.log(DEGREE_MEDIAN), np.sqrt(2 * np.log(edges / people / DEGREE_MEDIAN)), people)
    found = np.minimum(raw.round(), largest - 1).astype(np.int64)
    hub = int(rng.integers(0, people))
    found[hub] = largest
    while (short := edges - int(found.sum())) != 0:
        # what is missing or too much is spread over those who have some, by how many they have
        inside = (found > DEGREE_MEDIAN) & (found < largest - 1)
        some = np.unique(rng.choice(np.flatnonzero(inside), min(abs(short), int(inside.sum()))))
        found[some] += 1 if short > 0 else -1
    return found


def endpoints(rng: np.random.Generator, people: int, edges: int) -> tuple[Numbers, Numbers]:
    """Who knows whom: who knows many is known by as many; no edge twice, none to itself."""
    sources = np.repeat(np.arange(people), degrees(rng, people, edges))
    targets = rng.permutation(sources)
    while True:
        pairs = sources * people + targets
        order = np.argsort(pairs, kind="stable")
        again = np.zeros(len(pairs), np.bool_)
        again[order[1:]] = pairs[order[1:]] == pairs[order[:-1]]
        again |= sources == targets
        if not again.any():
            return sources, targets
        targets[again] = rng.integers(0, people, int(again.sum()))


def generate(scale: float = 1.0, seed: int = 7) -> dict[str, pa.Table]:
    """All rows by table key."""
    rng = np.random.default_rng(seed)
    people, edges, companies = int(PEOPLE * scale), int(EDGES * scale), max(10, int(COMPANIES * scale))
    slugs = _named("person-", np.arange(people))
    names = _named("company-", np.arange(companies))
    sources, targets = endpoints(rng, people, edges)
    schemas = {definition.table_key: arrow_schema(definition) for definition in catalog().types}

    def table(key: str, *columns: Any) -> pa.Table:
        fields = schemas[key]
        return pa.table([pa.array(c).cast(f.type) for c, f in zip(columns, fields, strict=True)], schema=fields)

    def days(count: int) -> Any:
        return pa.array(rng.integers(10_000, 20_000, count).astype(np.int32)).cast(pa.date32())

    persons = table(
        "node:Person",
        slugs,
        slugs,
        _named("Name ", rng.integers(0, people // 2, people)),
        rng.integers(15, 90, people).astype(np.int32),
        _named("city-", rng.integers(0, 500, people)),
    )
    sectors = _named("sector-", rng.integers(0, 30, companies))
    weights = rng.random(edges).astype(np.float32)
    knows = table("edge:Knows", _named("k", np.arange(edges)), slugs[sources], slugs[targets], days(edges), weights)
    employers = names[rng.integers(0, companies, people)]
    return {
        "node:Person": persons,
        "node:Company": table("node:Company", names, names, sectors),
        "node:Document": table("node:Document", *_documents(rng, int(DOCUMENTS * scale))),
        "edge:Knows": knows,
        "edge:WorksAt": table("edge:WorksAt", _named("w", np.arange(people)), slugs, employers, days(people)),
    }


def _documents(rng: np.random.Generator, count: int) -> list[Any]:
    """Words by a power law; vectors around the centres of topics, as embeddings are."""
    slugs = _named("doc-", np.arange(count))
    words = np.minimum(rng.zipf(1.3, (count, WORDS_IN_A_TEXT)), WORDS) - 1
    bodies = [" ".join(f"word{word}" for word in row) for row in words.tolist()]
    centres = rng.normal(size=(TOPICS, DIMENSION))
    vectors = centres[rng.integers(0, TOPICS, count)] + rng.normal(scale=0.6, size=(count, DIMENSION))
    flat = pa.array(vectors.astype(np.float32).ravel())
    buckets = rng.integers(0, BUCKETS, count).astype(np.int32)
    return [slugs, slugs, bodies, buckets, pa.FixedSizeListArray.from_arrays(flat, DIMENSION)]


def _named(prefix: str, numbers: Numbers) -> Numbers:
    return np.char.add(prefix, numbers.astype(str))


def load(uri: str, tables: dict[str, pa.Table]) -> Graph:
    """Make the graph at `uri`: nodes first, then edges, each in a few big appends."""
    graph = omnigraph.init(uri, catalog(), {"fsync": "false"} if "://" not in uri else None)
    for key, rows in tables.items():
        size = rows.num_rows if key == "node:Document" else -(-rows.num_rows // PARTS)
        for first in range(0, rows.num_rows, size):
            graph.write([Append(key, rows.slice(first, size), fresh_ids=True)])
    return graph


if __name__ == "__main__":
    load(sys.argv[1], generate(float(sys.argv[2]) if len(sys.argv) > 2 else 1.0))
