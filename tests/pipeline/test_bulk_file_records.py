"""Tasks of a bulk load tell the checksums of what they wrote, so that its commit records them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import omnigraph
from omnigraph.pipeline.bulk.job import SplitResult, TableResult
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.storage.table import file_records
from omnigraph.storage.table.file_records import FileRecord, hash_file
from omnigraph.storage.table.write.fragments import WrittenFragment
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.verify.verify import verify
from pipeline.bulk import SCHEMA, SMALL_SPLITS, BulkWorld, edge, person, write_lines
from support.s3 import S3Location

DOCUMENT = '{"files": [{"path": "a.lance"}]}'


def lines(path: Path, count: int = 500) -> Path:
    return write_lines(path, [*(person(f"p{n}") for n in range(count)), edge("Knows", "p1", "p2")])


def test_a_load_records_every_file_that_its_tasks_wrote(tmp_path: Path) -> None:
    world = BulkWorld.make(tmp_path / "graph")
    world.bulk(lines(tmp_path / "people.jsonl"))
    world.bulk(write_lines(tmp_path / "again.jsonl", [person("p3", name="Again"), person("new")]), mode="merge")
    report = verify(world.repository, full=True)
    assert report.ok, report.problems
    assert report.checked.files_compared > 2
    assert report.checked.files_not_recorded == 0


def test_the_driver_reads_no_data_file_that_a_task_has_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(path: Path) -> FileRecord:
        read.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(file_records, "hash_file", counted)
    world = BulkWorld.make(tmp_path / "graph")
    world.bulk(lines(tmp_path / "people.jsonl"))
    assert read
    assert len(read) == len(set(read))


def test_results_of_earlier_releases_are_read() -> None:
    record = FileRecord(7, "sha256:ab")
    result = SplitResult(
        3, 9, {"node:Person": TableResult(added=(WrittenFragment(DOCUMENT, 5, (("data/a.lance", record),)),))}
    )
    assert SplitResult.decode(result.encode()) == result
    document = json.loads(result.encode())
    document["tables"]["node:Person"]["added"] = [[DOCUMENT, 5]]
    earlier = SplitResult.decode(json.dumps(document).encode())
    assert earlier.tables["node:Person"].added == (WrittenFragment(DOCUMENT, 5),)


@pytest.mark.s3
def test_a_load_onto_an_object_store_records_what_it_attests(s3: S3Location, tmp_path: Path) -> None:
    repository = omnigraph.init(s3.uri, SCHEMA, s3.options).repository
    bulk_load(repository, LocalRunner(), lines(tmp_path / "people.jsonl"), settings=SMALL_SPLITS)
    report = verify(repository, full=True)
    assert report.ok, report.problems
    assert report.checked.files_compared > 2
    assert report.checked.files_not_recorded == 0
