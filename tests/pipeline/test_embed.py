"""`embed`: rows that lack a vector get one, some commits at a time, whatever happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import omnigraph
from omnigraph.errors import BadRequest, ReadOnly
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append
from omnigraph.pipeline.embedding.tasks import Pacer
from omnigraph.pipeline.spark.session import SparkSessionHandle
from omnigraph.read.search.embedding import OFFLINE_MODEL, OfflineEmbedder, ProviderUnavailable
from omnigraph.runtime import Runtime
from support.arrow import values_of

SCHEMA = """
node Doc { slug: String @key  body: String?  title: String?  vec: Vector(8)? @embed("body")
           title_vec: Vector(4)? @embed("title") }
node Note { text: String  vec: Vector(8)? @embed("text") }
node Plain { name: String }
"""
DOC, NOTE = "node:Doc", "node:Note"


@dataclass
class Recording:
    """An embedder that remembers what it was asked, and may do something else first."""

    before: Callable[[int, Sequence[str]], None] = lambda number, texts: None
    model: str = "recording"
    provider: str = "test"
    asked: list[list[str]] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)

    def embed(self, texts: Sequence[str], dimension: int) -> list[list[float]]:
        with self._lock:
            self.asked.append(list(texts))
            number = len(self.asked)
        self.before(number, texts)
        return OfflineEmbedder().embed(texts, dimension)

    @property
    def texts(self) -> list[str]:
        return sorted(text for batch in self.asked for text in batch)


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA, {"fsync": "false"})
    add(graph, *[f"d{n}" for n in range(10)])
    return graph


def add(graph: Graph, *slugs: str, **columns: Any) -> None:
    rows = {
        "id": list(slugs),
        "slug": list(slugs),
        "body": [f"the text of {slug}" for slug in slugs],
        "title": list(slugs),
    }
    graph.write([Append(DOC, pa.table(rows | columns))])


def vectors(graph: Graph, column: str = "vec", key: str = DOC, branch: str = "main") -> dict[str, Any]:
    rows = graph.snapshot(branch).to_arrow(key, ["id", column])
    return dict(zip(values_of(rows.column("id")), values_of(rows.column(column)), strict=True))


def test_rows_that_lack_a_vector_get_the_one_of_their_text(graph: Graph) -> None:
    result = graph.embed("Doc", "vec", embedder=OfflineEmbedder(), actor="ada")

    for slug, vector in vectors(graph).items():
        (expected,) = OfflineEmbedder().embed([f"the text of {slug}"], 8)
        np.testing.assert_allclose(vector, expected, atol=1e-6)
    assert set(vectors(graph, "title_vec").values()) == {None}
    assert result.embedded == result.rows == 10
    (commit,) = result.commits
    assert (commit.commit.kind, commit.commit.actor, commit.touched) == ("embed", "ada", {DOC: {"updated": 10}})


def test_all_vectors_of_all_types_are_filled_where_none_is_named(graph: Graph) -> None:
    graph.write([Append(NOTE, pa.table({"id": ["n"], "text": ["hello"]}))])

    result = graph.embed(embedder=OfflineEmbedder())

    assert result.embedded == 21
    assert None not in {**vectors(graph), **vectors(graph, "title_vec"), **vectors(graph, key=NOTE)}.values()


def test_a_vector_that_is_there_is_left_alone_and_a_second_run_asks_nothing(graph: Graph) -> None:
    graph.embed("Doc", "vec", embedder=OfflineEmbedder())
    before = vectors(graph)
    add(graph, "new")
    again = Recording(model=OFFLINE_MODEL, provider="offline")

    result = graph.embed("Doc", "vec", embedder=again)
    third = graph.embed("Doc", "vec", embedder=again)

    assert again.texts == ["the text of new"]
    assert (result.embedded, third.embedded, third.commits) == (1, 0, ())
    assert {slug: vector for slug, vector in vectors(graph).items() if slug != "new"} == before


@pytest.mark.parametrize("text", [None, "", "  \n"])
def test_a_row_without_a_text_is_skipped(graph: Graph, text: str | None) -> None:
    add(graph, "mute", body=[text])

    result = graph.embed("Doc", "vec", embedder=OfflineEmbedder())

    assert vectors(graph)["mute"] is None
    assert (result.embedded, result.estimates[0].skipped) == (10, 1)


def test_texts_go_out_in_batches_and_commits_hold_some_batches(graph: Graph) -> None:
    embedder = Recording()

    result = graph.embed("Doc", "vec", batch=3, commit_every=2, embedder=embedder)

    assert sorted(map(len, embedder.asked)) == [1, 3, 3, 3]
    assert [commit.touched for commit in result.commits] == [{DOC: {"updated": 6}}, {DOC: {"updated": 4}}]


def test_one_commit_at_the_end_if_that_is_wanted(graph: Graph) -> None:
    assert len(graph.embed("Doc", "vec", batch=2, commit_every=None, embedder=OfflineEmbedder()).commits) == 1


def test_the_schema_says_which_model_made_the_vectors_and_another_is_refused(graph: Graph) -> None:
    graph.embed("Doc", "vec", embedder=OfflineEmbedder())

    by_whom = graph.snapshot().pinned.catalog.by_name["Doc"].by_name["vec"].embed
    add(graph, "new")

    assert by_whom is not None
    assert (by_whom.provider, by_whom.model) == ("offline", OFFLINE_MODEL)
    with pytest.raises(BadRequest, match="was embedded by 'hashed-words-1' of offline"):
        graph.embed("Doc", "vec", embedder=Recording())


def test_two_runs_with_different_models_at_once_never_mix_vectors(graph: Graph) -> None:
    def another_run(number: int, texts: Sequence[str]) -> None:
        graph.embed("Doc", "vec", embedder=OfflineEmbedder())

    with pytest.raises(BadRequest, match="was embedded by 'hashed-words-1'"):
        graph.embed("Doc", "vec", embedder=Recording(another_run))

    assert None not in vectors(graph).values()


def test_a_text_that_changed_while_its_vector_was_on_the_way_gets_the_new_ones_vector(graph: Graph) -> None:
    def change(number: int, texts: Sequence[str]) -> None:
        if number == 1:
            graph.mutate('query q() { update Doc set { body: "quite another" } where slug = "d3" }')

    embedder = Recording(change)
    graph.embed("Doc", "vec", embedder=embedder)

    (expected,) = OfflineEmbedder().embed(["quite another"], 8)
    np.testing.assert_allclose(vectors(graph)["d3"], expected, atol=1e-6)
    assert embedder.asked[-1] == ["quite another"], "the others were not asked again"
    assert None not in vectors(graph).values()


def test_a_row_that_went_meanwhile_stays_away(graph: Graph) -> None:
    def remove(number: int, texts: Sequence[str]) -> None:
        if number == 1:
            graph.mutate('query q() { delete Doc where slug = "d3" }')

    graph.embed("Doc", "vec", embedder=Recording(remove))

    assert "d3" not in vectors(graph)
    assert len(vectors(graph)) == 9


def test_other_changes_to_the_rows_are_kept(graph: Graph) -> None:
    def change(number: int, texts: Sequence[str]) -> None:
        if number == 1:
            graph.mutate('query q() { update Doc set { title: "new" } where slug = "d3" }')

    graph.embed("Doc", "vec", embedder=Recording(change))

    titles = graph.snapshot().lookup(DOC, ["d3"], ["title", "vec"]).to_pylist()
    assert titles[0]["title"] == "new"
    assert titles[0]["vec"] is not None


@pytest.mark.parametrize(
    "error", [ProviderUnavailable("http://x", "busy"), KeyboardInterrupt()], ids=["error", "Ctrl-C"]
)
def test_what_was_asked_before_a_failure_is_kept_and_the_next_run_asks_only_for_the_rest(
    graph: Graph, error: BaseException
) -> None:
    def fail(number: int, texts: Sequence[str]) -> None:
        if number == 4:
            raise error

    first = Recording(fail)
    with pytest.raises(type(error)):
        graph.embed("Doc", "vec", batch=2, commit_every=2, concurrency=1, embedder=first)
    done = [slug for slug, vector in vectors(graph).items() if vector is not None]

    second = Recording()
    graph.embed("Doc", "vec", embedder=second)

    assert len(done) == 6
    assert len(second.texts) == 4
    assert sorted(set(first.texts) - set(second.texts)) == sorted(f"the text of {slug}" for slug in done)


def test_a_text_that_the_provider_refuses_is_found_and_the_others_pass(graph: Graph) -> None:
    def refuse(number: int, texts: Sequence[str]) -> None:
        if "the text of d4" in texts:
            raise BadRequest("The embedding endpoint http://x answered 400: too long. Check the texts.")

    result = graph.embed("Doc", "vec", embedder=Recording(refuse))

    assert [slug for slug, vector in vectors(graph).items() if vector is None] == ["d4"]
    assert result.embedded == 9
    ((row, reason),) = result.refused
    assert row == "Doc d4"
    assert "too long" in reason


def test_a_provider_that_refuses_everything_ends_the_run(graph: Graph) -> None:
    def refuse(number: int, texts: Sequence[str]) -> None:
        raise BadRequest("The embedding endpoint http://x answered 400: no such model.")

    with pytest.raises(BadRequest, match="no such model"):
        graph.embed("Doc", "vec", embedder=Recording(refuse))

    assert set(vectors(graph).values()) == {None}


def test_at_most_so_many_requests_run_at_once(graph: Graph) -> None:
    running = threading.Semaphore(2)
    crowded = threading.Event()

    def watch(number: int, texts: Sequence[str]) -> None:
        if not running.acquire(blocking=False):
            crowded.set()
        threading.Event().wait(0.01)
        running.release()

    graph.embed("Doc", "vec", batch=1, concurrency=2, embedder=Recording(watch))

    assert not crowded.is_set()


class SteppingClock:
    """A clock that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.at = 0.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.at)

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds


def test_requests_keep_their_distance() -> None:
    clock = SteppingClock()
    pacer = Pacer(0.5, Runtime(clock))

    for _ in range(4):
        pacer.wait()

    assert clock.slept == [0.5, 0.5, 0.5]


def test_a_rate_limit_is_in_requests_a_minute(graph: Graph) -> None:
    import time

    start = time.monotonic()
    graph.embed("Doc", "vec", batch=2, rate_limit=1200, embedder=OfflineEmbedder())

    assert time.monotonic() - start >= 4 * 60 / 1200


def test_a_dry_run_says_what_it_takes_and_asks_nothing(graph: Graph) -> None:
    add(graph, "mute", body=[None])
    embedder = Recording()

    result = graph.embed("Doc", "vec", batch=4, dry_run=True, price_per_1k=0.02, embedder=embedder)

    (estimate,) = result.estimates
    assert (estimate.rows, estimate.characters, estimate.tokens, estimate.requests) == (10, 140, 35, 3)
    assert estimate.skipped == 1
    assert result.price == pytest.approx(0.0007)
    assert embedder.asked == []
    assert set(vectors(graph).values()) == {None}


def test_a_dry_run_needs_no_right_to_write(graph: Graph) -> None:
    reading = omnigraph.open(graph.uri, {"fsync": "false"}, read_only=True)

    assert reading.embed("Doc", "vec", dry_run=True, embedder=OfflineEmbedder()).rows == 10
    with pytest.raises(ReadOnly):
        reading.embed("Doc", "vec", embedder=OfflineEmbedder())


def test_it_works_on_the_branch_that_is_named(graph: Graph) -> None:
    graph.branches.create("b")

    graph.embed("Doc", "vec", "b", embedder=OfflineEmbedder())

    assert set(vectors(graph).values()) == {None}
    assert None not in vectors(graph, branch="b").values()


def test_progress_is_reported(graph: Graph) -> None:
    told: list[tuple[int, int]] = []

    graph.embed(
        "Doc", "vec", batch=5, concurrency=1, embedder=OfflineEmbedder(), on_progress=lambda *step: told.append(step)
    )

    assert told == [(5, 10), (10, 10)]


def test_a_search_finds_the_texts_by_their_new_vectors(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIGRAPH_EMBED_PROVIDER", "offline")
    graph.embed("Doc", "vec")

    found = graph.query(
        'query q() { match { $d: Doc } return { $d.slug } order { nearest($d.vec, "the text of d7") } limit 1 }'
    )

    assert found.to_arrow().column(0).to_pylist() == ["d7"]


REFUSALS: dict[str, dict[str, Any]] = {
    "no type 'Dok'": {"type": "Dok"},
    "Plain has no vector with @embed": {"type": "Plain"},
    "Doc.body has no vector with @embed": {"type": "Doc", "property": "body"},
    "A batch of 0": {"batch": 0},
    "A batch of 129 texts is too large": {"batch": 129},
    "A rate limit of 0": {"rate_limit": 0},
    "Concurrency of 0": {"concurrency": 0},
    "commit_every of 0": {"commit_every": 0},
    "A price of -1": {"price_per_1k": -1},
    "Unknown engine 'gpu'": {"engine": "gpu"},
}


@pytest.mark.parametrize(("said", "wrong"), REFUSALS.items(), ids=REFUSALS)
def test_what_makes_no_sense_is_refused_in_a_sentence(graph: Graph, said: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=said):
        graph.embed(**wrong, embedder=OfflineEmbedder())


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_executors_fill_the_same_vectors(graph: Graph, spark_session: SparkSessionHandle) -> None:
    graph.branches.create("here")
    graph.embed("Doc", branch="here", embedder=OfflineEmbedder())

    result = graph.embed("Doc", batch=4, engine="spark", spark=spark_session.spark, embedder=OfflineEmbedder())

    assert result.embedded == 20
    for column in ("vec", "title_vec"):
        assert vectors(graph, column) == vectors(graph, column, branch="here")
