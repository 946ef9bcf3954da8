"""Tokens and their places, as both languages read them; bounds on what is read at all."""

from __future__ import annotations

import pickle
import random
import time
from contextlib import suppress

import pytest

from omnigraph.lexer import NESTING_MAX, SOURCE_BYTES_MAX, LanguageError, Tokens, tokenize


def kinds(source: str) -> list[tuple[str, object]]:
    return [(token.kind, token.value) for token in tokenize(source, "x")[:-1]]


def refusal(source: str) -> LanguageError:
    with pytest.raises(LanguageError) as caught:
        tokenize(source, "x.gq")
    return caught.value


def test_every_kind_of_token() -> None:
    assert kinds('name $var @note "text" 7 -2.5 24h -> .') == [
        ("name", "name"),
        ("variable", "var"),
        ("annotation", "note"),
        ("string", "text"),
        ("integer", 7),
        ("float", -2.5),
        ("word", "24h"),
        ("symbol", "->"),
        ("symbol", "."),
    ]


def test_numbers_ranges_and_hyphens() -> None:
    assert kinds("0..150") == [("integer", 0), ("symbol", ".."), ("integer", 150)]
    assert kinds("1.5..-2e-3") == [("float", 1.5), ("symbol", ".."), ("float", -0.002)]
    assert kinds("a-1") == [("name", "a"), ("integer", -1)]
    assert kinds("b-c") == [("name", "b"), ("symbol", "-"), ("name", "c")]
    assert kinds(">=-1") == [("symbol", ">="), ("integer", -1)]


def test_symbols_are_the_longest_that_fit() -> None:
    symbols = "<= >= != -> .. < > = { } ( ) [ ] , : . ?"

    assert " ".join(str(text) for _, text in kinds(symbols)) == symbols
    assert kinds("$w:<knows>{1,2}")[:4] == [
        ("variable", "w"),
        ("symbol", ":"),
        ("symbol", "<"),
        ("name", "knows"),
    ]


def test_places_count_lines_and_characters_from_one() -> None:
    tokens = tokenize('\ufeffa "ü😀" b\r\n\tc /* x\n y */ d // e\nf', "x")

    assert [(token.text, token.line, token.column) for token in tokens] == [
        ("a", 1, 2),
        ('"ü😀"', 1, 4),
        ("b", 1, 9),
        ("c", 2, 2),
        ("d", 3, 7),
        ("f", 4, 1),
        ("", 4, 2),
    ]
    assert [token.offset for token in tokens][:3] == [1, 3, 8]


def test_the_caret_is_below_the_position_also_after_tabs_and_in_long_lines() -> None:
    assert refusal('ok\n\ta\t"x\\q"').excerpt == '2 | \ta\t"x\\q"\n  | \t \t  ^'

    shown, caret = refusal("a " * 5_000 + "; " + "b " * 5_000).excerpt.splitlines()
    assert shown[caret.index("^")] == ";"
    assert len(shown) < 140


def test_an_error_survives_pickling() -> None:
    error = refusal("a ;")

    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.excerpt, again.details) == (str(error), error.excerpt, error.details)


def test_a_walk_says_what_it_expected() -> None:
    tokens = Tokens("match { }", "x.gq")

    assert tokens.accept("query") is None
    assert tokens.expect("match").column == 1
    with pytest.raises(LanguageError, match=r"x\.gq:1:7: Found \{: expected a name\. \[OG-LX-200\]"):
        tokens.expect_kind("name", "a name")
    tokens.take()
    tokens.take()
    assert tokens.take().kind == tokens.take().kind == tokens.peek(5).kind == "end"


def test_strings_are_no_keywords() -> None:
    assert not Tokens('"match"', "x").at('"match"')


def test_nesting_is_bounded() -> None:
    tokenize("[" * NESTING_MAX + "]" * NESTING_MAX, "x")

    error = refusal("[" * (NESTING_MAX + 1) + "]" * (NESTING_MAX + 1))
    assert (error.language_code, error.column) == ("OG-LX-201", NESTING_MAX + 1)


@pytest.mark.parametrize("bracket", ["{", "(", "[", "{([", "not {"])
def test_deep_nesting_is_refused_at_once(bracket: str) -> None:
    started = time.monotonic()

    assert refusal(bracket * 100_000).language_code == "OG-LX-201"
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    "source",
    [
        "a " * 300_000,
        '"' + "x" * 1_000_000 + '"',
        '"' + "\\n" * 600_000,
        "x" * 1_000_001,
        "ü" * 500_001,
        "\ud800" * 2_000_000,
    ],
    ids=["words", "string", "escapes", "name", "bytes", "surrogates"],
)
def test_too_much_is_refused_at_once(source: str) -> None:
    started = time.monotonic()

    assert refusal(source).language_code == "OG-LX-101"
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("piece", ["a ", "-", '"', "\\", "1", "/*", '"\\', "\n", "a\n", "$", "..", "1.", "\ud83d"])
def test_the_largest_source_takes_bounded_time_whatever_is_in_it(piece: str) -> None:
    source = piece * ((SOURCE_BYTES_MAX - 1) // len(piece.encode("utf-8", "surrogatepass")))
    started = time.monotonic()
    with suppress(LanguageError):
        tokenize(source, "x")

    assert time.monotonic() - started < 30


def test_half_a_surrogate_pair_is_refused_in_every_position() -> None:
    error = refusal("a\n// \ud800")

    assert (error.language_code, error.line, error.column) == ("OG-LX-102", 2, 4)


def test_random_text_gives_tokens_or_an_error() -> None:
    dice = random.Random(7)
    for _ in range(3_000):
        source = "".join(dice.choices('ab1-."\\/*{}()[]@$:\n\t ud80é😀\x00\ud800', k=dice.randint(0, 40)))
        with suppress(LanguageError):
            assert all(source[token.offset :].startswith(token.text) for token in tokenize(source, "x"))
