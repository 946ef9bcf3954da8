"""What `make bench` measures on: the same graph each time, of the promised shape, and questions that mean the same."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, ROOT)

from bench.queries import GRAPH_QUERIES, GraphQuery  # noqa: E402

from bench import engines, graph  # noqa: E402
from omnigraph.graph.graph import Graph  # noqa: E402

pytestmark = pytest.mark.xdist_group("bench graph")  # one process, which loads it once

SCALE = 0.01
PEOPLE, EDGES = 2_000, 20_000


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Graph, engines.DuckDb, dict[str, str]]]:
    tables = graph.generate(SCALE)
    made = graph.load(str(tmp_path_factory.mktemp("bench") / "graph"), tables)
    duckdb = engines.DuckDb(tables)
    yield made, duckdb, engines.starts(tables)
    duckdb.connection.close()


def test_the_same_seed_makes_the_same_rows() -> None:
    first, again, other = graph.generate(SCALE), graph.generate(SCALE), graph.generate(SCALE, seed=8)
    assert all(first[key].equals(again[key]) for key in first)
    assert not first["edge:Knows"].equals(other["edge:Knows"])


def test_it_has_the_promised_shape() -> None:
    sources, targets = graph.endpoints(np.random.default_rng(7), graph.PEOPLE // 4, graph.EDGES // 4)
    assert len(sources) == graph.EDGES // 4
    assert len(np.unique(sources * graph.PEOPLE + targets)) == len(sources)
    assert not (sources == targets).any()
    for ends in (sources, targets):
        degrees = np.bincount(ends, minlength=graph.PEOPLE // 4)
        assert np.median(degrees) == graph.DEGREE_MEDIAN
    assert np.bincount(sources).max() == graph.DEGREE_MAX


def test_its_tables_have_as_many_rows_as_they_should() -> None:
    rows = {key: table.num_rows for key, table in graph.generate(SCALE).items()}
    assert rows == {
        "node:Person": PEOPLE,
        "node:Company": 100,
        "node:Document": PEOPLE,
        "edge:Knows": EDGES,
        "edge:WorksAt": PEOPLE,
    }


@pytest.mark.parametrize("question", GRAPH_QUERIES, ids=lambda question: question.label)
def test_every_question_means_the_same_to_us_and_to_duckdb(
    question: GraphQuery, loaded: tuple[Graph, engines.DuckDb, dict[str, str]]
) -> None:
    made, duckdb, who = loaded
    answer = engines.ours(made, question, who[question.start])()
    assert answer
    for call in duckdb.calls(question, who[question.start]):
        assert engines.agree(question, answer, call())
