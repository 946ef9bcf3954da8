"""Full text: the same rows are found whatever part of them is indexed, stored or laid on top."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import (
    Append,
    ConflictPolicy,
    DataChange,
    Delete,
    Index,
    PublishPlan,
    StagedTable,
    Upsert,
)
from omnigraph.manifest.model.manifest import RowCounts
from omnigraph.manifest.settings import Settings
from omnigraph.query.compile import compile_queries
from omnigraph.query.ir import Bm25, Literal, Prop, TextSearch, TextSearchKind
from omnigraph.read.reader import SnapshotReader
from omnigraph.read.search.row_locations import NAMED_IDS_MAX, CandidateRows, positions_in
from omnigraph.read.search.search import rank_positions, rank_scores, text_matches
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.schema.arrow import arrow_schema
from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.table.index import segments as index_segments
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.read.search import edit_distance, words
from omnigraph.threads import gather
from support.s3 import S3Location

STORED = Settings(inline_rows=0)  # however few rows there are
CATALOG = compile_schema("node Doc { slug: String @key  body: String? @index  note: String? }").catalog
DOC = "node:Doc"
BODY, NOTE = (CATALOG.type_of(DOC).by_name[name].column for name in ("body", "note"))
Texts = Mapping[str, str | None]


def rows(texts: Texts) -> pa.Table:
    schema = arrow_schema(CATALOG.type_of(DOC))
    columns: dict[str, list[str | None]] = {"id": list(texts), BODY: list(texts.values())}
    return pa.table([pa.array(columns.get(f.name, [None] * len(texts)), f.type) for f in schema], schema=schema)


@contextmanager
def empty_graph() -> Iterator[Graph]:
    folder = tempfile.mkdtemp()
    try:
        yield omnigraph.init(f"{folder}/g", CATALOG, {"fsync": "false"}, settings=STORED)
    finally:
        shutil.rmtree(folder)


def reader_of(graph: Graph, overlay: Overlay = Overlay.EMPTY) -> SnapshotReader:
    overlays = {} if overlay.is_empty else {DOC: overlay}
    return SnapshotReader(graph.repository.tables, graph.repository.snapshot("main"), ReadCache(), overlays)


def indexed(graph: Graph) -> None:
    """A full-text segment over all fragments that have none, as a large write or maintenance would have it."""

    repository = graph.repository
    txn = repository.open_txn("main")
    ref = txn.table(DOC)
    at = None if ref is None else ref.stored
    if ref is None or at is None:
        return
    dataset = repository.tables.open(at)
    missing = index_segments.unindexed_fragments(dataset, DeclaredIndex(BODY, "full_text"))
    if not missing:
        return
    segment = index_segments.build_full_text_segment(dataset, BODY, missing)
    made = repository.tables.commit_operation(at, lance.LanceOperation.CreateIndex([segment], []))
    staged = {DOC: StagedTable(made.at, made.rows, RowCounts(), ref.stored)}
    plan = PublishPlan("x" * 26, ConflictPolicy.MAINTENANCE, DataChange("index", (Index(DOC),), staged))
    repository.publisher.publish(txn, plan)


def condition(kind: TextSearchKind, query: str | None, edits: int = 0) -> TextSearch:
    call = f'{kind}($d.body, "x"{", 1" if kind == "fuzzy" else ""})'
    text = f"query q() {{ match {{ $d: Doc  {call} }} return {{ $d.id }} }}"
    bound = compile_queries(text, CATALOG).bind_read({}, now=datetime(2026, 1, 1, tzinfo=UTC))
    (found,) = bound.pattern.filters
    assert isinstance(found, TextSearch)
    edited = None if found.edits is None else Literal(edits, found.edits.type)
    return TextSearch(kind, found.field, Literal(query, found.query.type), edited)


def found(reader: SnapshotReader, kind: TextSearchKind, query: str | None, edits: int = 0) -> list[str]:
    ids: list[Any] = text_matches(reader, condition(kind, query, edits), reader.state(DOC)).to_pylist()
    assert len(ids) == len(set(ids))
    return sorted(ids)


def expected(texts: Texts, kind: TextSearchKind, query: str, edits: int) -> list[str]:
    """By the words of each text, one text after another."""
    wanted = words(query)

    def fits(text: str | None) -> bool:
        have = [] if text is None else words(text)
        if not wanted:
            return False
        if kind == "search":
            return any(word in have for word in wanted)
        if kind == "fuzzy":
            return all(any(edit_distance(word, other) <= edits for other in have) for word in wanted)
        return any(have[i : i + len(wanted)] == wanted for i in range(len(have)))

    return sorted(id_ for id_, text in texts.items() if fits(text))


BOOKS: Texts = {
    "fox": "The quick brown fox jumps over the lazy dog",
    "runs": "Running in the café, she runs",
    "ran": "He ran",
    "quick": "brown quick",
    "none": None,
    "empty": "",
    "marks": "?!... -- '",
    "long": "a" * 120 + " end",
}


@pytest.fixture(scope="module", params=["none", "part", "all", "overlay", "only overlay"])
def books(request: pytest.FixtureRequest) -> Iterator[SnapshotReader]:
    """The same documents, with an index over none, part or all of them, or partly not stored at all."""
    first = dict(list(BOOKS.items())[:3])
    rest = {id_: text for id_, text in BOOKS.items() if id_ not in first}
    with empty_graph() as graph:
        match request.param:
            case "none" | "all" | "part":
                graph.write([Append(DOC, rows(first))])
                if request.param == "part":
                    indexed(graph)
                graph.write([Append(DOC, rows(rest))])
                if request.param == "all":
                    indexed(graph)
                yield reader_of(graph)
            case "overlay":
                graph.write([Append(DOC, rows({**first, "runs": "quick old image", "gone": "quick quick"}))])
                indexed(graph)
                yield reader_of(graph, Overlay.of(rows({**rest, "runs": BOOKS["runs"]}), ["gone"]))
            case "only overlay":
                yield reader_of(graph, Overlay.of(rows(BOOKS)))


def test_search_finds_any_of_the_words_stemmed_and_in_lower_case(books: SnapshotReader) -> None:
    assert found(books, "search", "QUICK zebra") == ["fox", "quick"]
    assert found(books, "search", "run") == ["runs"]
    assert found(books, "search", "cafe") == ["runs"]
    assert found(books, "search", "the") == ["fox", "runs"]


def test_a_phrase_is_all_of_its_words_in_order(books: SnapshotReader) -> None:
    assert found(books, "match_text", "quick brown") == ["fox"]
    assert found(books, "match_text", "jumped over the lazy") == ["fox"]
    assert found(books, "match_text", "over lazy") == []


def test_a_phrase_of_any_length_is_found_where_all_of_it_is() -> None:
    pieces = [" ".join(f"{letter}{number}s" for number in range(40)) for letter in "abc"]
    long = " ".join(pieces)
    texts = {"long": f"before {long} after", "moved": " ".join(reversed(pieces)), "short": pieces[0]}
    with empty_graph() as graph:
        graph.write([Append(DOC, rows({"long": texts["long"]}))])
        indexed(graph)
        reader = reader_of(graph, Overlay.of(rows({"moved": texts["moved"], "short": texts["short"]})))

        assert found(reader, "match_text", long) == ["long"]
        assert found(reader, "match_text", texts["moved"]) == ["moved"]
        assert found(reader, "match_text", " ".join(pieces[:2])) == ["long"]
        assert found(reader, "match_text", f"{long} {pieces[0]}") == []


def test_fuzzy_compares_no_words_of_other_lengths(books: SnapshotReader) -> None:
    assert found(books, "fuzzy", "x" * 100_000, 2) == []


def test_fuzzy_wants_each_word_within_so_many_letters(books: SnapshotReader) -> None:
    assert found(books, "fuzzy", "quik brwn", 1) == ["fox", "quick"]
    assert found(books, "fuzzy", "quik brwn", 0) == []
    assert found(books, "fuzzy", "quik brwn zebra", 2) == []
    assert found(books, "fuzzy", "qqqqqqqqqq", 8) == expected(BOOKS, "fuzzy", "qqqqqqqqqq", 8)


@pytest.mark.parametrize("kind", ["search", "fuzzy", "match_text"])
def test_a_query_without_words_finds_nothing(books: SnapshotReader, kind: TextSearchKind) -> None:
    for query in ("", " ", "?!", "-- ...", None):
        assert found(books, kind, query, 2) == []


def test_words_of_any_length_are_found(books: SnapshotReader) -> None:
    assert found(books, "search", "a" * 120) == ["long"]
    assert found(books, "fuzzy", "b" + "a" * 118, 2) == ["long"]


def bm25(query: str | None) -> Bm25:
    return Bm25(condition("search", query).field, Literal(query, condition("search", "x").query.type))


def scores(reader: SnapshotReader, query: str | None, among: Sequence[str], top: int | None = None) -> dict[str, float]:
    values: list[Any] = rank_scores(reader, bm25(query), pa.array(among, pa.string()), top).to_pylist()
    assert len(values) == len(among)
    return {id_: value for id_, value in zip(among, values, strict=True) if value is not None}


def test_scores_are_of_what_is_found_among_the_candidates(books: SnapshotReader) -> None:
    whole = scores(books, "quick fox dog", sorted(BOOKS))

    assert whole.keys() == {"fox", "quick"}
    assert whole["fox"] > whole["quick"] > 0
    assert scores(books, "quick fox dog", ["quick", "none"]) == {"quick": whole["quick"]}
    assert scores(books, "quick fox dog", []) == {}
    assert scores(books, "", sorted(BOOKS)) == scores(books, None, sorted(BOOKS)) == {}


@pytest.mark.parametrize("books", ["none", "part", "all", "only overlay"], indirect=True)
def test_scores_do_not_depend_on_what_is_indexed(books: SnapshotReader) -> None:
    have = {id_: words(text) for id_, text in BOOKS.items() if text and words(text)}
    average = sum(map(len, have.values())) / len(have)
    usual: dict[str, float] = {}
    for word in words("quick runs"):
        documents = sum(word in text for text in have.values())
        rarity = math.log(1 + (len(have) - documents + 0.5) / (documents + 0.5))
        for id_, text in have.items():
            if frequency := text.count(word):
                damped = frequency + 1.2 * (0.25 + 0.75 * len(text) / average)
                usual[id_] = usual.get(id_, 0.0) + rarity * frequency * 2.2 / damped

    assert scores(books, "quick runs", sorted(BOOKS)) == pytest.approx(usual, rel=1e-5)


def test_places_are_counted_over_the_candidates_with_equals_by_id(books: SnapshotReader) -> None:
    among = pa.array(["quick", "ran", "fox", "none"])

    assert rank_positions(books, bm25("quick"), among).tolist() == [1, 0, 2, 0]


def test_the_best_come_with_all_that_are_as_good_as_the_last() -> None:
    texts = {f"d{i:03}": "same words here" for i in range(100)} | {"best": "words words"}
    with empty_graph() as graph:
        graph.write([Append(DOC, rows(texts))])
        reader = reader_of(graph)
        assert len(scores(reader, "words", sorted(texts), top=3)) == 101
        top = scores(reader, "words", sorted(texts), top=1)

    assert max(top, key=lambda id_: top[id_]) == "best"


def test_candidates_may_be_named_or_sorted_out_afterwards() -> None:
    """Few are named to Lance, in its own terms if their ids are in memory; of many its answer is narrowed down."""
    texts = {f"d{i}": "common" if i % 3 else "common rare" for i in range(NAMED_IDS_MAX * 2)}
    with empty_graph() as graph:
        graph.write([Append(DOC, rows(texts))])
        cold, warm = reader_of(graph), reader_of(graph)
        warm.caches.clear()
        located = CandidateRows(warm, warm.state(DOC))
        assert located.rows.ids(located.rows.numbers_of(pa.array(["d1"]))).to_pylist() == ["d1"]
        everything = scores(warm, "rare", list(texts))
        for reader in (cold, warm):
            for count in (10, NAMED_IDS_MAX, NAMED_IDS_MAX + 1, len(texts)):
                some = list(texts)[-count:]
                wanted = {id_: score for id_, score in everything.items() if id_ in set(some)}
                assert scores(reader, "rare", some) == pytest.approx(wanted)
                assert scores(reader, "rare", some, top=5).items() <= wanted.items()


def test_a_column_without_an_index_can_be_searched(books: SnapshotReader) -> None:
    asked = condition("search", "anything")
    note = Prop(asked.field.var, DOC, type(asked.field.column)("n", "note", NOTE, asked.field.type, True))

    assert text_matches(books, TextSearch("search", note, asked.query), books.state(DOC)).to_pylist() == []


def test_an_empty_table_finds_nothing() -> None:
    with empty_graph() as graph:
        assert found(reader_of(graph), "search", "quick") == []
        graph.write([Append(DOC, rows({"a": "quick"}))])
        graph.write([Delete(DOC, ("a",))])
        assert found(reader_of(graph), "search", "quick") == []
        assert scores(reader_of(graph), "quick", []) == {}


def test_places_in_a_list_of_ids() -> None:
    ids = pa.array(["c", "a", "b"])

    assert positions_in(ids, pa.array(["b", "x", "c"])).tolist() == [2, -1, 0]
    assert positions_in(ids, pa.array(["x", "b", "y", "z"])).tolist() == [-1, 2, -1, -1]
    assert positions_in(ids, pa.array([], pa.string())).tolist() == []


WORDS = [
    *("a", "b", "ab", "ba", "aab", "running", "run", "runs", "the", "The", "of", "café", "cafe", "Straße", "don't"),
    *(
        "日本",
        "日本語",
        "abcabc",
        "abcabd",
        "😀",
        "a" * 45,
        "ß",
        "n\u0303",
        "ñ",
        "İ",
        "ﬁne",
        "fine",
        "3.14",
        "\0",
        "universal",
    ),
    *("university", "generously", "generous"),
]
text_of = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from([" ", " ", "-", "\n", ", ", "_", ""])), max_size=6)
texts_of = text_of.map(lambda parts: "".join(word + gap for word, gap in parts))
corpora = st.lists(st.none() | texts_of, min_size=1, max_size=14)


any_split = given(
    corpora,
    st.lists(st.tuples(texts_of, st.integers(0, 3) | st.just(8)), min_size=1, max_size=3),
    st.integers(0, 14),
    st.integers(0, 14),
    st.integers(0, 3),
)


def check_split(corpus: list[str | None], queries: list[tuple[str, int]], first: int, second: int, late: int) -> None:
    """Some documents are written and indexed, some only written, some lie on top, some were replaced."""
    texts = {f"d{i}": text for i, text in enumerate(corpus)}
    low, high = sorted((first, second))
    ids = list(texts)
    with empty_graph() as graph:
        stored = {id_: texts[id_] for id_ in ids[:low]} | dict.fromkeys(ids[:late], "ab running") | {"gone": "ab run"}
        graph.write([Append(DOC, rows(stored))])
        indexed(graph)
        graph.write([Upsert(DOC, rows({id_: texts[id_] for id_ in ids[:high]} | {"more": "run"}))])
        overlay = Overlay.of(rows({id_: texts[id_] for id_ in [*ids[:late], *ids[high:]]}), ["gone", "more"])
        part = reader_of(graph, overlay)
        only = reader_of(graph, Overlay.of(rows(texts), ["gone", "more", *ids]))
        with empty_graph() as other:
            other.write([Append(DOC, rows(texts))])
            none = reader_of(other)
            kinds: tuple[TextSearchKind, ...] = ("search", "fuzzy", "match_text")
            answers = {}
            for query, edits in queries:
                for kind in kinds:
                    wanted = expected(texts, kind, query, edits)
                    for reader in (part, only, none):
                        assert found(reader, kind, query, edits) == wanted, (kind, query, edits)
                    answers[kind, query, edits] = wanted
            indexed(other)
            complete = reader_of(other)
            for (kind, query, edits), wanted in answers.items():
                assert found(complete, kind, query, edits) == wanted, (kind, query, edits)


@settings(max_examples=10, deadline=None)
@any_split
def test_all_part_or_none_indexed_select_the_same_rows(
    corpus: list[str | None], queries: list[tuple[str, int]], first: int, second: int, late: int
) -> None:
    check_split(corpus, queries, first, second, late)


@pytest.mark.soak
@settings(max_examples=300, deadline=None)
@any_split
def test_hundreds_of_other_splits_select_the_same_rows(
    corpus: list[str | None], queries: list[tuple[str, int]], first: int, second: int, late: int
) -> None:
    check_split(corpus, queries, first, second, late)


@pytest.mark.s3
def test_on_s3_rows_that_were_written_a_moment_ago_are_found(s3: S3Location) -> None:
    graph = omnigraph.init(f"{s3.uri}/g", CATALOG, s3.options, settings=STORED)
    graph.write([Append(DOC, rows({"a": "quick fox", "b": "slow fox"}))])
    indexed(graph)
    graph.write([Append(DOC, rows({"c": "quick bear"}))])
    overlay = Overlay.of(rows({"d": "quick bird", "a": "no more"}))

    assert found(reader_of(graph), "search", "quick") == ["a", "c"]
    assert found(reader_of(graph, overlay), "search", "quick") == ["c", "d"]
    assert found(reader_of(graph, overlay), "match_text", "quick bird") == ["d"]
    assert scores(reader_of(graph, overlay), "bear fox", ["a", "b", "c", "d"]).keys() == {"b", "c"}


def test_a_column_that_came_after_the_rows_is_searched_in_those_that_have_it() -> None:
    with empty_graph() as graph:
        tables = graph.repository.tables
        old = tables.create("t1", pa.table({"id": ["a", "b"]})).at
        wide = tables.add_columns(old, [pa.field("late", pa.string())]).at
        overlay = Overlay.of(pa.table({"id": ["c"], "late": ["hello you"]}))

        for at, on_top, wanted in ((wide, Overlay.EMPTY, []), (wide, overlay, ["c"]), (old, overlay, ["c"])):
            answer = tables.search_text(at, "late", "search", "hello", overlay=on_top, with_ids=True)
            assert answer.ids is not None
            assert answer.ids.to_pylist() == wanted
        assert len(tables.search_text(old, "late", "search", "hello").addresses) == 0


def test_threads_search_while_an_index_is_built() -> None:
    """Lance lets nobody else use a handle that an index is built through."""
    texts = {f"d{i}": f"word{i % 10}" for i in range(2_000)}
    with empty_graph() as graph:
        graph.write([Append(DOC, rows(texts))])
        overlays = [Overlay.of(rows({f"new{i}": "word1"})) for i in range(4)]

        def look(overlay: Overlay) -> tuple[int, int]:
            reader = reader_of(graph, overlay)
            state = reader.state(DOC)
            return len(found(reader, "search", "word1")), reader.tables.count(state.at, overlay=overlay)

        assert set(gather([partial(look, overlay) for overlay in overlays * 4])) == {(201, 2_001)}
