"""Folding: all that lies on top of a stored version goes into one more version, by one commit."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.errors import BadRequest
from omnigraph.storage import meter
from omnigraph.storage.location import Location
from omnigraph.storage.table import fsync
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import VersionWithTail
from omnigraph.storage.table.tables import Tables, TableVersion
from support.proxy import Delay, Proxy, puts
from support.s3 import S3Location
from support.tails import Tails


def people(*ids: str, age: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.string()), "age": pa.array([age] * len(ids), pa.int64())})


def ages(tables: Tables, at: TableVersion) -> dict[Any, Any]:
    table = tables.scan(at)
    found: dict[Any, Any] = dict(zip(table["id"].to_pylist(), table["age"].to_pylist(), strict=True))
    assert len(found) == table.num_rows, "an id came twice"
    return found


def versions(root: Path, table_id: str = "t") -> int:
    return len(list((root / "tables" / table_id / "_versions").iterdir()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "graph"


@pytest.fixture
def tails() -> Tails:
    return Tails()


@pytest.fixture
def tables(root: Path, tails: Tails) -> Tables:
    return Tables(Location(str(root), fsync=False), read_tail=tails)


def test_rows_and_removals_are_folded_by_one_commit(tables: Tables, tails: Tails, root: Path) -> None:
    at = tables.append(tables.create("t", people("ada", "bob")).at, people("cy", "dee")).at
    tail = tails.tail(
        Overlay.of(people("ada", age=1)), Overlay.of(people("eve", age=2), new=True), Overlay.of(None, ["cy", "nobody"])
    )
    before = versions(root)

    folded = tables.fold_tail(VersionWithTail(at, tail), "unused")

    assert ages(tables, folded.at) == {"ada": 1, "bob": 0, "dee": 0, "eve": 2}
    assert folded.rows == 4
    assert versions(root) == before + 1
    assert ages(tables, at) == {"ada": 0, "bob": 0, "cy": 0, "dee": 0}, "the version that was folded on is as it was"
    assert not (root / "tables/unused").exists()


def test_changes_on_top_are_folded_with_the_tail_by_the_same_commit(tables: Tables, tails: Tails, root: Path) -> None:
    at = tables.create("t", people("ada", "bob")).at
    content = VersionWithTail(at, tails.tail(Overlay.of(people("ada", "cy", age=1))))
    before = versions(root)

    folded = tables.fold(content, Overlay.of(people("ada", age=2), ["bob"]), "unused")

    assert ages(tables, folded.at) == {"ada": 2, "cy": 1}
    assert versions(root) == before + 1


def test_rows_that_are_new_are_appended_and_can_be_carried(tables: Tables, tails: Tails) -> None:
    at = tables.create("t", people("ada")).at

    folded = tables.fold_tail(VersionWithTail(at, tails.tail(Overlay.of(people("bob"), new=True))), "unused")

    assert folded.appended is not None
    assert folded.appended.ids == {"bob"}


def test_without_a_stored_version_a_table_is_made(tables: Tables, tails: Tails) -> None:
    schema = people().schema.append(pa.field("city", pa.string()))
    content = VersionWithTail(None, tails.tail(Overlay.of(people("ada", "bob"), new=True), Overlay.of(None, ["bob"])))

    made = tables.fold_tail(content, "fresh", schema)

    assert made.at == TableVersion("fresh", 1)
    assert tables.scan(made.at).to_pylist() == [{"id": "ada", "age": 0, "city": None}]
    assert tables.fold(None, Overlay.of(people("zoe")), "other").rows == 1


def test_a_table_that_never_had_a_row_needs_columns(tables: Tables) -> None:
    assert tables.scan(tables.fold(None, Overlay.EMPTY, "t", people().schema).at).num_rows == 0
    with pytest.raises(ValueError, match="schema"):
        tables.fold(None, Overlay.EMPTY, "t2")


def test_where_there_is_nothing_to_do_the_version_stays(tables: Tables, tails: Tails) -> None:
    at = tables.create("t", people("ada")).at

    assert tables.fold_tail(at, "unused").at == at
    assert tables.fold(at, Overlay.EMPTY, "unused").at == at
    removed_before_stored = tails.tail(Overlay.of(people("bob"), new=True), Overlay.of(None, ["bob"]))
    assert tables.fold_tail(VersionWithTail(at, removed_before_stored), "unused").at == at


def test_columns_that_came_with_the_tail_are_added(tables: Tables, tails: Tails) -> None:
    at = tables.create("t", people("ada", "bob")).at
    wide = pa.table(
        {"id": ["bob"], "age": [1], "city": ["Rome"]},
        schema=people().schema.append(pa.field("city", pa.string(), nullable=False)),
    )

    folded = tables.fold_tail(VersionWithTail(at, tails.tail(Overlay.of(wide))), "unused")

    assert tables.scan(folded.at).sort_by("id").to_pylist() == [
        {"id": "ada", "age": 0, "city": None},
        {"id": "bob", "age": 1, "city": "Rome"},
    ]


def test_a_value_that_does_not_fit_is_refused(tables: Tables) -> None:
    at = tables.create("t", people("ada")).at

    with pytest.raises(BadRequest, match="'age' is int64"):
        tables.fold(at, Overlay.of(pa.table({"id": ["bob"], "age": ["many"]})), "unused")


def test_a_fold_that_removes_all_rows_of_a_fragment(tables: Tables, tails: Tails) -> None:
    at = tables.append(tables.create("t", people("ada")).at, people("bob")).at

    folded = tables.fold_tail(VersionWithTail(at, tails.tail(Overlay.of(people("ada", age=1)))), "unused")

    assert ages(tables, folded.at) == {"ada": 1, "bob": 0}


def test_everything_that_a_fold_wrote_is_synced(root: Path, tails: Tails, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables(Location(str(root), fsync=True), read_tail=tails)
    at = tables.append(tables.create("t", people("ada", "bob")).at, people("cy")).at
    before = {path for path in root.rglob("*") if path.is_file()}
    synced: set[Path] = set()
    sync = fsync._sync_file

    def seen(path: Path) -> None:
        if path.is_relative_to(root):
            synced.add(path)
        sync(path)

    monkeypatch.setattr(fsync, "_sync_file", seen)

    tables.fold_tail(VersionWithTail(at, tails.tail(Overlay.of(people("ada", "eve", age=1), ["nobody"]))), "unused")

    written = {path for path in root.rglob("*") if path.is_file()} - before
    assert len(written) == 4, "data, deletions, transaction, version"
    assert synced == written


# What it costs


@pytest.fixture
def counted(proxy: Proxy, s3_proxied: S3Location, tails: Tails) -> Tables:
    proxy.delay_s = 0.02  # so that requests that can overlap do
    return Tables(Location(s3_proxied.uri, s3_proxied.options), read_tail=tails)


def test_folding_new_rows_costs_3_requests_however_long_the_tail(proxy: Proxy, counted: Tables, tails: Tails) -> None:
    at = counted.append(counted.create("t", people("ada")).at, people("bob")).at
    content = VersionWithTail(at, tails.tail(*(Overlay.of(people(f"p{k}"), new=True) for k in range(32))))

    with proxy.recording() as log, meter.operation("test") as operation:
        assert counted.fold_tail(content, "unused").rows == 34

    assert (len(log), log.serial) == (3, 3), log.describe()
    assert (operation.cost.requests, operation.cost.stages) == (3, 3)


def test_folding_replaced_rows_finds_them_then_writes_side_by_side(proxy: Proxy, counted: Tables, tails: Tails) -> None:
    at = counted.append(counted.create("t", people("ada", "bob")).at, people("eve", "zoe")).at
    content = VersionWithTail(at, tails.tail(Overlay.of(people("ada", "new")), Overlay.of(None, ["eve"])))

    proxy.on(puts("_versions/"), Delay(0.3))  # so that a busy processor has sent the HEADs before it ends
    with proxy.recording() as log, meter.operation("test") as operation:
        counted.fold_tail(content, "unused")

    # 2 reads at once; a data file and 2 deletion files at once; transaction; version; beside those, what the store says
    # of the new files. The data file is encoded first, which may take as long as a deletion file is under way.
    assert len(log) == 10, log.describe()
    assert log.serial in (4, 5), log.describe()
    assert (operation.cost.requests, operation.cost.stages) == (10, 4)
