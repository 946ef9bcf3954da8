"""The checks of the simulation find what they are for: right histories pass, and each way to be wrong is reported."""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.manifest.settings import Settings
from simulation import ops
from simulation.checks import check_run
from simulation.choices import KINDS, Choices, Notebook
from simulation.histories import change_manifest, found, manifest_key, manifests, mutate, person
from simulation.ops import StoreWrite
from simulation.reader import View
from simulation.serial import INLINE, STAGED, Serial

LONG = {"fold", "compact", "index", "optimize", "job", "new_job", "recover"}  # what stores tables, or takes its time


# --- Right histories -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_reader_and_the_model_agree_with_the_product(tmp_path: Path, seed: int) -> None:
    kinds = [kind for kind in KINDS if kind not in LONG] + ["insert", "upsert", "several", "merge", "create_branch"] * 2
    _run_random(tmp_path, seed, kinds, INLINE)


@pytest.mark.parametrize("seed", range(3))
def test_they_agree_where_tables_are_stored(tmp_path: Path, seed: int) -> None:
    kinds = [kind for kind in KINDS if kind not in ("job", "recover")] + ["insert", "upsert", "merge"] * 2
    _run_random(tmp_path, seed, kinds, STAGED)


def _run_random(folder: Path, seed: int, kinds: list[str], settings: Settings) -> None:
    dice, notes = random.Random(seed), Notebook()
    serial = Serial(folder, settings)
    for _ in range(45):
        verb = Choices(dice, notes, "t0").verb(dice.choice(kinds))
        if isinstance(verb, ops.WriteHeld) and verb.branch not in serial.graph.branches.list():
            continue
        notes.begun(verb)
        notes.ended(verb, serial.call(verb).outcome)

    assert serial.checker.finish() == []


def test_a_state_in_the_middle_of_a_group_is_read(branched: Serial) -> None:
    """Two manifests made into one with two commits."""
    first, second = (document for _, document in manifests(branched.history)[1:3])
    name = f"{first['branch_id']}.2"
    grouped = {**second, "manifest_version": 2, "inline": [first["inline"][0], second["inline"][0]]}
    grouped["tables"] = {
        key: {**ref, "tail": [[first["branch_id"], 2, 0]]}
        for key, ref in json.loads(json.dumps(second["tables"])).items()
    }
    commits = [{**first["commits"][0], "id": f"{name}.0"}, {**second["commits"][0], "id": f"{name}.1"}]
    grouped["commits"], grouped["logical_head"] = commits, f"{name}.1"
    view = View()
    for write in branched.history.writes[: manifests(branched.history)[1][0]]:
        view.apply(write)
    view.apply(StoreWrite(1, manifest_key(first["branch_id"], 2), json.dumps(grouped).encode()))

    assert view.problems == []
    assert set(view.contents((first["branch_id"], 2), 1)) == {"Person"}
    assert set(view.contents((first["branch_id"], 2))) == {"Person", "Knows"}


# --- Wrong objects -------------------------------------------------------------------------------------------------


def test_a_right_history_has_no_violations(branched: Serial) -> None:
    assert check_run(branched.history) == []


def test_a_gap_in_a_chain_is_reported(branched: Serial) -> None:
    del branched.history.writes[manifests(branched.history)[1][0]]

    assert "chain" in found(branched.history)


def test_a_manifest_that_is_put_twice_is_reported(branched: Serial) -> None:
    place, document = manifests(branched.history)[1]
    document["commits"][0]["txn_id"] = "another"
    write = replace(branched.history.writes[place], body=json.dumps(document).encode())
    branched.history.writes.append(write)

    assert "chain" in found(branched.history)


def test_a_deleted_manifest_is_reported(branched: Serial) -> None:
    place, _ = manifests(branched.history)[1]
    branched.history.writes.append(replace(branched.history.writes[place], body=None))

    assert "chain" in found(branched.history)


def test_a_wrong_parent_is_reported(branched: Serial) -> None:
    change_manifest(branched.history, 2, lambda document: document["commits"][0].update(parent=None))

    assert "chain" in found(branched.history)


def test_a_misnamed_commit_is_reported(branched: Serial) -> None:
    def rename(document: dict[str, Any]) -> None:
        document["commits"][0]["id"] += ".0"

    change_manifest(branched.history, 2, rename)

    assert "chain" in found(branched.history)


def test_a_manifest_above_a_tombstone_is_reported(branched: Serial) -> None:
    branched.call(ops.DeleteBranch("b0"))
    _, tombstone = manifests(branched.history)[-1]
    above = {**tombstone, "manifest_version": tombstone["manifest_version"] + 1}
    above.pop("tombstone")
    branched.history.write(99, manifest_key(above["branch_id"], above["manifest_version"]), json.dumps(above).encode())

    assert "chain" in found(branched.history)


def _rows(change: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.ipc.open_stream(base64.b64decode(change["upserts"])).read_all().to_pylist()
    return rows


def _encoded(rows: list[dict[str, Any]], schema: pa.Schema) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema))
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


@pytest.mark.parametrize("column", ["age", "email"])
def test_a_wrong_value_in_a_row_is_reported(branched: Serial, column: str) -> None:
    def spoil(document: dict[str, Any]) -> None:
        change = document["inline"][0]["node:Person"]
        schema = pa.ipc.open_stream(base64.b64decode(change["upserts"])).schema
        rows = _rows(change)
        rows[0][column] = 77 if column == "age" else "wrong"
        change["upserts"] = _encoded(rows, schema)

    change_manifest(branched.history, 1, spoil)

    assert "contents" in found(branched.history)


def test_a_row_that_comes_back_is_reported(serial: Serial) -> None:
    serial.commit(mutate(person("ada")))
    serial.commit(mutate(ops.Delete("Person", ("slug", "ada"))))

    def spoil(document: dict[str, Any]) -> None:
        document["inline"][0]["node:Person"]["deletes"] = []
        document["tables"]["node:Person"]["rows"] = 1

    change_manifest(serial.history, 2, spoil)

    assert "contents" in found(serial.history)


def test_a_wrong_number_of_rows_is_reported(branched: Serial) -> None:
    change_manifest(branched.history, 2, lambda document: document["tables"]["edge:Knows"].update(rows=5))

    assert "readable" in found(branched.history)


def test_counts_that_are_not_so_are_reported(branched: Serial) -> None:
    change_manifest(
        branched.history, 2, lambda document: document["commits"][0]["touched"]["edge:Knows"].update(inserted=3)
    )

    assert "counts" in found(branched.history)


def test_a_fork_with_other_contents_is_reported(branched: Serial) -> None:
    change_manifest(branched.history, 3, lambda document: document["tables"].pop("edge:Knows"))

    assert "contents" in found(branched.history)


@pytest.mark.parametrize("by", [-1, 1])
def test_a_wrong_ancestor_is_reported(branched: Serial, by: int) -> None:
    def spoil(document: dict[str, Any]) -> None:
        main = document["fork"][0]
        entry = document["ancestry"][main]
        document["ancestry"][main] = entry + by if isinstance(entry, int) else [entry[0] + by, entry[1]]

    branched.call(ops.CreateBranch("b1"))
    branched.commit(mutate(person("dan")))
    change_manifest(branched.history, 6, spoil)

    assert "ancestry" in found(branched.history)


def test_a_merge_with_wrong_contents_is_reported(branched: Serial) -> None:
    branched.commit(ops.Merge("b0"))
    assert check_run(branched.history) == []
    change_manifest(branched.history, 6, lambda document: document["tables"].pop("edge:Knows"))

    assert {"contents"} & found(branched.history)


def test_an_empty_merge_is_reported(branched: Serial) -> None:
    """What is merged already is not merged again."""
    branched.commit(ops.Merge("b0"))
    _place, merged = manifests(branched.history)[-1]
    number = merged["manifest_version"] + 1
    again = {**merged, "manifest_version": number, "inline": [{}]}
    commit = {**merged["commits"][0], "id": f"{merged['branch_id']}.{number}", "parent": merged["logical_head"]}
    again["commits"] = [{**commit, "actor": "c6", "txn_id": "another", "touched": {}}]
    again["logical_head"], again["ancestry"] = commit["id"], {**merged["ancestry"], merged["branch_id"]: number}
    branched.history.begin(ops.Call("c6", "p0", "t0", ops.Merge("b0"), 50, 52, ops.Committed(commit["id"])))
    branched.history.write(51, manifest_key(merged["branch_id"], number), json.dumps(again).encode())

    assert "merged-twice" in found(branched.history)


def test_a_branch_that_is_deleted_by_a_merge_though_it_moved_on_is_reported(branched: Serial) -> None:
    branched.commit(ops.Merge("b0", delete_branch=True))
    _merge, tombstone = manifests(branched.history)[-2:]
    assert "tombstone" in tombstone[1]
    assert check_run(branched.history) == []
    _, last = next(entry for entry in manifests(branched.history) if entry[1]["branch"] == "b0" and entry[1]["commits"])
    number = last["manifest_version"] + 1
    moved = {**last, "manifest_version": number, "inline": [{}], "logical_head": f"{last['branch_id']}.{number}"}
    moved["commits"] = [{**last["commits"][0], "id": moved["logical_head"], "parent": last["logical_head"]}]
    moved["ancestry"] = {**last["ancestry"], last["branch_id"]: number}
    writes = branched.history.writes
    step = writes[tombstone[0]].step
    body = json.dumps({**tombstone[1], "manifest_version": number + 1}).encode()
    writes[tombstone[0]] = replace(writes[tombstone[0]], key=manifest_key(last["branch_id"], number + 1), body=body)
    writes.insert(tombstone[0], StoreWrite(step, manifest_key(last["branch_id"], number), json.dumps(moved).encode()))

    assert "delete-merged" in found(branched.history)


def test_a_retained_manifest_that_became_a_stub_is_reported(branched: Serial) -> None:
    place, document = manifests(branched.history)[1]
    kept = ("format", "branch", "branch_id", "manifest_version", "authored_at", "ancestry", "commits")
    stub = {name: document[name] for name in kept} | {"stub": True}
    branched.history.write(99, branched.history.writes[place].key, json.dumps(stub).encode())

    assert "retained" in found(branched.history)


def test_a_swept_merge_base_is_reported(branched: Serial) -> None:
    """The fence hides from time travel what a living branch was forked from, and the stub takes it away."""
    branched.call(ops.Maintain("cleanup", keep=1))
    assert check_run(branched.history) == []
    for place, document in manifests(branched.history)[:4]:
        stub = {name: document[name] for name in document if name not in ("tables", "inline", "logical_head")}
        branched.history.write(99, branched.history.writes[place].key, json.dumps({**stub, "stub": True}).encode())

    assert "bases" in found(branched.history)


def test_swept_files_of_a_retained_table_are_reported(tmp_path: Path) -> None:
    serial = Serial(tmp_path, STAGED)
    serial.commit(mutate(person("ada"), person("bob"), person("cy")))
    assert check_run(serial.history) == []
    for files in (tmp_path / "graph" / "tables").glob("*/data"):
        shutil.rmtree(files)

    assert {"readable", "retained"} <= found(serial.history)


def test_a_table_that_lacks_a_column_of_its_schema_is_reported(tmp_path: Path) -> None:
    serial = Serial(tmp_path, STAGED)
    serial.commit(mutate(person("ada"), person("bob"), person("cy")))
    serial.commit(ops.ApplySchema(frozenset([ops.Extra("Person", "a")])))
    assert check_run(serial.history) == []
    before = manifests(serial.history)[1][1]["tables"]
    change_manifest(serial.history, 2, lambda document: document.update(tables=before))

    assert "readable" in found(serial.history)


def test_a_transaction_that_is_committed_twice_is_reported(branched: Serial) -> None:
    first = manifests(branched.history)[1][1]["commits"][0]["txn_id"]
    change_manifest(branched.history, 2, lambda document: document["commits"][0].update(txn_id=first))

    assert "once" in found(branched.history)


@pytest.mark.parametrize("actor", [None, "c0", "somebody"])
def test_a_commit_that_is_not_the_work_of_its_call_is_reported(branched: Serial, actor: str | None) -> None:
    change_manifest(branched.history, 2, lambda document: document["commits"][0].update(actor=actor))

    assert found(branched.history) & {"author", "once", "contents"}
