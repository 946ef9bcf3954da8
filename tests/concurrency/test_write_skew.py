"""What a write relied on counts as much as what it wrote."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from concurrency.workers import WorkerProcess, workers
from omnigraph.errors import ConstraintViolation
from omnigraph.graph import graph as omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Check, Delete, TableAction
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.storage.table.tables import Tables
from omnigraph.write.commit import Changes
from omnigraph.write.validate.checks import IdsAbsent, NodesExist, Unreferenced
from support.catalogs import COMPANY, KNOWS, PERSON, company_rows, ids_of, knows_rows, people, person_rows
from support.s3 import S3Location

ROUNDS = 16
STEP_S = 0.008  # the head start of one of the two grows by this from round to round


@dataclass
class Counted:
    """A check that counts how often it ran, and may let something happen between its run and the put."""

    inner: Check
    runs: list[str] = field(default_factory=list)  # the commit that each run looked at
    after_first_run: Callable[[], Any] | None = None

    @property
    def reads(self) -> frozenset[str]:
        return self.inner.reads

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        self.inner.run(txn, tables)
        self.runs.append(txn.commit_id)
        if len(self.runs) == 1 and self.after_first_run is not None:
            self.after_first_run()


def edge_checks(source: str, target: str) -> list[Check]:
    return [NodesExist(PERSON, frozenset({source, target}), KNOWS)]


def removal_checks(node: str) -> list[Check]:
    return [Unreferenced(PERSON, frozenset({node}), KNOWS, column) for column in ("src", "dst")]


def add_edge(graph: Graph, source: str, target: str) -> PublishedCommit | None:
    return graph.write([Append(KNOWS, knows_rows((source, target)))], checks=edge_checks(source, target))


def remove_node(graph: Graph, node: str) -> PublishedCommit | None:
    return graph.write([Delete(PERSON, (node,))], checks=removal_checks(node))


def dangling_edges(graph: Graph) -> list[str]:
    snapshot = graph.snapshot()
    nodes = set(ids_of(snapshot.to_arrow(PERSON)))
    edges = snapshot.to_arrow(KNOWS).to_pylist()
    return [edge["id"] for edge in edges if edge["src"] not in nodes or edge["dst"] not in nodes]


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    if request.param == "local":
        return str(tmp_path / "graph"), {}
    s3: S3Location = request.getfixturevalue("s3")
    return s3.uri, s3.options


@pytest.fixture
def graph(place: tuple[str, dict[str, str]]) -> Graph:
    graph = omnigraph.init(place[0], people(), place[1])
    graph.write([Append(PERSON, person_rows("ada", "bob")), Append(COMPANY, company_rows("acme"))])
    return graph


@pytest.fixture
def other(graph: Graph, place: tuple[str, dict[str, str]]) -> Graph:
    """The same graph as another process has it: nothing is shared with `graph` but the store."""
    return omnigraph.open(*place)


def test_two_writers_of_disjoint_tables_both_land_without_validating_again(graph: Graph, other: Graph) -> None:
    of_the_winner = Counted(IdsAbsent(COMPANY, frozenset({"zeta"})))
    of_the_loser = Counted(
        IdsAbsent(PERSON, frozenset({"eve"})),
        after_first_run=lambda: other.write([Append(COMPANY, company_rows("zeta"))], checks=[of_the_winner]),
    )

    commit = graph.write([Append(PERSON, person_rows("eve"))], checks=[of_the_loser])

    assert commit is not None
    assert (len(of_the_winner.runs), len(of_the_loser.runs)) == (1, 1)
    assert graph.commit(commit.id).parent != of_the_loser.runs[0], "it did lose a race"
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada", "bob", "eve"]
    assert ids_of(graph.snapshot().to_arrow(COMPANY)) == ["acme", "zeta"]


def test_a_writer_whose_reads_were_changed_validates_again_once_for_each_loss(graph: Graph, other: Graph) -> None:
    check = Counted(
        NodesExist(PERSON, frozenset({"ada", "bob"}), KNOWS),
        after_first_run=lambda: other.write([Append(PERSON, person_rows("eve"))]),
    )

    commit = graph.write([Append(KNOWS, knows_rows(("ada", "bob")))], checks=[check])

    assert commit is not None
    assert check.runs == [check.runs[0], graph.commit(commit.id).parent]


def test_a_node_is_removed_between_the_check_of_an_edge_to_it_and_its_put(graph: Graph, other: Graph) -> None:
    check = Counted(edge_checks("ada", "bob")[0], after_first_run=lambda: remove_node(other, "bob"))

    with pytest.raises(ConstraintViolation) as raised:
        graph.write([Append(KNOWS, knows_rows(("ada", "bob")))], checks=[check])

    assert raised.value.details["constraint"] == "endpoint"
    assert raised.value.entity_ids == ("bob",)
    assert ids_of(graph.snapshot().to_arrow(KNOWS)) == []
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada"]


@pytest.mark.parametrize("node", ["ada", "bob"])
def test_an_edge_is_added_between_the_check_of_a_removal_and_its_put(graph: Graph, other: Graph, node: str) -> None:
    check = Counted(removal_checks(node)[0], after_first_run=lambda: add_edge(other, "ada", "bob"))

    with pytest.raises(ConstraintViolation) as raised:
        graph.write([Delete(PERSON, (node,))], checks=[check, *removal_checks(node)])

    assert raised.value.entity_ids == (node,)
    assert ids_of(graph.snapshot().to_arrow(KNOWS)) == ["ada->bob"]
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada", "bob"]


def test_one_id_inserted_by_two_writers_is_there_once(graph: Graph, other: Graph) -> None:
    absent = IdsAbsent(PERSON, frozenset({"eve"}))
    check = Counted(absent, after_first_run=lambda: other.write([Append(PERSON, person_rows("eve"))], checks=[absent]))

    with pytest.raises(ConstraintViolation) as raised:
        graph.write([Append(PERSON, person_rows("eve"))], checks=[check])

    assert raised.value.details["constraint"] == "key"
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada", "bob", "eve"]


def test_a_plan_made_of_rows_that_changed_is_made_again(graph: Graph, other: Graph) -> None:
    """`replan-reads`: an upsert of one property does not bring back the old value of another."""
    planned = []

    def older_by_one(txn: WriteTxn) -> Changes:
        rows = graph.snapshot().lookup(PERSON, ["ada"])
        planned.append(rows["age"].to_pylist()[0])
        if len(planned) == 1:
            other.write([Delete(PERSON, ("ada",))])
            other.write([Append(PERSON, person_rows("ada", age=40))])
        from omnigraph.manifest.commit.plan import Upsert

        return Changes((Upsert(PERSON, person_rows("ada", age=(planned[-1] or 0) + 1)),), read_rows=frozenset({PERSON}))

    graph.write(older_by_one)

    assert planned == [None, 40]
    assert graph.snapshot().lookup(PERSON, ["ada"])["age"].to_pylist() == [41]


Race = Callable[[str, bool, float | None], Sequence[bool]]


def run_rounds(graph: Graph, race: Race) -> Counter[str]:
    """Many races between an edge to a node and its removal: each ends with one of them.

    They take turns at starting first, with a growing head start; in the last two rounds one ends before the other
    begins, so that both ends occur on whatever machine.
    """
    outcomes: Counter[str] = Counter()
    for round_ in range(ROUNDS):
        node = f"node-{round_}"
        graph.write([Append(PERSON, person_rows(node))])

        edge, removal = race(node, round_ % 2 == 0, None if round_ >= ROUNDS - 2 else STEP_S * (round_ // 2))

        snapshot = graph.snapshot()
        edge_is_there = f"ada->{node}" in ids_of(snapshot.to_arrow(KNOWS))
        node_is_there = node in ids_of(snapshot.to_arrow(PERSON))
        assert dangling_edges(graph) == []
        assert edge_is_there == node_is_there, "either the edge or the removal, never both, never neither"
        assert (edge, removal) == ((True, False) if edge_is_there else (False, True))
        outcomes["edge" if edge_is_there else "removal"] += 1
    return outcomes


def landed(write: Callable[[], PublishedCommit | None]) -> bool:
    try:
        return write() is not None
    except ConstraintViolation:
        return False


@pytest.mark.parametrize("shared", [True, False], ids=["one graph", "a graph for each"])
def test_threads_that_add_an_edge_and_remove_its_end_never_leave_it_dangling(
    graph: Graph, place: tuple[str, dict[str, str]], shared: bool
) -> None:
    graphs = [graph, graph if shared else omnigraph.open(*place)]

    def race(node: str, edge_first: bool, head_start_s: float | None) -> list[bool]:
        with ThreadPoolExecutor(2) as pool:
            writes = [lambda: add_edge(graphs[0], "ada", node), lambda: remove_node(graphs[1], node)]
            order = [0, 1] if edge_first else [1, 0]
            first = pool.submit(landed, writes[order[0]])
            wait([first], timeout=head_start_s)
            second = pool.submit(landed, writes[order[1]])
            results = {order[0]: first.result(), order[1]: second.result()}
        return [results[0], results[1]]

    outcomes = run_rounds(graph, race)

    assert set(outcomes) == {"edge", "removal"}, outcomes


def test_processes_that_add_an_edge_and_remove_its_end_never_leave_it_dangling(
    graph: Graph, place: tuple[str, dict[str, str]]
) -> None:
    with workers(2, *place) as (edges, removals):

        def race(node: str, edge_first: bool, head_start_s: float | None) -> list[bool]:
            orders: list[tuple[WorkerProcess, str, dict[str, Any]]] = [
                (edges, "add_edge", {"ends": ["ada", node]}),
                (removals, "remove_node", {"id": node}),
            ]
            (first, verb, order), (second, other_verb, other_order) = orders if edge_first else orders[::-1]
            first.ask(verb, **order)
            if head_start_s is None:
                answers = [first.answer(), second.call(other_verb, **other_order)]
            else:
                time.sleep(head_start_s)
                second.ask(other_verb, **other_order)
                answers = [first.answer(), second.answer()]
            assert all(answer.get("raised") in (None, "ConstraintViolation") for answer in answers), answers
            results = [answer.get("commit") is not None for answer in answers]
            return results if edge_first else results[::-1]

        outcomes = run_rounds(graph, race)

    assert set(outcomes) == {"edge", "removal"}, outcomes


Interleaving = tuple[str, Sequence[TableAction], list[Check]]
EDGE: Interleaving = ("edge", [Append(KNOWS, knows_rows(("ada", "bob")))], edge_checks("ada", "bob"))
REMOVAL: Interleaving = ("removal", [Delete(PERSON, ("bob",))], removal_checks("bob"))


@pytest.mark.parametrize(("loser", "winner"), [(EDGE, REMOVAL), (REMOVAL, EDGE)], ids=["removal wins", "edge wins"])
def test_the_first_put_wins_wherever_the_other_write_is(
    graph: Graph, other: Graph, loser: Interleaving, winner: Interleaving
) -> None:
    """The other may have checked, staged, and be about to put: the put decides, and the loser looks again."""
    create = graph.repository.manifests.create
    _, actions, checks = winner

    def just_before_its_put(manifest: Any) -> Any:
        graph.repository.manifests.create = create  # type: ignore[method-assign]
        assert other.write(actions, checks=checks) is not None
        return create(manifest)

    graph.repository.manifests.create = just_before_its_put  # type: ignore[method-assign]

    with pytest.raises(ConstraintViolation):
        graph.write(loser[1], checks=loser[2])

    assert dangling_edges(graph) == []
    assert ids_of(graph.snapshot().to_arrow(KNOWS)) == (["ada->bob"] if winner is EDGE else [])
