"""What differs between two versions of a table, and what finding it out reads."""

import math
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnigraph.storage import meter
from omnigraph.storage.location import Location
from omnigraph.storage.table.diff import content_diff, row_diff
from omnigraph.storage.table.diff.equality import equal_values
from omnigraph.storage.table.diff.row_diff import Difference
from omnigraph.storage.table.tables import Tables, TableVersion
from support.arrow import schema_of

SHAPE = schema_of(
    id=pa.string(),
    age=pa.int64(),
    score=pa.float64(),
    tags=pa.list_(pa.string()),
    weights=pa.list_(pa.float64()),
    place=pa.list_(pa.float32(), 2),
    photo=pa.large_binary(),
    born=pa.date32(),
    seen=pa.timestamp("ms", tz="UTC"),
)
Row = dict[str, Any]


def row(id: str, **values: Any) -> Row:
    return {**dict.fromkeys(SHAPE.names), "id": id, **values}


def table(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SHAPE)


def comparable(value: Any) -> Any:
    """A value that equals itself: NaN does not."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return tuple(map(comparable, value)) if isinstance(value, list) else value


def content(rows: pa.Table) -> dict[str, Any]:
    found = {r["id"]: {name: comparable(value) for name, value in r.items()} for r in rows.to_pylist()}
    assert len(found) == rows.num_rows, "an id came twice"
    return found


def model_difference(older: dict[str, Any], newer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    changed = {i for i in older.keys() | newer.keys() if older.get(i) != newer.get(i)}
    return {i: older[i] for i in changed & older.keys()}, {i: newer[i] for i in changed & newer.keys()}


def both(found: Difference) -> tuple[dict[str, Any], dict[str, Any]]:
    return content(found.before), content(found.after)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(Location(str(tmp_path / "graph"), fsync=False))


def compacted(tables: Tables, at: TableVersion) -> TableVersion:
    import lance
    from lance.optimize import Compaction, CompactionOptions

    options = CompactionOptions(
        target_rows_per_fragment=1_000, materialize_deletions=True, materialize_deletions_threshold=0.0
    )
    plan = Compaction.plan(tables.open(at), options)
    groups = []
    for task in plan.tasks:
        done: Any = task.execute(tables.open(at))
        groups.append(lance.LanceOperation.RewriteGroup(done.original_fragments, done.new_fragments))
    return tables.commit_operation(at, lance.LanceOperation.Rewrite(groups, [])).at if groups else at


# What differs


def test_an_insert_an_update_and_a_delete_are_told_apart(tables: Tables) -> None:
    older = tables.create("t", table(row("ada", age=1), row("bob", age=2), row("cy", age=3))).at
    newer = tables.upsert(tables.delete(older, ["bob"]).at, table(row("ada", age=9), row("dan", age=4))).at

    before, after = both(tables.difference(older, newer))

    assert {i: r["age"] for i, r in before.items()} == {"ada": 1, "bob": 2}
    assert {i: r["age"] for i, r in after.items()} == {"ada": 9, "dan": 4}


def test_a_version_does_not_differ_from_itself(tables: Tables) -> None:
    at = tables.create("t", table(row("ada"))).at

    assert both(tables.difference(at, at)) == ({}, {})


def test_the_other_way_round_it_is_the_other_way_round(tables: Tables) -> None:
    older = tables.create("t", table(row("ada", age=1), row("bob"))).at
    newer = tables.upsert(tables.delete(older, ["bob"]).at, table(row("ada", age=2))).at

    assert both(tables.difference(newer, older)) == both(tables.difference(older, newer))[::-1]


def test_siblings_are_compared_through_what_they_share(tables: Tables) -> None:
    base = tables.create("t", table(row("ada"), row("bob"), row("cy"))).at
    one, other = tables.delete(base, ["ada"]).at, tables.delete(base, ["cy"]).at

    before, after = both(tables.difference(one, other))

    assert (set(before), set(after)) == ({"cy"}, {"ada"})


def test_a_fragment_carried_over_under_another_number_is_the_same(tables: Tables) -> None:
    base = tables.create("t", table(row("ada"))).at
    appended = tables.append(base, table(row("bob"))).appended
    assert appended is not None
    other = tables.append_fragments(tables.append(base, table(row("cy"))).at, appended).at
    one = tables.append(base, table(row("dan"))).at
    with_bob = tables.append_fragments(one, appended).at

    assert [set(side) for side in both(tables.difference(with_bob, other))] == [{"dan"}, {"cy"}]


def test_a_compaction_changes_no_row(tables: Tables) -> None:
    at = tables.create("t", table(row("ada", score=math.nan, tags=[None, "x"]))).at
    at = tables.delete(tables.append(at, table(row("bob", place=[1.0, math.nan]), row("cy"))).at, ["cy"]).at

    moved = compacted(tables, at)

    assert moved != at
    assert tables.differing_rows(at, moved) == (2, 2)
    assert both(tables.difference(at, moved)) == ({}, {})


def test_a_column_added_between_the_versions_is_null_before(tables: Tables) -> None:
    older = tables.create("t", pa.table({"id": ["ada", "bob"]})).at
    wide = tables.add_columns(older, [pa.field("age", pa.int64())]).at
    newer = tables.upsert(wide, pa.table({"id": ["ada", "bob"], "age": pa.array([7, None], pa.int64())})).at

    assert both(tables.difference(older, wide)) == ({}, {})
    assert both(tables.difference(older, newer)) == (
        {"ada": {"id": "ada", "age": None}},
        {"ada": {"id": "ada", "age": 7}},
    )


def test_only_the_columns_of_the_schema_count(tables: Tables) -> None:
    older = tables.create("t", table(row("ada", age=1, score=1.0), row("bob", age=1))).at
    newer = tables.upsert(older, table(row("ada", age=1, score=2.0), row("bob", age=2))).at
    shape = schema_of(id=pa.string(), age=pa.int64(), later=pa.string())

    before, after = both(tables.difference(older, newer, shape))

    assert before == {"bob": {"id": "bob", "age": 1, "later": None}}
    assert after == {"bob": {"id": "bob", "age": 2, "later": None}}


def test_a_type_without_a_table_has_no_rows(tables: Tables) -> None:
    at = tables.create("t", table(row("ada"))).at

    assert [set(side) for side in both(tables.difference(None, at))] == [set(), {"ada"}]
    assert [set(side) for side in both(tables.difference(at, None))] == [{"ada"}, set()]
    assert both(tables.difference(None, None, SHAPE)) == ({}, {})


def test_different_tables_are_compared_by_content(tables: Tables) -> None:
    one = tables.create("t1", table(row("ada", age=1), row("bob", score=math.nan), row("cy", tags=[]))).at
    other = tables.create("t2", table(row("cy", tags=None), row("bob", score=math.nan), row("ada", age=1))).at

    before, after = both(tables.difference(one, other))

    assert (set(before), set(after)) == ({"cy"}, {"cy"})


def test_the_ids_alone_are_given_without_the_rows(tables: Tables) -> None:
    older = tables.create("t", table(row("ada", age=1), row("bob"))).at
    newer = tables.upsert(tables.delete(older, ["bob"]).at, table(row("ada", age=2), row("cy"))).at

    found = tables.differing_ids(older, newer)

    assert (set(found.before.to_pylist()), set(found.after.to_pylist())) == ({"ada", "bob"}, {"ada", "cy"})


def test_differing_rows_can_be_streamed(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_diff, "TAKE_ROWS_MAX", 2)
    older = tables.create("t", table(*(row(f"p{i}") for i in range(10)))).at
    newer = tables.delete(older, [f"p{i}" for i in range(0, 10, 2)]).at

    before, after = tables.differing_batches(older, newer, SHAPE)

    assert [batch.num_rows for batch in before] == [2, 2, 1]
    assert list(after) == []


# Equality


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [None, math.nan, 0.0, 1.5]),
        (pa.float32(), [None, math.nan, 0.0, 1.5]),
        (pa.string(), [None, "", "a", "ä", "a\0b"]),
        (pa.bool_(), [None, True, False]),
        (pa.uint64(), [None, 0, 2**64 - 1]),
        (pa.large_binary(), [None, b"", b"\0", b"\0\0"]),
        (pa.date32(), [None, date(1970, 1, 1), date(2026, 1, 31)]),
        (pa.timestamp("ms", tz="UTC"), [None, datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)]),
        (pa.list_(pa.string()), [None, [], [None], [""], ["a"], ["a", "b"], ["b", "a"]]),
        (pa.list_(pa.float64()), [None, [], [None], [math.nan], [0.0], [0.0, math.nan]]),
        (pa.list_(pa.float32(), 2), [None, [0.0, 1.0], [1.0, 0.0], [math.nan, 0.0], [None, 0.0]]),
    ],
    ids=str,
)
def test_every_value_equals_itself_and_no_other(tables: Tables, kind: pa.DataType, values: list[Any]) -> None:
    pairs = [(one, other) for one in values for other in values]
    left, right = (pa.array([pair[side] for pair in pairs], kind) for side in (0, 1))
    expected = [values.index(one) == values.index(other) for one, other in pairs]
    shape = pa.schema([("id", pa.string()), ("v", kind)])
    ids = pa.array([f"r{i}" for i in range(len(pairs))])

    joined = row_diff.diff_by_join(
        lambda: iter(pa.table([ids, left], schema=shape).to_batches()),
        lambda: iter(pa.table([ids, right], schema=shape).to_batches()),
        shape,
    )

    assert equal_values(left, right).tolist() == expected
    assert equal_values(left[3:], right[3:]).tolist() == expected[3:]
    unequal = {f"r{i}" for i, same in enumerate(expected) if not same}
    assert set(joined.before["id"].to_pylist()) == unequal == set(joined.after["id"].to_pylist())
    assert joined.after.schema == shape


def test_zero_is_equal_to_minus_zero() -> None:
    assert equal_values(pa.array([0.0]), pa.array([-0.0])).tolist() == [True]


# Against a model

IDS = st.sampled_from(["a", "b", "it's", "ä", "nul\0", ""])
FLOATS = st.sampled_from([None, math.nan, 0.0, 1.5])
ROWS = st.fixed_dictionaries(
    {
        "age": st.sampled_from([None, 0, 1]),
        "score": FLOATS,
        "tags": st.sampled_from([None, [], [None], ["x"], ["x", "y"]]),
        "weights": st.one_of(st.none(), st.lists(FLOATS, max_size=2)),
        "place": st.sampled_from([None, [0.0, 1.0], [math.nan, 1.0]]),
        "photo": st.sampled_from([None, b"", b"\0x"]),
    }
)
WRITES = st.dictionaries(IDS, ROWS, min_size=1, max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("upsert"), WRITES),
    st.tuples(st.just("delete"), st.sets(IDS, max_size=3)),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("overwrite"), st.dictionaries(IDS, ROWS, max_size=3)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=1, max_size=6), fork=st.integers(0, 6), data=st.data())
def test_any_two_versions_differ_as_a_dict_would(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], fork: int, data: st.DataObject
) -> None:
    """Versions of a line with a fork in it, each compared with each, in memory and by a join."""
    tables = Tables(Location(str(tmp_path_factory.mktemp("graph")), fsync=False))
    known: list[tuple[TableVersion, dict[str, Any]]] = [(tables.create("t", table(row("a"), row("b"))).at, {})]
    known[0] = (known[0][0], content(tables.scan(known[0][0])))
    for place, step in enumerate(steps):
        at, state = known[0 if place == fork else -1]
        known.append(_stepped(tables, at, state, step))
    (older, was), (newer, now) = (data.draw(st.sampled_from(known)) for _ in range(2))

    expected = model_difference(was, now)

    assert both(tables.difference(older, newer)) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content_diff, "IN_MEMORY_ROWS_MAX", 0)
        assert both(tables.difference(older, newer)) == expected
    ids = tables.differing_ids(older, newer)
    assert set(expected[0]) <= set(ids.before.to_pylist()) <= set(was)
    assert set(expected[1]) <= set(ids.after.to_pylist()) <= set(now)


def _stepped(tables: Tables, at: TableVersion, state: dict[str, Any], step: Any) -> tuple[TableVersion, dict[str, Any]]:
    verb, what = step
    if verb == "compact":
        return compacted(tables, at), state
    if verb == "delete":
        return tables.delete(at, what).at, {i: r for i, r in state.items() if i not in what}
    rows = table(*(row(i, **values) for i, values in what.items()))
    if verb == "overwrite":
        return tables.overwrite(at, rows).at, content(rows)
    return tables.upsert(at, rows).at, {**state, **content(rows)}


# Cost


@pytest.mark.parametrize("rows", [100_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_a_one_row_change_is_found_without_reading_the_table(tmp_path: Path, rows: int) -> None:
    location = Location(str(tmp_path / "graph"), fsync=False)
    tables = Tables(location)
    ids = [f"p{i:07}" for i in range(rows)]
    whole = pa.table({"id": ids, "text": [f"words of {i} " * 5 for i in ids]})
    older = tables.create("t", whole).at
    newer = tables.upsert(older, pa.table({"id": [ids[rows // 2]], "text": ["new"]})).at
    import lance

    cold = Tables(location, session=lance.Session())
    with meter.operation("difference") as cost:
        found = cold.difference(older, newer)

    assert [found.before.num_rows, found.after.num_rows] == [1, 1]
    assert cost.cost.bytes < 100_000
    assert cost.cost.requests <= 20
