"""Answers with very many rows, which are written while they are read; a million of them with `make soak`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.manifest.commit.plan import Append
from omnigraph.schema.arrow import arrow_schema

pytestmark = pytest.mark.xdist_group("streaming")  # one process, which makes the graph once

# How many rows, and by how much memory may grow: the rows as Python objects alone would be more than that.
SIZES = [(300_000, 150), pytest.param((1_000_000, 300), marks=pytest.mark.soak)]
QUERY = "query q() {{ match {{ $i: Item }} return {{ $i.slug, $i.name, $i.size, $i.number }} {limit} }}"
MEASURE = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, "-m", "omnigraph", *sys.argv[2:]], stdout=open(sys.argv[1], "wb")).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


@dataclass(frozen=True)
class Store:
    path: str
    rows: int
    growth_max_mb: int


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size[0]} rows")
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Very many items, written as Arrow."""
    rows, growth_max_mb = request.param
    path = tmp_path_factory.mktemp("many") / "graph"
    graph = omnigraph.init(path, "node Item { slug: String @key  name: String  size: F32  number: I64 }")
    ids = pa.array([f"item-{i:07}" for i in range(rows)])
    columns: dict[str, Any] = {
        "id": ids,
        "slug": ids,
        "name": ids,
        "size": [i / 10 for i in range(rows)],
        "number": range(rows),
    }
    schema = arrow_schema(graph.snapshot().pinned.catalog.type_of("node:Item"))
    graph.write([Append("node:Item", pa.table({name: pa.array(c) for name, c in columns.items()}).cast(schema))])
    return Store(str(path), rows, growth_max_mb)


def peak_mb(store: Store, out: Path, format_: str, limit: str = "") -> int:
    arguments = ["query", "--store", store.path, "-e", QUERY.format(limit=limit), "--format", format_]
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(out), *arguments], capture_output=True, text=True, timeout=280, check=True
    )
    code, peak = run.stdout.split()
    assert code == "0", run.stderr
    return int(peak)


@pytest.mark.parametrize("format_", ["jsonl", "csv"])
def test_rows_are_not_held_in_memory(format_: str, store: Store, tmp_path: Path) -> None:
    one = peak_mb(store, tmp_path / "one", format_, "limit 1")

    all_ = peak_mb(store, tmp_path / "all", format_)

    with (tmp_path / "all").open() as lines:
        assert sum(1 for _ in lines) == store.rows + (format_ == "csv")
    assert all_ - one < store.growth_max_mb, f"{one} MB for one row, {all_} MB for all"


def test_a_reader_that_goes_away_ends_a_long_answer(store: Store) -> None:
    command = [sys.executable, "-m", "omnigraph", "query", "--store", store.path, "-e", QUERY.format(limit="")]
    with subprocess.Popen([*command, "--format", "jsonl"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        first = json.loads(run.stdout.readline())
        run.stdout.close()
        error = run.stderr.read()
        code = run.wait(timeout=120)

    assert first == {"i.slug": "item-0000000", "i.name": "item-0000000", "i.size": 0.0, "i.number": 0}
    assert (code, error) == (141, b"")
