"""`verify` says that a healthy graph is healthy, and finds and names each kind of damage."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import omnigraph
from omnigraph.errors import BadRequest, BranchNotFound
from omnigraph.graph.graph import Graph
from omnigraph.manifest.intent.intent_store import Intents
from omnigraph.storage import meter
from omnigraph.storage.table import lance_io_stats as counting
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.index.metadata import segments
from omnigraph.storage.table.maintain.inspect import version_key
from omnigraph.verify.verify import VerifyReport
from support.documents import sealed
from support.s3 import S3Location
from verify.damage import INLINE, PEOPLE, STAGED, Place, build

PERSON, KNOWS, WORKS = "node:Person", "edge:Knows", "edge:WorksAt"


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
    return opened(place).verify(**options)


def opened(place: Place) -> Graph:
    return omnigraph.open(str(place.root), settings=INLINE)


def sentences(report: VerifyReport) -> str:
    return "\n".join(problem.sentence for problem in report.problems)


# A healthy graph.


def test_the_caches_that_it_read_with_are_dropped_and_its_requests_counted(healthy: Path) -> None:
    """It looks with a session of its own, whose caches would otherwise stay with a server for ever."""
    graph = omnigraph.open(str(healthy), read_only=True)
    graph.snapshot().to_arrow(PERSON)
    followed = set(counting._counters)

    report = graph.verify()

    assert set(counting._counters) == followed
    assert set(meter._probes) <= followed
    assert report.cost.requests > 0


@pytest.mark.parametrize("full", [False, True])
def test_a_healthy_graph_is_ok(healthy: Path, full: bool) -> None:
    report = omnigraph.open(str(healthy), read_only=True).verify(full=full)
    assert report.ok, sentences(report)
    assert not report.problems
    assert report.branches == ("main", "side")
    checked = report.checked
    assert checked.refs == 3  # one of them of the branch that was deleted
    assert checked.rows > 2 * PEOPLE
    assert checked.tail_entries >= 5
    assert checked.indexes
    assert checked.lookups > checked.indexes
    assert checked.unindexed_rows
    assert checked.adjacencies
    assert checked.tags == 1
    assert report.cost.requests


def test_full_looks_at_more(healthy: Path) -> None:
    graph = omnigraph.open(str(healthy), read_only=True)
    some, every = graph.verify().checked, graph.verify(full=True).checked
    assert every.lookups > some.lookups
    assert every.constraints > some.constraints


@pytest.mark.s3
def test_a_healthy_graph_on_s3_is_ok(s3: S3Location) -> None:
    report = build(s3.uri, s3.options).verify(full=True)
    assert report.ok, sentences(report)


def test_one_branch_can_be_looked_at(healthy: Path) -> None:
    report = omnigraph.open(str(healthy), read_only=True).verify("side")
    assert report.ok
    assert report.branches == ("side",)
    assert report.checked.branches == 1


@pytest.mark.parametrize("name", ["nobody", "work"])
def test_a_missing_branch_is_reported(healthy: Path, name: str) -> None:
    with pytest.raises(BranchNotFound):
        omnigraph.open(str(healthy), read_only=True).verify(name)


def test_a_name_that_names_nothing_is_refused(healthy: Path) -> None:
    with pytest.raises(BadRequest):
        omnigraph.open(str(healthy), read_only=True).verify("../x")


def test_the_same_seed_takes_the_same_samples(healthy: Path) -> None:
    graph = omnigraph.open(str(healthy), read_only=True)
    one, other = graph.verify(seed=7), graph.verify(seed=7)
    assert one.checked == other.checked


def test_it_finds_damage_that_happened_after_this_process_read_everything(place: Place) -> None:
    graph = opened(place)
    assert graph.verify().ok
    graph.query('query q() { match { $p: Person { slug: "p3" } } return { $p.age } }')
    place.data_file(PERSON).unlink()
    assert "data file" in sentences(graph.verify())


def test_it_changes_nothing(place: Place) -> None:
    before = {path: path.read_bytes() for path in place.root.rglob("*") if path.is_file()}
    verified(place, full=True)
    assert {path: path.read_bytes() for path in place.root.rglob("*") if path.is_file()} == before


# Damage.


@dataclass(frozen=True)
class Case:
    name: str
    damage: Callable[[Place], None]
    pattern: str  # of the reported problem
    branch: str | None = "main"
    full: bool = False


def remove_data_file(place: Place) -> None:
    place.data_file(PERSON).unlink()


def truncate_data_file(place: Place) -> None:
    path = place.data_file(PERSON)
    path.write_bytes(path.read_bytes()[:-100])


def flip_the_end_of_a_data_file(place: Place) -> None:
    """As long as before: only reading it shows the damage."""
    path = place.data_file(PERSON)
    data = bytearray(path.read_bytes())
    data[-60:-8] = bytes(255 - byte for byte in data[-60:-8])
    path.write_bytes(data)


def flip_a_value(place: Place) -> None:
    """Reads back without complaint, as another text."""
    path = place.data_file("node:Company")
    data = path.read_bytes()
    assert data.count(b"c0c1c2c3c4") == 2  # ids, and the key that they are derived from
    path.write_bytes(data.replace(b"c0c1c2c3c4", b"c0c1x2c3c4", 1))


def remove_deletion_file(place: Place) -> None:
    next((place.table(PERSON) / "_deletions").iterdir()).unlink()


def garble_deletion_file(place: Place) -> None:
    for path in (place.table(PERSON) / "_deletions").iterdir():
        path.write_bytes(b"\x00" * len(path.read_bytes()))


def remove_version_file(place: Place) -> None:
    (place.table(PERSON) / "_versions" / f"d{place.ref(PERSON)['table_version']}.manifest").unlink()


def remove_table(place: Place) -> None:
    shutil.rmtree(place.table(KNOWS))


def remove_index(place: Place) -> None:
    shutil.rmtree(place.index_folder(PERSON, "id_btree"))


def truncate_index(place: Place) -> None:
    path = next(place.index_folder(PERSON, "age_btree").glob("page_data*"))
    path.write_bytes(path.read_bytes()[:-40])


def index_over_wrong_fragments(place: Place) -> None:
    """A segment that claims a fragment whose rows it does not have: lookups there find nothing."""
    dataset = place.dataset(PERSON)
    old = next(one for one in segments(dataset) if one.name == "age_btree")
    partial = dataset.create_index_uncommitted("age", "BTREE", name="age_btree", fragment_ids=[1], replace=True)
    claims = replace(partial, fragment_ids={0, 1})  # type: ignore[arg-type]  # a set of numbers is taken as well
    place.commit(PERSON, lance.LanceOperation.CreateIndex([claims], [old]), place.ref(PERSON)["rows"])


def count_wrongly(place: Place) -> None:
    place.edit(lambda document: document["tables"][PERSON].update(rows=5))


def stub_a_tail_manifest(place: Place) -> None:
    """As cleanup would leave it, if it forgot that a tail names it."""

    def stub(document: dict[str, Any]) -> None:
        for name in ("schema", "logical_head", "fenced_at", "oldest_retained", "tables", "inline"):
            del document[name]
        document["stub"] = True

    place.edit(stub, back=1)
    place.edit(lambda document: document.update(oldest_retained=document["manifest_version"]))


def remove_a_tail_manifest(place: Place) -> None:
    place.manifest_path(1).unlink()


def garble_inline_rows(place: Place) -> None:
    def garble(document: dict[str, Any]) -> None:
        document["inline"][0][PERSON]["upserts"] = "AAAAAAAAAAAA"

    place.edit(garble, back=1)


def tail_without_rows(place: Place) -> None:
    def change(document: dict[str, Any]) -> None:
        document["tables"]["node:Company"]["tail"] = [[document["branch_id"], document["manifest_version"], 9]]

    place.edit(change)


def tail_twice(place: Place) -> None:
    def change(document: dict[str, Any]) -> None:
        tail = document["tables"][PERSON]["tail"]
        document["tables"][PERSON]["tail"] = [*tail[:1], *tail]

    place.edit(change)


def tail_loses_an_entry(place: Place) -> None:
    def change(document: dict[str, Any]) -> None:
        del document["tables"][PERSON]["tail"][0]

    place.edit(change)


def remove_manifest(place: Place) -> None:
    place.manifest_path(-2).unlink()


def garble_manifest(place: Place) -> None:
    place.manifest_path(2).write_text("{")


def garble_head(place: Place) -> None:
    place.manifest_path().write_text('{"format": 1}')


def edit_head(**fields: Any) -> Callable[[Place], None]:
    return lambda place: place.edit(lambda document: document.update(fields))


def wrong_parent(place: Place) -> None:
    place.edit(lambda document: document["commits"][0].update(parent=document["branch_id"] + ".1"))


def fall_behind(place: Place) -> None:
    def change(document: dict[str, Any]) -> None:
        document["authored_at"] = document["commits"][0]["authored_at"] = "2020-01-01T00:00:00.000000Z"

    place.edit(change)


def remove_schema(place: Place) -> None:
    next((place.root / "__schema").iterdir()).unlink()


def change_schema(place: Place) -> None:
    path = next((place.root / "__schema").iterdir())
    path.write_text(path.read_text().replace("Company", "Concern"))


def remove_stamp(place: Place) -> None:
    """Found by a process that had the graph open."""
    (place.root / "_omnigraph.json").unlink()


def garble_ref(place: Place) -> None:
    (place.root / "__refs" / "side" / "1.json").write_text("[]")


def same_id_twice(place: Place) -> None:
    place.append(PERSON, id="p3", slug="p3", name="Another")


def no_id(place: Place) -> None:
    place.append(PERSON, name="Nobody")


def key_of_another(place: Place) -> None:
    place.append(PERSON, id="zed", slug="zack", name="Zed")


def edge_to_nowhere(place: Place) -> None:
    place.append(KNOWS, id="lost", src="p3", dst="nobody")


def value_out_of_range(place: Place) -> None:
    place.append(PERSON, id="old", slug="old", name="Old", age=900)


def same_unique_value(place: Place) -> None:
    place.append(PERSON, id="copy", slug="copy", name="Person 3")


def too_many_edges(place: Place) -> None:
    place.append(WORKS, id="second", src="p4", dst="c1")


def wrong_adjacency(place: Place) -> None:
    """Another table's, under the name of this version: whole, and wrong."""
    from omnigraph.read.graph import adjacency_file as persisted

    version = place.ref(WORKS)["table_version"]
    path = place.table(WORKS) / "_adjacency" / f"{version}.arrow"
    reader = pa.ipc.open_file(str(path))
    batch: Any = reader.get_batch(0)
    names = batch.schema.names
    columns = {name: batch.column(name) for name in names}
    targets = columns["targets"].values.to_numpy().copy()
    targets[:2] = targets[:2][::-1]
    columns["targets"] = pa.LargeListArray.from_arrays(pa.array([0, len(targets)], pa.int64()), pa.array(targets))
    about = json.loads(reader.schema.metadata[b"omnigraph"])
    about["checksum"] = persisted._checksum([columns[name].values for name in names])
    schema = reader.schema.with_metadata({"omnigraph": json.dumps(about)})
    with pa.ipc.new_file(str(path), schema) as writer:
        writer.write_batch(pa.record_batch([columns[name] for name in names], schema=schema))


def tag_a_missing_commit(place: Place) -> None:
    path = place.root / "__tags" / "first.json"
    document = json.loads(path.read_text())
    path.write_bytes(sealed(document | {"commit": f"{place.main}.4000"}))


def garble_tag(place: Place) -> None:
    (place.root / "__tags" / "first.json").write_text('{"format": 1}')


def garble_intent(place: Place) -> None:
    (place.root / "__recovery").mkdir(exist_ok=True)
    (place.root / "__recovery" / "job.json").write_text('{"format": 1}')


CASES = [
    Case("a data file is gone", remove_data_file, r"node:Person.*data file tables/.* is missing"),
    Case("a data file is shorter", truncate_data_file, r"node:Person.*data file .* bytes instead of"),
    Case("a data file has other bytes at its end", flip_the_end_of_a_data_file, r"node:Person.*can't be (read|under)"),
    Case("a value is another", flip_a_value, r"node:Company.*(has the key of|index)"),
    Case("a deletion file is gone", remove_deletion_file, r"node:Person.*deletion file .* is missing"),
    Case("a deletion file is garbled", garble_deletion_file, r"node:Person"),
    Case("a version file is gone", remove_version_file, r"node:Person.*can't be read: .*missing"),
    Case("a table is gone", remove_table, r"edge:Knows.*can't be read"),
    Case("an index is gone", remove_index, r"node:Person.*index (folder|file) .* is missing"),
    Case("an index file is shorter", truncate_index, r"node:Person.*index file .* bytes instead of"),
    Case("an index claims fragments", index_over_wrong_fragments, r"index age_btree: it finds .* not found"),
    Case("a count is wrong", count_wrongly, r"node:Person.*it has 601 rows, the manifest says 5"),
    Case("a tail names a stub", stub_a_tail_manifest, r"node:Person.*is a stub: its rows are gone"),
    Case("a tail names what is gone", remove_a_tail_manifest, r"node:Person.*is missing"),
    Case("inline rows are garbled", garble_inline_rows, r"node:Person.*inline rows can't be read"),
    Case("a tail names a manifest without rows", tail_without_rows, r"has no rows of node:Company"),
    Case("a tail names a manifest twice", tail_twice, r"the tail of node:Person names a manifest twice"),
    Case("a tail loses an entry", tail_loses_an_entry, r"the tail of node:Person lost entries"),
    Case("a manifest is gone", remove_manifest, r"branch 'main': manifest 2 is missing"),
    Case("a manifest is garbled", garble_manifest, r"manifest 7 of branch 'main'.*not JSON"),
    Case("the head is garbled", garble_head, r"branch 'main'.*manifest 9.* can't be read"),
    Case("the logical head is wrong", edit_head(logical_head="x"), r"manifest 9 .*logical_head is x"),
    Case("a fence is invented", edit_head(fenced_at=3), r"the newest fence is 0, but it names 3"),
    Case("oldest_retained is out of bounds", edit_head(oldest_retained=0), r"oldest_retained is 0"),
    Case("oldest_retained rises by itself", edit_head(oldest_retained=9), r"oldest_retained is|rises without a fence"),
    Case("the branch has another name", edit_head(branch="other"), r"its branch is 'other'"),
    Case("ancestors are lost", edit_head(ancestry={}), r"not its own newest ancestor"),
    Case("a parent is wrong", wrong_parent, r"the parent of .* is .*\.1, not"),
    Case("time runs backwards", fall_behind, r"before its parent"),
    Case("a schema is gone", remove_schema, r"schema sha256:.* can't be read: it is missing"),
    Case("a schema was edited", change_schema, r"its content does not match its name"),
    Case("a ref is garbled", garble_ref, r"branch 'side'.*can't be read", None),
    Case("an id is there twice", same_id_twice, r"node:Person: ids occur more than once: 'p3'"),
    Case("an id is null", no_id, r"node:Person: 1 rows have no id"),
    Case("an id is not the key's", key_of_another, r"'zed' has the key of 'zack'"),
    Case("an edge ends nowhere", edge_to_nowhere, r"edge:Knows: edges end at Person nodes .*: 'nobody'"),
    Case("a value breaks its bounds", value_out_of_range, r"'old' has age 900, outside 0..150", full=True),
    Case("a unique value is there twice", same_unique_value, r"'copy' and 'p3' have the same name"),
    Case("a node has too many edges", too_many_edges, r"'p4' have 2 edges, which is outside @card"),
    Case("a saved adjacency is another's", wrong_adjacency, r"edge:WorksAt.*adjacency differs from the edges"),
    Case("a tag names nothing", tag_a_missing_commit, r"tag 'first': its commit .*\.4000 is missing", None),
    Case("a tag is garbled", garble_tag, r"tag 'first'.*can't be read", None),
    Case("an intent is garbled", garble_intent, r"the intent of job.*can't be read", None),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_damage_is_found_and_named(case: Case, place: Place) -> None:
    case.damage(place)
    report = verified(place, branch=case.branch, full=case.full)
    assert not report.ok
    assert re.search(case.pattern, sentences(report)), sentences(report)


def test_a_stamp_that_vanished_is_damage(place: Place) -> None:
    graph = opened(place)
    remove_stamp(place)
    assert "_omnigraph.json is missing" in sentences(graph.verify())


def test_all_damage_is_reported_at_once(place: Place) -> None:
    edge_to_nowhere(place)
    truncate_index(place)
    garble_tag(place)
    report = sentences(verified(place))
    assert "'nobody'" in report
    assert "index" in report
    assert "tag 'first'" in report


def test_damage_of_an_older_state_is_found_by_a_full_look(place: Place) -> None:
    """The version that the load made, before anything was folded or indexed."""
    first = place.manifest(-2)["tables"]["node:Company"]
    newest = place.ref("node:Company")
    assert first["table_version"] != newest["table_version"]
    version_file = version_key(TableVersion(first["table_id"], first["table_version"]))
    (place.root / version_file).unlink()
    assert "manifest 2 of branch 'main', node:Company" in sentences(verified(place, full=True))


def test_damage_on_one_branch_is_none_on_another(place: Place) -> None:
    edge_to_nowhere(place)
    assert not verified(place, branch="main").ok
    assert verified(place, branch="side").ok


def test_a_saved_adjacency_that_is_of_no_use_is_no_damage(place: Place) -> None:
    version = place.ref(WORKS)["table_version"]
    (place.table(WORKS) / "_adjacency" / f"{version}.arrow").write_bytes(b"nothing")
    report = verified(place, branch="main")
    assert report.ok
    assert [problem.severity for problem in report.problems] == ["notice"]


def test_a_live_intent_is_counted(place: Place) -> None:
    graph = opened(place)
    held = Intents(graph.repository.store, graph.repository.runtime).acquire(
        graph.begin(), "job", kind="load", actor="ada"
    )
    report = graph.verify()
    held.discard()
    assert report.ok
    assert report.checked.intents == 1


def test_unreferenced_objects_are_no_damage(place: Place) -> None:
    (place.root / "tables" / "leftover" / "data").mkdir(parents=True)
    (place.root / "tables" / "leftover" / "data" / "x.lance").write_bytes(b"garbage")
    assert verified(place, full=True).ok


def test_a_graph_without_inline_rows_is_verified_as_well(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", schema="node Person { slug: String @key }", settings=STAGED)
    for name in ("ada", "bob"):
        graph.mutate(f'query q() {{ insert Person {{ slug: "{name}" }} }}')
    report = graph.verify(full=True)
    assert report.ok
    assert report.checked.table_versions == 2
    assert report.checked.tail_entries == 0


def test_an_empty_graph_is_ok(tmp_path: Path) -> None:
    assert omnigraph.init(tmp_path / "graph", schema="node Person { slug: String @key }").verify(full=True).ok
