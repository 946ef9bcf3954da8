"""Entities of a load as rows of their types: columns, masks of the values given, ids, and malformed entities.

Everything here follows from the input and the schema alone. Stored rows, ends and unique values are looked up in
`load_modes.py` and by the validator.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from omnigraph.errors import Violation
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.query.values import default_of, format_value
from omnigraph.schema.catalog import Property, TypeDef
from omnigraph.schema.constraints import Constraint, Key, Required, Unique, ValueType, type_constraints
from omnigraph.schema.identity import id_of
from omnigraph.write.load.input.load_input import InputEntity, InputPlace, LoadInput
from omnigraph.write.load.parse.arrow_builder import build_column

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Mask = np.ndarray[Any, np.dtype[np.bool_]]

_ABSENT: Any = object()


@dataclass(frozen=True, eq=False)
class TypeRows:
    """The rows of one type in a load. Values that were not given are defaults, and False in `given`."""

    definition: TypeDef
    rows: "pa.Table"
    given: "dict[str, Mask]"  # by column: rows in which it was given
    minted: "Mask"  # rows whose id was minted
    places: tuple[InputPlace, ...]

    def where(self, mask: "Mask") -> "TypeRows":
        """Some of the rows."""
        import numpy as np
        import pyarrow as pa

        return TypeRows(
            self.definition,
            self.rows.filter(pa.array(mask)),
            {name: given[mask] for name, given in self.given.items()},
            self.minted[mask],
            tuple(self.places[number] for number in np.flatnonzero(mask)),
        )

    def with_ids(self, ids: "pa.Array[Any]", minted: "Mask") -> "TypeRows":
        index = self.rows.schema.get_field_index("id")
        rows = self.rows.set_column(index, self.rows.schema.field(index), ids)
        return TypeRows(self.definition, rows, self.given, minted, self.places)


@dataclass
class LoadRows:
    """The rows of a load by the types of one schema."""

    types: dict[TableKey, TypeRows] = field(default_factory=dict)
    seen: dict[TableKey, int] = field(default_factory=dict)  # entities of each type in the input, valid or not
    malformed: list[tuple[InputPlace, str]] = field(default_factory=list)
    refused: list[tuple[InputPlace, Violation]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(one.rows.num_rows for one in self.types.values())


def build_rows(
    found: LoadInput, types: Mapping[str, TypeDef], mint: Callable[[int], str], *, each_once: bool = True
) -> LoadRows:
    """The input as rows of the schema's types; `mint` makes the id of a row, which may depend on its number.

    Repeated ids are rejected only with `each_once`: a part of an input does not show them all.
    """
    loaded = LoadRows()
    groups: dict[str, list[InputEntity]] = {name: [] for name in found.tables if name in types}
    fields: dict[str, frozenset[str]] = {}
    for place, entity in found.entities():
        problem = entity if isinstance(entity, str) else _find_problem(entity, types, fields)
        if not isinstance(entity, str) and (definition := types.get(entity.type_name)) is not None:
            loaded.seen[definition.table_key] = loaded.seen.get(definition.table_key, 0) + 1
        if problem is not None:
            loaded.malformed.append((place, problem))
        elif not isinstance(entity, str):
            groups.setdefault(entity.type_name, []).append(entity)
    while groups:  # free the dicts of a type once it is columns
        name, entities = groups.popitem()
        definition = types[name]
        loaded.seen.setdefault(definition.table_key, 0)
        if entities:
            rows = _build_type_rows(definition, entities, mint, loaded.refused)
            loaded.types[definition.table_key] = reject_repeated_ids(rows, loaded.refused) if each_once else rows
    loaded.types = dict(sorted(loaded.types.items(), reverse=True))  # nodes first: their errors are reported first
    return loaded


def _find_problem(entity: InputEntity, types: Mapping[str, TypeDef], fields: dict[str, frozenset[str]]) -> str | None:
    """Why an entity can't be a row of its type; `fields` caches the names that the `data` of a type may have."""
    definition = types.get(entity.type_name)
    if definition is None:
        return f"the schema has no type {entity.type_name!r}: see `schema show`"
    if entity.is_edge != (definition.kind == "edge"):
        remedy = '{"edge": …, "from": …, "to": …}' if definition.kind == "edge" else '{"type": …, "data": {…}}'
        return f"{entity.type_name} is {'an edge' if definition.kind == 'edge' else 'a node'} type: write {remedy}"
    data, known = entity.data, fields.get(definition.name)
    if known is None:
        known = fields[definition.name] = frozenset({"id", *definition.by_name})
    if not data.keys() <= known:
        unknown = next(name for name in data if name not in known)
        names = ", ".join(definition.by_name) or "none"
        return f"{entity.type_name} has no property {unknown!r}: its properties are {names}"
    if "id" in data and (not isinstance(data["id"], str) or _has_lone_surrogate(data["id"])):
        return f"the id {format_value(data['id'])} is not text: give one, or leave it out"
    return None


def _has_lone_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _build_type_rows(
    definition: TypeDef,
    entities: Sequence[InputEntity],
    mint: Callable[[int], str],
    refused: list[tuple[InputPlace, Violation]],
) -> TypeRows:
    """The rows of one type, without those with an ill-typed value or an incomplete key."""
    import numpy as np
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    schema = arrow_schema(definition)
    ids: list[str | None] = [entity.data.get("id") for entity in entities]
    columns: dict[str, Any] = {}
    if definition.kind == "edge":
        columns["src"] = pa.array([entity.source for entity in entities], pa.string())
        columns["dst"] = pa.array([entity.target for entity in entities], pa.string())
    given: dict[str, Mask] = {}
    good = np.ones(len(entities), np.bool_)
    for prop in definition.properties:
        columns[prop.column], given[prop.column], problems = _build_property(prop, entities)
        for number, problem in problems.items():
            good[number] = False
            name = entities[number].data.get("id") or _name_by_key(definition, entities[number])
            refused.append((entities[number].place, _type_violation(definition, prop, name, problem)))
    _derive_ids(definition, entities, columns, ids, good, refused)
    minted = np.array([entity is None for entity in ids], np.bool_)
    pairs = zip(ids, entities, strict=True)
    columns["id"] = pa.array([mint(row.place.number) if own is None else own for own, row in pairs], pa.string())
    rows = pa.table([columns[name] for name in schema.names], schema=schema)
    result = TypeRows(definition, rows, given, minted, tuple(entity.place for entity in entities))
    return result if good.all() else result.where(good)


def _build_property(prop: Property, entities: Sequence[InputEntity]) -> "tuple[pa.Array[Any], Mask, dict[int, str]]":
    import numpy as np

    values = [entity.data.get(prop.name, _ABSENT) for entity in entities]
    given = np.array([value is not _ABSENT for value in values], np.bool_)
    if not given.all():
        default = default_of(prop)
        plain = list(default) if isinstance(default, tuple) else default
        values = [plain if value is _ABSENT else value for value in values]
    column, problems = build_column(values, prop.type)
    return column, given, problems


def _derive_ids(
    definition: TypeDef,
    entities: Sequence[InputEntity],
    columns: dict[str, Any],
    ids: list[str | None],
    good: "Mask",
    refused: list[tuple[InputPlace, Violation]],
) -> None:
    """Derive ids from keys where none was given. The validator compares given ids with their keys."""
    if not definition.key:
        return
    keys = [columns[definition.column(name)].to_pylist() for name in definition.key]
    for number, values in enumerate(zip(*keys, strict=True)):
        if not good[number]:
            continue
        if None in values:
            good[number] = False
            refused.append((entities[number].place, _missing_key_violation(definition, values)))
        elif ids[number] is None:
            ids[number] = id_of(definition, dict(zip(definition.key, values, strict=True)))


def reject_repeated_ids(rows: TypeRows, refused: list[tuple[InputPlace, Violation]]) -> TypeRows:
    """The first row of each id; the others are rejected."""
    import numpy as np

    first: dict[str, int] = {}
    good = np.ones(rows.rows.num_rows, np.bool_)
    every: list[Any] = rows.rows.column("id").to_pylist()
    for number, entity in enumerate(every):
        before = first.setdefault(entity, number)
        if before != number:
            good[number] = False
            refused.append(
                (rows.places[number], repeated_id_violation(rows.definition, entity, str(rows.places[before])))
            )
    return rows if good.all() else rows.where(good)


def match_constraint(definition: TypeDef) -> Unique | None:
    """The constraint by which an edge without id is matched with a stored one: the first `@unique` over both ends."""
    for constraint in type_constraints(definition):
        if isinstance(constraint, Unique) and {"src", "dst"} <= set(constraint.columns):
            return constraint
    return None


def _name_by_key(definition: TypeDef, entity: InputEntity) -> str | None:
    """A name, for reports, of a row that has no id yet."""
    values = [entity.data.get(name) for name in definition.key]
    return str(values[0]) if len(values) == 1 and isinstance(values[0], str) else None


def _violation(constraint: Constraint, ids: tuple[str, ...], problem: str, remedy: str) -> Violation:
    name = constraint.properties[0] if len(constraint.properties) == 1 else None
    return Violation(constraint.name, constraint.type_name, name, ids, problem, remedy, constraint.table_key)


def _type_violation(definition: TypeDef, prop: Property, name: str | None, problem: str) -> Violation:
    for constraint in type_constraints(definition):
        if isinstance(constraint, ValueType) and constraint.properties == (prop.name,):
            what, _, remedy = problem.partition(": ")
            ids = () if name is None else (name,)
            return _violation(constraint, ids, f"has a bad {prop.name}, {what}", remedy or f"give {prop.type}")
    raise AssertionError(f"{definition.name}.{prop.name} has no type")


def _missing_key_violation(definition: TypeDef, values: Sequence[Any]) -> Violation:
    missing = definition.key[list(values).index(None)]
    for constraint in type_constraints(definition):
        if isinstance(constraint, Required) and constraint.properties == (missing,):
            return _violation(constraint, (), f"has no {missing}, a part of its key", f"give {missing} a value")
    raise AssertionError(f"the key {definition.name}.{missing} may be null")


def repeated_id_violation(definition: TypeDef, entity: str, first: str) -> Violation:
    """The violation of an id that occurred before, at the place `first`."""
    problem, remedy = f"occurs twice, first at {first}", "keep one of them"
    for constraint in type_constraints(definition):
        if isinstance(constraint, Key):
            return _violation(constraint, (entity,), problem, remedy)
    return Violation(f"{definition.name} id", definition.name, "id", (entity,), problem, remedy, definition.table_key)
