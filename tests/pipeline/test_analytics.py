"""`analyze`: every value of every vertex is what networkx computes, here and on Spark, shown or written back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networkx.algorithms.link_analysis.pagerank_alg import _pagerank_python

import omnigraph
from omnigraph.errors import BadRequest, ConstraintViolation, PreconditionFailed
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Upsert
from omnigraph.pipeline.analytics import local
from omnigraph.pipeline.spark import session
from omnigraph.pipeline.spark import sizing as machine
from omnigraph.pipeline.spark.session import SparkSessionHandle
from support.arrow import values_of
from support.catalogs import ids_of

SCHEMA = """
node Person { slug: String @key  rank: F64? @index  rank32: F32?  component: String?  number: I64?  degree: I64?
              triangles: U32?  small: F64?  bio: String?  vec: Vector(8)? @embed("bio")
              @range(small, 0..0.1) }
node Company { name: String @key  rank: F64?  component: String?  share: F64?  @range(share, 0..0.01) }
edge Knows: Person -> Person { since: Date? }
edge WorksAt: Person -> Company {}
"""
KNOWS, WORKS_AT, PERSON, COMPANY = "edge:Knows", "edge:WorksAt", "node:Person", "node:Company"

Ends = Sequence[tuple[int, int]]
graphs = st.integers(1, 12).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40))
)


def arrays(ends: Ends) -> tuple[Any, Any]:
    return np.array([s for s, _ in ends], np.int64), np.array([t for _, t in ends], np.int64)


def reference(kind: type, count: int, ends: Ends) -> Any:
    graph = kind()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(ends)
    return graph


# The algorithms, against networkx


@given(graphs, st.sampled_from([0.0, 0.5, 0.85]))
def test_pagerank_is_networkx_s(graph: tuple[int, Ends], damping: float) -> None:
    count, ends = graph

    ranks, _, converged = local.pagerank(count, *arrays(ends), damping, 1e-10, 1000)

    expected = _pagerank_python(reference(nx.MultiDiGraph, count, ends), damping, tol=1e-10, max_iter=1000)
    assert converged
    np.testing.assert_allclose(ranks, [expected[v] for v in range(count)], atol=1e-9)
    assert abs(ranks.sum() - 1) < 1e-9


@given(graphs)
def test_components_are_networkx_s(graph: tuple[int, Ends]) -> None:
    count, ends = graph

    roots = local.components(count, *arrays(ends))

    expected = {
        v: min(group)
        for group in nx.weakly_connected_components(reference(nx.MultiDiGraph, count, ends))
        for v in group
    }
    assert roots.tolist() == [expected[v] for v in range(count)]


@given(graphs)
def test_triangles_are_networkx_s(graph: tuple[int, Ends]) -> None:
    count, ends = graph

    found = local.triangles(count, *arrays(ends))

    expected = nx.triangles(reference(nx.Graph, count, ends))
    assert found.tolist() == [expected[v] for v in range(count)]


def test_triangles_are_counted_in_parts_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [(a, b) for a in range(12) for b in range(a)]
    monkeypatch.setattr(local, "PAIRS_MAX", 7)

    assert local.triangles(12, *arrays(ends)).tolist() == [11 * 10 // 2] * 12


def test_a_long_way_is_one_component() -> None:
    ends = [(v, v + 1) for v in np.random.default_rng(1).permutation(5_000).tolist()]

    assert set(local.components(5_001, *arrays(ends)).tolist()) == {0}


# Through a graph


def make(root: Path | str, people: Sequence[str], knows: Sequence[tuple[str, str]], **options: Any) -> Graph:
    graph = omnigraph.init(root, SCHEMA, **({"storage_options": {"fsync": "false"}} | options))
    if people:
        graph.write([Append(PERSON, pa.table({"id": people, "slug": people}))])
    if knows:
        rows = {"id": [f"e{n}" for n in range(len(knows))], "src": [s for s, _ in knows], "dst": [t for _, t in knows]}
        graph.write([Append(KNOWS, pa.table(rows))])
    return graph


def values(graph: Graph, column: str, key: str = PERSON) -> dict[str, Any]:
    rows = graph.snapshot().to_arrow(key, ["id", column])
    return dict(zip(values_of(rows.column("id")), values_of(rows.column(column)), strict=True))


PEOPLE = ["ada", "bob", "cleo", "dora", "eve", "zoe"]
FRIENDS = [("ada", "bob"), ("bob", "cleo"), ("cleo", "ada"), ("ada", "bob"), ("dora", "eve"), ("eve", "eve")]


@pytest.fixture
def friends(tmp_path: Path) -> Graph:
    return make(tmp_path / "graph", PEOPLE, FRIENDS)


def expected_ranks(graph: nx.MultiDiGraph | nx.MultiGraph) -> dict[str, float]:
    graph.add_nodes_from(PEOPLE)
    graph.add_edges_from(FRIENDS)
    ranks: dict[str, float] = _pagerank_python(graph, tol=1e-10, max_iter=1000)
    return ranks


@pytest.mark.parametrize(
    ("direction", "reference"),
    [
        (None, nx.MultiDiGraph()),
        ("out", nx.MultiDiGraph()),
        ("both", nx.MultiGraph()),
    ],
)
def test_ranks_are_written_to_every_row(friends: Graph, direction: Any, reference: Any) -> None:
    found = friends.analyze(
        "pagerank", ["Knows"], "Person.rank", direction=direction, tolerance=1e-10, iterations=1000, actor="ada"
    )

    assert values(friends, "rank") == pytest.approx(expected_ranks(reference), abs=1e-9)
    assert found.commit is not None
    assert found.commit.commit.kind == "analyze"
    assert found.commit.commit.actor == "ada"
    assert found.commit.touched == {PERSON: {"updated": 6}}
    assert (found.vertices, found.edges, found.converged) == (6, 6, True)


def test_against_the_direction_is_the_rank_of_the_reversed_graph(friends: Graph) -> None:
    friends.analyze("pagerank", ["Knows"], "Person.rank", direction="in", tolerance=1e-10, iterations=1000)

    graph = nx.MultiDiGraph()
    graph.add_nodes_from(PEOPLE)
    graph.add_edges_from((t, s) for s, t in FRIENDS)
    assert values(friends, "rank") == pytest.approx(_pagerank_python(graph, tol=1e-10, max_iter=1000), abs=1e-9)


def test_components_are_named_by_their_smallest_id(friends: Graph) -> None:
    friends.analyze("components", ["Knows"], "Person.component")

    assert values(friends, "component") == {
        "ada": "ada", "bob": "ada", "cleo": "ada", "dora": "dora", "eve": "dora", "zoe": "zoe",
    }  # fmt: skip


def test_components_are_numbered_in_the_order_of_their_smallest_ids_where_the_property_is_a_number(
    friends: Graph,
) -> None:
    friends.analyze("components", ["Knows"], "Person.number")

    assert values(friends, "number") == {"ada": 0, "bob": 0, "cleo": 0, "dora": 1, "eve": 1, "zoe": 2}


@pytest.mark.parametrize(
    ("direction", "degrees"),
    [(None, [3, 3, 2, 1, 3, 0]), ("out", [2, 1, 1, 1, 1, 0]), ("in", [1, 2, 1, 0, 2, 0])],
)
def test_degrees_count_edges_and_a_loop_twice(friends: Graph, direction: Any, degrees: list[int]) -> None:
    friends.analyze("degrees", ["Knows"], "Person.degree", direction=direction)

    assert values(friends, "degree") == dict(zip(PEOPLE, degrees, strict=True))


def test_triangles_are_of_neighbours(friends: Graph) -> None:
    friends.analyze("triangles", ["Knows"], "Person.triangles")

    assert values(friends, "triangles") == {"ada": 1, "bob": 1, "cleo": 1, "dora": 0, "eve": 0, "zoe": 0}


def test_a_rank_may_be_single_precision(friends: Graph) -> None:
    friends.analyze("pagerank", ["Knows"], "Person.rank32", tolerance=1e-10, iterations=1000)

    assert values(friends, "rank32") == pytest.approx(expected_ranks(nx.MultiDiGraph()), abs=1e-6)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(graph=graphs, data=st.data())
def test_what_is_stored_in_any_order_and_any_number_of_commits_is_the_same_to_the_last_bit(
    tmp_path_factory: pytest.TempPathFactory, graph: tuple[int, Ends], data: st.DataObject
) -> None:
    count, ends = graph
    people = [f"p{n}" for n in range(count)]
    knows = [(f"p{s}", f"p{t}") for s, t in ends]
    shuffled = data.draw(st.permutations(people))
    one = make(tmp_path_factory.mktemp("g") / "one", people, knows)
    other = make(tmp_path_factory.mktemp("g") / "other", shuffled[: count // 2], [])
    other.write([Append(PERSON, pa.table({"id": shuffled[count // 2 :], "slug": shuffled[count // 2 :]}))])
    rows = data.draw(st.permutations(list(enumerate(knows))))
    if rows:
        table = {"id": [f"e{n}" for n, _ in rows], "src": [s for _, (s, _) in rows], "dst": [t for _, (_, t) in rows]}
        other.write([Append(KNOWS, pa.table(table))])

    first, second = (graph.analyze("pagerank", ["Knows"], limit=None).table for graph in (one, other))

    assert first.equals(second)


def test_the_answer_shows_the_largest_values_first(friends: Graph) -> None:
    found = friends.analyze("degrees", ["Knows"], limit=3)

    assert found.table.to_pylist() == [
        {"type": "Person", "id": "ada", "degree": 3},
        {"type": "Person", "id": "bob", "degree": 3},
        {"type": "Person", "id": "eve", "degree": 3},
    ]
    assert found.commit is None
    assert friends.analyze("degrees", ["Knows"], limit=None).table.num_rows == 6
    assert friends.analyze("degrees", ["Knows"], limit=0).table.num_rows == 0


def test_a_rank_has_settled_by_what_all_ranks_change_however_many_they_are() -> None:
    """A tolerance for each vertex would be content with anything once there are many."""
    count = 20_000
    ends = np.random.default_rng(3).integers(0, count, (2, 60_000))

    ranks, rounds, converged = local.pagerank(count, ends[0], ends[1], 0.85, 1e-6, 200)
    exact, _, _ = local.pagerank(count, ends[0], ends[1], 0.85, 1e-14, 500)

    assert converged
    assert rounds > 20
    assert np.abs(ranks - exact).sum() < 1e-5


def test_too_few_rounds_are_said(friends: Graph) -> None:
    found = friends.analyze("pagerank", ["Knows"], tolerance=1e-15, iterations=2)

    assert (found.iterations, found.converged) == (2, False)


# Several types


@pytest.fixture
def working(tmp_path: Path) -> Graph:
    graph = make(tmp_path / "graph", ["a", "b", "x", "z"], [])
    graph.write(
        [
            Append(COMPANY, pa.table({"id": ["x", "y"], "name": ["x", "y"]})),
            Append(WORKS_AT, pa.table({"id": ["1", "2", "3"], "src": ["a", "b", "x"], "dst": ["y", "y", "x"]})),
        ]
    )
    return graph


def test_vertices_of_several_types_are_kept_apart_though_ids_agree(working: Graph) -> None:
    working.analyze("components", write="Person.component")
    working.analyze("components", write="Company.component")

    assert values(working, "component") == {"a": "Person:a", "b": "Person:a", "x": "Company:x", "z": "Person:z"}
    assert values(working, "component", COMPANY) == {"x": "Company:x", "y": "Person:a"}


def test_ranks_go_through_all_types_and_are_written_to_one(working: Graph) -> None:
    found = working.analyze("pagerank", ["WorksAt"], "Company.rank", limit=None)

    assert found.vertices == 6
    assert found.commit is not None
    assert found.commit.touched == {COMPANY: {"updated": 2}}
    assert set(values(working, "rank").values()) == {None}
    assert sum(values_of(found.table.column("rank"))) == pytest.approx(1)


# Writing back


def test_the_same_answer_again_is_no_commit(friends: Graph) -> None:
    first = friends.analyze("pagerank", ["Knows"], "Person.rank")

    again = friends.analyze("pagerank", ["Knows"], "Person.rank")

    assert first.commit is not None
    assert again.commit is None
    assert again.table.equals(first.table)


def test_other_values_of_the_rows_stay_and_only_what_differs_is_touched(friends: Graph) -> None:
    friends.analyze("degrees", ["Knows"], "Person.degree")
    friends.write([Append(KNOWS, pa.table({"id": ["new"], "src": ["zoe"], "dst": ["ada"]}))])

    found = friends.analyze("degrees", ["Knows"], "Person.degree")

    assert found.commit is not None
    assert found.commit.touched == {PERSON: {"updated": 2}}
    assert values(friends, "degree") == {"ada": 4, "bob": 3, "cleo": 2, "dora": 1, "eve": 3, "zoe": 1}
    assert sorted(values(friends, "slug").values()) == PEOPLE


def test_rows_that_were_deleted_or_replaced_before_get_their_values(friends: Graph) -> None:
    friends.write([Upsert(PERSON, pa.table({"id": ["bob"], "slug": ["bob"], "bio": ["a new row"]}))])
    friends.mutate('query q() { delete Person where slug = "zoe" }')

    friends.analyze("degrees", ["Knows"], "Person.degree")

    assert values(friends, "degree") == {"ada": 3, "bob": 3, "cleo": 2, "dora": 1, "eve": 3}
    assert values(friends, "bio")["bob"] == "a new row"


def test_later_writes_and_differences_work_on_top_of_a_written_column(friends: Graph) -> None:
    before = friends.snapshot().pinned.content(PERSON)
    friends.analyze("degrees", ["Knows"], "Person.degree")
    after = friends.snapshot().pinned.content(PERSON)
    told = friends.repository.tables.difference(before, after)

    friends.mutate('query q() { update Person set { bio: "hello" } where slug = "ada" }')
    friends.mutate('query q() { delete Person where slug = "bob" }')
    friends.write([Append(PERSON, pa.table({"id": ["new"], "slug": ["new"]}))])
    friends.analyze("degrees", ["Knows"], "Person.degree")

    assert ids_of(told.after) == ids_of(told.before) == PEOPLE
    assert values(friends, "degree") == {"ada": 1, "cleo": 1, "dora": 1, "eve": 3, "zoe": 0, "new": 0}
    assert values(friends, "bio")["ada"] == "hello"
    found = friends.query("query q() { match { $p: Person  $p.degree = 3 } return { $p.slug } }")
    assert found.to_arrow().column(0).to_pylist() == ["eve"]


def test_a_column_that_was_added_to_the_schema_later_is_filled(friends: Graph) -> None:
    key = friends.snapshot().pinned.table(PERSON)
    assert key is not None
    assert set(values(friends, "triangles").values()) == {None}

    friends.analyze("triangles", ["Knows"], "Person.triangles")

    assert values(friends, "triangles")["ada"] == 1


def test_an_index_on_the_property_answers_with_the_new_values(tmp_path: Path) -> None:
    people = [f"p{n:05}" for n in range(12_000)]
    graph = make(tmp_path / "graph", people, [(people[n], people[0]) for n in range(1, 100)])
    graph.analyze("pagerank", ["Knows"], "Person.rank")
    ref = graph.snapshot().pinned.table(PERSON)
    assert ref is not None
    assert ref.stored is not None
    dataset = graph.repository.tables.open(ref.stored)
    covered = {d.name: d.num_rows_indexed for d in dataset.describe_indices()}
    top = max(values(graph, "rank").values())

    hits = graph.snapshot().to_arrow(PERSON, ["id"], f"rank >= {top}")

    assert covered["rank_btree"] == covered["id_btree"] == 12_000
    assert hits.column("id").to_pylist() == ["p00000"]


def test_a_commit_in_between_makes_it_look_again(friends: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """`replan-reads`: rows that were read went into the answer."""
    from omnigraph.pipeline.analytics import analyze as analytics

    resolve_spec: list[int] = []
    stage = analytics.stage_values

    def and_somebody_commits(*args: Any) -> Any:
        staged = stage(*args)
        if not resolve_spec:
            friends.write([Append(KNOWS, pa.table({"id": ["new"], "src": ["zoe"], "dst": ["ada"]}))])
        resolve_spec.append(1)
        return staged

    monkeypatch.setattr(analytics, "stage_values", and_somebody_commits)
    friends.analyze("degrees", ["Knows"], "Person.degree")

    assert len(resolve_spec) == 2
    assert values(friends, "degree")["zoe"] == 1


def test_an_older_state_is_written_to_the_rows_that_are_still_there(friends: Graph) -> None:
    before = friends.snapshot().commit_id
    friends.write([Append(PERSON, pa.table({"id": ["new"], "slug": ["new"]}))])
    friends.write([Append(KNOWS, pa.table({"id": ["new"], "src": ["zoe"], "dst": ["new"]}))])

    found = friends.analyze("degrees", ["Knows"], "Person.degree", at=before)

    assert found.commit_id == before
    assert values(friends, "degree") == {"ada": 3, "bob": 3, "cleo": 2, "dora": 1, "eve": 3, "zoe": 0, "new": None}


def test_it_goes_to_the_branch_that_is_named(friends: Graph) -> None:
    friends.branches.create("b")

    friends.analyze("degrees", ["Knows"], "Person.degree", branch="b")

    assert set(values(friends, "degree").values()) == {None}
    rows = friends.snapshot("b").to_arrow(PERSON, ["degree"])
    assert None not in rows.column("degree").to_pylist()


def test_a_repeated_run_with_its_txn_id_returns_the_first_commit(friends: Graph) -> None:
    first = friends.analyze("degrees", ["Knows"], "Person.degree", txn_id="once")
    friends.write([Append(KNOWS, pa.table({"id": ["new"], "src": ["zoe"], "dst": ["ada"]}))])

    again = friends.analyze("degrees", ["Knows"], "Person.degree", txn_id="once")

    assert first.commit is not None
    assert again.commit is not None
    assert again.commit.id == first.commit.id


def test_a_condition_that_does_not_hold_writes_nothing(friends: Graph) -> None:
    old = friends.commits()[-1].id

    with pytest.raises(PreconditionFailed):
        friends.analyze("degrees", ["Knows"], "Person.degree", if_commit=old)


def test_values_that_the_schema_does_not_allow_are_refused(friends: Graph) -> None:
    with pytest.raises(ConstraintViolation, match="range"):
        friends.analyze("pagerank", ["Knows"], "Person.small")

    assert set(values(friends, "small").values()) == {None}


def test_a_type_without_rows_has_nothing_to_write(tmp_path: Path) -> None:
    graph = make(tmp_path / "graph", [], [])

    for algorithm in ("pagerank", "components", "degrees", "triangles"):
        found = graph.analyze(algorithm)
        assert (found.vertices, found.edges, found.table.num_rows) == (0, 0, 0)
    assert graph.analyze("pagerank", write="Person.rank").commit is None


REFUSALS = {
    "'fame' is not an analysis": {"algorithm": "fame"},
    "no edge type 'Likes': it has Knows, WorksAt": {"edges": ["Likes"]},
    "no edge type 'Person'": {"edges": ["Person"]},
    "No edge type is named": {"edges": []},
    "'Person' names no property": {"write": "Person"},
    "'Knows.since' names no property of a node type": {"write": "Knows.since"},
    "Person has no property 'fame': add `fame: F64?`": {"write": "Person.fame"},
    "Person.degree is I64, pagerank needs F64 or F32": {"write": "Person.degree"},
    "Person.rank is F64, degrees needs I64": {"algorithm": "degrees", "write": "Person.rank"},
    "Person.slug is part of a key": {"algorithm": "components", "write": "Person.slug"},
    "Person.bio is a text that a vector is made from": {"algorithm": "components", "write": "Person.bio"},
    "A damping of 1": {"damping": 1},
    "A tolerance of 0": {"tolerance": 0},
    "0 iterations": {"iterations": 0},
    "'up' is no direction": {"direction": "up"},
    "triangles takes edges both ways": {"algorithm": "triangles", "direction": "out"},
    "Unknown engine 'gpu'": {"engine": "gpu"},
    "A limit of -1": {"limit": -1},
}


@pytest.mark.parametrize(("said", "wrong"), REFUSALS.items(), ids=REFUSALS)
def test_a_question_that_makes_no_sense_is_refused_in_a_sentence(
    friends: Graph, said: str, wrong: dict[str, Any]
) -> None:
    with pytest.raises(BadRequest, match=said.replace("?", r"\?").replace("(", r"\(")):
        friends.analyze(**({"algorithm": "pagerank"} | wrong))


@pytest.mark.parametrize(("free", "engine"), [(1 << 40, "local"), (0, "spark")])
def test_where_it_runs_is_decided_by_size(
    friends: Graph, monkeypatch: pytest.MonkeyPatch, free: int, engine: str
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise BadRequest("Spark was wanted.")

    monkeypatch.setattr(machine, "free_memory", lambda: free)
    monkeypatch.setattr(session, "obtain", refused)

    if engine == "local":
        assert friends.analyze("degrees").engine == "local"
    else:
        with pytest.raises(BadRequest, match="Spark was wanted"):
            friends.analyze("degrees")
    assert friends.analyze("degrees", engine="local").engine == "local", "unless it is said"


# On Spark


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
class TestOnSpark:
    """The same answers, computed and written by executors."""

    @pytest.fixture
    def mixed(self, tmp_path: Path) -> Graph:
        """Some dozens of vertices of two types in several fragments, with loops, parallels, dead ends and loners."""
        dice = np.random.default_rng(7)
        people = [f"p{n:02}" for n in range(40)]
        graph = make(tmp_path / "graph", people[:25], [])
        graph.write([Append(PERSON, pa.table({"id": people[25:], "slug": people[25:]}))])
        ends = dice.integers(0, 30, (70, 2)).tolist()
        rows = [
            {"id": f"e{n}", "src": people[s], "dst": people[t]} for n, (s, t) in enumerate([*ends, *ends[:5], (3, 3)])
        ]
        graph.write([Append(KNOWS, pa.Table.from_pylist(rows))])
        graph.write(
            [
                Append(COMPANY, pa.table({"id": ["p00", "y"], "name": ["p00", "y"]})),
                Append(WORKS_AT, pa.table({"id": ["1", "2"], "src": ["p38", "p39"], "dst": ["y", "y"]})),
            ]
        )
        graph.mutate('query q() { delete Person where slug = "p07" }')
        return graph

    @pytest.mark.parametrize(
        "question",
        [
            {"algorithm": "pagerank", "tolerance": 0.05},
            {"algorithm": "components"},
            {"algorithm": "degrees"},
            {"algorithm": "triangles", "edges": ["Knows"]},
        ],
        ids=str,
    )
    def test_answers_are_those_of_this_process(
        self, mixed: Graph, spark_session: SparkSessionHandle, question: dict[str, Any]
    ) -> None:
        here = mixed.analyze(**question, engine="local", limit=None)
        there = mixed.analyze(**question, engine="spark", spark=spark_session.spark, limit=None)

        assert (there.vertices, there.edges, there.iterations) == (here.vertices, here.edges, here.iterations)
        value = here.table.column_names[2]
        one, other = ({(r["type"], r["id"]): r[value] for r in t.to_pylist()} for t in (here.table, there.table))
        assert other == (pytest.approx(one, abs=1e-9) if value == "rank" else one)

    def test_what_it_writes_is_what_this_process_writes(self, mixed: Graph, spark_session: SparkSessionHandle) -> None:
        options: dict[str, Any] = {"engine": "spark", "spark": spark_session.spark}
        found = mixed.analyze("degrees", ["Knows"], "Person.degree", **options)
        written = values(mixed, "degree")

        again = mixed.analyze("degrees", ["Knows"], "Person.degree", engine="local")

        assert found.commit is not None
        assert found.commit.touched == {PERSON: {"updated": 39}}
        assert again.commit is None, "there was nothing left to change"
        assert None not in written.values()

    def test_a_value_that_the_schema_does_not_allow_is_refused_as_here(
        self, mixed: Graph, spark_session: SparkSessionHandle
    ) -> None:
        options: dict[str, Any] = {"engine": "spark", "spark": spark_session.spark}
        with pytest.raises(ConstraintViolation, match="range"):
            mixed.analyze("pagerank", ["WorksAt"], "Company.share", iterations=1, **options)

    def test_an_empty_graph_has_an_empty_answer(self, tmp_path: Path, spark_session: SparkSessionHandle) -> None:
        graph = make(tmp_path / "empty", ["ada"], [])

        found = graph.analyze("pagerank", engine="spark", spark=spark_session.spark, iterations=1)

        assert found.table.to_pylist() == [{"type": "Person", "id": "ada", "rank": 1.0}]
