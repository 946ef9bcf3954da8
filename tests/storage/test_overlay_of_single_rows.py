"""Overlays of rows that were made of values one by one answer as those of the same rows as tables do."""

import copy
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omnigraph.manifest.commit.plan import Append, Upsert
from omnigraph.manifest.store.inline_rows import decode_change, encode_change
from omnigraph.schema.ipc_row import EncodedRow, RowEncoder
from omnigraph.storage.table.overlay import Overlay, RowChunk

Row = dict[str, Any]

COLUMNS: dict[str, pa.DataType] = {"id": pa.string(), "n": pa.int32(), "ok": pa.bool_()}
FIRST = pa.schema(COLUMNS)
GROWN = FIRST.append(pa.field("note", pa.string()))  # a column was added
WIDER = GROWN.remove(1).append(pa.field("n", pa.int64()))  # one has got another type, and another place
SCHEMAS = [FIRST, GROWN, WIDER]
# Two of each: every version of a schema that a process reads has its own, however alike they are.
MAKERS = [(RowEncoder(schema), RowEncoder(pa.schema(list(schema)))) for schema in SCHEMAS]


@dataclass(frozen=True)
class Put:
    """One row, of one of the schemas, by one of its makers; `new` says that nobody had its id before."""

    row: tuple[tuple[str, Any], ...]
    schema: int
    maker: int
    new: bool

    @property
    def values(self) -> Row:
        return {name: value for name, value in self.row if name in SCHEMAS[self.schema].names}


@dataclass(frozen=True)
class Remove:
    ids: frozenset[str]


@dataclass(frozen=True)
class Look:
    """Somebody asks for a table in between."""


Step = Put | Remove | Look
IDS = st.sampled_from(["a", "b", "c", "d", "", "ä€😀", "a' OR '1'='1"])
PUTS = st.builds(
    Put,
    row=st.fixed_dictionaries(
        {
            "id": IDS,
            "n": st.one_of(st.none(), st.integers(-9, 9)),
            "ok": st.sampled_from([None, False, True]),
            "note": st.one_of(st.none(), st.text(max_size=9)),
        }
    ).map(lambda row: tuple(row.items())),
    schema=st.integers(0, 2),
    maker=st.integers(0, 1),
    new=st.booleans(),
)
STEPS = st.lists(st.one_of(PUTS, PUTS, PUTS, st.builds(Remove, st.frozensets(IDS, max_size=3)), st.just(Look())))


def as_made(put: Put) -> EncodedRow:
    made = MAKERS[put.schema][put.maker].encode(put.values)
    assert made is not None
    return made


def as_table(put: Put) -> pa.Table:
    return pa.Table.from_pylist([put.values], schema=SCHEMAS[put.schema])


def overlays(steps: Iterable[Step], part: Callable[[Put], RowChunk]) -> list[Overlay]:
    found: list[Overlay] = []
    for step in steps:
        match step:
            case Put():
                found.append(Overlay.of_rows(part(step), frozenset({step.values["id"]}), step.new))
            case Remove(ids):
                found.append(Overlay.of(None, ids))
            case Look():
                pass
    return found


def added_up(steps: Iterable[Step], part: Callable[[Put], RowChunk]) -> Overlay:
    """One on top of the other; whoever looks in between makes a table of what there is."""
    overlay = Overlay.EMPTY
    for step in steps:
        if isinstance(step, Look):
            assert overlay.rows is None or overlay.fingerprint
        else:
            overlay = overlay.compose(*overlays([step], part))
    return overlay


def by_id(rows: pa.Table | None) -> dict[str, Row] | None:
    if rows is None:
        return None
    rows.validate(full=True)
    found: dict[str, Row] = {row["id"]: row for row in rows.to_pylist()}
    assert len(found) == rows.num_rows, "an id came twice"
    return found


def answers(overlay: Overlay) -> dict[str, Any]:
    some = ["a", "ä€😀", "nobody"]
    return {
        "widened": overlay.widen(pa.schema([FIRST.field("id")])),
        "widened, with a column of its own": overlay.widen(pa.schema([pa.field("own", pa.date32()), FIRST.field(0)])),
        "is_empty": overlay.is_empty,
        "ids": overlay.ids,
        "shadowed": overlay.hidden_ids,
        "answered": overlay.decided_ids,
        "columns of a schema": overlay.columns(FIRST),
        "columns": None if overlay.rows is None else overlay.columns(None),
        "rows": by_id(overlay.rows),
        "rows_of": by_id(overlay.rows_of(some)),
        "rows_of nobody": by_id(overlay.rows_of([])),
        "fingerprint": overlay.fingerprint,
        "if new": overlay.as_new(True).hidden_ids,
        "if not": overlay.as_new(False).hidden_ids,
    }


def row(**values: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(values.items())


@settings(deadline=None, max_examples=200)
@given(STEPS)
@example([Put(row(id="a", n=1), 0, 0, True), Put(row(id="b", n=2), 1, 0, True), Put(row(id="a", n=3), 0, 1, False)])
@example([Put(row(id="a"), 0, 0, True), Remove(frozenset("a")), Put(row(id="a", note="again"), 2, 0, True)])
def test_made_rows_answer_as_tables_do(steps: list[Step]) -> None:
    assert answers(added_up(steps, as_made)) == answers(added_up(steps, as_table))


@settings(deadline=None)
@given(STEPS, st.data())
def test_made_rows_answer_as_tables_do_however_they_are_added_up(steps: list[Step], data: st.DataObject) -> None:
    made, tables = overlays(steps, as_made), overlays(steps, as_table)
    while len(made) > 1:
        at = data.draw(st.integers(0, len(made) - 2))
        for those in (made, tables):
            those[at : at + 2] = [those[at].compose(those[at + 1])]

    assert list(map(answers, made)) == list(map(answers, tables))


@settings(deadline=None)
@given(STEPS)
def test_the_rows_are_those_of_a_dict(steps: list[Step]) -> None:
    expected: dict[str, Row] = {}
    for step in steps:
        if isinstance(step, Put):
            expected[step.values["id"]] = step.values
        elif isinstance(step, Remove):
            expected = {entity: row for entity, row in expected.items() if entity not in step.ids}

    found = by_id(added_up(steps, as_made).rows) or {}
    assert {entity: _without_nulls(row) for entity, row in found.items()} == {
        entity: _without_nulls(row) for entity, row in expected.items()
    }


def _without_nulls(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


@settings(deadline=None)
@given(STEPS)
def test_an_overlay_that_was_sent_elsewhere_answers_as_before(steps: list[Step]) -> None:
    overlay = added_up(steps, as_made)
    sent = [pickle.loads(pickle.dumps(overlay)), copy.deepcopy(overlay)]
    expected = answers(overlay)
    sent.append(pickle.loads(pickle.dumps(overlay)))  # with all that is known of it by now

    for again in sent:
        assert answers(again) == expected


@settings(deadline=None)
@given(PUTS, st.frozensets(IDS, max_size=2), st.booleans())
def test_a_made_row_is_stored_as_the_table_of_it_is(put: Put, deletes: frozenset[str], new: bool) -> None:
    made, table = (Overlay.of_rows(part(put), frozenset({put.values["id"]})) for part in (as_made, as_table))
    change = encode_change(made, deletes, new=new)

    assert change == encode_change(table, deletes, new=new)
    assert by_id(decode_change(change, "it").rows) == by_id(table.rows)


def test_a_row_that_was_made_and_deleted_again_leaves_the_columns() -> None:
    gone = Overlay.of_rows(as_made(Put(row(id="a", n=1), 1, 0, True)), frozenset("a"), True).compose(
        Overlay.of(None, "a")
    )

    assert gone.rows is not None
    assert gone.rows.equals(GROWN.empty_table())
    assert gone.single_row is None


def test_an_overlay_of_one_made_row_says_so_until_there_is_another() -> None:
    one, other = (Overlay.of_rows(as_made(Put(row(id=entity), 0, 0, True)), frozenset(entity)) for entity in "ab")

    assert one.single_row is one.parts[0]
    assert one.compose(other).single_row is None
    assert Overlay.EMPTY.single_row is None
    assert Overlay.of(as_table(Put(row(id="a"), 0, 0, True))).single_row is None


@pytest.mark.parametrize("part", [as_made, as_table])
def test_the_same_rows_hide_what_is_stored_unless_they_are_new(part: Callable[[Put], RowChunk]) -> None:
    overlay = Overlay.of_rows(part(Put(row(id="a"), 0, 0, True)), frozenset("a"))

    assert overlay.as_new(True).hidden_ids == frozenset()
    assert overlay.as_new(False).hidden_ids == {"a"}
    assert (
        overlay.as_new(True).ids == overlay.as_new(False).ids == overlay.as_new(True).as_new(False).hidden_ids == {"a"}
    )


def test_rows_made_one_by_one_are_read_together() -> None:
    puts = [Put(row(id=str(number), n=number), 0, 0, True) for number in range(50)]
    overlay = reduce(Overlay.compose, overlays(puts, as_made))

    assert len(overlay.parts) == 50
    assert overlay.rows is not None
    assert overlay.rows is overlay.rows
    assert sorted(row["n"] for row in overlay.rows.to_pylist()) == list(range(50))


# Actions of a plan.


def appended(rows: "pa.Table | Overlay") -> Append | Upsert:
    return Append("node:T", rows, fresh_ids=True)


def upserted(rows: "pa.Table | Overlay") -> Append | Upsert:
    return Upsert("node:T", rows, frozenset("a"))


@pytest.mark.parametrize("action", [appended, upserted])
def test_an_action_of_a_made_row_has_the_rows_of_the_table(action: Callable[[Any], Append | Upsert]) -> None:
    put = Put(row(id="a", n=1), 0, 0, True)
    made, table = action(Overlay.of_rows(as_made(put), frozenset("a"))), action(as_table(put))

    assert made.rows.equals(table.rows)
    assert made.count == table.count == 1
    assert made.table == table.table
    assert table.overlay is None
    again = made.with_rows(table.rows)
    assert type(again) is type(made)
    assert again.overlay is None
    assert again.rows.equals(made.rows)


@pytest.mark.parametrize("action", [appended, upserted])
def test_an_action_of_a_made_row_can_be_sent_elsewhere(action: Callable[[Any], Append | Upsert]) -> None:
    made = action(Overlay.of_rows(as_made(Put(row(id="a", n=1), 0, 0, True)), frozenset("a")))

    again = pickle.loads(pickle.dumps(made))

    assert again.rows.equals(made.rows)
    assert again.count == 1
    match again, made:
        case (Append(table, rows, fresh), Append()):
            assert (table, rows.num_rows, fresh) == ("node:T", 1, True)
        case (Upsert(table, rows, known), Upsert()):
            assert (table, rows.num_rows, known) == ("node:T", 1, frozenset("a"))
        case _:
            raise AssertionError(again)
