"""Whatever it is given, the language answers with a query or a LanguageError, in bounded time and memory."""

from __future__ import annotations

import random
import re
import time
import tracemalloc

import pytest

from omnigraph.lexer import LanguageError
from omnigraph.query.check.checker import check
from omnigraph.query.lint import lint
from omnigraph.query.parser import parse
from omnigraph.query.printer import print_file
from query.gq import CATALOG, read_text
from query.test_query_examples import FRIENDS
from query.test_query_refusals import GRAMMAR, MUTATIONS, NAMES, OUTPUTS, PATTERNS, TYPES

KEYWORDS = "query match return order limit not insert update delete set where as asc desc true false null"
CALLS = "now() date( datetime( count( sum( nearest( bm25( rrf( search( fuzzy( match_text( contains starts_with"
NAMES_ = "$p $f $k $_ $name Person Company Knows knows worksAt contains slug age tags face bio id from to"
SYMBOLS = "{ } ( ) [ ] , : . .. ? = != < <= > >= -> - @ @description // /* */ $ # ' \""
LITERALS = '"text" "a\\n" 7 -2.5 1e3 0 {1,3} {2,} 24h String I32 Vector(2) enum(a,b) \u00e9 \x00'
WORDS = " ".join([KEYWORDS, CALLS, NAMES_, SYMBOLS, LITERALS]).split(" ")
SEEDS = [FRIENDS] + [text.replace("¦", "") for _, text in [*GRAMMAR, *NAMES, *TYPES, *PATTERNS, *OUTPUTS, *MUTATIONS]]


def mutated(dice: random.Random) -> str:
    """A text of the tests with a few words removed, doubled, swapped, replaced or cut through."""
    text = dice.choice(SEEDS)
    if dice.random() < 0.4:  # another name in the place of one: this often parses
        names = list(re.finditer(r"\$?\w+", text))
        spot = dice.choice(names)
        return text[: spot.start()] + dice.choice(NAMES_.split(" ")) + text[spot.end() :]
    for _ in range(dice.randint(1, 4)):
        at, length = dice.randrange(len(text) + 1), dice.randint(0, 8)
        kind = dice.randrange(6)
        if kind == 0:
            text = text[:at] + text[at + length :]
        elif kind == 1:
            text = text[:at] + dice.choice(WORDS) + text[at:]
        elif kind == 2:
            text = text[:at] + text[at : at + length] * 2 + text[at + length :]
        elif kind == 3:
            parts = text.split(" ")
            dice.shuffle(parts) if dice.random() < 0.1 else parts.insert(dice.randrange(len(parts)), dice.choice(WORDS))
            text = " ".join(parts)
        elif kind == 4:
            other = dice.choice(SEEDS)
            text = text[:at] + other[dice.randrange(len(other)) :]
        else:
            text = text[:at] + chr(dice.choice([0, 9, 34, 36, 92, 123, 125, 233, 0xD800, 0xFFFF, 0x1F600])) + text[at:]
    return text


def points_somewhere(error: LanguageError) -> None:
    assert min(error.line, error.column) >= 1
    assert error.excerpt.endswith("^")
    assert error.language_code in str(error)


def survives(text: str) -> bool:
    """Whether the text parses; anything but a LanguageError is a bug."""
    try:
        file = parse(text)
    except LanguageError as error:
        points_somewhere(error)
        return False
    for query in file.queries:
        try:
            check(query, file, CATALOG)
        except LanguageError as error:
            points_somewhere(error)
    assert parse(print_file(file)) == file
    lint(text, CATALOG)
    return True


def fuzz(seed: int, count: int) -> int:
    dice = random.Random(seed)
    return sum(survives(mutated(dice)) for _ in range(count))


def test_mutated_inputs_never_crash() -> None:
    assert fuzz(1, 3_000) > 100


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_hundred_thousand_mutated_inputs_never_crash() -> None:
    assert fuzz(2, 100_000) > 3_000


def test_every_seed_survives() -> None:
    for text in SEEDS:
        survives(text)


HOSTILE = [
    "{" * 1_000_000,
    "(" * 500_000,
    read_text("$p: Person " + "not { " * 150 + "$p knows $_" + " }" * 150),
    read_text("[" * 199 + "]" * 199 + " contains $p.age"),
    read_text("$p: Person", "return { " + "sum(" * 190 + "$p.age" + ")" * 190 + " }"),
    read_text(f'$p: Person {{ slug: "{"x" * 1_000_000}" }}'),
    '"' + "x" * 900_000,
    "/*" * 400_000,
    read_text("$p: Person", "return { $p.age as x } limit " + "9" * 100_000),
    "query q(" + "$a: I32, " * 30_000 + ") { }",
    read_text("$p: Person " + "$p.age > 3 " * 15_000, "return { $nope }"),
    read_text(" ".join(f"$v{i} knows $v{i + 1}" for i in range(6_000)), "return { $nope.age }"),
    read_text("$p: Person", "return { " + ", ".join(f"$p.age as c{i}" for i in range(8_000)) + ", $p.nme }"),
    "query q() { match " * 30_000,
    "\x00" * 1_000_000,
    "$" * 900_000,
    "é" * 900_000,
]


def parse_and_check(text: str) -> None:
    file = parse(text)
    check(file.queries[0], file, CATALOG)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_inputs_are_refused_in_bounded_time_and_memory(text: str) -> None:
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(LanguageError) as caught:
            parse_and_check(text)
        spent, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert spent < 10
    assert peak < 200_000_000
    assert len(str(caught.value)) < 2_000
    assert len(caught.value.excerpt) < 600


def test_lint_takes_bounded_time_too() -> None:
    alone = read_text(" ".join(f"$v{i}: Person" for i in range(5_000)), "return { count($v0) }")
    backwards = read_text(" ".join(f"$v{i} knows $v{i + 1}" for i in range(5_000, 0, -1)), "return { count($v1) }")
    start = time.process_time()

    assert {issue.code for issue in lint(alone, CATALOG)} == {"OG-GW-802", "OG-GW-803"}
    assert {issue.code for issue in lint(backwards, CATALOG)} == {"OG-GW-802"}

    assert time.process_time() - start < 20


def test_a_large_text_below_the_limit_is_a_query() -> None:
    text = read_text(f'$p: Person {{ note: "{"x" * 900_000}" }}')

    assert survives(text)
