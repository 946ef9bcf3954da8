"""Row differences of one type between two states, even if its definition and its storage changed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from omnigraph.diff.align_rows import align_rows
from omnigraph.diff.graph_state import GraphState, TypeId, TypeState
from omnigraph.manifest.model.manifest import CommitId
from omnigraph.schema.catalog import Catalog
from omnigraph.schema.definitions import TypeDef
from omnigraph.storage.table.diff.row_diff import Difference, diff_in_memory
from omnigraph.storage.table.overlay import ids_of
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables

if TYPE_CHECKING:
    import pyarrow as pa

StatePair: TypeAlias = tuple[TypeState | None, TypeState | None]


@dataclass(frozen=True, slots=True, eq=False)
class TypeHistory:
    """One type along a path through history: its states from old to new; None where it did not exist."""

    states: tuple[TypeState | None, ...]

    @property
    def definition(self) -> TypeDef:
        """The last definition, in whose columns all rows are returned."""
        return next(state.definition for state in reversed(self.states) if state is not None)

    def comparisons(self) -> list[StatePair]:
        """The pairs of states whose differences compose to the changes of all logical commits.

        States with the same `changed-at` have the same rows. Where the same rows are in another version, or were
        folded, maintenance has rewritten them; the states before and after that are compared separately.
        """
        found: list[StatePair] = []
        start = previous = self.states[0]
        for state in self.states[1:]:
            rewritten = _changed_at(previous) == _changed_at(state) and _content(previous) != _content(state)
            if rewritten:
                if _changed_at(start) != _changed_at(previous):
                    found.append((start, previous))
                start = state
            previous = state
        if _changed_at(start) != _changed_at(previous):
            found.append((start, previous))
        return found


def type_histories(states: Sequence[GraphState]) -> list[TypeHistory]:
    """Every type of the states, by id, so that a renamed type stays the same.

    An id that occurs again after its type was dropped belongs to another type, which a merge added.
    """
    types: dict[TypeId, None] = {type_id: None for state in states for type_id in state.types}
    return [history for type_id in types for history in _split_at_gaps([state.of(type_id) for state in states])]


def _split_at_gaps(states: Sequence[TypeState | None]) -> Iterator[TypeHistory]:
    """A history for each period in which the type existed without a gap."""
    start = 0
    for there, stretch in groupby(states, lambda state: state is not None):
        entries = tuple(stretch)
        if there:
            rest = len(states) - start - len(entries)
            yield TypeHistory((*(None,) * start, *entries, *(None,) * rest))
        start += len(entries)


def pair_types(older: GraphState, newer: GraphState, common: Catalog | None) -> list[TypeHistory]:
    """The same for two states of which neither is an ancestor of the other.

    Each side assigns ids to new types, so equal ids mean the same type only if the common ancestor had it; later types
    are matched by name.
    """
    known = {(definition.kind, definition.id) for definition in (common.types if common is not None else ())}
    pairs: dict[object, list[TypeState | None]] = {}
    for side, state in enumerate((older, newer)):
        for type_id, entry in state.types.items():
            name = type_id if type_id in known else entry.definition.table_key
            pairs.setdefault(name, [None, None])[side] = entry
    return [TypeHistory(tuple(pair)) for pair in pairs.values()]


def net_difference(tables: Tables, history: TypeHistory) -> Difference:
    """All comparisons composed: for each row its first image before and its last one after, if they differ."""
    parts = [table_difference(tables, *pair, history.definition) for pair in history.comparisons()]
    if len(parts) == 1:
        return parts[0]
    return _compose(parts, history.definition)


def table_difference(tables: Tables, older: TypeState | None, newer: TypeState | None, wanted: TypeDef) -> Difference:
    """The rows in which two states of one type differ, with the columns of the wanted definition.

    A property that a state does not have yet gets its default, exactly as `schema apply` would set it.
    """
    found = tables.difference(_content(older), _content(newer), _columns_of(older, newer, wanted))
    before = found.before if older is None else align_rows(found.before, older.definition, wanted)
    after = found.after if newer is None else align_rows(found.after, newer.definition, wanted)
    if before is found.before and after is found.after:
        return found
    return diff_in_memory(before, after)


def _columns_of(older: TypeState | None, newer: TypeState | None, wanted: TypeDef) -> "pa.Schema":
    """All columns that either state needs, so that one read serves both."""
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    columns: dict[str, pa.Field[pa.DataType]] = {}
    for definition in (wanted, *(state.definition for state in (newer, older) if state is not None)):
        for field in arrow_schema(definition):
            columns.setdefault(field.name, field)
    return pa.schema(list(columns.values()))


def _compose(parts: Sequence[Difference], definition: TypeDef) -> Difference:
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    shape = arrow_schema(definition)
    first: dict[str, int | None] = {}  # id → row number of its first image before; None if it was inserted
    last: dict[str, int | None] = {}
    befores = pa.concat_tables([shape.empty_table(), *(part.before for part in parts)])
    afters = pa.concat_tables([shape.empty_table(), *(part.after for part in parts)])
    at_before = at_after = 0
    for part in parts:
        was = _row_numbers(part.before, at_before)
        now = _row_numbers(part.after, at_after)
        at_before, at_after = at_before + part.before.num_rows, at_after + part.after.num_rows
        for entity in {**was, **now}:
            first.setdefault(entity, was.get(entity))
            last[entity] = now.get(entity)
    before = befores.take(pa.array([row for row in first.values() if row is not None], pa.int64()))
    after = afters.take(pa.array([row for row in last.values() if row is not None], pa.int64()))
    return diff_in_memory(before, after)


def _row_numbers(rows: "pa.Table", offset: int) -> Mapping[str, int]:
    return {entity: offset + row for row, entity in enumerate(ids_of(rows))}


def _changed_at(state: TypeState | None) -> CommitId | None:
    return None if state is None else state.changed_at


def _content(state: TypeState | None) -> TableContent | None:
    return None if state is None else state.content
