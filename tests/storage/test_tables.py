"""The adapter to Lance: immutable versions, made, read and paid for."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.errors import AccessDenied, AlreadyExists, BadRequest, Damaged, StorageFull, Unavailable
from omnigraph.storage import meter
from omnigraph.storage.location import Location
from omnigraph.storage.table.lance_errors import translate
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.read.row_addresses import FILTER_IDS_MAX
from omnigraph.storage.table.tables import Tables, TableVersion
from omnigraph.threads import gather
from support.fsync_log import Synced
from support.proxy import Action, Answer, ApplyThenDrop, Delay, Drop, Log, Proxy, anything, error_body, puts
from support.s3 import S3Location

ODD_IDS = [
    "it's",
    "''",
    "100%",
    "_",
    'say "hi"',
    "new\nline",
    "tab\t",
    "ä€😀",
    "",
    " ",
    "\\",
    "\\'",
    "nul\0byte",
    "a' OR '1'='1",
    "-- x",
]


def people(*ids: str, age: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.string()), "age": pa.array([age] * len(ids), pa.int64())})


def ages(tables: Tables, at: TableVersion) -> dict[Any, Any]:
    table = tables.scan(at)
    found: dict[Any, Any] = dict(zip(table["id"].to_pylist(), table["age"].to_pylist(), strict=True))
    assert len(found) == table.num_rows, "an id came twice"
    return found


def files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def with_index(tables: Tables, at: TableVersion) -> TableVersion:
    import lance

    dataset = tables.open(at)
    fragments = [fragment.fragment_id for fragment in dataset.get_fragments()]
    index = dataset.create_index_uncommitted("id", "BTREE", name="id_idx", fragment_ids=fragments, replace=True)
    return tables.commit_operation(at, lance.LanceOperation.CreateIndex([index], [])).at


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "graph"


@pytest.fixture
def tables(root: Path) -> Tables:
    return Tables(Location(str(root), fsync=False))


@pytest.fixture(params=["local", "s3"])
def any_tables(request: pytest.FixtureRequest, root: Path) -> Tables:
    if request.param == "local":
        return Tables(Location(str(root)))
    s3: S3Location = request.getfixturevalue("s3")
    return Tables(Location(s3.uri, s3.options))


# Making versions


def test_importing_the_adapter_loads_neither_lance_nor_arrow() -> None:
    script = (
        "import sys, omnigraph.storage.table.tables as t; t.Overlay.of(); print({'lance', 'pyarrow'} & {*sys.modules})"
    )
    answer = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert answer.stdout.strip() == "set()"


def test_a_new_table_has_version_1_and_the_rows_it_was_made_with(any_tables: Tables) -> None:
    staged = any_tables.create("t1", people("ada", "bob"))

    assert staged.at == TableVersion("t1", 1)
    assert staged.rows == 2
    assert ages(any_tables, staged.at) == {"ada": 0, "bob": 0}


def test_a_table_id_is_used_once(any_tables: Tables) -> None:
    at = any_tables.create("t1", people("ada")).at

    with pytest.raises(AlreadyExists, match="table t1 already exists"):
        any_tables.create("t1", people("bob"))

    assert ages(any_tables, at) == {"ada": 0}


def test_a_table_may_be_made_without_rows(tables: Tables) -> None:
    made = tables.create("t1", people())

    assert (made.rows, tables.count(made.at)) == (0, 0)
    assert ages(tables, tables.append(made.at, people("ada")).at) == {"ada": 0}
    assert ages(tables, tables.upsert(made.at, people("bob")).at) == {"bob": 0}


def test_every_change_leaves_its_base_as_it_was(any_tables: Tables) -> None:
    base = any_tables.create("t1", people("ada", "bob")).at

    any_tables.append(base, people("eve"))
    any_tables.upsert(base, people("ada", age=36))
    any_tables.delete(base, ["ada"])
    any_tables.overwrite(base, people("zoe"))
    any_tables.add_columns(base, [pa.field("city", pa.string())])

    assert ages(any_tables, base) == {"ada": 0, "bob": 0}
    assert any_tables.scan(base).column_names == ["id", "age"]


def test_no_change_moves_the_mainline(any_tables: Tables) -> None:
    import lance

    at = any_tables.create("t1", people("ada")).at
    at = any_tables.append(at, people("bob")).at
    at = any_tables.upsert(at, people("bob", age=3)).at
    at = with_index(any_tables, any_tables.delete(at, ["ada"]).at)
    any_tables.scan(at, overlay=Overlay.of(people("eve")))

    handles = any_tables._handles
    newest = lance.dataset(handles.uri("t1"), storage_options=handles.options)
    assert newest.version == 1


def test_append_adds_rows(any_tables: Tables) -> None:
    staged = any_tables.append(any_tables.create("t1", people("ada")).at, people("bob", age=2))

    assert staged.rows == 2
    assert ages(any_tables, staged.at) == {"ada": 0, "bob": 2}


def test_appending_nothing_answers_the_same_version(tables: Tables) -> None:
    made = tables.create("t1", people("ada"))

    assert tables.append(made.at, people()).at == made.at


def test_upsert_replaces_whole_rows_and_adds_absent_ones(any_tables: Tables) -> None:
    at = any_tables.create("t1", people("ada", "bob", age=1)).at

    staged = any_tables.upsert(at, people("bob", "eve", age=2))

    assert staged.rows == 3
    assert ages(any_tables, staged.at) == {"ada": 1, "bob": 2, "eve": 2}


def test_upsert_of_every_row_leaves_no_old_one(tables: Tables) -> None:
    at = tables.create("t1", people("ada", "bob", age=1)).at

    assert ages(tables, tables.upsert(at, people("bob", "ada", age=2)).at) == {"ada": 2, "bob": 2}


def test_delete_removes_rows_and_ignores_absent_ids(any_tables: Tables) -> None:
    at = any_tables.append(any_tables.create("t1", people("ada", "bob")).at, people("eve")).at

    staged = any_tables.delete(at, ["eve", "bob", "nobody"])

    assert staged.rows == 1
    assert ages(any_tables, staged.at) == {"ada": 0}


def test_deleting_nothing_answers_the_same_version(tables: Tables) -> None:
    made = tables.create("t1", people("ada"))

    assert tables.delete(made.at, ["nobody"]).at == made.at
    assert tables.delete(made.at, []).at == made.at


def test_a_table_whose_rows_are_all_deleted_can_be_filled_again(tables: Tables) -> None:
    emptied = tables.delete(tables.create("t1", people("ada", "bob")).at, ["ada", "bob"])

    assert emptied.rows == 0
    assert ages(tables, emptied.at) == {}
    assert ages(tables, tables.upsert(emptied.at, people("ada", age=5)).at) == {"ada": 5}


def test_overwrite_replaces_rows_and_schema(any_tables: Tables) -> None:
    at = with_index(any_tables, any_tables.create("t1", people("ada")).at)

    staged = any_tables.overwrite(at, pa.table({"name": ["Zoe"], "id": ["zoe"]}))

    assert staged.rows == 1
    assert any_tables.scan(staged.at).to_pylist() == [{"name": "Zoe", "id": "zoe"}]
    assert any_tables.exists(staged.at, ["ada", "zoe"]) == {"zoe"}


def test_a_table_may_be_overwritten_with_nothing(tables: Tables) -> None:
    staged = tables.overwrite(tables.create("t1", people("ada")).at, people())

    assert (staged.rows, tables.count(staged.at)) == (0, 0)
    assert ages(tables, tables.append(staged.at, people("bob")).at) == {"bob": 0}


def test_added_columns_are_null_for_rows_that_were_there(any_tables: Tables) -> None:
    at = with_index(any_tables, any_tables.create("t1", people("ada")).at)

    at = any_tables.add_columns(at, [pa.field("city", pa.string()), pa.field("tags", pa.list_(pa.string()))]).at
    at = any_tables.append(at, pa.table({"id": ["bob"], "city": ["Rome"], "tags": [["x"]], "age": [3]})).at

    assert any_tables.lookup(at, ["ada", "bob"]).sort_by("id").to_pylist() == [
        {"id": "ada", "age": 0, "city": None, "tags": None},
        {"id": "bob", "age": 3, "city": "Rome", "tags": ["x"]},
    ]


def test_adding_columns_writes_no_data(root: Path, tables: Tables) -> None:
    at = tables.create("t1", people("ada")).at
    before = files(root / "tables/t1/data")

    tables.add_columns(at, [pa.field("city", pa.string())])

    assert files(root / "tables/t1/data") == before


@pytest.mark.parametrize("column", [pa.field("city", pa.string(), nullable=False), pa.field("age", pa.string())])
def test_a_required_or_existing_column_cannot_be_added(tables: Tables, column: "pa.Field[Any]") -> None:
    at = tables.create("t1", people("ada")).at

    with pytest.raises(BadRequest):
        tables.add_columns(at, [column])


@pytest.mark.parametrize("indexed", [False, True])
def test_ids_are_arbitrary_text(tables: Tables, indexed: bool) -> None:
    at = tables.create("t1", people("plain", *ODD_IDS)).at
    at = with_index(tables, at) if indexed else at
    for odd in ODD_IDS:
        assert tables.exists(at, [odd, "nobody"]) == {odd}
        assert tables.lookup(at, [odd])["id"].to_pylist() == [odd]
        assert ages(tables, tables.upsert(at, people(odd, age=7)).at)[odd] == 7
        assert odd not in ages(tables, tables.delete(at, [odd]).at)


@pytest.mark.parametrize("indexed", [False, True])
def test_large_sets_of_ids_take_seconds(tables: Tables, indexed: bool) -> None:
    everyone = [f"person-{n}" for n in range(110_000)]
    many = everyone[:100_000]
    assert len(many) > FILTER_IDS_MAX
    at = tables.create("t1", people(*everyone)).at
    at = with_index(tables, at) if indexed else at
    start = time.monotonic()

    assert tables.upsert(at, people(*many, age=1)).rows == len(everyone)
    assert tables.delete(at, many).rows == len(everyone) - len(many)
    assert len(tables.exists(at, [*many, "nobody"])) == len(many)

    assert time.monotonic() - start < 20


def test_rows_may_come_with_columns_missing_or_in_another_order(tables: Tables) -> None:
    at = tables.create("t1", people("ada")).at

    at = tables.append(at, pa.table({"age": [1], "id": ["bob"]})).at
    at = tables.upsert(at, pa.table({"id": ["eve"]})).at

    assert ages(tables, at) == {"ada": 0, "bob": 1, "eve": None}


Write = Callable[[Tables, TableVersion, pa.Table], Any]
WRITES: Sequence[Write] = (Tables.append, Tables.upsert, Tables.overwrite, lambda t, _, r: t.create("t2", r))


@pytest.mark.parametrize("write", WRITES)
def test_two_rows_with_one_id_are_refused(tables: Tables, write: Write) -> None:
    at = tables.create("t1", people("ada")).at

    with pytest.raises(BadRequest, match="'bob' occurs more than once"):
        write(tables, at, people("bob", "eve", "bob"))


@pytest.mark.parametrize("write", WRITES)
def test_rows_without_an_id_are_refused(tables: Tables, write: Write) -> None:
    at = tables.create("t1", people("ada")).at

    with pytest.raises(BadRequest, match="have no id"):
        write(tables, at, pa.table({"id": pa.array([None, "x"], pa.string()), "age": [1, 2]}))
    with pytest.raises(BadRequest, match="need a column 'id'"):
        write(tables, at, pa.table({"age": [1]}))


# Carrying appended rows to another version


def test_appended_rows_can_be_carried_to_another_version(any_tables: Tables) -> None:
    base = any_tables.create("t1", people("ada")).at
    ours = any_tables.append(base, people("bob", age=2))
    theirs = any_tables.upsert(base, people("ada", "eve", age=3))

    assert ours.appended is not None
    carried = any_tables.append_fragments(theirs.at, ours.appended)

    assert ours.appended.ids == {"bob"}
    assert carried.rows == 3
    assert ages(any_tables, carried.at) == {"ada": 3, "bob": 2, "eve": 3}


def test_an_upsert_that_only_adds_can_be_carried(tables: Tables) -> None:
    base = tables.create("t1", people("ada")).at

    assert tables.upsert(base, people("bob")).appended is not None
    assert tables.upsert(base, people("ada")).appended is None


def test_carried_rows_can_be_carried_on(tables: Tables) -> None:
    base = tables.create("t1", people("ada")).at
    ours = tables.append(base, people("bob")).appended
    assert ours is not None
    again = tables.append_fragments(tables.append(base, people("eve")).at, ours).appended
    assert again is not None

    at = tables.append_fragments(tables.add_columns(base, [pa.field("city", pa.string())]).at, again).at

    assert tables.lookup(at, ["bob"]).to_pylist() == [{"id": "bob", "age": 0, "city": None}]


def test_carrying_writes_no_data(root: Path, tables: Tables) -> None:
    base = tables.create("t1", people("ada")).at
    ours = tables.append(base, people("bob")).appended
    assert ours is not None
    before = files(root / "tables/t1/data")

    tables.append_fragments(tables.delete(base, ["ada"]).at, ours)

    assert files(root / "tables/t1/data") == before


def test_rows_are_not_carried_to_another_table(tables: Tables) -> None:
    ours = tables.append(tables.create("t1", people("ada")).at, people("bob")).appended
    assert ours is not None

    with pytest.raises(BadRequest, match="stage them again"):
        tables.append_fragments(tables.create("t2", people("ada")).at, ours)


def test_rows_are_not_carried_to_a_version_with_other_columns(tables: Tables) -> None:
    base = tables.create("t1", people("ada")).at
    ours = tables.append(base, people("bob")).appended
    assert ours is not None

    with pytest.raises(BadRequest, match="stage them again"):
        tables.append_fragments(tables.overwrite(base, pa.table({"age": [1], "id": ["zoe"]})).at, ours)


# Indexes


def test_changes_after_an_index_was_built_are_found(any_tables: Tables) -> None:
    at = with_index(any_tables, any_tables.create("t1", people("ada", "bob", "eve")).at)
    at = any_tables.append(at, people("zoe", age=1)).at
    at = any_tables.upsert(at, people("bob", "zoe", age=2)).at
    at = any_tables.delete(at, ["eve"]).at

    assert any_tables.exists(at, ["ada", "bob", "eve", "zoe"]) == {"ada", "bob", "zoe"}
    assert any_tables.lookup(at, ["bob", "zoe"], columns=["age"])["age"].to_pylist() == [2, 2]
    assert any_tables.count(at, filter="id = 'bob'") == 1


@pytest.mark.parametrize("indexed", [False, True])
def test_nested_columns_read_back_as_written(tables: Tables, indexed: bool) -> None:
    def row(key: str, number: int) -> dict[str, Any]:
        return {"id": key, "place": {"city": f"c{number}", "tags": [f"t{number}"]}, "n": number}

    at = tables.create("t1", pa.Table.from_pylist([row("a", 1)])).at
    at = tables.add_columns(
        at, [pa.field("more", pa.struct([pa.field("x", pa.int64())])), pa.field("z", pa.string())]
    ).at
    at = with_index(tables, at) if indexed else at
    at = tables.append(at, pa.Table.from_pylist([row("b", 2) | {"more": {"x": 7}, "z": "zz"}])).at
    at = tables.upsert(at, pa.Table.from_pylist([row("c", 3)])).at

    files = [file for fragment in tables.open(at).get_fragments() for file in fragment.metadata.files]
    assert files[1].fields == files[2].fields == [*files[0].fields, 7, 8]
    assert tables.scan(at).sort_by("id").to_pylist() == [
        row("a", 1) | {"more": None, "z": None},
        row("b", 2) | {"more": {"x": 7}, "z": "zz"},
        row("c", 3) | {"more": None, "z": None},
    ]


# Reading


def test_a_type_without_a_table_reads_as_its_inline_rows(tables: Tables) -> None:
    schema = people().schema
    overlay = Overlay.of(people("ada", age=1))

    assert tables.scan(None, schema=schema).num_rows == 0
    assert tables.count(None) == 0
    assert tables.exists(None, ["ada"]) == frozenset()
    assert tables.lookup(None, ["ada"], schema=schema).num_rows == 0
    assert tables.scan(None, overlay=overlay, schema=schema).to_pylist() == [{"id": "ada", "age": 1}]
    assert tables.count(None, overlay=overlay) == 1
    assert tables.count(None, filter="age > 1", overlay=overlay, schema=schema) == 0


def test_batches_are_the_rows_of_a_scan(tables: Tables) -> None:
    at = tables.append(tables.create("t1", people("ada", "bob")).at, people("eve")).at

    found = pa.Table.from_batches(
        tables.batches(at, columns=["id"], filter="id <> 'bob'", overlay=Overlay.of(people("zoe")))
    )

    assert {*found["id"].to_pylist()} == {"ada", "eve", "zoe"}


def test_a_lookup_that_inline_rows_answer_asks_lance_nothing(tables: Tables) -> None:
    gone = TableVersion("missing", 7)
    overlay = Overlay.of(people("ada", age=1), ["bob"])

    assert tables.lookup(gone, ["ada", "bob"], overlay=overlay, schema=people().schema).to_pylist() == [
        {"id": "ada", "age": 1}
    ]
    assert tables.exists(gone, ["ada", "bob"], overlay) == {"ada"}


def test_threads_that_want_the_same_version_open_it_once(proxy: Proxy, counted: Tables, s3_proxied: S3Location) -> None:
    at = counted.create("t1", people("ada")).at
    other = Tables(Location(s3_proxied.uri, s3_proxied.options))

    with proxy.recording() as log:
        opened = gather([lambda: other.open(at)] * 8)

    assert len({id(dataset) for dataset in opened}) == 1
    assert len(log) <= 2, log.describe()


def test_handles_are_bounded(root: Path) -> None:
    tables = Tables(Location(str(root), fsync=False), handles_max=3)
    versions = [tables.create(f"t{n}", people(str(n))).at for n in range(6)]

    assert [ages(tables, at) for at in versions] == [{str(n): 0} for n in range(6)]
    assert len(tables._handles._open) == 3


def test_rows_written_since_a_version_are_distinguished_from_older_ones(tables: Tables) -> None:
    base = tables.create("t1", people("ada", "bob")).at
    at = tables.upsert(tables.append(base, people("eve")).at, people("bob", age=1)).at

    assert tables.written_since(at, base, ["ada", "bob", "eve", "zoe"]) == {"bob", "eve"}
    assert tables.written_since(base, base, ["ada"]) == frozenset()


def test_values_that_occur_in_a_column_are_found_in_stored_and_inline_rows(tables: Tables) -> None:
    def edge(key: str, end: str) -> pa.Table:
        return pa.table({"id": [key], "dst": [end]})

    at = tables.append(tables.create("t1", edge("e1", "it's")).at, edge("e2", "bob")).at
    overlay = Overlay.of(edge("e2", "eve"))

    assert tables.present_values(at, "dst", ["it's", "bob", "eve"]) == {"it's", "bob"}
    assert tables.present_values(at, "dst", ["it's", "bob", "eve"], overlay) == {"it's", "eve"}
    assert tables.present_values(None, "dst", ["it's", "bob", "eve"], overlay) == {"eve"}


# What it costs, counted in front of an S3 server


@pytest.fixture
def counted(proxy: Proxy, s3_proxied: S3Location) -> Tables:
    proxy.delay_s = 0.02  # so that requests that can overlap do
    return Tables(Location(s3_proxied.uri, s3_proxied.options))


def assert_cost(log: Log, operation: meter.CostAccount, requests: int, serial: int) -> None:
    assert (len(log), log.serial) == (requests, serial), log.describe()
    assert (operation.cost.requests, operation.cost.stages) == (requests, serial), log.describe()


def test_creating_a_table_costs_5_requests(proxy: Proxy, counted: Tables) -> None:
    with proxy.recording() as log, meter.operation("test") as operation:
        counted.create("t1", people("ada"))

    assert_cost(log, operation, 5, 5)
    assert log.count("PUT") == 3


def test_an_append_on_a_warm_handle_costs_3_requests(proxy: Proxy, counted: Tables) -> None:
    at = counted.append(counted.create("t1", people("ada")).at, people("bob")).at

    with proxy.recording() as log, meter.operation("test") as operation:
        counted.append(at, people("eve"))

    assert_cost(log, operation, 3, 3)


def test_an_append_to_an_indexed_table_reads_its_indexes_beside_the_upload(proxy: Proxy, counted: Tables) -> None:
    at = with_index(counted, counted.create("t1", people("ada")).at)
    at = counted.append(at, people("bob")).at

    with proxy.recording() as log, meter.operation("test") as operation:
        counted.append(at, people("eve"))

    assert_cost(log, operation, 4, 3)


def test_carrying_rows_costs_2_requests(proxy: Proxy, counted: Tables) -> None:
    base = counted.create("t1", people("ada")).at
    ours, theirs = counted.append(base, people("bob")), counted.append(base, people("eve"))
    assert ours.appended is not None

    with proxy.recording() as log, meter.operation("test") as operation:
        counted.append_fragments(theirs.at, ours.appended)

    assert_cost(log, operation, 2, 2)


def test_adding_a_column_costs_2_requests(proxy: Proxy, counted: Tables) -> None:
    at = counted.create("t1", people("ada")).at

    with proxy.recording() as log, meter.operation("test") as operation:
        counted.add_columns(at, [pa.field("city", pa.string())])

    assert_cost(log, operation, 2, 2)


def test_an_upsert_finds_rows_then_writes_side_by_side_then_commits(proxy: Proxy, counted: Tables) -> None:
    at = counted.append(counted.create("t1", people("ada", "bob")).at, people("eve", "zoe")).at
    proxy.on(puts("_versions/"), Delay(0.3))  # so that a busy processor has sent the HEADs before it ends

    with proxy.recording() as log, meter.operation("test") as operation:
        counted.upsert(at, people("ada", "eve", "new"))

    # 2 reads at once; a data file and 2 deletion files at once; transaction; version. Beside the last two, the store is
    # asked what it has of the deletion files, and of the table's first data file.
    assert_cost(log, operation, 7 + 3, 4)


def test_counting_rows_costs_nothing(proxy: Proxy, counted: Tables) -> None:
    at = counted.delete(counted.create("t1", people("ada", "bob")).at, ["ada"]).at

    with proxy.recording() as log, meter.operation("test") as operation:
        assert counted.count(at) == 1

    assert_cost(log, operation, 0, 0)


def test_opening_a_version_costs_2_requests_once(proxy: Proxy, counted: Tables, s3_proxied: S3Location) -> None:
    at = counted.append(counted.create("t1", people("ada")).at, people("bob")).at
    other = Tables(Location(s3_proxied.uri, s3_proxied.options))

    with proxy.recording() as log, meter.operation("test") as operation:
        other.open(at)
        other.open(at)

    assert_cost(log, operation, 2, 2)


def test_a_warm_existence_check_of_ids_that_exist_reads_no_data(proxy: Proxy, counted: Tables) -> None:
    at = with_index(counted, counted.create("t1", people("ada", "bob", "eve")).at)
    counted.exists(at, ["eve"])

    with proxy.recording() as log, meter.operation("test") as operation:
        assert counted.exists(at, ["ada", "bob"]) == {"ada", "bob"}

    assert log.count(path_contains="/data/") == 0
    assert len(log) <= 2, log.describe()
    assert (operation.cost.requests, operation.cost.stages) == (len(log), log.serial), log.describe()


# What goes wrong


def test_a_missing_version_is_damage_that_names_table_and_version(any_tables: Tables) -> None:
    any_tables.create("t1", people("ada"))

    with pytest.raises(Damaged, match="table t1 version 9223372036854775999 is damaged"):
        any_tables.scan(TableVersion("t1", 9223372036854775999))
    with pytest.raises(Damaged, match="table t2 version 1 is damaged"):
        any_tables.append(TableVersion("t2", 1), people("bob"))


def test_a_missing_data_file_is_damage(root: Path, tables: Tables) -> None:
    at = tables.create("t1", people("ada")).at
    for path in files(root / "tables/t1/data"):
        path.unlink()

    for read in (lambda: tables.scan(at), lambda: tables.lookup(at, ["ada"]), lambda: list(tables.batches(at))):
        with pytest.raises(Damaged, match="table t1 version 1 is damaged"):
            read()


def test_a_store_that_refuses_is_access_denied(proxy: Proxy, counted: Tables) -> None:
    at = counted.create("t1", people("ada")).at
    proxy.on(anything, Answer(403, error_body("AccessDenied")), times=None)

    with pytest.raises(AccessDenied, match="tables/t1/data/"):
        counted.append(at, people("bob"))


def test_a_store_that_fails_is_unavailable(proxy: Proxy, s3_proxied: S3Location) -> None:
    impatient = {**s3_proxied.options, "client_max_retries": "1", "client_retry_timeout": "1"}
    tables = Tables(Location(s3_proxied.uri, impatient))
    at = tables.create("t1", people("ada")).at
    proxy.on(anything, Answer(503, error_body("SlowDown")), times=None)

    with pytest.raises(Unavailable, match="table t1 version 1"):
        tables.append(at, people("bob"))


@pytest.mark.parametrize(
    "fault", [Answer(503, error_body("SlowDown")), Drop(), ApplyThenDrop()], ids=lambda f: type(f).__name__
)
@pytest.mark.parametrize("what", ["/data/", "/_deletions/", "/_transactions/", "/_versions/"])
def test_a_fault_that_passes_is_overcome(proxy: Proxy, counted: Tables, what: str, fault: Action) -> None:
    at = counted.create("t1", people("ada", "bob")).at
    rule = proxy.on(puts(what), fault)

    staged = counted.upsert(at, people("bob", "eve", age=2))

    assert rule.hits
    assert ages(counted, staged.at) == {"ada": 0, "bob": 2, "eve": 2}


def test_a_store_that_is_not_there_is_unavailable() -> None:
    nowhere = {"aws_endpoint": "http://127.0.0.1:9", "allow_http": "true", "aws_region": "us-east-1",
               "aws_access_key_id": "x", "aws_secret_access_key": "x", "client_max_retries": "0"}  # fmt: skip

    with pytest.raises(Unavailable, match="table t1 version 3"):
        Tables(Location("s3://bucket/graph", nowhere)).open(TableVersion("t1", 3))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LanceError(IO): Generic LocalFileSystem error: No space left on device (os error 28)", StorageFull),
        ("[Errno 28] No space left on device: '/data/x'", StorageFull),
        ("LanceError(IO): Generic S3 error: Server returned non-2xx status code: 403 Forbidden: ", AccessDenied),
        ("Unable to open file: Permission denied (os error 13)", AccessDenied),
        ("LanceError(IO): Generic N/A error: Not found: g/tables/t1/data/1.lance, /rustc/x.rs:1:2", Damaged),
        ("Not found: g/tables/t1/data/1.lance, /rustc/x.rs:1:2", Damaged),
        ("Generic S3 error: Error after 10 retries in 5s, max_retries:10, source:error sending request", Unavailable),
        ("Server returned non-2xx status code: 503 Service Unavailable: SlowDown", Unavailable),
    ],
)
def test_the_text_of_an_error_says_what_the_store_did(text: str, kind: type[Exception]) -> None:
    assert type(translate(OSError(text), "table t1")) is kind


@pytest.mark.parametrize(
    "text", ["Schema error: No field named nope", "Invalid user input: bad filter", "column 28 is odd"]
)
def test_an_error_that_is_not_the_stores_is_left_alone(text: str) -> None:
    assert translate(ValueError(text), "table t1") is None


def test_a_wrong_filter_is_not_blamed_on_the_store(tables: Tables) -> None:
    at = tables.create("t1", people("ada")).at

    with pytest.raises(ValueError, match="nope"):
        tables.scan(at, filter="nope = 1")


# Surviving a power cut


CHANGES: dict[str, Callable[[Tables, TableVersion], Any]] = {
    "append": lambda t, at: t.append(at, people("new")),
    "upsert": lambda t, at: t.upsert(at, people("ada", "new")),
    "delete": lambda t, at: t.delete(at, ["ada"]),
    "delete most of many": lambda t, at: t.delete(
        t.append(at, people(*map(str, range(5000)))).at, map(str, range(4999))
    ),
    "overwrite": lambda t, at: t.overwrite(at, people("new")),
    "add_columns": lambda t, at: t.add_columns(at, [pa.field("city", pa.string())]),
    "index": with_index,
    "create": lambda t, _: t.create("t2", people("ada")),
    "create empty": lambda t, _: t.create("t2", people()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_new_file_and_directory_is_synced_before_the_version_is_returned(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    tables = Tables(Location(str(root)))
    at = tables.create("t1", people("ada", "bob")).at
    before = set(root.rglob("*"))
    synced = Synced(tmp_path, monkeypatch)

    CHANGES[change](tables, at)

    new = set(root.rglob("*")) - before
    assert {path for path in new if path.is_file()}
    assert new <= synced.paths
    assert {path.parent for path in new} <= synced.paths


def test_the_first_table_of_a_graph_syncs_the_way_to_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = Synced(tmp_path, monkeypatch)

    Tables(Location(str(root))).create("t1", people("ada"))

    assert {root.parent, root, root / "tables", root / "tables/t1"} <= synced.paths


def test_nothing_is_synced_where_that_was_not_asked_for(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = Synced(tmp_path, monkeypatch)

    tables.upsert(tables.create("t1", people("ada", "bob")).at, people("ada"))

    assert not synced.paths
