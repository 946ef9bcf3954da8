"""Overlays: what lies on top of a stored table, alone and combined with one."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnigraph.errors import BadRequest
from omnigraph.storage.location import Location
from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.tables import Tables, TableVersion
from support.arrow import schema_of

SCHEMA = schema_of(id=pa.string(), n=pa.int64())


def rows(values: Mapping[str, int]) -> pa.Table:
    return pa.table({"id": list(values), "n": list(values.values())}, schema=SCHEMA)


def as_dict(table: pa.Table) -> dict[str, int]:
    found: dict[Any, Any] = dict(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert len(found) == table.num_rows, "an id came twice"
    return found


def test_an_overlay_of_nothing_is_empty() -> None:
    assert Overlay.of().is_empty
    assert Overlay.of(rows({})).is_empty
    assert Overlay.EMPTY.is_empty


def test_an_upserted_id_is_shadowed_too() -> None:
    overlay = Overlay.of(rows({"a": 1}), ["b"])

    assert overlay.hidden_ids == {"a", "b"}


def test_an_id_both_deleted_and_upserted_was_replaced() -> None:
    overlay = Overlay.of(rows({"a": 1}), ["a"])

    assert overlay.rows is not None
    assert as_dict(overlay.rows) == {"a": 1}


def test_two_rows_with_one_id_are_refused() -> None:
    twice = pa.table({"id": ["a", "b", "a"], "n": [1, 2, 3]})

    with pytest.raises(BadRequest, match="'a' occurs more than once"):
        Overlay.of(twice)


def test_a_later_row_replaces_an_earlier_one() -> None:
    both = Overlay.of(rows({"a": 1, "b": 1})).compose(Overlay.of(rows({"a": 2})))

    assert both.rows is not None
    assert as_dict(both.rows) == {"a": 2, "b": 1}


def test_a_later_delete_takes_an_earlier_row_away() -> None:
    both = Overlay.of(rows({"a": 1})).compose(Overlay.of(None, ["a"]))

    assert both.rows is not None
    assert both.rows.equals(SCHEMA.empty_table()), "what is left tells the columns"
    assert both.hidden_ids == {"a"}
    assert not both.is_empty


def test_a_later_row_brings_back_what_was_deleted() -> None:
    both = Overlay.of(None, ["a"]).compose(Overlay.of(rows({"a": 5})))

    assert both.rows is not None
    assert as_dict(both.rows) == {"a": 5}


def test_rows_from_before_a_column_was_added_have_null_there() -> None:
    later = pa.table({"note": ["hi"], "id": ["b"], "n": [2]})
    both = Overlay.of(rows({"a": 1})).compose(Overlay.of(later))

    assert both.rows is not None
    assert both.rows.select(["id", "note"]).to_pylist() == [{"id": "a", "note": None}, {"id": "b", "note": "hi"}]


def test_a_new_row_shadows_nothing_and_is_answered_for() -> None:
    overlay = Overlay.of(rows({"a": 1}), ["b"], new=True)

    assert overlay.hidden_ids == {"b"}
    assert overlay.ids == {"a"}
    assert overlay.decided_ids == {"a", "b"}
    assert not Overlay.of(rows({"a": 1}), new=True).is_empty


def test_a_new_row_stays_new_however_often_it_is_written_again() -> None:
    both = Overlay.of(rows({"a": 1}), new=True).compose(Overlay.of(rows({"a": 2, "b": 2})))

    assert both.rows is not None
    assert as_dict(both.rows) == {"a": 2, "b": 2}
    assert both.hidden_ids == {"b"}


def test_a_new_row_that_is_removed_is_answered_for() -> None:
    both = Overlay.of(rows({"a": 1}), new=True).compose(Overlay.of(None, ["a"]))

    assert both.decided_ids == {"a"}
    assert both.ids == frozenset()


def test_a_new_row_under_an_id_that_was_removed_leaves_the_stored_one_hidden() -> None:
    both = Overlay.of(None, ["a"]).compose(Overlay.of(rows({"a": 5}), new=True))

    assert both.hidden_ids == {"a"}


def test_a_row_that_claims_to_be_new_over_another_hides_what_is_stored() -> None:
    both = Overlay.of(rows({"a": 1}), new=True).compose(Overlay.of(rows({"a": 2}), new=True))

    assert both.rows is not None
    assert as_dict(both.rows) == {"a": 2}
    assert both.hidden_ids == {"a"}


def test_nothing_on_top_leaves_the_very_same_overlay() -> None:
    overlay = Overlay.of(rows({"a": 1}))

    assert overlay.compose(Overlay.EMPTY) is overlay
    assert Overlay.EMPTY.compose(overlay) is overlay


def test_overlays_with_the_same_content_have_the_same_fingerprint() -> None:
    one, other = (Overlay.of(rows({"a": 1}), ["b", "c"]) for _ in range(2))

    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != Overlay.of(rows({"a": 2}), ["b", "c"]).fingerprint
    assert one.fingerprint != Overlay.of(rows({"a": 1}), ["bc"]).fingerprint


def test_the_fingerprint_does_not_depend_on_how_rows_are_chunked() -> None:
    parts = pa.concat_tables([rows({"a": 1}), rows({"b": 2})])

    assert Overlay.of(parts).fingerprint == Overlay.of(rows({"a": 1, "b": 2})).fingerprint


def test_aligning_orders_columns_and_fills_missing_ones_with_null() -> None:
    found = align_table(pa.table({"n": [1], "id": ["a"]}), SCHEMA.append(pa.field("note", pa.string())))

    assert found.to_pylist() == [{"id": "a", "n": 1, "note": None}]


def test_aligning_refuses_a_column_that_the_table_does_not_have() -> None:
    with pytest.raises(BadRequest, match="no column 'other'"):
        align_table(pa.table({"id": ["a"], "other": [1]}), SCHEMA)


def test_aligning_refuses_a_value_that_does_not_fit() -> None:
    with pytest.raises(BadRequest, match="column 'n' is int64"):
        align_table(pa.table({"id": ["a"], "n": ["many"]}), SCHEMA)


def test_aligning_refuses_to_leave_out_a_required_column() -> None:
    fields: list[pa.Field[Any]] = [pa.field("id", pa.string()), pa.field("n", pa.int64(), nullable=False)]
    strict = pa.schema(fields)

    with pytest.raises(BadRequest, match="'n' is required"):
        align_table(pa.table({"id": ["a"]}), strict)


# What must hold for every table and every overlay: reads agree with a dict.

IDS = ["a", "b", "c", "d", "e", "it's", "100%", 'say "hi"', "new\nline", "ä€😀", "", "\\", "a' OR '1'='1"]
VALUES = st.dictionaries(st.sampled_from(IDS), st.integers(0, 9), max_size=6)


@dataclass
class Case:
    stored: list[dict[str, int]] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    indexed: bool = False
    tail: list[tuple[dict[str, int], set[str]]] = field(default_factory=list)

    def stored_rows(self) -> dict[str, int]:
        merged: dict[str, int] = {}
        for values in self.stored:
            merged.update(values)
        return {i: n for i, n in merged.items() if i not in self.deleted}

    def expected(self) -> dict[str, int]:
        state = self.stored_rows()
        for upserts, deletes in self.tail:
            state = {i: n for i, n in state.items() if i not in deletes} | upserts
        return state

    def overlay(self) -> Overlay:
        overlay = Overlay.EMPTY
        for upserts, deletes in self.tail:
            overlay = overlay.compose(Overlay.of(rows(upserts), deletes))
        return overlay


CASES = st.builds(
    Case,
    stored=st.lists(VALUES, max_size=3),
    deleted=st.sets(st.sampled_from(IDS), max_size=3),
    indexed=st.booleans(),
    tail=st.lists(st.tuples(VALUES, st.sets(st.sampled_from(IDS), max_size=4)), max_size=4),
)


def stage(tables: Tables, table_id: str, case: Case) -> TableVersion | None:
    if not case.stored:
        case.deleted = set()
        return None
    at = tables.create(table_id, rows(case.stored[0])).at
    for values in case.stored[1:]:
        at = tables.upsert(at, rows(values)).at
    at = tables.delete(at, case.deleted).at
    if case.indexed and tables.count(at):
        at = tables.commit_operation(at, btree(tables, at)).at
    return at


def btree(tables: Tables, at: TableVersion) -> Any:
    import lance

    dataset = tables.open(at)
    fragments = [fragment.fragment_id for fragment in dataset.get_fragments()]
    index = dataset.create_index_uncommitted("id", "BTREE", name="id_idx", fragment_ids=fragments, replace=True)
    return lance.LanceOperation.CreateIndex([index], [])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CASES, st.sets(st.sampled_from(IDS)), st.integers(0, 9))
def test_reads_over_stored_and_inline_rows_agree_with_a_dict(case: Case, asked: set[str], least: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        tables = Tables(Location(str(Path(root) / "graph"), fsync=False), scratch=Path(root) / "scratch")
        at, overlay, expected = stage(tables, "t", case), case.overlay(), case.expected()

        assert as_dict(tables.scan(at, overlay=overlay, schema=SCHEMA)) == expected
        assert tables.count(at, overlay=overlay, schema=SCHEMA) == len(expected)
        assert tables.exists(at, asked, overlay) == asked & expected.keys()
        found = tables.lookup(at, asked, overlay=overlay, schema=SCHEMA)
        assert as_dict(found) == {i: n for i, n in expected.items() if i in asked}
        many = {i: n for i, n in expected.items() if n >= least}
        assert as_dict(tables.scan(at, filter=f"n >= {least}", overlay=overlay, schema=SCHEMA)) == many
        assert tables.count(at, filter=pc.field("n") >= least, overlay=overlay, schema=SCHEMA) == len(many)
