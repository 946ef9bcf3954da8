"""Strict writers: of those who hold the same base one wins, the others hear why and leave nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from concurrency.workers import workers
from omnigraph.errors import ExpectedVersionMismatch
from omnigraph.graph import graph as omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Delete, Overwrite, TableAction, Upsert
from omnigraph.manifest.commit.publish import PublishedCommit
from support.arrow import values_of
from support.catalogs import COMPANY, KNOWS, PERSON, company_rows, ids_of, knows_rows, people, person_rows
from support.s3 import S3Location

WRITERS, PROCESSES, ROUNDS = 8, 4, 4


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


def ages(graph: Graph) -> dict[str, int | None]:
    rows = graph.snapshot().to_arrow(PERSON)
    return dict(zip(values_of(rows["id"]), values_of(rows["age"]), strict=True))


def changed_at(graph: Graph, table_key: str) -> str | None:
    name = table_key.partition(":")[2]
    return next(entry.changed_at for entry in graph.snapshot().types if entry.type_name == name)


def write_at_once(
    graphs: Sequence[Graph], actions: Sequence[list[TableAction]], **how: Any
) -> list[PublishedCommit | ExpectedVersionMismatch]:
    """Each graph begins, and once all have, each writes its actions."""
    all_have_begun = threading.Barrier(len(graphs), timeout=30)

    def one(graph: Graph, own: list[TableAction]) -> PublishedCommit | ExpectedVersionMismatch:
        txn = graph.begin()
        all_have_begun.wait()
        try:
            commit = graph.write(own, txn=txn, **how)
            assert commit is not None
            return commit
        except ExpectedVersionMismatch as conflict:
            return conflict

    with ThreadPoolExecutor(len(graphs)) as pool:
        return list(pool.map(one, graphs, actions))


def check_one_won(
    graph: Graph, answers: Sequence[PublishedCommit | ExpectedVersionMismatch], base: str | None, commits_before: int
) -> int:
    """Which one won; the others were told the truth, and only one commit came of it all."""
    won = [number for number, answer in enumerate(answers) if isinstance(answer, PublishedCommit)]
    assert len(won) == 1
    winner = answers[won[0]]
    assert isinstance(winner, PublishedCommit)
    for loser in answers:
        if isinstance(loser, ExpectedVersionMismatch):
            assert (loser.table_key, loser.expected, loser.actual) == (PERSON, base, winner.id)
            assert loser.details["manifest_conflict"]["actual"] == winner.id
            assert loser.exit_code == 3
            assert loser.http_status == 409
    history = graph.commits(limit=None)
    assert len(history) == commits_before + 1
    assert history[0].id == winner.id == graph.snapshot().commit_id
    return won[0]


@pytest.mark.parametrize("shared", [True, False], ids=["one graph", "a graph for each"])
def test_of_many_updates_of_one_table_by_threads_exactly_one_wins_each_round(
    graph: Graph, place: tuple[str, dict[str, str]], shared: bool
) -> None:
    graphs = [graph if shared else omnigraph.open(*place) for _ in range(WRITERS)]

    for round_ in range(ROUNDS):
        base, commits = changed_at(graph, PERSON), len(graph.commits(limit=None))
        updates: list[list[TableAction]] = [
            [Upsert(PERSON, person_rows("ada", age=100 * round_ + writer))] for writer in range(WRITERS)
        ]

        answers = write_at_once(graphs, updates)

        winner = check_one_won(graph, answers, base, commits)
        assert ages(graph) == {"ada": 100 * round_ + winner, "bob": None}


def test_of_many_processes_that_hold_one_base_exactly_one_wins_each_round(
    graph: Graph, place: tuple[str, dict[str, str]]
) -> None:
    rows = ["ada", "bob"]
    with workers(PROCESSES, *place) as processes:
        for round_ in range(ROUNDS):
            base, commits = changed_at(graph, PERSON), len(graph.commits(limit=None))
            begun = [process.call("begin") for process in processes]
            assert {answer["base"] for answer in begun} == {graph.snapshot().commit_id}

            for writer, process in enumerate(processes):
                process.ask("append", ids=[f"row-{round_}-{writer}"], held=True)
            answers = [process.answer() for process in processes]

            won = [writer for writer, answer in enumerate(answers) if "commit" in answer]
            assert len(won) == 1
            winner = answers[won[0]]["commit"]
            losers = [answer for answer in answers if "commit" not in answer]
            for loser in losers:
                assert (loser["raised"], loser["code"]) == ("ExpectedVersionMismatch", "conflict")
                assert loser["details"] == {
                    "manifest_conflict": {"table_key": PERSON, "expected": base, "actual": winner}
                }
            rows.append(f"row-{round_}-{won[0]}")
            assert ids_of(graph.snapshot().to_arrow(PERSON)) == sorted(rows)
            assert len(graph.commits(limit=None)) == commits + 1


STRICT_VERBS: dict[str, list[TableAction]] = {
    "append": [Append(PERSON, person_rows("eve"), fresh_ids=True)],
    "upsert": [Upsert(PERSON, person_rows("ada", age=1))],
    "delete": [Delete(PERSON, ("ada",))],
    "overwrite": [Overwrite(PERSON, person_rows("eve"))],
    "with another table": [Append(COMPANY, company_rows("zeta")), Upsert(PERSON, person_rows("ada", age=1))],
}


@pytest.mark.parametrize("verb", STRICT_VERBS)
def test_a_held_base_makes_every_verb_strict(tmp_path: Path, verb: str) -> None:
    graph = omnigraph.init(tmp_path / "graph", people())
    first = graph.write([Append(PERSON, person_rows("ada")), Append(COMPANY, company_rows("acme"))])
    txn = graph.begin()
    second = omnigraph.open(tmp_path / "graph").write([Upsert(PERSON, person_rows("bob"))])
    assert first is not None
    assert second is not None

    with pytest.raises(ExpectedVersionMismatch) as raised:
        graph.write(STRICT_VERBS[verb], txn=txn)

    assert raised.value.args == (PERSON, first.id, second.id)
    assert graph.snapshot().commit_id == second.id
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada", "bob"]
    assert ids_of(graph.snapshot().to_arrow(COMPANY)) == ["acme"]


def test_on_conflict_fail_is_strict_without_a_held_base(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", people())
    graphs = [omnigraph.open(tmp_path / "graph") for _ in range(WRITERS)]
    barrier = threading.Barrier(WRITERS, timeout=30)

    def after_all_have_planned(txn: Any) -> Any:
        from omnigraph.write.commit import Changes

        barrier.wait()
        return Changes((Append(PERSON, person_rows("ada")),))

    def one(own: Graph) -> PublishedCommit | ExpectedVersionMismatch | None:
        try:
            return own.write(after_all_have_planned, on_conflict="fail")
        except ExpectedVersionMismatch as conflict:
            return conflict

    with ThreadPoolExecutor(WRITERS) as pool:
        answers = list(pool.map(one, graphs))

    won = [answer for answer in answers if isinstance(answer, PublishedCommit)]
    assert len(won) == 1
    assert {answer.args for answer in answers if isinstance(answer, ExpectedVersionMismatch)} == {
        (PERSON, None, won[0].id)
    }
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada"]


def test_a_held_base_is_not_lost_to_writers_of_other_tables(graph: Graph, place: tuple[str, dict[str, str]]) -> None:
    txn = graph.begin()
    other = omnigraph.open(*place)
    for number in range(5):
        other.write([Append(COMPANY, company_rows(f"company-{number}"))])
    other.write([Append(KNOWS, knows_rows(("ada", "bob")))])

    commit = graph.write([Upsert(PERSON, person_rows("ada", age=7))], txn=txn)

    assert commit is not None
    assert ages(graph) == {"ada": 7, "bob": None}
    assert len(ids_of(graph.snapshot().to_arrow(COMPANY))) == 6


def test_a_base_serves_once(graph: Graph) -> None:
    txn = graph.begin()
    first = graph.write([Upsert(PERSON, person_rows("ada", age=1))], txn=txn)
    assert first is not None

    with pytest.raises(ExpectedVersionMismatch) as raised:
        graph.write([Upsert(PERSON, person_rows("ada", age=2))], txn=txn)

    assert raised.value.actual == first.id
    assert ages(graph)["ada"] == 1
