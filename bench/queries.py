"""The queries, each in three languages that mean the same.

A traversal in ours is over pairs, and hop bounds mean reachability: each entity once, by its shortest distance. The
generated graph has no parallel edges and no loops, so that joins of the others count the same pairs. Ladybug says
reachability with SHORTEST; DuckDB with a recursive UNION, or with one join for each hop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.graph import BUCKETS, DIMENSION


@dataclass(frozen=True, slots=True)
class GraphQuery:
    """One question. `start` names the parameter's value: nobody (""), who knows four, who knows ten, or the hub.

    Where a peer can say it in several ways, the fastest one counts. `aims` are upper bounds of our time as a
    multiple of a peer's: by peer.
    """

    label: str
    start: str
    ours: str
    ladybug: tuple[str, ...]
    duckdb: tuple[str, ...]
    aims: dict[str, float]
    is_new: bool = False  # a text that was never seen before, each time


FASTER = {"ladybug": 0.2, "DuckDB": 0.2}  # 5 times as fast as either


def _ours(body: str, start: str) -> str:
    return f"query q({'$s: String' if start else ''}) {{ {body} }}"


def _reach(low: int, high: int) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    ours = f"match {{ $p: Person {{ slug: $s }}  $p knows{{{low},{high}}} $f }} return {{ count($f) as n }}"
    start = "MATCH (p:Person {slug: $s})"
    ladybug: tuple[str, ...]
    if low == 1:
        ladybug = (f"{start}-[:Knows* SHORTEST 1..{high}]->(f:Person) RETURN count(f)",)
    else:
        ladybug = (
            f"{start}-[e:Knows* SHORTEST 1..{high}]->(f:Person) WHERE length(e) = {high} RETURN count(f)",
            f"{start}-[:Knows]->(m)-[:Knows]->(f:Person) WHERE f.slug <> $s "
            "AND NOT EXISTS { MATCH (p)-[:Knows]->(f) } RETURN count(DISTINCT f)",
        )
    hops = ["h0 AS (SELECT $s AS v)"]
    hops += [
        f"h{n} AS (SELECT DISTINCT dst AS v FROM knows JOIN h{n - 1} ON src = v WHERE dst <> $s)"
        for n in range(1, high + 1)
    ]
    if low == 1:
        together = " UNION ".join(f"SELECT v FROM h{n}" for n in range(1, high + 1))
        joined = f"WITH {', '.join(hops)} SELECT count(*) FROM ({together})"
    else:
        joined = f"WITH {', '.join(hops)} SELECT count(*) FROM h{high} ANTI JOIN h1 USING (v)"
    recursive = (
        "WITH RECURSIVE r(v, d) AS (SELECT $s, 0 UNION SELECT dst, d + 1 FROM knows JOIN r ON src = v "
        f"WHERE d < {high}), f AS (SELECT v, min(d) AS d FROM r WHERE v <> $s GROUP BY v) "
        f"SELECT count(*) FROM f WHERE d >= {low}"
    )
    return ours, ladybug, (joined, recursive)


def _graph_queries() -> list[GraphQuery]:
    found = [
        GraphQuery(
            "point lookup by key",
            "one",
            _ours("match { $p: Person { slug: $s } } return { $p.name, $p.age }", "one"),
            ("MATCH (p:Person {slug: $s}) RETURN p.name, p.age",),
            ("SELECT name, age FROM person WHERE slug = $s",),
            {"ladybug": 6.0},
        ),
        GraphQuery(
            "one hop + filter",
            "one",
            _ours("match { $p: Person { slug: $s }  $p knows $f  $f.age > 40 } return { $f.slug, $f.age }", "one"),
            ("MATCH (p:Person {slug: $s})-[:Knows]->(f:Person) WHERE f.age > 40 RETURN f.slug, f.age",),
            ("SELECT f.slug, f.age FROM knows JOIN person f ON f.slug = dst WHERE src = $s AND f.age > 40",),
            {"ladybug": 3.0},
        ),
    ]
    found.insert(1, replace(found[0], label="the same, a new text each time", is_new=True))
    for label, low, high, start in (
        ("two hops, distinct count, median person", 2, 2, "median"),
        ("two hops, distinct count", 2, 2, "one"),
        ("two hops, distinct count, hub", 2, 2, "hub"),
        ("1..3 hops, distinct count, median person", 1, 3, "median"),
        ("1..3 hops, distinct count", 1, 3, "one"),
        ("1..3 hops, distinct count, hub", 1, 3, "hub"),
    ):
        body, ladybug, duckdb = _reach(low, high)
        aims = {"ladybug": 3.0} if high == 2 and start != "hub" else FASTER
        found.append(GraphQuery(label, start, _ours(body, start), ladybug, duckdb, aims))
    found += [
        GraphQuery(
            "join + group + top 10 over everything",
            "",
            _ours(
                "match { $p: Person  $p worksAt $c  $p knows $f  $f.age > 30 } "
                "return { $c.name as c, count($f) as n } order { n desc, $c.name } limit 10",
                "",
            ),
            (
                "MATCH (c:Company)<-[:WorksAt]-(p:Person)-[:Knows]->(f:Person) WHERE f.age > 30 "
                "RETURN c.name AS c, count(*) AS n ORDER BY n DESC, c LIMIT 10",
            ),
            (
                "SELECT w.dst AS c, count(*) AS n FROM works_at w JOIN knows k ON k.src = w.src "
                "JOIN person f ON f.slug = k.dst WHERE f.age > 30 GROUP BY c ORDER BY n DESC, c LIMIT 10",
            ),
            FASTER,
        ),
        GraphQuery(
            "anti-join",
            "",
            _ours("match { $p: Person  $p.age > 30  not { $p knows $_ } } return { count($p) as n }", ""),
            ("MATCH (p:Person) WHERE p.age > 30 AND NOT EXISTS { MATCH (p)-[:Knows]->() } RETURN count(p)",),
            ("SELECT count(*) FROM person p ANTI JOIN knows ON src = slug WHERE age > 30",),
            FASTER,
        ),
        GraphQuery(
            "triangles in a 10 % subgraph",
            "",
            _ours(
                "match { $a: Person  $a.age < 23  $a knows $b  $b.age < 23  $b knows $c  $c.age < 23  $c knows $a } "
                "return { count($a) as n }",
                "",
            ),
            (
                "MATCH (a:Person)-[:Knows]->(b:Person)-[:Knows]->(c:Person)-[:Knows]->(a) "
                "WHERE a.age < 23 AND b.age < 23 AND c.age < 23 RETURN count(*)",
            ),
            (
                "WITH young AS (SELECT slug FROM person WHERE age < 23), e AS (SELECT src, dst FROM knows "
                "SEMI JOIN young s ON src = s.slug SEMI JOIN young t ON dst = t.slug) SELECT count(*) "
                "FROM e x JOIN e y ON x.dst = y.src JOIN e z ON y.dst = z.src AND z.dst = x.src",
            ),
            FASTER,
        ),
    ]
    return found


GRAPH_QUERIES = _graph_queries()

TEXT = "word7 word40 word300"
BUCKET = BUCKETS // 2
_VECTOR = f"$v: Vector({DIMENSION})"
_RETURN = "return { $d.slug as slug }"
SEARCHES = {
    "bm25 top 10": (
        f"query q($t: String) {{ match {{ $d: Document }} {_RETURN} order {{ bm25($d.body, $t) }} limit 10 }}"
    ),
    "vector top 10": (
        f"query q({_VECTOR}) {{ match {{ $d: Document }} {_RETURN} order {{ nearest($d.meaning, $v) }} limit 10 }}"
    ),
    "vector top 10 of 1 %": (
        f"query q({_VECTOR}) {{ match {{ $d: Document  $d.bucket = {BUCKET} }} {_RETURN} "
        "order { nearest($d.meaning, $v) } limit 10 }"
    ),
    "hybrid by RRF, top 10": (
        f"query q({_VECTOR}, $t: String) {{ match {{ $d: Document }} {_RETURN} "
        "order { rrf(nearest($d.meaning, $v), bm25($d.body, $t)) } limit 10 }"
    ),
}
SEARCH_AIM = 2.0
