"""Patterns of users: matched in linear time, bounded in length and compiled size, refused with the reason."""

import json
import random
import re
import threading

import pyarrow as pa
import pytest

from omnigraph.cancellation import Stopped, StopToken, stop_scope
from omnigraph.errors import BadRequest
from omnigraph.lexer import LanguageError
from omnigraph.schema.catalog import Schema, catalog_from_json, catalog_to_json
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.schema.regex import (
    PROGRAM_SIZE_MAX,
    is_quick_to_match,
    matches_text,
    matches_whole,
    pattern_problem,
    program_size,
)

BACKTRACKING = ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*a){25}b", "([a-zA-Z]+)*b", "(a*)*b", "(?:a?){40}a{40}b"]


def compile_with(pattern: str, default: str | None = None) -> Schema:
    text = json.dumps(default, ensure_ascii=False)
    prop = "x: String" + (f" @default({text})" if default is not None else "")
    return compile_schema(f"node T {{ {prop} @check(x, {json.dumps(pattern, ensure_ascii=False)}) }}")


@pytest.mark.parametrize("pattern", BACKTRACKING)
def test_a_default_is_matched_in_linear_time(pattern: str) -> None:
    """Python's `re` would need longer than the machine exists."""
    with pytest.raises(LanguageError, match="OG-PG-180"):
        compile_with(pattern, "a" * 5_000)


@pytest.mark.parametrize("pattern", BACKTRACKING)
def test_rows_are_matched_in_linear_time(pattern: str) -> None:
    texts = pa.chunked_array([["a" * 5_000, None], [f"{'a' * 60}b"]])

    assert matches_whole(texts, pattern).to_pylist() == [False, None, True]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("[a-z-]+", "ab-c"), ("a|bc", "bc"), (".{2,3}", "äöü"), ("(?i)straße", "STRAßE"), ("(?P<year>[0-9]{4})", "2026")],
)
def test_a_default_has_to_match_from_beginning_to_end(pattern: str, text: str) -> None:
    compile_with(pattern, text)

    for other in (f"{text} ", f" {text}", f"{text}\n"):
        with pytest.raises(LanguageError, match="OG-PG-180"):
            compile_with(pattern, other)


def test_classes_of_a_default_are_those_of_rows() -> None:
    """`\\d` is a digit of ASCII for RE2, any digit for Python's `re`."""
    assert re.fullmatch(r"\d", "٣")
    with pytest.raises(LanguageError, match="OG-PG-180"):
        compile_with(r"\d", "٣")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a)\1", "'\\\\1' at character 4 is not supported"),
        (r"(?P<x>a)(?P=x)", "is not supported"),
        ("a(?=b)", "looks ahead or behind"),
        ("a(?!b)", "looks ahead or behind"),
        ("(?<=b)a", "looks ahead or behind"),
        ("(?<!b)a", "looks ahead or behind"),
        ("(?>a+)b", "is not supported"),
        ("(a)?(?(1)b|c)", "is not supported"),
        ("(?#note)a", "is not supported"),
        ("a++b", "possessive"),
        ("a{2}+b", "possessive"),
        (r"a\Z", "is not supported"),
        ("a{,5}", "{0,5}"),
        ("a{1001}", "repeats more than 1000 times"),
        ("(", "missing )"),
        ("[a", "missing ]"),
        ("a)|(b", "unexpected )"),
        ("*a", "no argument for repetition"),
        ("[b-a]", "invalid character class range"),
        ("(" * 600 + ")" * 400, ""),
        ("a" * 1_001, "more than 1000 characters"),
        ("\ud800", ""),
        ("((a{1000}){1000})", "repetitions inside repetitions add up to more than 1000"),
        ("(a{40}){40}", "repetitions inside repetitions add up to more than 1000"),
        ("(.?.?.?.?b?){1000}c", f"instructions, more than {PROGRAM_SIZE_MAX:,}"),
        (".{1000}" * 100, f"instructions, more than {PROGRAM_SIZE_MAX:,}"),
    ],
)
def test_an_unusable_pattern_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    problem = pattern_problem(pattern)

    assert problem is not None
    assert reason in problem


def test_a_pattern_whose_classes_are_costly_to_fold_is_judged_at_once() -> None:
    """Python's compiler walks through every character of a class that ignores case: seconds for these."""
    assert pattern_problem("(?i)" + "[\0-\U0010fffe]" * 150) is None


@pytest.mark.parametrize("pattern", [".{0,1000}", "[^\\n]{1,1000}", r"([a-z0-9-]{1,63}\.){1,8}[a-z]{2,24}", r"\w+@\w+"])
def test_usual_patterns_are_far_from_the_limit(pattern: str) -> None:
    assert pattern_problem(pattern) is None
    assert program_size(pattern) <= PROGRAM_SIZE_MAX


def test_a_default_that_is_too_long_for_its_pattern_is_refused_unmatched() -> None:
    pattern = "(.?.?b?){700}c"
    assert pattern_problem(pattern) is None
    assert is_quick_to_match("x" * 1_000, pattern)

    with pytest.raises(LanguageError, match=r"100,000 characters, too many .*OG-PG-180"):
        compile_with(pattern, "x" * 100_000)


def test_a_stored_schema_with_a_pattern_that_is_refused_today_stays_readable() -> None:
    document = catalog_to_json(compile_with("a+", "aa").catalog)
    document["types"][0]["checks"] = [["x", "(a{40}){40}"]]

    catalog = catalog_from_json(document)

    assert catalog.types[0].rules.checks[0].pattern == "(a{40}){40}"
    with pytest.raises(BadRequest, match="repetitions inside repetitions"):
        matches_text("a", catalog.types[0].rules.checks[0].pattern)


def test_matching_many_rows_stops_on_request() -> None:
    stop, choice = StopToken(), random.Random(1)
    rows = pa.array(["".join(choice.choices("ab", k=1_000)) for _ in range(5_000)])
    timer = threading.Timer(0.1, lambda: stop.set(Stopped("a test asked", "send it again")))
    timer.start()
    with stop_scope(stop), pytest.raises(Stopped):
        matches_whole(rows, "[ab]*a[ab]{1000}")
    timer.join()
