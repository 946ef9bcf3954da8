"""Maintenance through publish: the same rows stored otherwise, which never fails anybody."""

from collections.abc import Callable
from pathlib import Path

import pytest
from lance import LanceOperation

import omnigraph
from omnigraph.errors import ConflictError
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import (
    Append,
    ConflictPolicy,
    DataChange,
    Delete,
    Index,
    PublishPlan,
    Rewrite,
    StagedTable,
)
from omnigraph.manifest.commit.txn import WriteOp, WriteTxn
from omnigraph.manifest.model.manifest import RowCounts
from omnigraph.manifest.settings import Settings
from omnigraph.storage.table.tables import TableVersion
from support.catalogs import PERSON, ids_of, people, person_rows


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", people(), settings=Settings(inline_rows=0, maintenance=0))
    for name in ("ada", "bob", "eve"):
        graph.write([Append(PERSON, person_rows(name))])
    return graph


def index_plan(graph: Graph, txn: WriteTxn) -> PublishPlan:
    """A B-tree over the ids: the same rows, one more version."""
    at = txn.base.tables[PERSON].stored
    assert at is not None
    dataset = graph.repository.tables.open(at)
    fragments = [fragment.fragment_id for fragment in dataset.get_fragments()]
    index = dataset.create_index_uncommitted("id", "BTREE", name="id_idx", fragment_ids=fragments, replace=True)
    made = graph.repository.tables.commit_operation(at, LanceOperation.CreateIndex([index], []))
    return maintenance(graph, txn, Index(PERSON), made.at)


def compaction_plan(graph: Graph, txn: WriteTxn) -> PublishPlan:
    """All fragments as one, by the rows themselves: the content stays."""
    at = txn.base.tables[PERSON].stored
    assert at is not None
    tables = graph.repository.tables
    return maintenance(graph, txn, Rewrite(PERSON), tables.overwrite(at, tables.scan(at)).at)


def maintenance(graph: Graph, txn: WriteTxn, action: Index | Rewrite, made: TableVersion) -> PublishPlan:
    ref = txn.base.tables[PERSON]
    base = ref.stored
    staged = StagedTable(made, ref.rows, RowCounts(), base)
    change = DataChange("optimize", (action,), {PERSON: staged})
    return PublishPlan(graph.repository.runtime.ids.txn_id(), ConflictPolicy.MAINTENANCE, change)


@pytest.mark.parametrize("plan", [index_plan, compaction_plan])
def test_maintenance_changes_the_version_and_not_the_content(graph: Graph, plan) -> None:  # type: ignore[no-untyped-def]
    before, txn = graph.snapshot(), graph.begin()

    published = graph.repository.publisher.publish(txn, plan(graph, txn))

    after = graph.snapshot()
    assert published is not None
    assert published.commit.parent == before.commit_id == after.commit_id
    assert after.types == before.types
    assert after.pinned.manifest.tables[PERSON].stored != before.pinned.manifest.tables[PERSON].stored
    assert ids_of(after.to_arrow(PERSON)) == ["ada", "bob", "eve"]


@pytest.mark.parametrize("plan", [index_plan, compaction_plan])
def test_a_strict_writer_whose_table_was_only_maintained_commits_on_the_new_version(graph: Graph, plan) -> None:  # type: ignore[no-untyped-def]
    held, txn = graph.begin(), graph.begin()
    graph.repository.publisher.publish(txn, plan(graph, txn))

    graph.write([Delete(PERSON, ("bob",))], txn=held)

    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada", "eve"]


class Planned(WriteOp):
    can_replan = True

    def __init__(self, graph: Graph, plan: Callable[[Graph, WriteTxn], PublishPlan]) -> None:
        self._graph, self._plan = graph, plan

    def plan(self, txn: WriteTxn) -> PublishPlan:
        return self._plan(self._graph, txn)


@pytest.mark.parametrize("plan", [index_plan, compaction_plan])
def test_maintenance_of_a_table_that_moved_is_planned_again_and_loses_nothing(graph: Graph, plan) -> None:  # type: ignore[no-untyped-def]
    txn = graph.begin()
    late = plan(graph, txn)
    graph.write([Append(PERSON, person_rows("hedy"))])

    with pytest.raises(ConflictError, match="lost its base"):
        graph.repository.publisher.publish(txn, late)
    graph.repository.publisher.publish(txn, late, Planned(graph, plan))

    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada", "bob", "eve", "hedy"]
    assert [commit.kind for commit in graph.commits(maintenance=True)][:2] == ["optimize", "mutation"]
