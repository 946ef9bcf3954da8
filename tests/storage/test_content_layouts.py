"""Where rows lie makes no difference: stored, in small commits on top, or both, every question has the same answer."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage.location import Location
from omnigraph.storage.table.index import segments as index_segments
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import TableContent, VersionWithTail, make_content
from omnigraph.storage.table.tables import Tables, TableVersion
from support.arrow import schema_of
from support.tails import Tails

SCHEMA = schema_of(id=pa.string(), n=pa.int64(), end=pa.string(), text=pa.string())
INDEXES = DeclaredIndex("id", "btree"), DeclaredIndex("end", "btree"), DeclaredIndex("text", "full_text")
IDS = ["a", "b", "c", "d", "it's", "ä", ""]
ENDS = ["x", "y", "it's"]
WORDS = ["red fish", "blue fish", "old bird", None]

Row = tuple[int, str, str | None]
ROWS = st.tuples(st.integers(0, 4), st.sampled_from(ENDS), st.sampled_from(WORDS))
STEPS = st.tuples(
    st.sampled_from(["insert", "upsert", "delete"]), st.dictionaries(st.sampled_from(IDS), ROWS, min_size=1, max_size=3)
)


@dataclass(frozen=True)
class Commit:
    """What one step came to: rows, which of the ids were there before, and removed ids."""

    rows: Mapping[str, Row]
    deletes: frozenset[str]
    new: bool

    @property
    def overlay(self) -> Overlay:
        return Overlay.of(table(self.rows), self.deletes, self.new)


def table(rows: Mapping[str, Row]) -> pa.Table:
    columns = zip(*((key, *values) for key, values in rows.items()), strict=True) if rows else ([],) * 4
    return pa.table([pa.array(list(column), f.type) for column, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def content(rows: pa.Table) -> dict[Any, Row]:
    found = {row["id"]: (row["n"], row["end"], row["text"]) for row in rows.to_pylist()}
    assert len(found) == rows.num_rows, "an id came twice"
    return found


def commits(steps: list[tuple[str, dict[str, Row]]]) -> tuple[list[Commit], list[dict[str, Row]]]:
    """The commits, truthful about what is new, and the state after each; the first state is nothing."""
    made: list[Commit] = []
    states: list[dict[str, Row]] = [{}]
    for verb, rows in steps:
        state = states[-1]
        if verb == "delete":
            made.append(Commit({}, frozenset(rows), new=False))
            states.append({i: row for i, row in state.items() if i not in rows})
            continue
        kept = {i: row for i, row in rows.items() if verb == "upsert" or i not in state}
        made.append(Commit(kept, frozenset(), new=not kept.keys() & state.keys()))
        states.append({**state, **kept})
    return made, states


def staged(tables: Tables, made: list[Commit], create: bool, indexed: int) -> TableVersion | None:
    """The commits in Lance, one by one, the first of them indexed; no table if there is none, unless one is wanted."""
    at = tables.create("t", SCHEMA.empty_table()).at if create else None
    for place, one in enumerate(made):
        at = tables.fold(at, one.overlay, "t", SCHEMA).at
        if place + 1 == indexed and tables.count(at):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(index_segments, "INDEXED_ROWS_MIN", 1)
                at = tables.reindex(at, (), INDEXES)
    return at


def assert_reads_as(tables: Tables, at: TableContent | None, state: dict[str, Row]) -> None:
    assert content(tables.scan(at, schema=SCHEMA)) == state
    assert tables.count(at, schema=SCHEMA) == len(state)
    low = {i: row for i, row in state.items() if row[0] < 2}
    assert content(tables.scan(at, filter="n < 2", schema=SCHEMA)) == low
    assert tables.count(at, filter="n < 2", schema=SCHEMA) == len(low)
    assert tables.exists(at, IDS) == state.keys()
    assert content(tables.lookup(at, IDS[:4], schema=SCHEMA)) == {i: r for i, r in state.items() if i in IDS[:4]}
    assert tables.present_values(at, "end", ENDS) == {row[1] for row in state.values()}
    found = tables.find_rows(at, SCHEMA.names, {"end": ENDS[:2], "n": [0, 1]}, {"id": IDS[-2:]}, schema=SCHEMA)
    either = {i: r for i, r in state.items() if (r[1] in ENDS[:2] and r[0] < 2) or i in IDS[-2:]}
    assert content(found) == either
    texts = tables.search_text(at, "text", "search", "fish", schema=SCHEMA, with_ids=True)
    assert texts.ids is not None
    assert set(texts.ids.to_pylist()) == {i for i, row in state.items() if row[2] and "fish" in row[2]}


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(STEPS, max_size=7),
    split=st.integers(0, 7),
    pending=st.integers(0, 2),
    made_first=st.booleans(),
    indexed=st.integers(0, 4),
)
def test_any_split_between_lance_and_small_commits_reads_the_same(
    steps: list[tuple[str, dict[str, Row]]], split: int, pending: int, made_first: bool, indexed: int
) -> None:
    made, states = commits(steps)
    split = min(split, len(made))
    last = max(split, len(made) - pending)
    with tempfile.TemporaryDirectory() as root:
        tails = Tails()
        tables = Tables(
            Location(str(Path(root) / "graph"), fsync=False), scratch=Path(root) / "scratch", read_tail=tails
        )
        at = staged(tables, made[:split], made_first, indexed)
        about_to_be = Overlay.EMPTY
        for one in made[last:]:
            about_to_be = about_to_be.compose(one.overlay)
        state = make_content(at, tails.tail(*(one.overlay for one in made[split:last])), about_to_be)

        assert_reads_as(tables, state, states[-1])
        if isinstance(state, VersionWithTail):
            settled = tables.fold_tail(state, "t2", SCHEMA)
            assert settled.rows == len(states[-1])
            assert_reads_as(tables, settled.at, states[-1])
            assert_reads_as(tables, state, states[-1])
