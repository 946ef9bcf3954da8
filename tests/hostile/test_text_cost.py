"""Texts of both languages cost time in proportion to their length, in their turn, and no more once they are to stop."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from hostile.bomb_graph import SCHEMA
from hostile.texts import QUERIES, SCHEMAS, Family, repeated
from omnigraph.cancellation import Stopped, StopToken, stop_scope
from omnigraph.lexer import LARGE_TEXT_CHARS, LanguageError, turn_of
from omnigraph.query.check.checker import check
from omnigraph.query.compile import CompileCache
from omnigraph.query.lint import lint
from omnigraph.query.parser import parse
from omnigraph.schema.evolve.migration import plan_migration
from omnigraph.schema.lang.compile import compile_schema

CATALOG = compile_schema(SCHEMA).catalog
ACCEPTED = compile_schema("node T { a: I32? }")
GROWTH = 8
TIMES = 2.5 * GROWTH  # for a text that is GROWTH times as long; it would take 64 times as long if it were quadratic
NOISE_S = 0.05


def compile_queries(text: str) -> None:
    file = parse(text)
    for declaration in file.queries:
        check(declaration, file, CATALOG)
    lint(text, CATALOG)


def plan(text: str) -> None:
    plan_migration(ACCEPTED, text)


def processor_s(work: Callable[[str], None], text: str) -> float:
    """The least of two runs."""
    found = []
    for _ in range(2):
        gc.collect()
        started = time.process_time()
        try:
            work(text)
        except LanguageError as error:
            assert len(str(error)) < 2_000  # noqa: PT017
        found.append(time.process_time() - started)
    return min(found)


def require_linear(work: Callable[[str], None], family: Family, n: int) -> None:
    short, long = family(n), family(GROWTH * n)
    expected_s = TIMES * processor_s(work, short) + NOISE_S
    assert processor_s(work, long) < expected_s


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_queries_cost_time_in_proportion_to_their_length(name: str) -> None:
    require_linear(compile_queries, QUERIES[name], 120)


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_schemas_cost_time_in_proportion_to_their_length(name: str) -> None:
    require_linear(plan, SCHEMAS[name], 120)


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(QUERIES))
def test_long_queries_cost_time_in_proportion_to_their_length(name: str) -> None:
    require_linear(compile_queries, QUERIES[name], 2_000)


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_long_schemas_cost_time_in_proportion_to_their_length(name: str) -> None:
    require_linear(plan, SCHEMAS[name], 2_000)


def stopped_after_s(work: Callable[[str], object], text: str, after_s: float = 0.05) -> float:
    """The processor time that work still takes after it was stopped."""
    stop = StopToken()
    at: list[float] = []

    def end() -> None:
        stop.set(Stopped("of the test", "nothing is to be done"))
        at.append(time.process_time())

    timer = threading.Timer(after_s, end)
    timer.start()
    with pytest.raises(Stopped), stop_scope(stop):
        work(text)
    spent = time.process_time() - at[0]
    timer.join()
    return spent


@pytest.mark.parametrize("name", ["filters", "columns", "negations", "queries", "updates", "joins"])
def test_a_query_of_the_largest_size_stops_when_it_must(name: str) -> None:
    text = QUERIES[name](10_000)

    assert stopped_after_s(compile_queries, text) < 1
    assert (
        stopped_after_s(lambda own: CompileCache().compile(own, CATALOG, "q0" if name == "queries" else None), text) < 1
    )


@pytest.mark.parametrize("name", ["properties", "node types", "interfaces of one type", "patterns", "an enum"])
def test_a_schema_of_the_largest_size_stops_when_it_must(name: str) -> None:
    assert stopped_after_s(plan, SCHEMAS[name](60_000 if name == "an enum" else 15_000)) < 1


def test_a_mutation_of_many_statements_stops_when_it_must(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", "node Person { slug: String @key  age: I32? }", {"fsync": "false"})
    graph.load([{"type": "Person", "data": {"slug": f"p{n}"}} for n in range(2_000)])
    update = 'update Person set { age: # } where slug starts_with "p"'
    before = graph.commits()

    assert stopped_after_s(graph.mutate, f"query q() {{ {repeated(update, 3_000)} }}", 1.0) < 1
    assert graph.commits() == before


def test_the_garbage_collector_stops_nobody_while_a_large_text_is_compiled() -> None:
    cache, text = CompileCache(), QUERIES["filters"](10_000)
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        generations.append(info["generation"])

    gc.collect()
    gc.callbacks.append(note)
    try:
        with turn_of(text):
            parse(text)
        compiled = list(generations)
    finally:
        gc.callbacks.remove(note)
    assert compiled == []
    assert gc.isenabled()

    cache.compile(text, CATALOG)
    assert len(cache) == 0, "what is kept is collected again and again"


def test_large_texts_are_compiled_one_after_another() -> None:
    large, small = " " * LARGE_TEXT_CHARS, "node T { a: I32 }"
    inside = threading.Event()
    done = threading.Event()

    def hold() -> None:
        with turn_of(large):
            inside.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(30)
    try:
        compile_schema(small)  # others don't wait
        stop = StopToken()
        threading.Timer(0.1, stop.set, [Stopped("of the test", "nothing is to be done")]).start()
        with pytest.raises(Stopped), stop_scope(stop):
            compile_schema(large + small)
    finally:
        done.set()
        holder.join()
    assert compile_schema(large + small).catalog
