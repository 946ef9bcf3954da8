"""Starts of one spooled load (`intent-tokens`): each publishes the rows that its own tasks were given, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.errors import BadRequest, ConflictError, JobDiscarded, JobLost, JobRunning, KeyReused
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import Settings
from omnigraph.pipeline.bulk.dataframe_source import load_tables
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.pipeline.bulk.staging.spool import (
    Spool,
    SpooledPart,
    begin_spool,
    combine_parts,
    discard_spool,
    spool_rows,
)
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load import LoadResult
from omnigraph.write.load.load_options import LoadOptions
from pipeline.test_job_starts import NO_FSYNC, SCHEMA, At, fresh, much_later, slugs
from support.cleanup import assert_sound, clean
from support.jobs import left_over


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    made = omnigraph.init(str(tmp_path / "graph"), SCHEMA, NO_FSYNC, settings=Settings(maintenance=0, inline_rows=0))
    made.mutate('query q() { insert Person { slug: "old", age: 1 } }')
    return made


def started(graph: Graph, **options: Any) -> Spool:
    return begin_spool(fresh(graph).repository, LoadOptions(txn_id="X", **options))


def spooled(spool: Spool, *slugs: str) -> SpooledPart:
    rows = pa.table({"slug": list(slugs)}).to_batches()
    return spool_rows(spool, "Person", rows, first_number=0, shown="Person")


def ended(graph: Graph, spool: Spool, answer: SpooledPart, **options: Any) -> LoadResult:
    load_options = LoadOptions(txn_id="X", **options)
    return bulk_load(fresh(graph).repository, LocalRunner(), combine_parts(spool, [answer]), load_options)


# Two starts


def test_a_start_that_was_taken_over_while_it_spooled_does_not_publish_the_rows_of_the_next_one(graph: Graph) -> None:
    first = started(graph)
    second = started(graph)
    mine, theirs = spooled(first, "a1", "a2", "a3"), spooled(second, "b1")

    with pytest.raises(JobLost):
        ended(graph, first, mine)
    assert slugs(graph) == ["old"]

    made = ended(graph, second, theirs)

    assert made.counts == {"Person": 1}
    assert made.commit is not None
    assert str(made.commit.commit.input).startswith("1 Person, append")
    assert slugs(graph) == ["b1", "old"]
    clean(fresh(graph))
    assert left_over(graph.repository) == []
    assert_sound(fresh(graph))


def test_a_start_whose_job_was_committed_with_other_rows_while_it_spooled_says_so(graph: Graph) -> None:
    first, second = started(graph), started(graph)
    mine = spooled(first, "a1", "a2", "a3")
    ended(graph, second, spooled(second, "b1"))

    with pytest.raises(KeyReused):
        ended(graph, first, mine)

    assert slugs(graph) == ["b1", "old"]


def test_a_start_whose_job_was_committed_with_as_many_rows_is_answered_by_that_commit(graph: Graph) -> None:
    first, second = started(graph), started(graph)
    mine = spooled(first, "a1")
    made = ended(graph, second, spooled(second, "b1"))

    again = ended(graph, first, mine)

    assert made.commit is not None
    assert again.commit is not None
    assert again.commit.id == made.commit.id


def test_a_start_that_gives_up_leaves_what_the_next_one_spools(graph: Graph) -> None:
    first, second = started(graph), started(graph)
    theirs = spooled(second, "b1")

    discard_spool(fresh(graph).repository, first)

    assert ended(graph, second, theirs).counts == {"Person": 1}


def test_a_job_that_spools_for_one_branch_is_not_started_for_another(graph: Graph) -> None:
    first = started(graph, branch="draft", from_="main")

    for elsewhere in ({"branch": "other", "from_": "main"}, {"branch": "main"}):
        with pytest.raises(BadRequest, match="begun on the branch 'draft'"):
            started(graph, **elsewhere)

    again = started(graph, branch="draft", from_="main")
    assert again.intent.tokens[0] == first.intent.token


def test_a_start_goes_on_when_the_branch_that_its_job_was_to_make_is_there(graph: Graph) -> None:
    started(graph, branch="draft", from_="main")
    graph.repository.branches.create("draft", graph.repository.open_txn().base, None)

    spool = started(graph, branch="draft", from_="main")

    result = ended(graph, spool, spooled(spool, "a1"), branch="draft", from_="main")
    assert result.commit is not None
    assert result.commit.branch == "draft"


# A discard


def test_a_start_that_was_discarded_while_it_spooled_publishes_nothing(graph: Graph) -> None:
    spool = started(graph)
    assert [one.outcome for one in fresh(graph).recover(discard=["X"]).ended] == ["discarded"]
    answer = spooled(spool, "a1", "a2")

    with pytest.raises(JobDiscarded):
        ended(graph, spool, answer)

    assert slugs(graph) == ["old"]
    clean(much_later(graph))
    assert_sound(fresh(graph))


def test_a_start_that_was_discarded_while_it_spooled_for_a_branch_to_be_made_does_not_make_it(graph: Graph) -> None:
    spool = started(graph, branch="draft", from_="main")
    fresh(graph).recover(discard=["X"])
    answer = spooled(spool, "a1")

    with pytest.raises(JobDiscarded):
        ended(graph, spool, answer, branch="draft", from_="main")

    assert "draft" not in fresh(graph).branches.list()


def test_a_start_whose_branch_was_deleted_and_made_again_while_it_spooled_publishes_nothing(graph: Graph) -> None:
    main = graph.repository.open_txn().base
    graph.repository.branches.create("draft", main, None)
    spool = started(graph, branch="draft")
    answer = spooled(spool, "a1")
    graph.repository.branches.delete("draft")
    graph.repository.branches.create("draft", main, None)

    with pytest.raises(ConflictError, match="a branch 'draft' that was deleted since"):
        ended(graph, spool, answer, branch="draft")

    assert [commit.txn_id for commit in fresh(graph).commits(branch="draft")].count("X") == 0


def test_a_load_of_tables_is_alive_while_its_rows_come(graph: Graph) -> None:
    """Nobody takes it over or takes it for dead; afterwards it is ended."""
    seen = []

    def look() -> None:
        intent = graph.repository.intents.read("X")
        assert intent is not None
        with pytest.raises(JobRunning):
            started(graph)
        seen.append((intent.alive, fresh(graph).recover(all=True).ended))

    result = load_tables(
        fresh(graph).repository,
        LocalRunner(),
        {"Person": pa.table({"slug": ["a1"]})},
        LoadOptions(txn_id="X"),
        progress=At("writing Person", look),
    )

    assert seen == [(True, ())]
    assert result.counts == {"Person": 1}
    assert left_over(graph.repository) == []
