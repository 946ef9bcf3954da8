"""What is known of the files that new table versions bring: all of them, each once, and nothing of older ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph.errors import Unavailable
from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage.location import Location, parse_location
from omnigraph.storage.objects.object_store import open_store
from omnigraph.storage.table import file_records
from omnigraph.storage.table.file_records import (
    SINGLE_HEADS_MAX,
    FileLedger,
    FileRecord,
    etag_record,
    hash_file,
    hash_files,
)
from omnigraph.storage.table.index import segments as index_segments
from omnigraph.storage.table.maintain.table_files import needed_by
from omnigraph.storage.table.tables import Tables, TableVersion
from omnigraph.storage.table.write.schema_evolution import FilledColumn
from support.proxy import Delay, Proxy, puts
from support.s3 import S3Location

RECORDED = ("data/", "_deletions/", "_indices/")


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return parse_location(str(tmp_path / "graph"))


@pytest.fixture
def tables(location: Location) -> Tables:
    return Tables(location)


def rows(*ids: str) -> pa.Table:
    return pa.table({"id": list(ids), "n": pa.array(range(len(ids)), pa.int64())})


def files(location: Location, tables: Tables, at: TableVersion) -> set[str]:
    """The files of a version that are there."""
    needed = needed_by(tables, at)
    root = location.path / "tables" / at.table_id
    every = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    return {path for path in every if path.startswith(RECORDED) and needed.covers(path)}


def test_a_hash_is_that_of_the_whole_content(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for data in (b"", b"some", b"a" * (2 * file_records.HASHED_AT_ONCE_BYTES + 1)):
        path.write_bytes(data)
        assert hash_file(path) == FileRecord(len(data), f"sha256:{hashlib.sha256(data).hexdigest()}")


def test_a_file_that_can_not_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"1")
    assert list(hash_files(tmp_path, ["there", "gone"])) == ["there"]


def test_many_files_are_hashed_like_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(9):
        (tmp_path / str(n)).write_bytes(bytes([n]) * 100)
    names = [str(n) for n in range(9)]
    few = hash_files(tmp_path, names)
    monkeypatch.setattr(file_records, "SERIAL_HASH_BYTES_MAX", 0)
    assert hash_files(tmp_path, names) == few
    assert len(few) == 9


def test_an_etag_is_the_same_with_and_without_quotes() -> None:
    assert etag_record(5, '"abc"') == etag_record(5, "abc") == FileRecord(5, "etag:abc")
    assert etag_record(5, None) is None


def test_each_version_brings_the_files_that_its_base_lacks(location: Location, tables: Tables) -> None:
    made = tables.create("t", rows("a", "b", "c")).at
    assert tables.new_files(None, made).keys() == files(location, tables, made)
    before = made
    changes: tuple[Callable[[TableVersion], TableVersion], ...] = (
        lambda at: tables.append(at, rows("d")).at,
        lambda at: tables.upsert(at, rows("a", "e")).at,
        lambda at: tables.delete(at, ["b"]).at,
        lambda at: tables.fill_columns(at, [FilledColumn(pa.field("more", pa.int64()), None, 7)]).at,
        lambda at: tables.add_columns(at, [pa.field("empty", pa.string())]).at,
    )
    for change in changes:
        at = change(before)
        new = files(location, tables, at) - files(location, tables, before)
        assert tables.new_files(before, at).keys() == new
        assert all(
            record == hash_file(location.path / "tables/t" / path)
            for path, record in tables.new_files(before, at).items()
        )
        before = at
    assert tables.new_files(None, before).keys() >= files(location, tables, before)


def test_a_chain_of_versions_brings_what_the_last_one_has(location: Location, tables: Tables) -> None:
    """Staging may take several commits of which the last alone is named."""
    base = tables.create("t", rows("a")).at
    last = tables.append(tables.append(base, rows("b")).at, rows("c")).at
    assert tables.new_files(base, last).keys() == files(location, tables, last) - files(location, tables, base)
    assert tables.new_files(last, last) == {}


def test_an_overwritten_table_brings_only_what_came_instead(location: Location, tables: Tables) -> None:
    base = tables.create("t", rows("a")).at
    over = tables.overwrite(tables.append(base, rows("b")).at, rows("z")).at
    assert tables.new_files(base, over).keys() == files(location, tables, over)


def test_an_index_brings_all_files_of_its_folder(
    location: Location, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_segments, "INDEXED_ROWS_MIN", 1)
    base = tables.create("t", pa.table({"id": ["a", "b"], "text": ["some words", "other words"]})).at
    at = tables.index_new_rows(base, None, [DeclaredIndex("id", "btree"), DeclaredIndex("text", "full_text")])
    new = tables.new_files(base, at)
    assert new.keys() == files(location, tables, at) - files(location, tables, base)
    assert {path.split("/")[0] for path in new} == {"_indices"}
    gone = tables.reindex(at, ["id_btree", DeclaredIndex("text", "full_text").name], [])
    assert tables.new_files(base, gone) == {}


def test_carried_rows_are_recorded_on_the_version_that_takes_them(location: Location, tables: Tables) -> None:
    base = tables.create("t", rows("a")).at
    staged = tables.append(base, rows("b"))
    assert staged.appended is not None
    winner = tables.append(base, rows("c")).at
    carried = tables.append_fragments(winner, staged.appended).at
    assert tables.new_files(winner, carried) == tables.new_files(base, staged.at)


def test_a_version_of_another_process_has_no_files_here(tables: Tables, location: Location) -> None:
    at = tables.create("t", rows("a")).at
    assert FileLedger(location).new_files(at.table_id, None, at.table_version) == {}


# Object stores.


def _recorded_as_listed(location: Location, tables: Tables, base: TableVersion | None, at: TableVersion) -> None:
    listed = {one.key: etag_record(one.size, one.etag) for one in open_store(location).list(f"tables/{at.table_id}")}
    for path, record in tables.new_files(base, at).items():
        assert record == listed[f"tables/{at.table_id}/{path}"]


@pytest.mark.s3
def test_a_small_append_is_recorded_without_a_further_request(s3_proxied: S3Location, proxy: Proxy) -> None:
    location = parse_location(s3_proxied.uri, s3_proxied.options)
    tables = Tables(location)
    base = tables.append(tables.create("t", rows("a")).at, rows("b")).at
    with proxy.recording() as log:
        at = tables.append(base, rows("c")).at
    assert (len(log), log.serial) == (3, 3), log.describe()
    assert len(tables.new_files(base, at)) == 1
    _recorded_as_listed(location, tables, base, at)
    assert tables.scan(at).num_rows == 3


@pytest.mark.s3
def test_a_deletion_file_is_asked_for_while_its_commit_is_under_way(s3_proxied: S3Location, proxy: Proxy) -> None:
    location = parse_location(s3_proxied.uri, s3_proxied.options)
    tables = Tables(location)
    base = tables.append(tables.create("t", rows("a")).at, rows("b", "c")).at
    tables.exists(base, ["b"])
    proxy.on(lambda request: request.method == "HEAD", Delay(1.0), times=None)
    proxy.on(puts("_versions/"), Delay(0.3))  # so that a busy processor has sent the HEADs before it ends
    with proxy.recording() as log:
        at = tables.delete(base, ["b"]).at
    assert log.count("HEAD", "_deletions") == 1
    assert log.serial == len(log) - 1 - log.count("HEAD", "data/"), log.describe()
    assert any(path.startswith("_deletions/") for path in tables.new_files(base, at))
    _recorded_as_listed(location, tables, base, at)


@pytest.mark.s3
def test_many_files_are_asked_for_with_one_listing(s3_proxied: S3Location, proxy: Proxy) -> None:
    location = parse_location(s3_proxied.uri, s3_proxied.options)
    ledger, store = FileLedger(location), open_store(location)
    paths = [f"data/{n}" for n in range(SINGLE_HEADS_MAX + 1)]
    for path in paths:
        store.put(f"tables/t/{path}", path.encode())
    with proxy.recording() as log:
        found = ledger.make_records("t", paths)
    assert len(log) == 1
    assert found.keys() == set(paths)


@pytest.mark.s3
def test_a_commit_goes_on_where_the_store_does_not_say_what_it_has(s3_proxied: S3Location) -> None:
    class Silent(FileLedger):
        def _asked(self, table_id: str, paths: list[str]) -> dict[str, FileRecord]:
            raise Unavailable(table_id, "no answer")

    ledger = Silent(parse_location(s3_proxied.uri, s3_proxied.options))
    assert ledger.make_records("t", ["data/a"]) == {}
