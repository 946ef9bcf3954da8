"""Choosing a query by its name, and keeping what was compiled."""

from __future__ import annotations

import time
from threading import Thread

import pytest

from omnigraph.errors import BadRequest, NotFound
from omnigraph.query import ir
from omnigraph.query.compile import CompileCache, compile_queries
from omnigraph.schema.lang.compile import compile_schema
from query.gq import CATALOG, NOW, SCHEMA, read_text

READ = read_text("$p: Person")
WRITE = 'query w() { delete Person where slug = "a" }'


def test_a_name_may_be_left_out_where_there_is_one_query() -> None:
    assert compile_queries(READ, CATALOG).name == "q"
    with pytest.raises(BadRequest, match="holds 2 queries: name one of q, w"):
        compile_queries(READ + WRITE, CATALOG)


def test_a_query_is_chosen_by_its_name() -> None:
    assert isinstance(compile_queries(READ + WRITE, CATALOG, "w").query, ir.MutationQuery)
    assert isinstance(compile_queries(READ + WRITE, CATALOG, "q").query, ir.ReadQuery)
    with pytest.raises(NotFound, match="has no query x: it has q, w"):
        compile_queries(READ + WRITE, CATALOG, "x")


def test_a_mutation_is_not_queried_and_a_read_not_mutated() -> None:
    with pytest.raises(BadRequest, match="run it with mutate"):
        compile_queries(WRITE, CATALOG).bind_read({}, now=NOW)
    with pytest.raises(BadRequest, match="run it with query"):
        compile_queries(READ, CATALOG).bind_mutation({}, now=NOW)
    assert isinstance(compile_queries(WRITE, CATALOG).bind_mutation({}, now=NOW), ir.MutationQuery)
    assert isinstance(compile_queries(READ, CATALOG).bind_read({}, now=NOW), ir.ReadQuery)


def test_the_same_text_and_schema_are_compiled_once() -> None:
    cache = CompileCache()

    assert cache.compile(READ, CATALOG) is cache.compile(READ, CATALOG)
    other = compile_schema(SCHEMA).catalog
    assert cache.compile(READ, other) is not cache.compile(READ, CATALOG)
    assert cache.compile(READ, other, schema_hash="h") is cache.compile(READ, CATALOG, schema_hash="h")


def test_another_schema_is_compiled_again() -> None:
    cache = CompileCache()
    changed = compile_schema(SCHEMA.replace("age:  I32?", "age:  I64?")).catalog
    text = read_text("$p: Person", "return { $p.age }")

    one, other = cache.compile(text, CATALOG).read(), cache.compile(text, changed).read()

    assert (str(one.returns[0].expr.type), str(other.returns[0].expr.type)) == ("I32", "I64")


def test_the_cache_is_bounded_in_number_and_size_and_forgets_the_longest_unused() -> None:
    cache = CompileCache(entries_max=2)
    first = cache.compile(READ, CATALOG)
    cache.compile(READ + " ", CATALOG)
    assert cache.compile(READ, CATALOG) is first
    cache.compile(READ + "  ", CATALOG)
    assert len(cache) == 2
    assert cache.compile(READ, CATALOG) is first

    small = CompileCache(text_chars_max=3 * len(READ))
    for i in range(20):
        small.compile(READ + " " * i, CATALOG)
    assert len(small) <= 3
    small.compile(READ + " " * 4 * len(READ), CATALOG)
    assert len(small) == 0


def test_a_query_with_an_error_is_not_cached() -> None:
    cache = CompileCache()
    for _ in range(2):
        with pytest.raises(BadRequest):
            cache.compile(read_text("$p: Nobody"), CATALOG)
    assert len(cache) == 0


def test_threads_share_a_cache() -> None:
    cache = CompileCache(entries_max=3)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for i in range(200):
                assert cache.compile(READ + " " * (i % 5), CATALOG).name == "q"
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(cache) <= 3


def test_compiling_takes_well_under_a_few_milliseconds_and_a_lookup_microseconds() -> None:
    """Of processor time, the best of several: the bounds are loose, a busy machine must not fail them."""
    text = read_text("$p: Person { slug: $s } $p $k:knows $f $f.age >= $min", params="$s: String, $min: I32?")

    def best(runs: int, cache: CompileCache | None) -> float:
        times = []
        for _ in range(runs):
            start = time.process_time()
            for _ in range(50):
                (cache or CompileCache()).compile(text, CATALOG)
            times.append((time.process_time() - start) / 50)
        return min(times)

    assert best(5, None) < 0.004
    assert best(5, CompileCache()) < 0.000_4
