"""A graph as plain dictionaries: what every write, merge and schema change has to make of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Row = Mapping[str, Any]  # without its nulls; an edge's ends are `from` and `to`
Rows = Mapping[str, Mapping[str, Row]]  # type → id → row
FRESH = "?"  # begins the id of a row whose real id the graph chooses


@dataclass(frozen=True)
class Prop:
    name: str
    type: str
    required: bool = False
    annotation: str = ""


@dataclass(frozen=True)
class Type:
    name: str
    props: tuple[Prop, ...]
    key: str | None = None
    ends: tuple[str, str] | None = None
    card: int | None = None
    unique: tuple[tuple[str, ...], ...] = ()
    renamed_from: str | None = None

    @property
    def free(self) -> tuple[Prop, ...]:
        """What can be updated."""
        return tuple(prop for prop in self.props if prop.name != self.key)

    def printed(self) -> str:
        lines = [f"{p.name}: {p.type}{'' if p.required else '?'} {p.annotation}" for p in self.props]
        lines += [f"@unique({', '.join(names)})" for names in self.unique]
        note = f' @rename_from("{self.renamed_from}")' if self.renamed_from else ""
        body = " {\n    " + "\n    ".join(lines) + "\n}" if lines else ""
        if self.ends is None:
            return f"node {self.name}{note}{body or ' { }'}"
        card = "" if self.card is None else f" @card(0..{self.card})"
        return f"edge {self.name}: {self.ends[0]} -> {self.ends[1]}{card}{note}{body}"


@dataclass(frozen=True)
class Model:
    """One state: the types by the branch's schema, and the rows."""

    types: tuple[Type, ...]
    rows: Rows = field(default_factory=dict)

    def of(self, name: str) -> Type:
        return next(one for one in self.types if one.name == name)

    def named(self, name: str) -> bool:
        return any(one.name == name for one in self.types)

    def table(self, name: str) -> Mapping[str, Row]:
        return self.rows.get(name, {})

    def with_table(self, name: str, table: Mapping[str, Row]) -> Model:
        return replace(self, rows={**self.rows, name: table})

    def schema(self) -> str:
        return "\n".join(one.printed() for one in self.types)

    def plain(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {name: {id_: dict(row) for id_, row in t.items()} for name, t in self.rows.items() if t}


class Refused(Exception):
    """The graph must refuse this, and change nothing."""


_fresh = itertools.count()


def fresh_id() -> str:
    return f"{FRESH}{next(_fresh)}"


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def insert(model: Model, name: str, values: Row) -> Model:
    """A keyed node is an upsert that keeps what is not named; anything else is new."""
    definition, table = model.of(name), model.table(name)
    id_ = values[definition.key] if definition.key is not None else fresh_id()
    return model.with_table(name, {**table, id_: without_nulls({**table.get(id_, {}), **values})})


def matching(model: Model, name: str, column: str, value: Any) -> set[str]:
    return {id_ for id_, row in model.table(name).items() if row.get(column) == value}


def update(model: Model, name: str, column: str, value: Any, values: Row) -> Model:
    chosen = matching(model, name, column, value)
    table = {id_: without_nulls({**row, **values}) if id_ in chosen else row for id_, row in model.table(name).items()}
    return model.with_table(name, table)


def delete(model: Model, name: str, column: str, value: Any) -> Model:
    gone = matching(model, name, column, value)
    model = model.with_table(name, {id_: row for id_, row in model.table(name).items() if id_ not in gone})
    if model.of(name).ends is not None:
        return model
    for edge in (one for one in model.types if one.ends is not None):
        ends = [end for end, at in zip(("from", "to"), edge.ends or (), strict=True) if at == name]
        kept = {id_: row for id_, row in model.table(edge.name).items() if not any(row[end] in gone for end in ends)}
        model = model.with_table(edge.name, kept)
    return model


def load(model: Model, mode: str, entities: Iterable[tuple[str, str | None, Row]]) -> Model:
    """Entities are `(type, id or None, values)`."""
    entities = list(entities)
    if mode == "overwrite":
        for name in {name for name, _, _ in entities}:
            model = model.with_table(name, {})
    seen: set[tuple[str, str]] = set()
    for name, given, values in entities:
        definition, table = model.of(name), model.table(name)
        id_ = given or (values[definition.key] if definition.key else None)
        if id_ is None and mode == "merge" and ("src", "dst") in definition.unique:
            id_ = next(
                (i for i, row in table.items() if (row["from"], row["to"]) == (values["from"], values["to"])), None
            )
        id_ = id_ or fresh_id()
        if (name, id_) in seen or (mode == "append" and id_ in table):
            raise Refused(f"{name} {id_} is there")
        seen.add((name, id_))
        old = table.get(id_, {}) if mode == "merge" else {}
        model = model.with_table(name, {**table, id_: without_nulls({**old, **values})})
    return model


def violations(model: Model) -> list[str]:
    found: list[str] = []
    for definition in model.types:
        rows = model.table(definition.name)
        if definition.ends is not None:
            for end, at in zip(("from", "to"), definition.ends, strict=True):
                found += [
                    f"{definition.name} {end} {row[end]}" for row in rows.values() if row[end] not in model.table(at)
                ]
            if definition.card is not None:
                sources = [row["from"] for row in rows.values()]
                found += [f"card {definition.name} {s}" for s in set(sources) if sources.count(s) > definition.card]
        for names in definition.unique:
            columns = [{"src": "from", "dst": "to"}.get(name, name) for name in names]
            tuples = [tuple(row.get(column) for column in columns) for row in rows.values()]
            tuples = [values for values in tuples if None not in values]
            found += [f"unique {definition.name} {values}" for values in set(tuples) if tuples.count(values) > 1]
    return found


def checked(model: Model) -> Model:
    found = violations(model)
    if found:
        raise Refused("; ".join(found))
    return model


def three_way(base: Model, ours: Model, theirs: Model) -> Model:
    """Property by property; for states of one schema."""
    merged: dict[str, dict[str, Row]] = {}
    conflicts: list[str] = []
    for definition in ours.types:
        name = definition.name
        b, o, t = base.table(name), ours.table(name), theirs.table(name)
        merged[name] = {}
        for id_ in {*b, *o, *t}:
            row = _merged_row(b.get(id_), o.get(id_), t.get(id_), f"{name} {id_}", conflicts)
            if row is not None:
                merged[name][id_] = row
    if conflicts:
        raise Refused("; ".join(conflicts))
    return checked(replace(ours, rows=merged))


def _merged_row(b: Row | None, o: Row | None, t: Row | None, name: str, conflicts: list[str]) -> Row | None:
    if o == t or t == b:
        return o
    if o == b:
        return t
    if b is None or o is None or t is None:
        conflicts.append(name)
        return None
    row: dict[str, Any] = {}
    for column in {*b, *o, *t}:
        vb, vo, vt = b.get(column), o.get(column), t.get(column)
        if vo != vt and vo != vb and vt != vb:
            conflicts.append(f"{name}.{column}")
        row[column] = vo if vt == vb else vt
    return without_nulls(row)


def settle_fresh(expected: Model, found: Mapping[str, Mapping[str, Row]]) -> Model:
    """Gives the fresh rows the ids that the graph chose: unknown ones with the same content."""
    for definition in expected.types:
        table = expected.table(definition.name)
        fresh = [id_ for id_ in table if id_.startswith(FRESH)]
        if not fresh:
            continue
        unknown = {i: row for i, row in found.get(definition.name, {}).items() if i not in table}
        settled = {id_: row for id_, row in table.items() if not id_.startswith(FRESH)}
        for id_ in fresh:
            match = next((i for i, row in unknown.items() if dict(row) == dict(table[id_])), None)
            if match is not None:
                del unknown[match]
            settled[match or id_] = table[id_]
        expected = expected.with_table(definition.name, settled)
    return expected
