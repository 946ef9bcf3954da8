"""Parts that no edge connects: joined by equal values, by DuckDB, or pair by pair, with the same rows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from omnigraph.read.match import bindings

from .graphs import CITY, PERSON, Data, bound, city, graph_of, interpreted, person, reader_of, run

DATA: Data = {
    PERSON: [person(f"p{i:02}", name=f"n{i % 5}" if i % 7 else None, age=i % 6, big=i) for i in range(40)],
    CITY: [city(f"n{i}", size=i * 3 if i != 4 else None) for i in range(8)],
}
CONDITIONS = [
    "$p.name = $c.name",
    "$p.name = $c.name  $p.big > $c.size",
    "$p.big < $c.size",
    "$p.name >= $c.name  $p.big != $c.size",
    "$p.age = $c.size",
    "$p.name contains $c.name",
    "$c.size > 3",
]


@pytest.mark.parametrize("way", ["usual", "duckdb", "blocks"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_way_of_joining_gives_the_same_rows(way: str, condition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "duckdb":
        monkeypatch.setattr(bindings, "DUCKDB_PAIRS_MIN", 1)
    if way == "blocks":
        monkeypatch.setattr(bindings, "BLOCK_ROWS", 10)
    text = f"match {{ $p: Person  $c: City  {condition} }} return {{ $p.id as p, $c.id as c }}"
    with graph_of(DATA) as graph:
        assert run(reader_of(graph), text).rows == interpreted(bound(text), DATA)


def test_a_join_of_large_parts_does_not_make_all_pairs() -> None:
    data: Data = {PERSON: [person(f"p{i:05}", big=i) for i in range(5_000)]}
    text = "match { $a: Person  $b: Person  $a.big = $b.big } return { count($a) as n }"
    near = "match { $a: Person  $b: Person  $a.big < $b.big  $b.big < 3 } return { count($a) as n }"
    with graph_of(data) as graph:
        assert run(reader_of(graph), text).rows == [{"n": 5_000}]
        assert run(reader_of(graph), near).rows == [{"n": 3}]


def test_reading_loads_neither_lance_nor_duckdb_nor_pandas_before_it_needs_them() -> None:
    code = (
        "import sys, omnigraph.read.execute\n"
        "assert not {'lance', 'duckdb', 'pandas', 'obstore'} & sys.modules.keys(), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
