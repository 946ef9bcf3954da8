"""A graph as dictionaries: what every verb has to make of a state when calls come strictly one after the other.

A state is a schema and the rows of every type. A verb either gives the next state or refuses. Ids that the graph mints
are placeholders here, which `bind_fresh` replaces by the ids that were found in the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

from simulation.ops import (
    SPECS,
    TYPES,
    ApplySchema,
    Extra,
    Insert,
    Load,
    LoadRow,
    Mutate,
    RowChange,
    Statement,
    TypeSpec,
    Update,
    Verb,
    WriteHeld,
)
from simulation.reader import Schema, Tables

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Mapping[str, Row]
Conflict: TypeAlias = tuple[str, str, str]  # kind, type, id
FRESH = "?"  # begins the placeholder of an id that the graph mints
ENDS = {"from": "src", "to": "dst"}
REQUIRED = {("Person", "slug"), ("Place", "name")}


class Refusal(Exception):
    """The graph must refuse this and change nothing; `errors` are the classes that say so."""

    def __init__(self, errors: Iterable[str], why: str, conflicts: frozenset[Conflict] = frozenset()) -> None:
        super().__init__(why)
        self.errors, self.why, self.conflicts = frozenset(errors), why, conflicts


INVALID = frozenset({"BadRequest", "LanguageError", "InvalidInput"})
VIOLATED = frozenset({"ConstraintViolation"})


@dataclass(frozen=True, slots=True)
class State:
    """One state; a type without rows has no entry. `wanted` is a schema of which the columns are not known yet."""

    schema: Schema
    rows: Tables = field(default_factory=dict)
    wanted: frozenset[Extra] | None = None

    def table(self, type_name: str) -> Rows:
        return self.rows.get(type_name, {})

    def with_table(self, type_name: str, table: Rows) -> State:
        others = {name: rows for name, rows in self.rows.items() if name != type_name}
        return replace(self, rows=others | ({type_name: table} if table else {}))

    @property
    def extras(self) -> frozenset[Extra]:
        return frozenset(extra for extra, _ in self.schema.extras) if self.wanted is None else self.wanted

    @property
    def is_exact(self) -> bool:
        """Whether all ids are known: where rows could not be read, those that were minted are not."""
        return not any(id_.startswith(FRESH) for table in self.rows.values() for id_ in table)

    def says_the_same(self, other: State) -> bool:
        return self.extras == other.extras and self.rows == other.rows


def blank(state: State, spec: TypeSpec) -> dict[str, Any]:
    names = dict.fromkeys(name for name, _ in spec.properties)
    return names | {extra.name: extra.default for extra in state.extras if extra.type_name == spec.name}


# --- Writes --------------------------------------------------------------------------------------------------------


_minted = count()  # no placeholder is used twice


def execute(state: State, verb: Verb) -> State:
    """The state after a write, or a `Refusal`; what depends on history (merge, revert) has functions of its own."""
    fresh = _minted
    if isinstance(verb, Mutate):
        for statement in verb.statements:
            state = _run(state, statement, fresh)
        return checked(state)
    if isinstance(verb, Load):
        return checked(_load(state, verb, fresh))
    if isinstance(verb, WriteHeld):
        for name, id_ in verb.deletes:
            state = state.with_table(name, {i: row for i, row in state.table(name).items() if i != id_})
        for entry in verb.upserts:
            name, values = entry.type_name, _plain(entry.values)
            kept = {id_: row for id_, row in state.table(name).items() if id_ != values["id"]}
            state = _put(state.with_table(name, kept), name, str(values["id"]), values)
        return state
    if isinstance(verb, ApplySchema):
        return apply_schema(state, verb.extras)
    raise TypeError(f"{type(verb).__name__} is not a write that the model executes")


def _plain(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {ENDS.get(name, name): value for name, value in values}


def _known(state: State, spec: TypeSpec, values: Mapping[str, Any]) -> None:
    """Names must be properties, and what is required must have a value."""
    own = {name for name, _ in spec.properties}
    extras = {extra.name: extra for extra in state.extras if extra.type_name == spec.name}
    physical = {"id"} | (set() if spec.ends is None else {"src", "dst"})
    for name, value in values.items():
        if name not in own | physical | extras.keys():
            raise Refusal(INVALID, f"{spec.name} has no property {name}")
        required = name in extras and extras[name].default is not None
        if value is None and (required or (spec.name, name) in REQUIRED):
            raise Refusal(INVALID | VIOLATED, f"{spec.name}.{name} is required")


def _put(state: State, type_name: str, id_: str, values: Mapping[str, Any]) -> State:
    """A row with these values: of one that is there, what is not named stays."""
    spec, table = SPECS[type_name], state.table(type_name)
    _known(state, spec, values)
    return state.with_table(type_name, {**table, id_: {**(table.get(id_) or blank(state, spec)), **values, "id": id_}})


def _run(state: State, statement: Statement, fresh: count[int]) -> State:
    spec = SPECS[statement.type_name]
    if isinstance(statement, Insert):
        values = _plain(statement.values)
        id_ = f"{FRESH}{next(fresh)}" if spec.key is None else str(values[spec.key])
        return _put(state, spec.name, id_, values)
    column, value = ENDS.get(statement.where[0], statement.where[0]), statement.where[1]
    _known(state, spec, {column: value})
    chosen = {id_ for id_, row in state.table(spec.name).items() if value is not None and row[column] == value}
    if isinstance(statement, Update):
        _known(state, spec, _plain(statement.values))
        for id_ in chosen:
            state = _put(state, spec.name, id_, _plain(statement.values))
        return state
    return _delete(state, spec, chosen)


def _delete(state: State, spec: TypeSpec, gone: set[str]) -> State:
    """The edges of deleted nodes go with them."""
    if not gone:
        return state
    state = state.with_table(spec.name, {i: row for i, row in state.table(spec.name).items() if i not in gone})
    for edge in TYPES if spec.ends is None else ():
        ends = [end for end, at in zip(("src", "dst"), edge.ends or (), strict=False) if at == spec.name]
        table = state.table(edge.name)
        kept = {i: row for i, row in table.items() if not any(row[end] in gone for end in ends)}
        if len(kept) < len(table):
            state = state.with_table(edge.name, kept)
    return state


def _load(state: State, load: Load, fresh: count[int]) -> State:
    before = state
    if load.mode == "overwrite":
        for name in {row.type_name for row in load.rows}:
            state = state.with_table(name, {})
    seen: set[tuple[str, str]] = set()
    for entry in load.rows:
        name, values = entry.type_name, _plain(entry.values)
        id_ = _id_of(entry, values, fresh)
        _known(before, SPECS[name], values)
        if (name, id_) in seen or (load.mode == "append" and id_ in before.table(name)):
            raise Refusal(INVALID | VIOLATED, f"{name} {id_} is there already")
        seen.add((name, id_))
        state = _put(state, name, id_, values)
    return state


def _id_of(entry: LoadRow, values: dict[str, Any], fresh: count[int]) -> str:
    key = SPECS[entry.type_name].key
    if key is not None:
        return str(values[key])
    return str(values["id"]) if values.get("id") is not None else f"{FRESH}{next(fresh)}"


def apply_schema(state: State, extras: frozenset[Extra]) -> State:
    """Rows get the default of an added property, or null; what a dropped one had is gone."""
    after = replace(state, wanted=extras)
    for spec in TYPES:
        own = blank(after, spec).keys() | {"id", "src", "dst"}
        added = {e.name: e.default for e in extras - state.extras if e.type_name == spec.name}
        dropped = any(e.type_name == spec.name for e in state.extras - extras)
        if added or dropped:
            table = {
                id_: added | {name: value for name, value in row.items() if name in own}
                for id_, row in state.table(spec.name).items()
            }
            after = after.with_table(spec.name, table)
    return after


# --- Constraints ---------------------------------------------------------------------------------------------------


def violations(state: State) -> list[Conflict]:
    """What breaks a constraint: kind, type and id, of an edge without its node the edge's."""
    found: list[Conflict] = []
    for spec in TYPES:
        table = state.table(spec.name)
        for end, at in zip(("src", "dst"), spec.ends or (), strict=False):
            nodes = state.table(at)
            found += [("OrphanEdge", spec.name, id_) for id_, row in table.items() if row[end] not in nodes]
        if spec.cardinality is not None:
            leaving: dict[str, int] = {}
            for row in table.values():
                leaving[row["src"]] = leaving.get(row["src"], 0) + 1
            found += [("CardinalityViolation", spec.name, node) for node, n in leaving.items() if n > spec.cardinality]
        for name in spec.unique:
            holders: dict[Any, list[str]] = {}
            for id_, row in table.items():
                if row[name] is not None:
                    holders.setdefault(row[name], []).append(id_)
            found += [("UniqueViolation", spec.name, id_) for ids in holders.values() if len(ids) > 1 for id_ in ids]
    return found


def checked(state: State) -> State:
    found = violations(state)
    if found:
        raise Refusal(VIOLATED, f"constraints are broken: {found}")
    return state


# --- Merge and revert ----------------------------------------------------------------------------------------------


def merge(base: State, ours: State, theirs: State) -> State:
    """Three-way, by row and property, in the merged schema; then the whole graph is judged."""
    schema = merge_schemas(base.schema, ours.schema, theirs.schema)
    merged, conflicts = combine(*(align(state, schema) for state in (base, ours, theirs)))
    if conflicts:
        raise Refusal({"MergeConflicts"}, f"both sides changed {sorted(conflicts)}", frozenset(conflicts))
    broken = violations(merged)
    if broken:
        raise Refusal({"MergeConflicts"}, f"the merged graph breaks {broken}", frozenset(broken))
    return merged


def revert(before: State, after: State, head: State) -> State:
    """Undo what led from `before` to `after`, where the head still has it."""
    if before.extras != after.extras:
        raise Refusal(INVALID, "it changed the schema")
    merged, conflicts = combine(*(align(state, head.schema) for state in (after, head, before)))
    if conflicts:
        raise Refusal({"RevertConflicts"}, f"later commits changed {sorted(conflicts)}", frozenset(conflicts))
    return checked(merged)


def merge_schemas(base: Schema, ours: Schema, theirs: Schema) -> Schema:
    """The schema that has the other one's changes too; if neither has, the merge is refused."""
    if ours.extras == theirs.extras:
        return _without_revival(base, ours, theirs)
    our, their = ((side.extras - base.extras, base.extras - side.extras) for side in (ours, theirs))
    if our[0] <= their[0] and our[1] <= their[1]:
        return _without_revival(base, theirs, ours)
    if their[0] <= our[0] and their[1] <= our[1]:
        return _without_revival(base, ours, theirs)
    raise Refusal({"SchemasDiverged"}, "neither schema contains the other's changes")


def _without_revival(base: Schema, whole: Schema, part: Schema) -> Schema:
    """Tables of the side that retired a column may still have its old values there."""
    live = {(extra.type_name, column) for extra, column in whole.extras}
    if live & (part.retired - base.retired):
        raise Refusal({"SchemasDiverged"}, "a column was retired on one side and is in use on the other")
    return whole


def align(state: State, schema: Schema) -> State:
    """Rows as another schema has them: a property that their own lacks has its default."""
    if state.schema.extras == schema.extras:
        return replace(state, schema=schema)
    known = {(extra.type_name, column): extra.name for extra, column in state.schema.extras}
    rows: dict[str, Rows] = {}
    for name, table in state.rows.items():
        own = {prop for prop, _ in SPECS[name].properties} | {"id", "src", "dst"}
        wanted = [(e, known.get((name, column))) for e, column in schema.extras if e.type_name == name]
        rows[name] = {
            id_: {prop: value for prop, value in row.items() if prop in own}
            | {extra.name: extra.default if source is None else row[source] for extra, source in wanted}
            for id_, row in table.items()
        }
    return State(schema, rows)


def combine(base: State, ours: State, theirs: State) -> tuple[State, set[Conflict]]:
    """What becomes of the rows of three states of one schema; disputed rows are as ours has them."""
    conflicts: set[Conflict] = set()
    rows: dict[str, Rows] = {}
    for name in {*base.rows, *ours.rows, *theirs.rows}:
        b, o, t = base.table(name), ours.table(name), theirs.table(name)
        merged: dict[str, Row] = {}
        for id_ in {*b, *o, *t}:
            row, kind = _merged_row(b.get(id_), o.get(id_), t.get(id_))
            if kind is not None:
                conflicts.add((kind, name, id_))
            if row is not None:
                merged[id_] = row
        if merged:
            rows[name] = merged
    return State(ours.schema, rows), conflicts


def _merged_row(was: Row | None, mine: Row | None, other: Row | None) -> tuple[Row | None, str | None]:
    if mine == other or other == was:
        return mine, None
    if mine == was:
        return other, None
    if was is None:
        return mine, "DivergentInsert"
    if mine is None or other is None:
        return mine, "DeleteVsUpdate"
    disputed = any(mine[p] != was[p] and other[p] != was[p] and mine[p] != other[p] for p in was)
    return {p: other[p] if mine[p] == was[p] else mine[p] for p in was}, "DivergentUpdate" if disputed else None


def virtual_base(below: State, one: State, other: State) -> State:
    """Two newest common ancestors as one state; what they dispute is as it was before them."""
    try:
        schema = merge_schemas(below.schema, one.schema, other.schema)
    except Refusal:
        schema = below.schema
    old, left, right = (align(state, schema) for state in (below, one, other))
    merged, conflicts = combine(old, left, right)
    for _, name, id_ in conflicts:
        table = {i: row for i, row in merged.table(name).items() if i != id_}
        was = old.table(name).get(id_)
        merged = merged.with_table(name, table if was is None else {**table, id_: was})
    return merged


# --- Comparing -----------------------------------------------------------------------------------------------------


def bind_fresh(expected: State, known: Tables, found: Tables) -> State:
    """Give rows with placeholders the ids that were minted for them: new ones with equal values."""
    for name, table in expected.rows.items():
        if not any(id_.startswith(FRESH) for id_ in table):
            continue
        minted = [id_ for id_ in found.get(name, {}) if id_ not in table and id_ not in known.get(name, {})]
        bound: dict[str, Row] = {}
        for id_, row in table.items():
            if id_.startswith(FRESH):
                match = next((m for m in minted if {**row, "id": m} == found[name][m]), None)
                if match is not None:
                    minted.remove(match)
                    id_, row = match, {**row, "id": match}
            bound[id_] = row
        expected = expected.with_table(name, bound)
    return expected


def difference(before: State, after: State, schema: Schema | None = None) -> list[RowChange]:
    """The changes from one state to another, by a schema's properties: those of the second state unless told otherwise.

    In the order of the façade: nodes, then edges, by type and id.
    """
    old, new = (align(state, after.schema if schema is None else schema) for state in (before, after))
    found: list[RowChange] = []
    for name in {*old.rows, *new.rows}:
        was, now = old.table(name), new.table(name)
        for id_ in {*was, *now}:
            if was.get(id_) != now.get(id_):
                operation = "insert" if id_ not in was else "delete" if id_ not in now else "update"
                found.append(RowChange(operation, name, id_, was.get(id_), now.get(id_)))
    return sorted(found, key=lambda one: (SPECS[one.type_name].ends is not None, one.type_name, one.id))
