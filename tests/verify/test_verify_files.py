"""`verify --full` compares table files with what their manifests recorded of them when they were written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.model.document import seal, to_json
from omnigraph.manifest.model.manifest import Point
from omnigraph.verify.verify import VerifyReport
from support.cleanup import clean
from support.s3 import S3Location
from verify.damage import INLINE, STAGED, Place, build

PERSON, COMPANY = "node:Person", "node:Company"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("healthy") / "graph"
    build(str(root))
    return root


@pytest.fixture
def place(healthy: Path, tmp_path: Path) -> Place:
    """A copy to break."""
    return Place(Path(shutil.copytree(healthy, tmp_path / "graph")))


def verified(place: Place, **options: Any) -> VerifyReport:
    return omnigraph.open(str(place.root), settings=INLINE).verify(**{"full": True, **options})


def sentences(report: VerifyReport) -> str:
    return "\n".join(problem.sentence for problem in report.problems)


def flip(path: Path, where: int) -> None:
    data = bytearray(path.read_bytes())
    data[where] ^= 0x10
    path.write_bytes(data)


def documents(place: Place) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in (place.root / "__manifest").rglob("*.json"):
        yield path, json.loads(path.read_text())


def without_records(place: Place) -> None:
    """As an earlier release has written it."""
    for path, document in documents(place):
        document.pop("files", None)
        del document["checksum"]
        path.write_bytes(seal(to_json(document)[:-1].encode()))


# Everything that is written is recorded.


def test_every_file_of_a_healthy_graph_is_compared(healthy: Path) -> None:
    report = verified(Place(healthy))
    assert report.ok, sentences(report)
    kinds = ("data", "_deletions", "_indices")
    stored = [path for kind in kinds for path in (healthy / "tables").glob(f"*/{kind}/**/*") if path.is_file()]
    assert report.checked.files_compared == len(stored)
    assert report.checked.files_not_recorded == 0


def test_samples_compare_nothing(healthy: Path) -> None:
    report = verified(Place(healthy), full=False)
    assert report.checked.files_compared == report.checked.files_not_recorded == 0


def test_every_way_to_write_records_its_files(tmp_path: Path) -> None:
    schema = "node Doc { slug: String @key  text: String?  n: I64? @index }  edge Cites: Doc -> Doc"
    graph = omnigraph.init(str(tmp_path / "graph"), schema=schema, settings=STAGED)
    docs: list[dict[str, Any]] = [{"type": "Doc", "data": {"slug": f"d{n}", "n": n}} for n in range(12_000)]
    graph.load([*docs, *({"edge": "Cites", "from": f"d{n}", "to": f"d{n + 1}"} for n in range(100))])
    graph.load(
        [{"type": "Doc", "data": {"slug": "d1", "n": 5}}, {"type": "Doc", "data": {"slug": "new"}}], mode="merge"
    )
    graph.mutate('query q() { delete Doc where slug = "d7" }')
    graph.mutate('query q() { update Doc set { n: 8 } where slug = "d9" }')
    small = omnigraph.open(str(tmp_path / "graph"), settings=INLINE)
    small.mutate('query q() { insert Doc { slug: "inline" } }')
    small.optimize()
    small.schema.apply(schema.replace("text: String?", 'text: String?  lang: String @default("en")'))
    small.branches.create("side")
    graph = omnigraph.open(str(tmp_path / "graph"), settings=STAGED)
    graph.mutate('query q() { insert Doc { slug: "on-side" } }', branch="side")
    graph.mutate('query q() { insert Doc { slug: "on-main" } }')
    graph.branches.merge("side", delete_branch=True)
    graph.load([{"edge": "Cites", "from": "d20", "to": "d21"}], mode="overwrite")
    report = graph.verify(full=True)
    assert report.ok, sentences(report)
    assert report.checked.files_not_recorded == 0
    assert report.checked.files_compared > 20


# Damage.


@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.999])
def test_a_flipped_bit_in_a_data_file_is_damage(place: Place, where: float) -> None:
    path = place.data_file(PERSON)
    flip(path, int(where * path.stat().st_size))
    report = verified(place, branch="main")
    key = path.relative_to(place.root).as_posix()
    said = [
        problem for problem in report.damage if f"the data file {key} has changed since it was written" in problem.what
    ]
    assert said
    assert PERSON in said[0].where
    assert "restore it from a copy" in said[0].remedy


def test_a_flipped_bit_that_reads_back_as_another_value_is_damage(place: Place) -> None:
    path = place.data_file(COMPANY)
    flip(path, path.read_bytes().rindex(b"c0c1c2c3c4") + 1)
    assert "has changed since it was written: its SHA-256 is not the recorded one" in sentences(verified(place))


def test_a_flipped_bit_in_a_deletion_file_is_damage(place: Place) -> None:
    path = next((place.table(PERSON) / "_deletions").iterdir())
    flip(path, path.stat().st_size // 2)
    key = path.relative_to(place.root).as_posix()
    assert f"the deletion file {key} has changed since it was written" in sentences(verified(place))


def test_a_flipped_bit_in_any_file_of_an_index_is_damage(place: Place) -> None:
    paths = _index_files(place)
    for path in paths:
        flip(path, path.stat().st_size // 2)
    said = sentences(verified(place, branch="main"))
    for path in paths:
        key = path.relative_to(place.root).as_posix()
        assert f"the index file {key} has changed since it was written" in said


def _index_files(place: Place) -> list[Path]:
    return [path for path in (place.table(PERSON) / "_indices").rglob("*") if path.is_file()]


def test_a_flipped_bit_in_a_file_that_only_an_older_state_has_is_damage(place: Place) -> None:
    graph = omnigraph.open(str(place.root), settings=STAGED)
    path = place.data_file("edge:Knows")
    knows = [{"edge": "Knows", "from": "p3", "to": "p4"}]
    graph.load(knows, mode="overwrite")
    assert path != place.data_file("edge:Knows")
    flip(path, 3)
    said = sentences(verified(place))
    assert f"{path.name} has changed since it was written" in said


# What is recorded where.


def test_files_without_a_record_are_counted_and_are_no_damage(place: Place) -> None:
    compared = verified(place).checked.files_compared
    without_records(place)
    report = verified(place)
    assert report.ok, sentences(report)
    assert report.checked.files_not_recorded == compared
    assert report.checked.files_compared == 0


def test_records_are_found_in_stubs_and_on_branches_that_have_ended(tmp_path: Path) -> None:
    schema = "node Person { slug: String @key }"
    graph = omnigraph.init(str(tmp_path / "graph"), schema=schema, settings=STAGED)
    graph.mutate('query q() { insert Person { slug: "first" } }')
    graph.branches.create("work")
    graph.mutate('query q() { insert Person { slug: "there" } }', branch="work")
    graph.branches.merge("work", delete_branch=True)
    small = omnigraph.open(str(tmp_path / "graph"), settings=INLINE)
    for n in range(4):
        small.mutate(f'query q() {{ insert Person {{ slug: "later-{n}" }} }}')
    clean(small)
    place = Place(tmp_path / "graph")
    assert any("stub" in document and document.get("files") for _, document in documents(place))
    report = verified(place)
    assert report.ok, sentences(report)
    assert report.checked.files_compared == 2
    assert report.checked.files_not_recorded == 0
    flip(place.data_file(PERSON), 5)
    assert "has changed since it was written" in sentences(verified(place))


def test_a_damaged_stub_that_is_read_for_its_records_is_reported(tmp_path: Path) -> None:
    graph = omnigraph.init(str(tmp_path / "graph"), schema="node Person { slug: String @key }", settings=STAGED)
    graph.mutate('query q() { insert Person { slug: "first" } }')
    small = omnigraph.open(str(tmp_path / "graph"), settings=INLINE)
    for n in range(4):
        small.mutate(f'query q() {{ insert Person {{ slug: "later-{n}" }} }}')
    clean(small)
    place = Place(tmp_path / "graph")
    stub = next(path for path, document in documents(place) if "stub" in document and document.get("files"))
    flip(stub, stub.read_bytes().index(b"sha256:") + 20)
    said = sentences(verified(place))
    assert "its checksum does not match its content" in said


def test_a_merged_table_is_recorded_once_where_it_was_written(tmp_path: Path) -> None:
    graph = omnigraph.init(str(tmp_path / "graph"), schema="node Person { slug: String @key }", settings=STAGED)
    graph.branches.create("work")
    graph.mutate('query q() { insert Person { slug: "there" } }', branch="work")
    graph.branches.merge("work")
    place = Place(tmp_path / "graph")
    records = [
        path for _, document in documents(place) for files in document.get("files", {}).values() for path in files
    ]
    assert len(records) == 1
    assert verified(place).checked.files_compared == 1


def test_a_write_continues_without_a_file_record_that_can_not_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> object:
        raise OSError("no more file handles")

    graph = omnigraph.init(str(tmp_path / "graph"), schema="node Person { slug: String @key }", settings=STAGED)
    monkeypatch.setattr("omnigraph.storage.table.file_records.hash_file", refuse)
    graph.mutate('query q() { insert Person { slug: "ada" } }')
    monkeypatch.undo()
    report = graph.verify(full=True)
    assert report.ok
    assert (report.checked.files_compared, report.checked.files_not_recorded) == (0, 1)


# Object stores.


def _objects(s3: S3Location) -> S3Store:
    config: Any = {key: value for key, value in s3.options.items() if key.startswith("aws_")}
    return S3Store.from_url(s3.uri, config=config, client_options={"allow_http": True})


def _recorded(graph: Graph) -> dict[str, str]:
    """Every recorded file's key, and its checksum."""
    head = graph.repository.snapshot("main").manifest
    found: dict[str, str] = {}
    for number in range(1, head.manifest_version + 1):
        entry = graph.repository.manifests.read(Point(head.branch_id, number), cached=False)
        assert entry is not None
        for table_id, files in entry.files.items():
            found |= {f"tables/{table_id}/{path}": record.checksum for path, record in files.items()}
    return found


@pytest.mark.s3
def test_files_on_an_object_store_are_compared_by_what_it_attests(s3: S3Location) -> None:
    graph = build(s3.uri, s3.options)
    report = graph.verify(full=True)
    assert report.ok, sentences(report)
    assert report.checked.files_compared > 20
    assert report.checked.files_not_recorded == 0
    assert all(checksum.startswith("etag:") for checksum in _recorded(graph).values())


@pytest.mark.s3
@pytest.mark.parametrize(("kind", "name"), [("data", "data"), ("_deletions", "deletion"), ("_indices", "index")])
def test_a_replaced_object_is_damage(s3: S3Location, kind: str, name: str) -> None:
    graph = build(s3.uri, s3.options)
    objects = _objects(s3)
    key = next(key for key in sorted(_recorded(graph)) if key.split("/")[2] == kind)
    data = bytearray(bytes(obstore.get(objects, key).bytes()))
    data[len(data) // 2] ^= 1
    obstore.put(objects, key, bytes(data))
    assert f"the {name} file {key} has changed since it was written: its ETag is not" in sentences(
        graph.verify(full=True)
    )


@pytest.mark.s3
def test_a_first_table_is_recorded_with_the_next_commit_that_asks_the_store(s3: S3Location) -> None:
    """Its own commit makes no further request for it; until then it is counted as not recorded."""
    schema = "node Person { slug: String @key }"
    graph = omnigraph.init(s3.uri, schema, s3.options, settings=STAGED)
    graph.mutate('query q() { insert Person { slug: "ada" } }')
    assert graph.verify(full=True).checked.files_not_recorded == 1
    graph.optimize()
    assert graph.verify(full=True).checked.files_not_recorded == 0
