"""Private views: a stored version and inline rows as one Lance dataset, made without touching the store."""

import gc
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.errors import Damaged
from omnigraph.storage import meter
from omnigraph.storage.location import Location
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.tables import Tables, TableVersion
from support.arrow import schema_of
from support.proxy import Proxy
from support.s3 import S3Location, keys

SIZE = 8
SCHEMA = schema_of(id=pa.string(), text=pa.string(), n=pa.int64(), vector=pa.list_(pa.float32(), SIZE))


def rows(*ids: str, text: str = "plain words", n: int = 0, vector: list[float] | None = None) -> pa.Table:
    dice = random.Random(",".join(ids))
    vectors = [vector or [dice.gauss(0, 1) for _ in range(SIZE)] for _ in ids]
    return pa.table({"id": list(ids), "text": [text] * len(ids), "n": [n] * len(ids), "vector": vectors}, schema=SCHEMA)


def numbered(start: int, end: int, **values: Any) -> pa.Table:
    return rows(*(f"p{k}" for k in range(start, end)), **values)


def ids(table: pa.Table) -> list[str]:
    found: list[Any] = table["id"].to_pylist()
    return sorted(found)


def with_index(tables: Tables, at: TableVersion, column: str, kind: str, **settings: Any) -> TableVersion:
    import lance

    dataset = tables.open(at)
    fragments = [fragment.fragment_id for fragment in dataset.get_fragments()]
    index = dataset.create_index_uncommitted(
        column, kind, name=f"{column}_idx", fragment_ids=fragments, replace=True, **settings
    )
    if kind == "INVERTED":
        dataset.merge_index_metadata(index.uuid, "INVERTED")
    return tables.commit_operation(at, lance.LanceOperation.CreateIndex([index], [])).at


def with_all_indexes(tables: Tables, at: TableVersion) -> TableVersion:
    at = with_index(tables, at, "id", "BTREE")
    at = with_index(tables, at, "text", "INVERTED", with_position=True)
    return with_index(tables, at, "vector", "IVF_FLAT", metric="cosine", num_partitions=2)


def compacted(tables: Tables, at: TableVersion) -> TableVersion:
    import lance
    from lance.optimize import Compaction

    dataset = tables.open(at)
    done = [task.execute(dataset) for task in Compaction.plan(dataset, {"target_rows_per_fragment": 10**6}).tasks]
    groups = [
        lance.LanceOperation.RewriteGroup(one.original_fragments, one.new_fragments)  # type: ignore[attr-defined]
        for one in done
    ]
    assert groups, "nothing to compact"
    return tables.commit_operation(at, lance.LanceOperation.Rewrite(groups, [])).at


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture(params=["local", "s3"])
def tables(request: pytest.FixtureRequest, tmp_path: Path, scratch: Path) -> Tables:
    if request.param == "local":
        return Tables(Location(str(tmp_path / "graph"), fsync=False), scratch=scratch)
    s3: S3Location = request.getfixturevalue("s3")
    return Tables(Location(s3.uri, s3.options), scratch=scratch)


@pytest.fixture
def local(tmp_path: Path, scratch: Path) -> Tables:
    return Tables(Location(str(tmp_path / "graph"), fsync=False), scratch=scratch)


@pytest.fixture
def stored(tables: Tables) -> TableVersion:
    """60 rows in 3 fragments, a few deleted and replaced, with three kinds of index; one fragment without."""
    at = tables.create("t1", numbered(0, 20)).at
    at = tables.append(at, numbered(20, 40)).at
    at = tables.delete(at, ["p1", "p21"]).at
    at = with_all_indexes(tables, at)
    return tables.append(at, numbered(40, 60)).at


def test_without_an_overlay_the_stored_version_itself_is_read(local: Tables) -> None:
    at = local.create("t1", rows("ada")).at

    assert local.dataset(at) is local.open(at)


def test_all_rows_are_scanned_once(tables: Tables, stored: TableVersion) -> None:
    overlay = Overlay.of(rows("p2", "p45", "new"), ["p3", "p46", "nobody"])
    expected = {f"p{k}" for k in range(60)} - {"p1", "p21", "p3", "p46"} | {"new"}

    assert ids(tables.scan(stored, overlay=overlay)) == sorted(expected)
    assert tables.count(stored, overlay=overlay) == len(expected)


def test_an_indexed_filter_finds_stored_and_inline_rows(tables: Tables, stored: TableVersion) -> None:
    overlay = Overlay.of(rows("p2", "p45", "new", n=1), ["p3", "p46"])
    asked = "id IN ('p1', 'p2', 'p3', 'p4', 'p45', 'p46', 'p47', 'new')"

    found = tables.scan(stored, columns=["id", "n"], filter=asked, overlay=overlay)

    assert "id_idx" in tables.dataset(stored, overlay).scanner(filter=asked).explain_plan()
    assert dict(zip(*found.to_pydict().values(), strict=True)) == {"p2": 1, "p4": 0, "p45": 1, "p47": 0, "new": 1}


def test_full_text_search_sees_stored_and_inline_rows(tables: Tables, stored: TableVersion) -> None:
    at = tables.append(stored, rows("old", text="a rare bird")).at
    overlay = Overlay.of(rows("p2", text="another rare fish"), ["p3"])

    view = tables.dataset(at, overlay)

    assert ids(view.to_table(columns=["id", "_score"], full_text_query="rare")) == ["old", "p2"]
    plain = view.to_table(columns=["id", "_score"], full_text_query="plain")
    assert plain.num_rows == 60 - 2 - 2
    assert not {"p2", "p3"} & {*ids(plain)}


def test_a_phrase_is_found_as_in_the_stored_version(tables: Tables, stored: TableVersion) -> None:
    from lance.query import PhraseQuery

    view = tables.dataset(stored, Overlay.of(rows("new", text="words plain"), ["p3"]))

    found = view.to_table(columns=["id", "_score"], full_text_query=PhraseQuery("plain words", "text"))

    assert found.num_rows == 60 - 2 - 1


def test_vector_search_sees_stored_and_inline_rows(tables: Tables, stored: TableVersion) -> None:
    query = [1.0] * SIZE
    overlay = Overlay.of(rows("near", vector=[2.0] * SIZE), [])
    nearest = {"column": "vector", "q": query, "k": 60, "nprobes": 2}

    alone = tables.open(stored).to_table(columns=["id", "_distance"], nearest=nearest).to_pydict()
    both = tables.dataset(stored, overlay).to_table(columns=["id", "_distance"], nearest=nearest).to_pydict()

    assert both["id"] == ["near", *alone["id"]]
    assert both["_distance"][1:] == pytest.approx(alone["_distance"], abs=1e-5)


def test_a_view_of_a_compacted_version_finds_everything(tables: Tables) -> None:
    at = tables.create("t1", numbered(0, 20)).at
    at = with_all_indexes(tables, tables.append(at, numbered(20, 40)).at)
    at = compacted(tables, tables.delete(at, ["p5"]).at)
    at = with_all_indexes(tables, at)
    overlay = Overlay.of(rows("p2", "new", n=1), ["p30"])

    assert tables.count(at, overlay=overlay) == 40 - 1 - 1 + 1
    assert tables.scan(at, columns=["n"], filter="id = 'p2'", overlay=overlay)["n"].to_pylist() == [1]
    assert tables.count(at, filter="id IN ('p5', 'p30')", overlay=overlay) == 0


def test_fragments_keep_their_stored_ids(local: Tables) -> None:
    at = local.create("t1", numbered(0, 5)).at
    at = local.append(at, numbered(5, 10)).at
    at = local.append(at, numbered(10, 15)).at
    at = local.delete(at, [f"p{k}" for k in range(5)]).at  # fragment 0 is gone

    view = local.dataset(at, Overlay.of(rows("new"), ["p6"]))

    assert [fragment.fragment_id for fragment in view.get_fragments()] == [1, 2, 3]


@pytest.mark.parametrize("stays", [True, False], ids=["some stay", "none stays"])
def test_an_index_does_not_answer_for_inline_rows_that_come_after_a_fragment_is_gone(
    local: Tables, stays: bool
) -> None:
    """Its segments still know the numbers of fragments whose rows were all deleted: no other may get them."""
    at = local.append(local.create("t1", rows("first")).at, rows("gone", text="a rare bird")).at
    at = local.delete(with_all_indexes(local, at), ["gone"] if stays else ["first", "gone"]).at
    overlay = Overlay.of(rows("new", "newer", text="a red fish"))

    assert ids(local.scan(at, filter="id = 'newer'", overlay=overlay)) == ["newer"]
    view = local.dataset(at, overlay)
    assert ids(view.to_table(columns=["id", "_score"], full_text_query="fish")) == ["new", "newer"]
    assert ids(view.to_table(columns=["id", "_score"], full_text_query="rare")) == []


def test_a_view_in_which_all_stored_rows_are_shadowed(local: Tables) -> None:
    at = local.append(local.create("t1", rows("a", "b")).at, rows("c")).at

    assert ids(local.scan(at, overlay=Overlay.of(rows("b"), ["a", "c"]))) == ["b"]
    assert ids(local.scan(at, overlay=Overlay.of(None, ["a", "b", "c"]))) == []


def test_a_view_of_an_empty_table(local: Tables) -> None:
    at = local.create("t1", rows()).at

    assert ids(local.scan(at, overlay=Overlay.of(rows("a"), ["b"]))) == ["a"]


def test_inline_rows_may_lack_columns_that_the_table_got_later(tables: Tables) -> None:
    at = tables.create("t1", rows("ada")).at
    at = tables.add_columns(at, [pa.field("city", pa.string())]).at

    found = tables.scan(at, columns=["id", "city"], overlay=Overlay.of(rows("bob")))

    assert found.sort_by("id").to_pylist() == [{"id": "ada", "city": None}, {"id": "bob", "city": None}]


def test_inline_rows_may_have_columns_that_the_table_gets_later(tables: Tables) -> None:
    at = with_index(tables, tables.create("t1", rows("ada")).at, "id", "BTREE")
    overlay = Overlay.of(pa.table({"city": ["Rome"], "id": ["bob"]}))
    expected = [{"id": "ada", "city": None}, {"id": "bob", "city": "Rome"}]

    assert tables.scan(at, columns=["id", "city"], overlay=overlay).sort_by("id").to_pylist() == expected
    assert tables.lookup(at, ["ada", "bob"], ["id", "city"], overlay).sort_by("id").to_pylist() == expected
    assert tables.lookup(at, ["ada", "bob"], ["city"], overlay).to_pylist() == [{"city": "Rome"}, {"city": None}]


def test_a_missing_stored_file_is_damage_that_names_the_version(tmp_path: Path, local: Tables) -> None:
    at = local.create("t1", rows("ada")).at
    for path in (tmp_path / "graph/tables/t1/data").iterdir():
        path.unlink()

    with pytest.raises(Damaged, match="table t1 version 1"):
        local.scan(at, overlay=Overlay.of(rows("bob")))


# What a view leaves alone, and what it leaves behind


def test_a_view_writes_nothing_to_a_local_store(tmp_path: Path) -> None:
    tables = Tables(Location(str(tmp_path / "graph"), fsync=False), scratch=tmp_path / "scratch")
    at = with_all_indexes(tables, tables.append(tables.create("t1", numbered(0, 20)).at, numbered(20, 40)).at)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "graph").rglob("*")}

    tables.scan(at, overlay=Overlay.of(rows("p1", "new"), ["p2"]))

    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "graph").rglob("*")} == before


@pytest.mark.parametrize("cold", [False, True])
def test_a_view_only_reads_from_s3_and_the_meter_sees_it(
    proxy: Proxy, s3_proxied: S3Location, s3: S3Location, scratch: Path, cold: bool
) -> None:
    from lance.lance import _Session as Session

    location = Location(s3_proxied.uri, s3_proxied.options)
    tables = Tables(location, session=Session(), scratch=scratch)
    at = tables.append(tables.create("t1", numbered(0, 20)).at, numbered(20, 40)).at
    at = with_all_indexes(tables, tables.delete(at, ["p7"]).at)
    before = keys(s3.endpoint, s3.bucket)
    reader = Tables(location, session=Session(), scratch=scratch) if cold else tables
    overlay = Overlay.of(rows("p1", "new"), ["p2"])

    with proxy.recording() as log, meter.operation("test") as operation:
        assert reader.scan(at, overlay=overlay).num_rows == 40 - 1 - 1 + 1

    assert {request.method for request in log} <= {"GET", "HEAD"}, log.describe()
    assert keys(s3.endpoint, s3.bucket) == before
    assert operation.cost.requests == len(log), log.describe()


def test_a_view_is_made_once_for_equal_overlays(local: Tables) -> None:
    at = local.create("t1", rows("ada")).at

    one, again = (local.dataset(at, Overlay.of(rows("bob"), ["ada"])) for _ in range(2))

    assert one is again
    assert local.dataset(at, Overlay.of(rows("bob"))) is not one


def test_views_are_bounded_and_their_files_go_with_them(tmp_path: Path, scratch: Path) -> None:
    tables = Tables(Location(str(tmp_path / "graph"), fsync=False), scratch=scratch, views_max=2)
    at = tables.create("t1", rows("ada")).at
    for k in range(5):
        tables.scan(at, overlay=Overlay.of(rows(f"p{k}")))
    gc.collect()

    assert len(list(scratch.iterdir())) == 2


def test_an_evicted_view_stays_for_those_who_read_from_it(tmp_path: Path, scratch: Path) -> None:
    tables = Tables(Location(str(tmp_path / "graph"), fsync=False), scratch=scratch, views_max=1)
    at = tables.create("t1", rows("ada")).at
    batches = tables.batches(at, overlay=Overlay.of(rows("bob")))
    for k in range(3):
        tables.scan(at, overlay=Overlay.of(rows(f"p{k}")))
    gc.collect()

    assert ids(pa.Table.from_batches(batches)) == ["ada", "bob"]


def test_scratch_files_are_gone_after_exit(tmp_path: Path) -> None:
    script = """
import sys, pyarrow as pa
from pathlib import Path
from omnigraph.storage.location import Location
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.tables import Tables
root = Path(sys.argv[1])
tables = Tables(Location(str(root / "graph"), fsync=False), scratch=root / "scratch")
at = tables.create("t1", pa.table({"id": ["ada"]})).at
print(tables.scan(at, overlay=Overlay.of(pa.table({"id": ["bob"]}))).num_rows, len(list((root / "scratch").iterdir())))
"""
    answer = subprocess.run([sys.executable, "-c", script, tmp_path], check=True, capture_output=True, text=True)

    assert answer.stdout.split() == ["2", "1"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_view_that_could_not_be_made_leaves_nothing(local: Tables, scratch: Path) -> None:
    with pytest.raises(Damaged):
        local.scan(TableVersion("missing", 1), overlay=Overlay.of(rows("ada")))

    assert list(scratch.iterdir()) == []
