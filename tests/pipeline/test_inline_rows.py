"""Everything that touches a whole table also sees the rows that small commits left in manifests."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import ConstraintViolation
from omnigraph.graph.graph import Graph
from omnigraph.manifest.model.manifest import TableRef
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.pipeline.exporting import export as exporting
from omnigraph.pipeline.source.scans import fragment_tasks, pin, read_part
from omnigraph.read.export.export_formats import Format
from omnigraph.read.search.embedding import OfflineEmbedder
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load_options import LoadOptions
from pipeline.bulk import SMALL_SPLITS, write_lines
from support.twins import CITY, PERSON, Twins, city, counted, edge, everything, make_twins, person, rows

ULID = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b")


@pytest.fixture
def twins(tmp_path: Path) -> Twins:
    return make_twins(tmp_path)


def scanned(graph: Graph, type_name: str, row_filter: str | None = None) -> list[tuple[Any, ...]]:
    """What tasks read, part by part."""
    pinned = pin(graph.uri, type_name)
    names = [name for name in pinned.names if name != "id" or not pinned.definition.source]
    read = [
        row
        for part in fragment_tasks(pinned, 8)
        for batch in read_part(pinned, part, names, row_filter)
        for row in _rows(batch)
    ]
    return sorted(read, key=repr)


def _rows(batch: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in batch.to_pylist()]


def ref_of(graph: Graph, key: str) -> TableRef:
    return graph.repository.snapshot().manifest.tables[key]


# Reading


@pytest.mark.parametrize("row_filter", [None, "`age` > 10", "`age` IS NULL", "`slug` IN ('p03', 'p07', 'q1')"])
def test_parts_of_a_scan_have_exactly_the_rows_of_the_type(twins: Twins, row_filter: str | None) -> None:
    expected, found = (scanned(graph, "Person", row_filter) for graph in twins.both)

    assert found == expected
    assert found, "the filter leaves some"


@pytest.mark.parametrize("row_filter", [None, "`size` = 5", "false"])
def test_a_type_that_was_never_stored_is_one_part(twins: Twins, row_filter: str | None) -> None:
    assert len(fragment_tasks(pin(twins.tailed.uri, "City"))) == 1
    assert scanned(twins.tailed, "City", row_filter) == scanned(twins.staged, "City", row_filter)


def test_a_scan_that_asks_for_no_column_of_the_key_leaves_out_what_is_replaced(twins: Twins) -> None:
    pinned = pin(twins.tailed.uri, "Person")
    ages = [
        age for part in fragment_tasks(pinned) for b in read_part(pinned, part, ["age"]) for age in b["age"].to_pylist()
    ]

    assert sorted(age for age in ages if age is not None) == sorted([*set(range(20)) - {3, 7}, 99, 3])


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("ordered", [8, 0], ids=["cut by id", "cut by fragment"])
def test_an_export_in_parts_is_the_graph(
    twins: Twins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Format, ordered: int
) -> None:
    monkeypatch.setattr(exporting, "PART_ROWS_MAX", 6)
    monkeypatch.setattr(exporting, "ORDERED_PARTS_MAX", ordered)

    done = twins.tailed.export(tmp_path / "out", format=format)
    there = make_twins(tmp_path / "others").staged
    there.load(tmp_path / "out", mode="overwrite")

    assert done.files > 6
    assert everything(there) == everything(twins.staged)


def test_an_export_into_one_file_is_the_graph(twins: Twins) -> None:
    out = [io.BytesIO(), io.BytesIO()]
    for graph, file in zip(twins.both, out, strict=True):
        graph.export(file, types=["Person", "City"])

    assert out[1].getvalue() == out[0].getvalue()


# Writing columns


def test_an_analysis_counts_rows_in_manifests_and_writes_to_them(twins: Twins) -> None:
    before = everything(twins.tailed)
    here, there = (graph.analyze("degrees", ["Knows"], "Person.degree", limit=None) for graph in twins.both)

    assert there.table.to_pylist() == here.table.to_pylist()
    assert there.commit is not None
    assert here.commit is not None
    assert there.commit.touched == here.commit.touched
    assert everything(twins.tailed) == everything(twins.staged) != before
    assert counted(twins.tailed)[PERSON] == (21, 21)
    assert ref_of(twins.tailed, PERSON).tail == ()


def test_an_analysis_is_written_to_a_type_that_was_never_stored(twins: Twins) -> None:
    for graph in twins.both:
        graph.analyze("degrees", ["LivesIn"], "City.degree", direction="in")

    assert [row["degree"] for row in rows(twins.tailed, CITY)] == [1, 1]
    assert everything(twins.tailed) == everything(twins.staged)
    assert ref_of(twins.tailed, CITY).stored is not None


def test_an_analysis_of_an_older_state_goes_beside_small_commits(twins: Twins) -> None:
    graph = twins.tailed
    then = graph.snapshot().commit_id
    graph.mutate('query q() { insert Person { slug: "later", age: 1 } }')

    graph.analyze("degrees", ["Knows"], "Person.degree", at=then)

    degrees = {row["id"]: row["degree"] for row in rows(graph, PERSON)}
    assert (degrees["q1"], degrees["later"]) == (1, None)


def test_vectors_are_made_for_rows_in_manifests_too(twins: Twins) -> None:
    results = [graph.embed("Person", batch=5, embedder=OfflineEmbedder()) for graph in twins.both]

    assert [result.embedded for result in results] == [21, 21]
    assert everything(twins.tailed) == everything(twins.staged)
    assert all(row["vec"] is not None for row in rows(twins.tailed, PERSON))


# Bulk loads


def bulk(graph: Graph, given: Path, mode: Any, runner: LocalRunner | None = None, **options: Any) -> Any:
    settings = options.pop("settings", SMALL_SPLITS)
    load_options = LoadOptions(mode=mode, **options)
    return bulk_load(graph.repository, runner or LocalRunner(), str(given), load_options, settings=settings)


LOADS: dict[str, list[dict[str, Any]]] = {
    "append": [
        *(person(f"n{n:02}", age=n) for n in range(30)),
        person("p07", age=1),  # its id is free again
        edge("Knows", "n01", "q1"),
        edge("LivesIn", "p03", "bern"),
        city("rome"),
    ],
    "merge": [
        *(person(f"n{n:02}", age=n) for n in range(30)),
        {"type": "Person", "data": {"slug": "p03", "bio": "another"}},  # updated in a manifest
        {"type": "Person", "data": {"slug": "q1", "age": 50}},  # only there
        {"type": "Person", "data": {"slug": "p04", "age": 51}},
        person("p07"),
        person("q2"),  # exactly so
        edge("Knows", "q1", "p03", w=8.0),  # is there, by its ends
        edge("Knows", "p00", "p01", w=9.0),
        city("oslo", size=1),
        city("rome"),
    ],
    "overwrite": [
        *(person(f"p{n:02}", age=n + 1) for n in range(20)),
        *(person(slug) for slug in ("q1", "n1")),
        city("bern"),
        city("oslo", size=9),
    ],
}


@pytest.mark.parametrize("mode", list(LOADS))
def test_a_bulk_load_into_a_table_with_small_commits_on_top(twins: Twins, tmp_path: Path, mode: str) -> None:
    given = write_lines(tmp_path / "given.jsonl", LOADS[mode])
    here, there = (bulk(graph, given, mode) for graph in twins.both)

    assert there.commit.touched == here.commit.touched
    assert there.counts == here.counts
    assert everything(twins.tailed) == everything(twins.staged)
    assert all(one == other for one, other in counted(twins.tailed).values())
    assert not ref_of(twins.tailed, PERSON).tail
    assert not ref_of(twins.tailed, CITY).tail


REFUSED: dict[str, list[dict[str, Any]]] = {
    "an id that only a manifest has": [person("n1"), person("q1")],
    "an id that was updated there": [person("p03")],
    "an edge to a node that was removed there": [person("n1"), edge("Knows", "n1", "p07")],
    "a pair of ends that an edge there has": [edge("Knows", "q1", "p03")],
    "one edge more than a node may have": [edge("LivesIn", "q1", "oslo")],
    "an id of a type that was never stored": [city("oslo")],
}


@pytest.mark.parametrize("entities", REFUSED.values(), ids=REFUSED)
def test_verification_sees_rows_in_manifests(twins: Twins, tmp_path: Path, entities: list[Any]) -> None:
    given = write_lines(tmp_path / "given.jsonl", entities)
    told = []
    for graph in twins.both:
        with pytest.raises(ConstraintViolation) as raised:
            bulk(graph, given, "append")
        told.append(ULID.sub("<minted>", str(raised.value)))

    assert told[1] == told[0]
    assert everything(twins.tailed) == everything(twins.staged)


def test_an_overwrite_that_would_leave_an_edge_in_a_manifest_without_its_node_is_refused(
    twins: Twins, tmp_path: Path
) -> None:
    given = write_lines(tmp_path / "given.jsonl", [city("bern")])
    for graph in twins.both:
        with pytest.raises(ConstraintViolation, match="oslo"):
            bulk(graph, given, "overwrite")


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_a_load_that_was_interrupted_resumes_after_small_commits(twins: Twins, tmp_path: Path, mode: str) -> None:
    given = write_lines(tmp_path / "given.jsonl", LOADS[mode])

    class Dying(LocalRunner):
        left = 3

        def run(self, task: Any, items: Any, *, stage: str, on_done: Any = None) -> list[Any]:
            answers = []
            for item in items:
                if stage == "loading":
                    self.left -= 1
                    if not self.left:
                        raise KeyboardInterrupt
                answers += super().run(task, [item], stage=stage, on_done=on_done)
            return answers

    for graph in twins.both:
        with pytest.raises(KeyboardInterrupt):
            bulk(graph, given, mode, runner=Dying(), job_id="night")
        graph.mutate('query q() { insert Person { slug: "between", bio: "x" } }')
        bulk(graph, given, mode, job_id="night")

    assert everything(twins.tailed) == everything(twins.staged)
    assert json.dumps(everything(twins.tailed)).count('"between"') > 0
    assert all(one == other for one, other in counted(twins.tailed).values())
