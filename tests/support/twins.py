"""Twins: one graph stored in two ways. Whatever is asked of both must have the same answer.

`staged` has every row in Lance. In `tailed` some stored rows were updated, some removed and some added by small commits
that still ride in manifests, and the cities have never been anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import Settings

SCHEMA = """
node Person {
    slug: String @key
    age:  I32?
    rank: F64?
    degree: I64?
    bio:  String?
    vec:  Vector(4)? @embed("bio")
    @range(age, 0..150)
}
node City { name: String @key  size: I64?  degree: I64? }
edge Knows: Person -> Person { w: F64?  @unique(src, dst) }
edge LivesIn: Person -> City @card(0..1)
"""
STAGED = Settings(inline_rows=0, maintenance=0)
INLINE = Settings(maintenance=0)  # nothing is folded behind the test's back
PERSON, CITY, KNOWS, LIVES_IN = "node:Person", "node:City", "edge:Knows", "edge:LivesIn"


@dataclass(frozen=True)
class Twins:
    staged: Graph
    tailed: Graph

    @property
    def both(self) -> tuple[Graph, Graph]:
        return self.staged, self.tailed


def person(slug: str, **data: Any) -> dict[str, Any]:
    return {"type": "Person", "data": {"slug": slug, "bio": f"about {slug}"} | data}


def city(name: str, **data: Any) -> dict[str, Any]:
    return {"type": "City", "data": {"name": name} | data}


def edge(kind: str, source: str, target: str, **data: Any) -> dict[str, Any]:
    return {"edge": kind, "from": source, "to": target, "data": data}


def make_twins(folder: Path) -> Twins:
    staged, tailed = _made(folder / "staged", STAGED), _made(folder / "tailed", INLINE)
    refs = tailed.repository.snapshot().manifest.tables
    assert refs[PERSON].stored is not None
    assert len(refs[PERSON].tail) == 3
    assert refs[CITY].stored is None
    assert refs[CITY].tail
    assert not any(ref.tail for ref in staged.repository.snapshot().manifest.tables.values())
    return Twins(staged, tailed)


def _made(place: Path, settings: Settings) -> Graph:
    options = {"fsync": "false"}
    first = omnigraph.init(place, SCHEMA, options, settings=STAGED)
    first.load([person(f"p{n:02}", age=n) for n in range(12)])
    first.load([person(f"p{n:02}", age=n) for n in range(12, 20)])
    first.load([edge("Knows", f"p{n:02}", f"p{n + 1:02}", w=n / 4) for n in range(10)])
    graph = omnigraph.open(place, options, settings=settings)
    graph.mutate('query q() { update Person set { age: 99 } where slug = "p03" }')
    graph.mutate('query q() { delete Person where slug = "p07" }')
    graph.load([person("q1", age=3), person("q2"), city("bern", size=2), city("oslo")])
    graph.load([edge("Knows", "q1", "p03", w=7.0), edge("LivesIn", "q1", "bern"), edge("LivesIn", "p01", "oslo")])
    graph.mutate('query q() { update City set { size: 5 } where name = "oslo" }')
    return graph


def rows(graph: Graph, key: str) -> list[dict[str, Any]]:
    """By id; ids of edges were minted, so they are left out."""
    found: list[dict[str, Any]] = graph.snapshot().to_arrow(key).to_pylist()
    if key.startswith("edge:"):
        found = [{name: value for name, value in row.items() if name != "id"} for row in found]
    return sorted(found, key=lambda row: (row.get("id", ""), row.get("src", ""), row.get("dst", "")))


def everything(graph: Graph) -> dict[str, list[dict[str, Any]]]:
    return {key: rows(graph, key) for key in (PERSON, CITY, KNOWS, LIVES_IN)}


def counted(graph: Graph) -> dict[str, tuple[int, int]]:
    """What the manifest says there is, and what there is."""
    tables = graph.repository.snapshot().manifest.tables
    return {key: (ref.rows, graph.snapshot().to_arrow(key, ["id"]).num_rows) for key, ref in tables.items()}
