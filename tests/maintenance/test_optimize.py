"""`optimize`: everything that is due in one commit, which changes nothing that anybody sees."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import omnigraph
from manifest.schedules import World, a_put_of_manifest, stand_in_cleanup
from omnigraph.errors import BadRequest, BranchNotFound, ReadOnly
from omnigraph.graph.graph import Graph
from omnigraph.maintenance import commit as commit_module
from omnigraph.maintenance.commit import optimize
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.manifest.settings import Settings
from omnigraph.pipeline.spark.session import SparkSessionHandle
from omnigraph.read.graph.adjacency_file import adjacency_key
from omnigraph.storage.table.index.segments import VECTORS_MIN
from omnigraph.storage.util.runner import LocalRunner
from support.catalogs import COMPANY, KNOWS, PERSON, company_rows, ids_of, knows_rows, people, person_rows
from support.table_layout import content, head_of, shape, stored, tails

STAGED = Settings(inline_rows=0, maintenance=0)
QUIET = Settings(maintenance=0)
SCHEMA = """
node Doc {
    slug: String @key
    title: String? @index
    rank: I32? @index
    role: enum(a, b)? @index
    vec: Vector(4)? @index
}
edge Cites: Doc -> Doc
"""
DOC, CITES = "node:Doc", "edge:Cites"


class Noted(LocalRunner):
    """Remembers what it ran, and does something first."""

    def __init__(self, first: Callable[[str], None] = lambda stage: None) -> None:
        self.stages: list[tuple[str, int]] = []
        self._first = first

    def run(self, task: Callable[[Any], Any], items: Sequence[Any], **options: Any) -> list[Any]:
        self.stages.append((options["stage"], len(items)))
        self._first(options["stage"])
        return super().run(task, items, **options)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "graph")


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "graph", people(), {"fsync": "false"}, settings=QUIET)


@pytest.fixture
def docs(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "docs", SCHEMA, {"fsync": "false"}, settings=QUIET)


def staging(graph: Graph) -> Graph:
    """The same graph, opened by a process that stages every commit."""
    return omnigraph.open(graph.uri, {"fsync": "false"}, settings=STAGED)


def exported(graph: Graph) -> bytes:
    out = io.BytesIO()
    graph.export(out)
    return out.getvalue()


def load_docs(graph: Graph, first: int, last: int) -> None:
    rng = np.random.default_rng(first)
    numbers = range(first, last)
    graph.load(
        {
            "Doc": pa.table(
                {
                    "slug": [f"d{n:06}" for n in numbers],
                    "title": [f"word{n % 7} text" for n in numbers],
                    "rank": pa.array([n % 50 for n in numbers], pa.int32()),
                    "role": ["ab"[n % 2] for n in numbers],
                    "vec": pa.array(rng.normal(size=(len(numbers), 4)).tolist(), pa.list_(pa.float32(), 4)),
                }
            )
        },
        engine="local",
    )


# What it does


def test_it_leaves_tables_as_if_they_had_just_been_loaded(graph: Graph) -> None:
    staged = staging(graph)
    for n in range(12):
        staged.write([Append(PERSON, person_rows(f"s{n}"))])
    for n in range(12):
        graph.write([Append(PERSON, person_rows(f"p{n}")), Append(KNOWS, knows_rows((f"p{n}", f"s{n}")))])
    graph.write([Upsert(PERSON, person_rows("s3", age=3))])
    graph.write([Delete(PERSON, ("s4",)), Delete(KNOWS, ("p4->s4",))])
    before, written = content(graph), exported(graph)

    result = graph.optimize()

    assert result.commit is not None
    assert result.commit.commit.kind == "optimize"
    assert head_of(graph).manifest_version == result.commit.manifest_version
    assert tails(graph) == {PERSON: 0, KNOWS: 0}
    for key in (PERSON, KNOWS):
        found = stored(graph, key)
        assert (found.fragments, found.segments, found.unindexed, found.deleted) == (1, 1, 0, 0)
    assert content(graph) == before
    assert exported(graph) == written
    assert graph.verify(full=True).problems == ()
    person, knows = result.types[PERSON], result.types[KNOWS]
    assert (person.folded_commits, person.folded_rows) == (14, 14)
    assert (person.fragments_before, person.fragments_after, person.compacted) == (12, 1, 11)
    assert (person.built, knows.built) == (("id_btree",), ("id_btree", "src_btree", "dst_btree"))
    assert knows.adjacency
    assert not person.adjacency


def test_there_is_no_commit_where_nothing_is_due(graph: Graph) -> None:
    graph.write([Append(PERSON, person_rows("ada"))])
    graph.optimize()
    head = head_of(graph)

    result = graph.optimize()

    assert result.commit is None
    assert head_of(graph) == head
    assert not any(report.did_something for report in result.types.values())


def test_an_empty_graph_is_as_it_should_be(graph: Graph) -> None:
    assert graph.optimize().commit is None


def test_only_the_types_that_are_named_are_touched(graph: Graph) -> None:
    graph.write([Append(PERSON, person_rows("ada")), Append(COMPANY, company_rows("acme"))])

    result = graph.optimize(types=["Company"])

    assert set(result.types) == {COMPANY}
    assert tails(graph) == {PERSON: 1, COMPANY: 0}


def test_a_branch_is_optimized_for_itself(graph: Graph) -> None:
    graph.write([Append(PERSON, person_rows("ada"))])
    graph.branches.create("agent")

    graph.optimize("agent")

    assert tails(graph, "agent") == {PERSON: 0}
    assert tails(graph) == {PERSON: 1}
    assert graph.branches.merge("agent").commit is None, "there is nothing to merge"


def test_what_makes_no_sense_is_refused_in_a_sentence(graph: Graph) -> None:
    with pytest.raises(BadRequest, match="no type 'Robot'"):
        graph.optimize(types=["Robot"])
    with pytest.raises(BranchNotFound):
        graph.optimize("nowhere")
    with pytest.raises(BadRequest, match="Unknown engine 'duck'"):
        graph.optimize(engine="duck")  # type: ignore[arg-type]
    with pytest.raises(ReadOnly):
        omnigraph.open(graph.uri, read_only=True).optimize()


def test_declared_indexes_are_built_and_extended(docs: Graph) -> None:
    load_docs(docs, 0, 40)
    columns = {prop.name: prop.column for prop in docs.snapshot().pinned.catalog.type_of(DOC).properties}
    names = ["slug", "title", "rank", "role"]
    btrees = {"id_btree", *(f"{columns[name]}_btree" for name in names)}

    first = docs.optimize().types[DOC]
    load_docs(docs, 40, 60)
    second = docs.optimize().types[DOC]

    assert set(first.built) == btrees | {f"{columns['title']}_full_text"}
    assert first.extended == ()
    assert set(second.extended) == set(first.built)
    assert second.built == ()
    assert stored(docs, DOC).unindexed == 0
    assert stored(docs, DOC).segments == 1


def test_a_vector_index_waits_for_enough_vectors_and_the_report_says_so(docs: Graph) -> None:
    load_docs(docs, 0, 40)

    report = docs.optimize().types[DOC]

    (pending,) = report.pending
    assert str(VECTORS_MIN) in pending
    assert "40" in pending
    assert docs.optimize().types[DOC].pending == report.pending
    assert docs.optimize().commit is None


def test_a_vector_index_is_built_of_enough(docs: Graph) -> None:
    load_docs(docs, 0, VECTORS_MIN)
    load_docs(docs, VECTORS_MIN, VECTORS_MIN + 50)

    report = docs.optimize().types[DOC]

    assert report.pending == ()
    assert stored(docs, DOC).unindexed == 0
    vectors = [segment for segment in shape(docs, DOC).segments if segment.index.endswith("_vector")]
    assert len(vectors) == 1


def test_an_index_that_is_no_longer_declared_is_removed(docs: Graph) -> None:
    load_docs(docs, 0, 40)
    docs.optimize()
    docs.schema.apply(SCHEMA.replace("rank: I32? @index", "rank: I32?"))

    docs.optimize()

    assert not [one for one in shape(docs, DOC).segments if one.index.endswith("_btree") and "rank" in one.index]
    assert len({one.index for one in shape(docs, DOC).segments}) == 5


def test_rows_that_were_written_under_another_schema_are_folded_as_they_read(docs: Graph) -> None:
    docs.mutate('query a() { insert Doc { slug: "old", rank: 1 } }')
    docs.schema.apply(SCHEMA.replace("rank: I32? @index", "rank: I32? @index\n    note: String?"))
    docs.mutate('query a() { insert Doc { slug: "new", rank: 2, note: "hello" } }')
    ask = "query q() { match { $d: Doc } return { $d.slug as s, $d.rank as r, $d.note as n } order { s } }"
    before = docs.query(ask).rows

    docs.optimize()

    assert docs.query(ask).rows == before == [{"s": "new", "r": 2, "n": "hello"}, {"s": "old", "r": 1, "n": None}]
    assert tails(docs) == {DOC: 0}
    docs.schema.apply(
        docs.schema.show()
        .replace("node Doc {", 'node Paper @rename_from("Doc") {')
        .replace(": Doc -> Doc", ": Paper -> Paper")
    )
    docs.mutate('query a() { insert Paper { slug: "more" } }')
    docs.optimize()
    assert [row["s"] for row in docs.query(ask.replace("Doc", "Paper")).rows] == ["more", "new", "old"]
    assert docs.verify(full=True).problems == ()


def test_adjacency_is_saved_beside_the_table_version_and_used(docs: Graph) -> None:
    load_docs(docs, 0, 40)
    docs.mutate('query a() { insert Cites { from: "d000001", to: "d000002" } }')
    docs.mutate('query a() { insert Cites { from: "d000002", to: "d000003" } }')

    assert docs.optimize().types[CITES].adjacency

    ref = head_of(docs).tables[CITES].stored
    assert ref is not None
    saved = docs.repository.store.get(adjacency_key(ref))
    assert saved is not None
    assert not docs.optimize().types[CITES].adjacency, "it is there"
    docs.mutate('query a() { insert Cites { from: "d000003", to: "d000004" } }')
    reached = omnigraph.open(docs.uri).query(
        'query r() { match { $a: Doc { slug: "d000001" } $a cites{1,5} $b } return { $b.slug as slug } order { slug } }'
    )
    assert [row["slug"] for row in reached.rows] == ["d000002", "d000003", "d000004"]
    assert docs.optimize().types[CITES].adjacency, "another version has its own"


# Races (`maintenance-rebase`)


def test_a_compaction_is_carried_over_a_staged_write_and_not_done_again(world: World) -> None:
    keeper, writer = world.client("keeper"), staging(world.client("writer").graph)
    for n in range(5):
        writer.write([Append(PERSON, person_rows(f"p{n}", age=n))])
    number, noted = keeper.head().manifest_version, Noted()

    with keeper.start(lambda: optimize(keeper.repository, choose=lambda _: noted)) as stalled:
        stalled.run_until(a_put_of_manifest(number + 1))
        writer.write([Append(PERSON, person_rows("late"))])
        before = content(writer)
        stalled.run_to_end()
        result = stalled.result()

    assert result.commit is not None
    assert [stage for stage, _ in noted.stages].count("compact") == 1
    assert content(world.client("reader").graph) == before
    assert stored(writer, PERSON).unindexed == 0
    assert stored(writer, PERSON).fragments == 2, "what came meanwhile is as it came"


def test_a_compaction_of_fragments_that_lost_rows_is_planned_again(world: World) -> None:
    keeper, writer = world.client("keeper"), staging(world.client("writer").graph)
    for n in range(5):
        writer.write([Append(PERSON, person_rows(f"p{n}", age=n))])
    number, noted = keeper.head().manifest_version, Noted()

    with keeper.start(lambda: optimize(keeper.repository, choose=lambda _: noted)) as stalled:
        stalled.run_until(a_put_of_manifest(number + 1))
        writer.write([Upsert(PERSON, person_rows("p1", age=99))])
        writer.write([Delete(PERSON, ("p3",))])
        before = content(writer)
        stalled.run_to_end()
        assert stalled.result().commit is not None

    assert [stage for stage, _ in noted.stages].count("compact") == 2
    assert content(world.client("reader").graph) == before
    assert stored(writer, PERSON).fragments == 1


def test_two_runs_at_once_leave_every_row_once_and_one_segment_an_index(world: World) -> None:
    one, other = world.client("one"), world.client("other")
    for n in range(5):
        one.insert(f"p{n}")
    number, before = one.head().manifest_version, content(one.graph)

    with one.start(lambda: one.graph.optimize()) as stalled:
        stalled.run_until(a_put_of_manifest(number + 1))
        assert other.graph.optimize().commit is not None
        stalled.run_to_end()
        assert stalled.result().commit is None, "there was nothing left to do"

    assert content(world.client("reader").graph) == before
    assert stored(one.graph, PERSON).segments == 1


def test_an_index_that_another_run_has_built_is_not_built_twice(world: World) -> None:
    one, other = world.client("one"), world.client("other")
    writer = staging(one.graph)
    writer.write([Append(PERSON, person_rows("ada", "bob"))])

    with one.start(lambda: one.graph.optimize()) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        other.graph.optimize()
        writer.write([Append(PERSON, person_rows("eve"))])
        stalled.run_to_end()
        stalled.result()

    assert stored(one.graph, PERSON).segments == 1
    assert stored(one.graph, PERSON).unindexed == 0
    assert world.client("reader").people() == ["ada", "bob", "eve"]


def test_a_fence_makes_it_stage_everything_again(world: World) -> None:
    keeper, cleaner = world.client("keeper"), world.client("cleaner")
    writer = staging(keeper.graph)
    for n in range(3):
        writer.write([Append(PERSON, person_rows(f"p{n}"))])
    number, noted = keeper.head().manifest_version, Noted()

    with keeper.start(lambda: optimize(keeper.repository, choose=lambda _: noted)) as stalled:
        stalled.run_until(a_put_of_manifest(number + 1))
        stand_in_cleanup(cleaner, oldest_retained=1)
        stalled.run_to_end()
        assert stalled.result().commit is not None

    assert [stage for stage, _ in noted.stages].count("compact") == 2
    assert world.client("reader").people() == ["p0", "p1", "p2"]


def test_a_table_that_changes_in_every_attempt_is_reported_and_the_rest_is_committed(graph: Graph) -> None:
    writer = staging(graph)
    for n in range(4):
        writer.write([Append(PERSON, person_rows(f"p{n}")), Append(COMPANY, company_rows(f"c{n}"))])
    moves = iter(range(1_000))

    def move(stage: str) -> None:
        writer.write([Upsert(PERSON, person_rows("p0", "p1", "p2", "p3", age=next(moves)))])

    noted = Noted(move)
    result = optimize(graph.repository, choose=lambda _: noted)

    assert result.commit is not None
    assert result.types[COMPANY].pending == ()
    assert stored(graph, COMPANY).fragments == 1
    assert any("changed" in reason for reason in result.types[PERSON].pending)
    assert next(moves) < 4 * commit_module.ATTEMPTS_MAX
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["p0", "p1", "p2", "p3"]


def test_strict_writers_and_conditions_are_not_affected(graph: Graph) -> None:
    graph.write([Append(PERSON, person_rows("ada", "bob"))])
    held, commit = graph.begin(), head_of(graph).logical_head

    graph.optimize()
    graph.write([Delete(PERSON, ("bob",))], txn=held)
    graph.optimize()
    with pytest.raises(omnigraph.errors.PreconditionFailed):
        graph.write([Append(PERSON, person_rows("eve"))], if_commit=commit)
    graph.write([Append(PERSON, person_rows("eve"))], if_commit=head_of(graph).logical_head)

    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada", "eve"]


@pytest.mark.parametrize("requests", [0, 1, 2, 3, 4, 5, 6])
def test_killed_before_any_of_its_requests_it_leaves_the_graph_as_it_was(world: World, requests: int) -> None:
    writer, keeper = world.client("writer"), world.client("keeper")
    writer.insert("ada", "bob")
    writer.graph.write([Append(KNOWS, knows_rows(("ada", "bob")))])
    before = content(writer.graph)

    with keeper.start(lambda: keeper.graph.optimize()) as doomed:
        for _ in range(requests):
            if not doomed.done:
                doomed.step()
        doomed.kill()

    reader = world.client("reader")
    assert content(reader.graph) == before
    reader.graph.optimize()
    assert content(reader.graph) == before
    assert tails(reader.graph) == {PERSON: 0, KNOWS: 0}


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_executors_do_the_same(graph: Graph, spark_session: SparkSessionHandle) -> None:
    writer = staging(graph)
    for n in range(4):
        writer.write([Append(PERSON, person_rows(f"p{n}"))])
    graph.write([Append(PERSON, person_rows("late"))])
    before = content(graph)

    result = graph.optimize(engine="spark", spark=spark_session.spark)

    assert result.commit is not None
    assert content(graph) == before
    assert (stored(graph, PERSON).fragments, stored(graph, PERSON).unindexed) == (1, 0)
