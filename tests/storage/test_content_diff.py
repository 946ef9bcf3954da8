"""What differs between two contents: each a stored version with small commits on top."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnigraph.storage import meter
from omnigraph.storage.location import Location
from omnigraph.storage.table.diff import content_diff
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import TableContent, Tail, VersionWithTail, make_content
from omnigraph.storage.table.tables import Difference, Tables, TableVersion
from support.arrow import schema_of
from support.tails import Tails, numbers_of

SCHEMA = schema_of(id=pa.string(), n=pa.int64())


def rows(values: Mapping[str, int]) -> pa.Table:
    return pa.table({"id": list(values), "n": list(values.values())}, schema=SCHEMA)


def both(found: Difference) -> tuple[dict[Any, Any], dict[Any, Any]]:
    return numbers_of(found.before), numbers_of(found.after)


@pytest.fixture
def tails() -> Tails:
    return Tails()


@pytest.fixture
def tables(tmp_path: Path, tails: Tails) -> Tables:
    return Tables(Location(str(tmp_path / "graph"), fsync=False), read_tail=tails)


def test_what_a_shared_tail_says_does_not_differ(tables: Tables, tails: Tails) -> None:
    at = tables.create("t", rows({"ada": 0, "bob": 0})).at
    first = tails.add(Overlay.of(rows({"ada": 1, "cy": 1})))
    ours, theirs = tails.add(Overlay.of(rows({"ada": 2}))), tails.add(Overlay.of(None, ["bob"]))

    assert both(tables.difference(VersionWithTail(at, (first,)), VersionWithTail(at, (first, ours)))) == (
        {"ada": 1},
        {"ada": 2},
    )
    assert both(tables.difference(VersionWithTail(at, (first, ours)), VersionWithTail(at, (first, theirs)))) == (
        {"ada": 2, "bob": 0},
        {"ada": 1},
    )
    assert tables.differing_rows(VersionWithTail(at, (first,)), VersionWithTail(at, (first, ours))) == (1, 1)


def test_a_tail_and_the_version_that_it_was_folded_into_say_the_same(tables: Tables, tails: Tails) -> None:
    at = tables.create("t", rows({"ada": 0, "bob": 0})).at
    tail = tails.tail(Overlay.of(rows({"ada": 1, "cy": 1})), Overlay.of(None, ["bob"]))
    folded = tables.fold_tail(VersionWithTail(at, tail), "unused").at
    later = tails.add(Overlay.of(rows({"ada": 2})))

    assert both(tables.difference(VersionWithTail(at, tail), folded)) == ({}, {})
    assert both(tables.difference(VersionWithTail(at, (*tail, later)), folded)) == ({"ada": 2}, {"ada": 1})
    assert both(tables.difference(VersionWithTail(at, tail), VersionWithTail(folded, (later,)))) == (
        {"ada": 1},
        {"ada": 2},
    )


def test_rows_that_were_never_stored_differ_from_nothing(tables: Tables, tails: Tails) -> None:
    unstored = VersionWithTail(None, tails.tail(Overlay.of(rows({"ada": 1}), new=True)))

    assert both(tables.difference(None, unstored)) == ({}, {"ada": 1})
    assert both(tables.difference(unstored, None, SCHEMA)) == ({"ada": 1}, {})
    assert both(tables.difference(unstored, unstored)) == ({}, {})


def test_a_column_of_one_side_is_null_on_the_other(tables: Tables, tails: Tails) -> None:
    at = tables.create("t", rows({"ada": 0, "bob": 0})).at
    wide = pa.table({"id": ["ada"], "n": [0], "city": ["Rome"]})

    found = tables.difference(at, VersionWithTail(at, tails.tail(Overlay.of(wide))))

    assert found.before.to_pylist() == [{"id": "ada", "n": 0, "city": None}]
    assert found.after.to_pylist() == [{"id": "ada", "n": 0, "city": "Rome"}]
    narrow = tables.difference(at, VersionWithTail(at, tails.tail(Overlay.of(wide))), SCHEMA)
    assert both(narrow) == ({}, {}), "only the columns that are asked for count"


def test_differing_rows_come_as_batches_too(tables: Tables, tails: Tails) -> None:
    at = tables.create("t", rows({"ada": 0, "bob": 0})).at
    newer = VersionWithTail(tables.upsert(at, rows({"bob": 1})).at, tails.tail(Overlay.of(rows({"bob": 2, "cy": 2}))))

    before, after = tables.differing_batches(at, newer, SCHEMA)

    assert numbers_of(pa.Table.from_batches(before, SCHEMA)) == {"bob": 0}
    assert numbers_of(pa.Table.from_batches(after, SCHEMA)) == {"bob": 2, "cy": 2}


def test_small_commits_on_one_version_differ_without_a_scan(tmp_path: Path, tails: Tails) -> None:
    location = Location(str(tmp_path / "graph"), fsync=False)
    size = 100_000
    whole = pa.table({"id": [f"p{k:06}" for k in range(size)], "n": list(range(size)), "text": ["words " * 9] * size})
    at = Tables(location).create("t", whole).at
    import lance

    cold = Tables(location, session=lance.Session(), read_tail=tails)
    one = pa.table({"id": ["new"], "n": [1], "text": ["more"]})
    with meter.operation("difference") as inserted:
        found = cold.difference(at, VersionWithTail(at, tails.tail(Overlay.of(one, new=True))), whole.schema)
    assert (found.before.num_rows, found.after.num_rows) == (0, 1)
    assert inserted.cost.bytes < whole.nbytes / 2, "the ids at most were looked through"


# Against a model

IDS = ["a", "b", "c", "it's", ""]
STEPS = st.tuples(
    st.sampled_from(["put", "put", "remove", "fold", "compact", "move"]),
    st.dictionaries(st.sampled_from(IDS), st.integers(0, 2), min_size=1, max_size=3),
)


class Line:
    """Contents that follow one another, each with the rows that it is known to have."""

    def __init__(self, tables: Tables, tails: Tails) -> None:
        self.tables, self.tails, self.made = tables, tails, 0
        self.known: list[tuple[TableVersion | None, Tail, dict[str, int]]] = [(None, (), {})]

    def step(self, of: int, verb: str, values: dict[str, int]) -> None:
        at, tail, state = self.known[of]
        content = make_content(at, tail)
        if verb == "put":
            said = Overlay.of(rows(values), new=not values.keys() & state.keys())
            self.known.append((at, (*tail, self.tails.add(said)), {**state, **values}))
        elif verb == "remove":
            left = {i: n for i, n in state.items() if i not in values}
            self.known.append((at, (*tail, self.tails.add(Overlay.of(None, values))), left))
        elif verb == "move" and content is not None:  # to another table
            self.made += 1
            moved = self.tables.create(f"t{self.made}", self.tables.scan(content, schema=SCHEMA)).at
            self.known.append((moved, (), state))
        elif verb == "fold":
            self.made += 1
            self.known.append((self.tables.fold(content, Overlay.EMPTY, f"t{self.made}", SCHEMA).at, (), state))
        elif verb == "compact" and at is not None and self.tables.count(at):
            # Whatever is below a row on top of it makes no difference.
            hidden = self.tails(tail).hidden_ids
            kept = {i: n + (i in hidden) for i, n in numbers_of(self.tables.scan(at)).items()}
            self.known.append((self.tables.overwrite(at, rows(kept)).at, tail, state))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=1, max_size=8), fork=st.integers(0, 8), data=st.data())
def test_any_two_contents_differ_as_dicts_would(
    steps: list[tuple[str, dict[str, int]]], fork: int, data: st.DataObject
) -> None:
    """Contents of a line with a fork in it, in memory and by a join."""
    with tempfile.TemporaryDirectory() as root:
        tails = Tails()
        tables = Tables(Location(f"{root}/graph", fsync=False), scratch=Path(root) / "scratch", read_tail=tails)
        line = Line(tables, tails)
        for place, (verb, values) in enumerate(steps):
            line.step(len(line.known) // 2 if place == fork else -1, verb, values)
        (at1, tail1, was), (at2, tail2, now) = (data.draw(st.sampled_from(line.known)) for _ in range(2))
        pending = data.draw(st.dictionaries(st.sampled_from(IDS), st.integers(0, 2), max_size=2))
        older = make_content(at1, tail1)
        newer = make_content(at2, tail2, Overlay.of(rows(pending)))
        now = {**now, **pending}

        assert_differ(tables, older, newer, was, now)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(content_diff, "IN_MEMORY_ROWS_MAX", 0)
            assert_differ(tables, older, newer, was, now)


def assert_differ(
    tables: Tables, older: TableContent | None, newer: TableContent | None, was: dict[str, int], now: dict[str, int]
) -> None:
    expected = (
        {i: n for i, n in was.items() if now.get(i) != n},
        {i: n for i, n in now.items() if was.get(i) != n},
    )
    assert both(tables.difference(older, newer, SCHEMA)) == expected
    ids = tables.differing_ids(older, newer)
    assert set(expected[0]) <= set(ids.before.to_pylist()) <= set(was)
    assert set(expected[1]) <= set(ids.after.to_pylist()) <= set(now)
    most = tables.differing_rows(older, newer)
    assert (len(ids.before), len(ids.after)) <= most
