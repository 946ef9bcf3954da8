"""A write of one row and a write of several give the same rows, counts and errors."""

from __future__ import annotations

import datetime as dt
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from omnigraph.manifest.model.manifest import TableRef
from omnigraph.manifest.repository import init_repository, open_repository
from omnigraph.manifest.settings import Settings
from omnigraph.schema.lang.compile import compile_schema
from write.world import World, make_world, touched

INLINE = Settings(maintenance=0)  # nothing is folded behind the test's back
STAGED = Settings(inline_rows=0, maintenance=0)

EVERYTHING = """
node Thing {
    slug: String @key
    text: String?
    i: I32?  l: I64?  u: U32?  w: U64?
    f: F32?  d: F64?
    b: Bool?
    day: Date?
    at: DateTime?
    kind: enum(x, y)?
}
"""
KINDS: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "text": ("String", st.one_of(st.text(), st.integers(0, 40).map("é".__mul__))),
    "i": ("I32", st.integers(-(2**31), 2**31 - 1)),
    "l": ("I64", st.integers(-(2**63), 2**63 - 1)),
    "u": ("U32", st.integers(0, 2**32 - 1)),
    "w": ("U64", st.integers(0, 2**64 - 1)),
    "f": ("F32", st.one_of(st.integers(-9, 9), st.floats(width=32, allow_nan=False, allow_infinity=False))),
    "d": ("F64", st.one_of(st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False))),
    "b": ("Bool", st.booleans()),
    "day": ("Date", st.dates()),
    "at": ("DateTime", st.datetimes(min_value=dt.datetime(1, 1, 2), timezones=st.just(dt.UTC))),
    "kind": ("String", st.sampled_from(["x", "y"])),
}
GIVEN = st.fixed_dictionaries({}, optional={name: st.one_of(st.none(), kind) for name, (_, kind) in KINDS.items()})


def insert(slug: str, values: dict[str, Any]) -> str:
    return f'insert Thing {{ slug: "{slug}" {" ".join(f", {name}: ${name}" for name in values)} }}'


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(GIVEN, min_size=1, max_size=4))
@example([{}, {"d": -0.0, "f": -0.0}, {"text": "", "day": dt.date.min, "at": dt.datetime(1, 1, 2, tzinfo=dt.UTC)}])
def test_a_row_alone_is_stored_as_it_is_beside_another(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        alone, beside = (make_world(Path(place) / name, EVERYTHING, {"fsync": "false"}) for name in ("one", "two"))
        for number, values in enumerate(rows):
            params = {name: (f"{KINDS[name][0]}?", value) for name, value in values.items()}
            alone.mutate(insert(f"t{number}", values), params=params)
            beside.mutate(f"{insert(f't{number}', values)} {insert(f'other{number}', {})}", params=params)

        expected = [row for row in beside.rows("Thing") if not row["slug"].startswith("other")]
        assert repr(alone.rows("Thing")) == repr(expected)  # as text: -0.0 is not 0.0
        assert repr(alone.elsewhere.rows("Thing")) == repr(expected)


# Refusals. What is wrong with one row is told alike whether or not another, which is fine, comes with it.

FINE = {
    "Person": 'insert Person { slug: "fine", name: "Fine" }',
    "Company": 'insert Company { name: "fine" }',
    "Note": 'insert Note { text: "fine" }',
    "Knows": 'insert Knows { from: "eve", to: "ada" }',
    "Likes": 'insert Likes { from: "eve", to: "ada" }',
    "WorksAt": 'insert WorksAt { from: "eve", to: "acme" }',
}
BROKEN = {
    "Person.name required": 'insert Person { slug: "zed" }',
    "Person.slug required": 'insert Person { name: "Zed" }',
    "Person.role enum": 'insert Person { slug: "zed", name: "Zed", role: $boss }',
    "Person.age range 0..150": 'insert Person { slug: "zed", name: "Zed", age: 151 }',
    "Person.slug check [a-z0-9-]+": 'insert Person { slug: "Z", name: "Zed" }',
    "Person unique (name, role)": 'insert Person { slug: "zed", name: "Bob" }',
    "Note.text required": "insert Note { rank: 1 }",
    "Note unique (rank)": 'insert Note { text: "again", rank: 7 }',
    "Knows.src in Person": 'insert Knows { from: "nobody", to: "ada" }',
    "Knows.dst in Person": 'insert Knows { from: "ada", to: "nobody" }',
    "Knows unique (src, dst)": 'insert Knows { from: "ada", to: "bob" }',
    "WorksAt card 0..1": 'insert WorksAt { from: "ada", to: "acme" }',
}


def refusal(world: World, body: str, constraint: str) -> tuple[str, Any]:
    params = {"boss": ("String", "boss")} if "$boss" in body else None
    error = world.refused(lambda: world.mutate(body, params=params), constraint)
    return without_fresh_ids(str(error)), [without_fresh_ids(str(one)) for one in error.violations]


def without_fresh_ids(text: str) -> str:
    return re.sub(r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "<id>", text)


@pytest.mark.parametrize("constraint", BROKEN)
def test_one_row_that_breaks_a_constraint_is_refused_in_the_words_of_two(people: World, constraint: str) -> None:
    people.mutate('insert Note { text: "first", rank: 7 }')
    people.mutate('insert WorksAt { from: "ada", to: "acme" }')
    body = BROKEN[constraint]

    alone = refusal(people, body, constraint)

    assert alone == refusal(people, f"{body} {FINE[body.split()[1]]}", constraint)


# Several statements about one row.


def test_a_second_insert_of_the_same_key_adds_to_the_first(world: World) -> None:
    commit = world.mutate(
        'insert Person { slug: "ada", name: "Ada", age: 36 } insert Person { slug: "ada", name: "Ada L" }'
    )

    assert touched(commit) == {"Person": {"inserted": 1}}
    for seen in (world, world.elsewhere):
        (row,) = seen.rows("Person")
        assert (row["name"], row["age"], row["role"]) == ("Ada L", 36, "ops")


def test_an_update_of_the_row_that_was_just_inserted_is_one_new_row(world: World) -> None:
    commit = world.mutate(
        'insert Person { slug: "ada", name: "Ada" } update Person set { age: 36 } where slug = "ada"'
        ' insert Person { slug: "bob", name: "Bob" } insert Person { slug: "ada", name: "Ada L" }'
    )

    assert touched(commit) == {"Person": {"inserted": 2}}
    for seen in (world, world.elsewhere):
        assert [(row["slug"], row["name"], row["age"]) for row in seen.rows("Person")] == [
            ("ada", "Ada L", 36),
            ("bob", "Bob", None),
        ]


def test_rows_written_with_looks_in_between_all_arrive(world: World) -> None:
    looks = 'update Note set { rank: 1 } where text = "nobody"'
    statements = [f'insert Note {{ text: "n{number}" }} {looks}' for number in range(4)]

    commit = world.mutate(" ".join(statements))

    assert touched(commit) == {"Note": {"inserted": 4}}
    for seen in (world, world.elsewhere):
        assert sorted(row["text"] for row in seen.rows("Note")) == ["n0", "n1", "n2", "n3"]


def test_an_insert_that_says_what_is_there_already_is_no_commit(people: World) -> None:
    assert people.mutate('insert Person { slug: "eve", name: "Eve" }') is None
    assert people.elsewhere.mutate('insert Company { name: "acme" }') is None


def test_an_edge_and_its_two_nodes_each_a_single_row_of_its_table_land_together(world: World) -> None:
    commit = world.mutate(
        'insert WorksAt { from: "ada", to: "acme" } insert Person { slug: "ada", name: "Ada" }'
        ' insert Company { name: "acme" }'
    )

    assert {name: counts["inserted"] for name, counts in touched(commit).items()} == {
        "WorksAt": 1,
        "Person": 1,
        "Company": 1,
    }
    assert world.elsewhere.pairs("WorksAt") == [("ada", "acme")]


# Keys that are there, or were: in the rows that ride in manifests, and in the stored table.


def opened(world: World, how: Settings) -> World:
    return World(open_repository(world.repository.location.uri, {"fsync": "false"}, settings=how))


@pytest.fixture
def company(tmp_path: Path) -> World:
    schema = compile_schema("node Company { name: String @key  size: I64?  city: String? }")
    return World(init_repository(str(tmp_path / "graph"), schema, {"fsync": "false"}, settings=INLINE))


def ref_of(world: World) -> TableRef:
    return world.repository.snapshot().manifest.tables["node:Company"]


ADD = 'insert Company { name: "acme", size: 1, city: "Bern" }'
AGAIN = 'insert Company { name: "acme", size: 2 }'
REMOVE = 'delete Company where name = "acme"'
OTHER = 'insert Company { name: "other" }'
INSERTED, UPDATED = {"inserted": 1}, {"updated": 1}


@pytest.mark.parametrize("fresh", [False, True], ids=["the same process", "another process"])
@pytest.mark.parametrize(
    ("before", "counts", "city"),
    [
        ([(INLINE, ADD)], UPDATED, "Bern"),
        ([(STAGED, ADD)], UPDATED, "Bern"),
        ([(STAGED, OTHER)], INSERTED, None),
        ([(INLINE, ADD), (INLINE, REMOVE)], INSERTED, None),
        ([(STAGED, ADD), (INLINE, REMOVE)], INSERTED, None),
        ([(STAGED, ADD), (STAGED, REMOVE)], INSERTED, None),
        ([(STAGED, f"{ADD} {OTHER}"), (STAGED, REMOVE)], INSERTED, None),
        ([(STAGED, ADD), (INLINE, REMOVE), (INLINE, ADD)], UPDATED, "Bern"),
        ([(STAGED, ADD), (INLINE, REMOVE), (STAGED, OTHER)], INSERTED, None),
        ([(STAGED, ADD), (INLINE, AGAIN), (INLINE, REMOVE), (INLINE, OTHER)], INSERTED, None),
    ],
)
def test_an_insert_finds_whether_its_key_exists(
    company: World, before: list[tuple[Settings, str]], counts: dict[str, int], city: str | None, fresh: bool
) -> None:
    worlds = {how: company if how is INLINE else opened(company, how) for how in (INLINE, STAGED)}
    for how, body in before:
        worlds[how].mutate(body)
    writer = opened(company, INLINE) if fresh else company

    commit = writer.mutate(AGAIN)

    assert touched(commit) == {"Company": counts}
    assert ref_of(writer).tail, "the row rides in the manifest"
    for seen in (writer, company, opened(company, INLINE)):
        row = seen.row("Company", "acme")
        assert (row["size"], row["city"]) == (2, city)
        assert len(seen.rows("Company")) == ref_of(seen).rows == len(set(seen.ids("Company")))
    opened(company, STAGED).mutate('insert Company { name: "last" }')  # what rides in manifests goes into the table
    stored = opened(company, INLINE)
    assert not ref_of(stored).tail
    assert stored.row("Company", "acme")["city"] == city
    assert len(stored.ids("Company")) == ref_of(stored).rows == len(set(stored.ids("Company")))


# Rows that are too large for a manifest, and settings that keep all rows out of them.


@pytest.mark.parametrize(("length", "inline"), [(60_000, True), (64 * 1024 + 1, False), (1_000_000, False)])
def test_one_row_with_a_large_text_is_stored_whole_wherever_it_goes(company: World, length: int, inline: bool) -> None:
    text = "ü" * (length // 2)

    commit = company.mutate('insert Company { name: "acme", city: $c }', params={"c": ("String", text)})

    assert touched(commit) == {"Company": INSERTED}
    assert bool(ref_of(company).tail) is inline
    assert (ref_of(company).stored is None) is inline
    for seen in (company, opened(company, INLINE)):
        assert seen.row("Company", "acme")["city"] == text


def test_one_large_row_that_replaces_another_counts_as_an_update(company: World) -> None:
    company.mutate(ADD)

    commit = company.mutate('insert Company { name: "acme", city: $c }', params={"c": ("String", "x" * 100_000)})

    assert touched(commit) == {"Company": UPDATED}
    (row,) = opened(company, INLINE).rows("Company")
    assert (row["size"], len(row["city"])) == (1, 100_000)


def test_without_inline_rows_a_single_row_is_stored_in_its_table(company: World) -> None:
    staged = opened(company, STAGED)

    assert touched(staged.mutate(ADD)) == {"Company": INSERTED}
    assert touched(staged.mutate(AGAIN)) == {"Company": UPDATED}

    assert ref_of(staged).stored is not None
    assert ref_of(staged).tail == ()
    assert opened(company, INLINE).rows("Company") == [{"id": "acme", "name": "acme", "size": 2, "city": "Bern"}]
