"""Whatever a schema file holds, it compiles or is refused with a LanguageError, in bounded time."""

from __future__ import annotations

import random
import time

import pytest

from omnigraph.lexer import LanguageError, tokenize
from omnigraph.schema.catalog import Catalog, decode_schema
from omnigraph.schema.constraints import constraints_of
from omnigraph.schema.indexes import declared_indexes
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.schema.lang.printer import print_schema

SEED_TEXT = """
interface Named @owner("x") { name: String @index  @unique(name) }
interface Dated { on: Date? @default(date("2026-01-31")) at: DateTime @range(at, datetime("2000-01-01T00:00:00Z")..) }
node Person implements Named, Dated @description("who \\u00fc") {
    slug: String @key            // a comment
    age:  I32? @default(7)      /* another
    one */
    role: enum(engineer, b-c, 24h) @default("b-c") @custom(1, [2.5, "x"], wide=true)
    tags: [String]? bio: String? @index
    face: Vector(4)? @embed("bio") @index(metric="l2")
    @range(age, 0..150) @check(slug, "[a-z0-9-]+(x|y)*") @unique(name, role) @index(age, role)
}
node Company @rename_from("Firm") { name: String region: U64 data: Blob? ok: Bool f: F32 @key(region, name) }
edge Knows: Person -> Person { since: Date? @index weight: F64 @default(1e-3) @unique(src, dst, since) }
edge WorksAt: Person -> Company @card(0..1)
"""
ODD_PIECES = ["'", "\\", "\ud800", "\x00", "é", "..", "@", "$x", "-", '"']
PIECES = [*(token.text for token in tokenize(SEED_TEXT, "seed")), *ODD_PIECES]
PREVIOUS = compile_schema(SEED_TEXT.replace('@rename_from("Firm")', "").replace("Company", "Firm")).catalog


def mutated(dice: random.Random) -> str:
    """The seed after one to six random edits: of characters, of tokens, of whole stretches."""
    text = SEED_TEXT
    for _ in range(dice.randint(1, 6)):
        at, end = sorted(dice.choices(range(len(text) + 1), k=2))
        edit = dice.randrange(7)
        if edit == 0:
            text = text[:at] + text[at + dice.randint(1, 4) :]
        elif edit == 1:
            text = text[:at] + dice.choice(PIECES) + text[at:]
        elif edit == 2:
            text = text[:at] + f" {dice.choice(PIECES)} " + text[at + dice.randint(1, 8) :]
        elif edit == 3:
            text = text[:at] + chr(dice.choice([dice.randrange(128), dice.randrange(0x3000)])) + text[at + 1 :]
        elif edit == 4 and end - at < 300:
            text = text[:end] + text[at:end] + text[end:]
        elif edit == 5:
            old, new = dice.choice(PIECES), dice.choice(PIECES)
            text = text.replace(old, new, dice.randint(1, 2)) if old else text
        elif end - at < 80:
            text = text[:at] + text[end:]
    return text


def compiles(text: str, previous: Catalog | None) -> bool:
    """Whether it compiles; what does must survive printing, storing and all that is derived from it."""
    try:
        schema = compile_schema(text, previous)
    except LanguageError as error:
        str(error), error.excerpt, error.to_json()
        return False
    catalog = schema.catalog
    assert compile_schema(print_schema(catalog), catalog).catalog == catalog
    assert decode_schema(schema.encoded, schema.hash) == schema
    constraints_of(catalog)
    for definition in catalog.types:
        declared_indexes(definition)
    return True


def run(count: int, seed: int) -> int:
    dice = random.Random(seed)
    return sum(compiles(mutated(dice), dice.choice([None, PREVIOUS])) for _ in range(count))


def test_the_seed_itself_compiles() -> None:
    assert compiles(SEED_TEXT, None)
    assert compiles(SEED_TEXT, PREVIOUS)


def test_mutated_schemas_compile_or_are_refused() -> None:
    assert 0 < run(2_000, seed=3) < 2_000


@pytest.mark.soak
def test_fifty_thousand_mutated_schemas_compile_or_are_refused() -> None:
    assert 0 < run(50_000, seed=4) < 50_000


@pytest.mark.parametrize(
    "text",
    [
        "node T { x: [I32] @default(" + "[" * 150 + "]" * 150 + ") }",
        "node T { x: I32 @custom(" + "[" * 100_000 + "]" * 100_000 + ") }",
        'node T @description("' + "x" * 1_000_000 + '") { }',
        "node T { " + "{" * 100_000,
        "".join(f"node T{i} " for i in range(80_000)),
        "node T {" + "".join(f"p{i}:I32 " for i in range(80_000)) + "}",
        'node T {s:String ' + "".join(f'p{i}:Vector(1)@embed("s")' for i in range(30_000)) + "}",
        "node T {" + "".join(f"p{i}:I32 @range(p{i},0..)" for i in range(30_000)) + "}",
        "node T {a:I32 " + "@unique(a)" * 90_000 + "}",
        'node T {a:String ' + "".join(f'@check(a,"{i}")' for i in range(10_000)) + "}",
        "node T { x: enum(" + ",".join(f"v{i}" for i in range(100_000)) + ") }",
        "interface I { x: I32 } node T implements " + ",".join(["I"] * 300_000),
        "node " + "T" * 900_000,
        "node T { x: " + "S" * 900_000 + " }",
        "".join(f'node T{i} @rename_from("S{i}") ' for i in range(30_000)),
        "node T { x: String @check(x, \"" + "(" * 499 + ")" * 499 + '") }',
        "node T { x: String @check(x, \"" + "(a*)*" * 190 + '") }',
    ],
    ids=lambda text: f"{text[:30]}… {len(text)}",
)  # fmt: skip
def test_large_and_deep_schemas_take_bounded_time(text: str) -> None:
    started = time.monotonic()
    try:
        compile_schema(text, PREVIOUS)
    except LanguageError as error:
        assert len(error.excerpt) < 1_000  # noqa: PT017

    assert time.monotonic() - started < 60
