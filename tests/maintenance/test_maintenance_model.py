"""Whatever is written, folded, compacted and indexed in whatever order: the graph says what a dictionary says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.maintenance.commit import MaintenanceRun, Task, optimize
from omnigraph.maintenance.policy import GENTLE, THOROUGH, Effort
from omnigraph.manifest.commit.plan import Delete, Upsert
from omnigraph.manifest.settings import Settings
from omnigraph.storage.table.maintain.layout import read_layout
from support.catalogs import PERSON, people, person_rows
from support.table_layout import head_of

IDS = [f"p{n}" for n in range(8)]
EFFORTS = {
    "gentle": replace(GENTLE, fan=2, rows_min=1),
    "thorough": THOROUGH,
    "thorough in small parts": replace(THOROUGH, target_rows=3, segment_rows=4),
}
OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["small", "staged"]), st.sets(st.sampled_from(IDS), min_size=1), st.integers(0, 99)),
    st.tuples(st.just("delete"), st.sets(st.sampled_from(IDS), min_size=1), st.just(0)),
    st.tuples(st.sampled_from(sorted(EFFORTS)), st.just(frozenset[str]()), st.sampled_from([0, 1])),
)


def maintain(graph: Graph, effort: Effort, fold: bool) -> None:
    if fold:
        optimize(graph.repository, effort=effort)
    else:
        txn = graph.repository.open_txn("main")
        MaintenanceRun(graph.repository, (Task(PERSON, effort, fold=False),)).publish(txn)


@settings(max_examples=15, deadline=None)
@given(st.lists(OPERATIONS, max_size=12))
def test_maintenance_never_changes_the_content(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, frozenset[str], int]]
) -> None:
    place = tmp_path_factory.mktemp("model") / "graph"
    small = omnigraph.init(place, people(), {"fsync": "false"}, settings=Settings(maintenance=0))
    staged = omnigraph.open(place, {"fsync": "false"}, settings=Settings(inline_rows=0, maintenance=0))
    expected: dict[str, int] = {}
    for verb, ids, number in operations:
        changed = head_of(small).logical_head
        if verb in EFFORTS:
            maintain(small, EFFORTS[verb], bool(number))
            assert head_of(small).logical_head == changed
        elif verb == "delete":
            small.write([Delete(PERSON, tuple(sorted(ids)))])
            expected = {id_: age for id_, age in expected.items() if id_ not in ids}
        else:
            graph = small if verb == "small" else staged
            graph.write([Upsert(PERSON, person_rows(*sorted(ids), age=number))])
            expected |= dict.fromkeys(ids, number)

    snapshot = omnigraph.open(place).snapshot()
    assert {row["id"]: row["age"] for row in snapshot.to_arrow(PERSON).to_pylist()} == expected
    assert {row["id"]: row["age"] for row in snapshot.lookup(PERSON, IDS).to_pylist()} == expected
    ref = snapshot.pinned.manifest.tables.get(PERSON)
    if ref is not None and ref.stored is not None:
        assert ref.rows == len(expected)
        shape = read_layout(small.repository.location, ref.stored)
        assert len(shape.by_number) == len(shape.fragments)
    assert omnigraph.open(place).verify(full=True).problems == ()
