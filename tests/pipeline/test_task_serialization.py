"""Tasks can be sent elsewhere also after rows were written one by one in this process, and know those rows there."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import Settings
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.pipeline.compute import ComputeOptions
from omnigraph.pipeline.exporting import export as exporting
from omnigraph.pipeline.source.scans import fragment_tasks, pin_head, read_part
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load_options import LoadOptions
from pipeline.bulk import write_lines

SCHEMA = "node Person { slug: String @key  age: I32? }  edge Knows: Person -> Person { w: F64? }"


class Sent(LocalRunner):
    """A runner whose tasks go through what a cluster's go through."""

    def run(self, task: Callable[[Any], Any], items: Sequence[Any], **options: Any) -> list[Any]:
        there = pickle.loads(pickle.dumps((task, list(items))))
        return pickle.loads(pickle.dumps(super().run(*there, **options)))  # type: ignore[no-any-return]


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Ada and Grace, who knows her: each written alone, and kept as it was written."""
    made = omnigraph.init(tmp_path / "graph", SCHEMA, {"fsync": "false"}, settings=Settings(maintenance=0))
    made.mutate('query q() { insert Person { slug: "ada", age: 36 } }')
    made.mutate('query q() { insert Person { slug: "grace" } }')
    made.mutate('query q() { insert Knows { from: "grace", to: "ada", w: 0.5 } }')
    return made


def people(graph: Graph) -> list[tuple[str, int | None]]:
    rows = graph.snapshot().to_arrow("node:Person").to_pylist()
    return sorted((row["slug"], row["age"]) for row in rows)


def test_a_scan_sent_elsewhere_reads_the_rows(graph: Graph) -> None:
    pinned = pickle.loads(pickle.dumps(pin_head(graph.repository, "Person")))

    read = [batch.to_pylist() for part in fragment_tasks(pinned) for batch in read_part(pinned, part, ["slug", "age"])]

    found = [row for rows in read for row in rows]
    assert sorted(found, key=lambda row: str(row["slug"])) == [
        {"slug": "ada", "age": 36},
        {"slug": "grace", "age": None},
    ]


def test_a_bulk_load_sent_elsewhere_is_committed_beside_the_rows(graph: Graph, tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "more.jsonl",
        [{"type": "Person", "data": {"slug": slug, "age": 7}} for slug in ("ada", "mary")],
    )

    bulk_load(graph.repository, Sent(), source, LoadOptions(mode="merge"))

    assert people(graph) == [("ada", 7), ("grace", None), ("mary", 7)]


def test_an_export_sent_elsewhere_has_the_rows(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "LocalRunner", Sent)

    exported = exporting.export_directory(
        graph.repository,
        graph.repository.snapshot(),
        str(tmp_path / "out"),
        None,
        "jsonl",
        compute=ComputeOptions("local"),
    )

    lines = [line for file in (tmp_path / "out").rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert exported is not None
    assert sorted(json.loads(line)["data"].get("slug", "") for line in lines) == ["", "ada", "grace"]
