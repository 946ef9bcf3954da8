"""Contents: a stored version with small commits on top is read as one table, by every way there is to read."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph.storage.location import Location
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import VersionWithTail, make_content
from omnigraph.storage.table.tables import Tables, TableVersion
from omnigraph.storage.table.view import ViewCache
from support.arrow import schema_of
from support.tails import Tails, numbers_of

SCHEMA = schema_of(id=pa.string(), text=pa.string(), n=pa.int64())


def rows(*ids: str, text: str = "plain words", n: int = 0) -> pa.Table:
    return pa.table({"id": list(ids), "text": [text] * len(ids), "n": [n] * len(ids)}, schema=SCHEMA)


@pytest.fixture
def tails() -> Tails:
    return Tails()


@pytest.fixture
def tables(tmp_path: Path, tails: Tails) -> Tables:
    return Tables(Location(str(tmp_path / "graph"), fsync=False), scratch=tmp_path / "scratch", read_tail=tails)


@pytest.fixture
def no_views(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a view was made")

    monkeypatch.setattr(ViewCache, "_build", refuse)


@pytest.fixture
def stored(tables: Tables) -> TableVersion:
    return tables.create("t", rows("ada", "bob", "cy")).at


@pytest.fixture
def mixed(tables: Tables, tails: Tails, stored: TableVersion) -> VersionWithTail:
    """ada as stored, bob gone, cy and dee and eve on top; eve only about to be."""
    tail = tails.tail(Overlay.of(rows("cy", n=1)), Overlay.of(rows("dee", n=1), new=True), Overlay.of(None, ["bob"]))
    return VersionWithTail(stored, tail, Overlay.of(rows("eve", n=2), new=True))


EXPECTED = {"ada": 0, "cy": 1, "dee": 1, "eve": 2}


def test_nothing_on_top_is_the_version_itself(stored: TableVersion) -> None:
    assert make_content(stored, ()) is stored
    assert make_content(None, ()) is None
    assert make_content(None, (), Overlay.of(rows("ada"))) is not None


def test_the_parts_of_a_content_are_its_version_and_all_that_is_on_top(tables: Tables, mixed: VersionWithTail) -> None:
    at, overlay = tables.resolve(mixed, Overlay.of(rows("eve", n=3)))

    assert at == mixed.stored
    assert overlay.rows is not None
    assert numbers_of(overlay.rows) == {"cy": 1, "dee": 1, "eve": 3}
    assert overlay.decided_ids == {"bob", "cy", "dee", "eve"}
    assert tables.resolve(at) == (at, Overlay.EMPTY)
    assert tables.resolve(None) == (None, Overlay.EMPTY)


def test_a_tail_that_nobody_can_read_is_a_mistake(tmp_path: Path, tails: Tails) -> None:
    unable = Tables(Location(str(tmp_path / "graph"), fsync=False))

    with pytest.raises(AssertionError, match="tail"):
        unable.count(VersionWithTail(None, tails.tail(Overlay.of(rows("ada")))))

    unable.read_tail = tails
    assert unable.count(VersionWithTail(None, tails.tail(Overlay.of(rows("ada"))))) == 1


def test_scans_and_counts_see_what_is_on_top(tables: Tables, mixed: VersionWithTail) -> None:
    assert numbers_of(tables.scan(mixed)) == EXPECTED
    assert numbers_of(pa.Table.from_batches(tables.batches(mixed))) == EXPECTED
    assert numbers_of(tables.scan(mixed, filter="n > 0")) == {"cy": 1, "dee": 1, "eve": 2}
    assert tables.count(mixed) == 4
    assert tables.count(mixed, "n = 1") == 2


def test_searches_see_what_is_on_top(tables: Tables, mixed: VersionWithTail) -> None:
    found = tables.search_text(mixed, "text", "search", "words", with_ids=True)
    overlay = Overlay.of(rows("ada", text="gone"))

    assert found.ids is not None
    assert sorted(found.ids.to_pylist(), key=str) == sorted(EXPECTED)
    assert len(tables.search_text(mixed, "text", "search", "words", overlay=overlay).addresses) == 3
    assert len(tables.overlay_addresses(mixed)) == 3


def test_what_is_given_lies_on_top_of_the_content(tables: Tables, mixed: VersionWithTail) -> None:
    given = Overlay.of(rows("dee", n=9), ["ada"])

    assert numbers_of(tables.scan(mixed, overlay=given)) == {"cy": 1, "dee": 9, "eve": 2}
    assert tables.exists(mixed, ["ada", "dee"], given) == {"dee"}
    assert numbers_of(tables.lookup(mixed, ["ada", "dee"], overlay=given)) == {"dee": 9}


@pytest.mark.usefixtures("no_views")
def test_point_questions_make_no_view(tables: Tables, mixed: VersionWithTail) -> None:
    asked = ["ada", "bob", "cy", "dee", "eve", "zoe"]

    assert tables.exists(mixed, asked) == set(EXPECTED)
    assert numbers_of(tables.lookup(mixed, asked)) == EXPECTED
    assert tables.lookup(mixed, ["ada", "cy"], ["n"])["n"].to_pylist() == [1, 0]
    assert tables.count(mixed) == 4
    assert tables.present_values(mixed, "text", ["plain words", "none"]) == {"plain words"}
    assert numbers_of(tables.find_rows(mixed, ["id", "n"], {"n": [0, 2]})) == {"ada": 0, "eve": 2}


@pytest.mark.usefixtures("no_views")
def test_a_value_that_only_replaced_rows_had_matches_nothing(tables: Tables, tails: Tails) -> None:
    at = tables.append(tables.create("t", rows("ada", text="old")).at, rows("bob", text="older")).at
    tail = tails.tail(Overlay.of(rows("ada", text="new")), Overlay.of(None, ["bob"]))

    assert tables.present_values(VersionWithTail(at, tail), "text", ["old", "older", "new"]) == {"new"}
    assert tables.present_values(VersionWithTail(at, tail), "id", ["ada", "bob", "cy"]) == {"ada"}
    assert tables.find_rows(VersionWithTail(at, tail), ["n"], {"text": ["old", "older"]}).num_rows == 0


@pytest.mark.usefixtures("no_views")
def test_rows_have_a_value_in_every_column_of_one_alternative(tables: Tables, mixed: VersionWithTail) -> None:
    def ids(*either: dict[str, list[object]]) -> list[Any]:
        return sorted(tables.find_rows(mixed, ["id"], *either)["id"].to_pylist(), key=str)

    assert ids({"id": ["ada", "bob", "cy", "eve"], "n": [0, 1]}) == ["ada", "cy"]
    assert ids({"id": ["ada"]}, {"n": [2]}) == ["ada", "eve"]
    assert ids({"id": []}, {"n": [2]}) == ["eve"]
    assert ids({"nowhere": ["x"]}) == []


def test_a_column_that_only_one_side_has_is_null_on_the_other(tables: Tables, tails: Tails) -> None:
    at = tables.create("t", rows("ada")).at
    later = pa.table({"id": ["bob"], "city": ["Rome"]})
    content = VersionWithTail(at, tails.tail(Overlay.of(later, new=True)))

    assert tables.find_rows(content, ["id", "city"], {"city": ["Rome"]}).to_pylist() == [{"id": "bob", "city": "Rome"}]
    found = tables.find_rows(content, ["id", "city"], {"id": ["ada"]})
    assert found.to_pylist() == [{"id": "ada", "city": None}]
    assert tables.find_rows(content, ["id", "later"], {"id": ["bob"]}).to_pylist() == [{"id": "bob", "later": None}]
    assert tables.present_values(content, "city", ["Rome", "Oslo"]) == {"Rome"}


def test_the_two_zeros_are_one_value(tables: Tables, tails: Tails) -> None:
    def scored(entity: str, score: float) -> pa.Table:
        return pa.table({"id": [entity], "score": [score]})

    at = tables.create("t", scored("ada", -0.0)).at
    content = VersionWithTail(at, tails.tail(Overlay.of(scored("bob", -0.0)), Overlay.of(scored("cy", 1.0))))

    assert sorted(tables.find_rows(content, ["id"], {"score": [0.0]})["id"].to_pylist(), key=str) == ["ada", "bob"]


# A type whose rows all ride in manifests


@pytest.fixture
def unstored(tails: Tails) -> VersionWithTail:
    said = Overlay.of(rows("ada", "bob"), new=True), Overlay.of(rows("ada", n=1)), Overlay.of(None, ["bob"])
    return VersionWithTail(None, tails.tail(*said))


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["own columns", "given columns"])
def test_rows_without_a_stored_table_are_read_like_others(
    tables: Tables, unstored: VersionWithTail, schema: pa.Schema | None
) -> None:
    assert numbers_of(tables.scan(unstored, schema=schema)) == {"ada": 1}
    assert tables.scan(unstored, ["n"], "id = 'ada'", schema=schema).to_pylist() == [{"n": 1}]
    assert numbers_of(tables.lookup(unstored, ["ada", "bob"], schema=schema)) == {"ada": 1}
    assert tables.exists(unstored, ["ada", "bob"]) == {"ada"}
    assert (tables.count(unstored), tables.count(unstored, "n = 0", schema=schema)) == (1, 0)
    assert tables.present_values(unstored, "text", ["plain words"]) == {"plain words"}
    assert tables.find_rows(unstored, ["id"], {"n": [1]}, schema=schema).to_pylist() == [{"id": "ada"}]
    assert len(tables.search_text(unstored, "text", "search", "plain", schema=schema).addresses) == 1
    assert len(tables.overlay_addresses(unstored, schema=schema)) == 1


def test_a_table_that_lost_all_its_rows_before_it_was_stored_still_has_columns(tables: Tables, tails: Tails) -> None:
    gone = VersionWithTail(None, tails.tail(Overlay.of(rows("ada"), new=True), Overlay.of(None, ["ada"])))

    assert tables.scan(gone).schema.equals(SCHEMA)
    assert tables.lookup(gone, ["ada"]).schema.equals(SCHEMA)
    assert (tables.count(gone), tables.exists(gone, ["ada"])) == (0, frozenset())
    assert tables.difference(None, gone).after.num_rows == 0


def test_columns_of_the_schema_that_came_later_are_null_in_rows_on_top(
    tables: Tables, unstored: VersionWithTail
) -> None:
    wide = SCHEMA.append(pa.field("city", pa.string()))

    assert tables.scan(unstored, ["id", "city"], schema=wide).to_pylist() == [{"id": "ada", "city": None}]
    assert tables.lookup(unstored, ["ada"], ["city"], schema=wide).to_pylist() == [{"city": None}]


def test_what_was_written_since_is_distinguished_from_what_a_shared_tail_says(tables: Tables, tails: Tails) -> None:
    base = tables.create("t", rows("ada", "bob")).at
    first, second = tails.tail(Overlay.of(rows("cy"), new=True), Overlay.of(rows("dee"), new=True))
    since, now = VersionWithTail(base, (first,)), VersionWithTail(base, (first, second))
    asked = ["ada", "cy", "dee", "eve"]

    assert tables.written_since(now, since, asked) == {"dee"}
    assert tables.written_since(now, base, asked) == {"cy", "dee"}
    assert tables.written_since(tables.append(base, rows("eve")).at, base, asked) == {"eve"}
