"""Every pair of things that two sides can do to one row, for nodes and for edges, whether the row was there or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import MergeConflicts
from support.merge import Merging, make_merging

Row = dict[str, Any]

WAS: Row = {"name": "was", "age": 1}
OPERATIONS = (
    "nothing",
    "insert",  # the same row on both sides
    "insert other",
    "update same",  # one property to one value
    "update other",  # the same property to another value on each side
    "update elsewhere",  # another property than the two before
    "delete",
    "delete, insert again",
    "delete, insert as it was",
)
SIDES = {"main": 6, "b": 7}  # a value of its own for each side
COLUMNS = {"Person": ("name", "age"), "Knows": ("note", "since")}


def after(operation: str, row: Row | None, own: int) -> Row | None:
    """What one side makes of a row; what is not there can't be updated."""
    match operation:
        case "insert":
            return {"name": "new", "age": 2}
        case "insert other":
            return {"name": "new", "age": own}
        case "update same":
            return row and {**row, "age": 5}
        case "update other":
            return row and {**row, "age": own}
        case "update elsewhere":
            return row and {**row, "name": "renamed"}
        case "delete":
            return None
        case "delete, insert again":
            return {"name": "again", "age": 9}
        case "delete, insert as it was":
            return WAS
    return row


def expected(base: Row | None, ours: Row | None, theirs: Row | None) -> Row | str | None:
    """The rules in plain words: the merged row, or the kind of conflict."""
    if ours == theirs or theirs == base:
        return ours
    if ours == base:
        return theirs
    if base is None:
        return "DivergentInsert"
    if ours is None or theirs is None:
        return "DeleteVsUpdate"
    merged = {}
    for name in base:
        if ours[name] != base[name] and theirs[name] != base[name] and ours[name] != theirs[name]:
            return "DivergentUpdate"
        merged[name] = theirs[name] if ours[name] == base[name] else ours[name]
    return merged


def apply(graph: Merging, type_name: str, branch: str, operation: str) -> None:
    """Do it for real, in as many commits as it takes."""
    stored = graph.row(type_name, "x", branch)
    current = None if stored is None else {"name": stored[COLUMNS[type_name][0]], "age": stored[COLUMNS[type_name][1]]}
    wanted = after(operation, current, SIDES[branch])
    if "again" in operation or "as it was" in operation:
        graph.change(branch, **{type_name: {"x": None}})
    if wanted != current or (current is not None and "insert a" in operation):
        graph.change(branch, **{type_name: {"x": None if wanted is None else shaped(type_name, wanted)}})


def shaped(type_name: str, row: Row) -> Row:
    first, second = COLUMNS[type_name]
    ends = {"src": "ada", "dst": "bob"} if type_name == "Knows" else {}
    return {first: row["name"], second: row["age"], **ends}


@pytest.mark.parametrize("there", [True, False], ids=["present", "absent"])
@pytest.mark.parametrize("theirs", OPERATIONS)
@pytest.mark.parametrize("ours", OPERATIONS)
@pytest.mark.parametrize("type_name", COLUMNS)
def test_cell(tmp_path: Path, type_name: str, ours: str, theirs: str, there: bool) -> None:
    graph = make_merging(tmp_path / "graph")
    graph.change(Person={"ada": {}, "bob": {}})
    base = WAS if there else None
    if base is not None:
        graph.change(**{type_name: {"x": shaped(type_name, base)}})
    graph.fork("b")
    for branch, operation in (("main", ours), ("b", theirs)):
        apply(graph, type_name, branch, operation)

    images = [after(ours, base, SIDES["main"]), after(theirs, base, SIDES["b"])]
    wanted = expected(base, *images)
    before = graph.row(type_name, "x")
    try:
        graph.merge()
        found: Any = graph.row(type_name, "x")
        found = None if found is None else {"name": found[COLUMNS[type_name][0]], "age": found[COLUMNS[type_name][1]]}
    except MergeConflicts as refusal:
        (conflict,) = refusal.conflicts
        assert (conflict.type_name, conflict.entity_id) == (type_name, "x")
        assert graph.row(type_name, "x") == before
        found = conflict.kind
    assert found == wanted
