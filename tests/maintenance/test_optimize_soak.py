"""After `optimize` a table that was written in small pieces is stored as one that was just loaded."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.maintenance.policy import FAN
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.manifest.settings import Settings
from omnigraph.storage.table.tables import Tables
from support.proxy import Proxy
from support.s3 import S3Location
from support.soak import SoakReport
from support.table_layout import Stored, stored, tails

SCHEMA = "node Item { slug: String @key name: String? @index rank: I32? @index }"
ITEM = "node:Item"


def items(graph: Graph, *numbers: int, rank: int = 0) -> pa.Table:
    from omnigraph.schema.arrow import arrow_schema

    definition = graph.snapshot().pinned.catalog.type_of(ITEM)
    column = {prop.name: prop.column for prop in definition.properties}
    slugs = [f"i{n:07}" for n in numbers]
    names = [f"thing {n % 1000}" for n in numbers]
    values: dict[str, Any] = {
        "id": slugs,
        column["slug"]: slugs,
        column["name"]: names,
        column["rank"]: [rank] * len(slugs),
    }
    return pa.Table.from_pydict(values, schema=arrow_schema(definition))


def loaded(graph: Graph, slugs: list[str], ranks: np.ndarray) -> None:
    names = [f"thing {int(slug[1:]) % 1000}" for slug in slugs]
    table = pa.table({"slug": slugs, "name": names, "rank": pa.array(ranks, pa.int32())})
    graph.load({"Item": table}, engine="local")


@dataclass(frozen=True)
class Lookup:
    """What a process asks of the store to find a row: the first, those that first touch a page, and all later ones.

    `learning` depends on where rows lie, so it is reported and not compared.
    """

    cold: int
    learning: int  # by all lookups that go over the table once
    warm: list[int]  # by each after that


def lookup(location: S3Location, proxy: Proxy, slugs: list[str]) -> Lookup:
    graph = omnigraph.open(location.uri, location.options, settings=Settings(maintenance=0))
    graph.repository.tables = Tables(graph.repository.location, session=lance.Session())  # as a new process has it
    snapshot = graph.snapshot()

    def requests(slug: str) -> int:
        with proxy.recording() as log:
            assert snapshot.lookup(ITEM, [slug]).num_rows == 1
        return len(list(log))

    over = [slugs[len(slugs) * part // 48] for part in range(48)]
    others = [slugs[len(slugs) * part // 12 + 7] for part in range(12)]
    return Lookup(requests(over[0]), sum(map(requests, over[1:])), sorted(map(requests, others)))


@pytest.mark.s3
@pytest.mark.parametrize(
    ("rows", "commits"),
    [(12_000, 150), pytest.param(1_000_000, 10_000, marks=[pytest.mark.soak, pytest.mark.timeout(7_200)])],
)
def test_after_many_small_commits_a_table_is_as_one_just_loaded(
    rows: int, commits: int, s3: S3Location, s3_proxied: S3Location, proxy: Proxy, soak_report: SoakReport
) -> None:
    grown_at, fresh_at = (replace(s3, uri=f"{s3.uri}-{name}") for name in ("grown", "fresh"))
    settings = Settings(tail_manifests=8) if rows < 100_000 else Settings()
    grown = omnigraph.init(grown_at.uri, SCHEMA, grown_at.options, settings=settings)
    loaded(grown, [f"i{n:07}" for n in range(rows)], np.zeros(rows))
    grown.optimize()
    most = 0
    for n in range(commits):
        match n % 3:
            case 0:
                grown.write([Append(ITEM, items(grown, rows + n))])
            case 1:
                grown.write([Upsert(ITEM, items(grown, (n * 7919) % rows, rank=n))])
            case 2:
                grown.write([Delete(ITEM, (f"i{rows + n - 2:07}",)), Append(ITEM, items(grown, rows + n))])
        if n % 50 == 49:
            assert grown.maintenance.settle(600)
            most = max(most, stored(grown, ITEM).fragments)
    assert grown.maintenance.settle(600)

    grown.optimize()

    content = grown.snapshot().to_arrow(ITEM).sort_by("id")
    slugs = [str(slug) for slug in content.column("id").to_pylist()]
    column = {prop.name: prop.column for prop in grown.snapshot().pinned.catalog.type_of(ITEM).properties}
    fresh = omnigraph.init(fresh_at.uri, SCHEMA, fresh_at.options, settings=settings)
    loaded(fresh, slugs, content.column(column["rank"]).to_numpy())
    expected, found = stored(fresh, ITEM), stored(grown, ITEM)
    before, after = (lookup(replace(s3_proxied, uri=at.uri), proxy, slugs) for at in (fresh_at, grown_at))

    assert tails(grown) == {ITEM: 0}
    assert len(slugs) == rows + len(range(0, commits, 3))
    assert expected == Stored(fragments=1, segments=1, unindexed=0, deleted=0)
    assert found == expected
    assert min(before.warm) > 0
    assert after.cold <= before.cold
    assert statistics.median(after.warm) <= statistics.median(before.warm)
    assert max(after.warm) <= max(before.warm)
    assert most <= 4 * FAN
    soak_report.line(f"{rows:,} rows and {commits:,} small commits, then `optimize`, beside the same rows just loaded:")
    soak_report.table(
        ("", "fragments", "segments", "unindexed", "first lookup", "47 that learn the pages", "later, each"),
        [
            ("grown", found.fragments, found.segments, found.unindexed, after.cold, after.learning, after.warm),
            (
                "loaded",
                expected.fragments,
                expected.segments,
                expected.unindexed,
                before.cold,
                before.learning,
                before.warm,
            ),
        ],
    )
    soak_report.line(f"Between folds there were at most {most} fragments.")
