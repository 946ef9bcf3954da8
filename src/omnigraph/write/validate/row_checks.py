"""Constraints of single rows, evaluated column by column on Arrow; no table is read.

Each function returns the rows that violate one constraint. Unique values that occur twice in one write are checked here
as well.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

from omnigraph.caches import DerivedCache
from omnigraph.errors import Violation
from omnigraph.query.values import format_value
from omnigraph.schema.constraints import (
    CheckPattern,
    Constraint,
    EnumValue,
    Key,
    Range,
    Required,
    Unique,
    ValueType,
    type_constraints,
)
from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.identity import id_of
from omnigraph.schema.ipc_row import RowValues
from omnigraph.schema.regex import matches_whole
from omnigraph.schema.types import ListOf, Scalar, Vector
from omnigraph.write.delta import texts
from omnigraph.write.load.parse.keyed_ids import derive_ids

if TYPE_CHECKING:
    import pyarrow as pa

_FLOATS = (Scalar("F32"), Scalar("F64"))
_ROW_CONSTRAINTS = frozenset({Required, ValueType, EnumValue, Range, CheckPattern, Key, Unique})


def passes_fast_checks(definition: TypeDef, row: RowValues) -> bool:
    """Whether one row certainly violates nothing; if not, `value_violations` decides.

    Most rows that are written one by one are valid, and finding that out this way needs no Arrow columns.
    """
    for check in _FAST_CHECKS.of(definition):  # noqa: SIM110 - a generator takes as long as the checks
        if not check(row):
            return False
    return True


def _fast_checks(definition: TypeDef) -> list[Callable[[RowValues], bool]]:
    own = [constraint for constraint in type_constraints(definition) if type(constraint) in _ROW_CONSTRAINTS]
    found = [_fast_check(constraint, definition) for constraint in own]
    return [check for check in found if check is not None]


_FAST_CHECKS = DerivedCache(_fast_checks)


def _fast_check(constraint: Constraint, definition: TypeDef) -> Callable[[RowValues], bool] | None:
    """A test that a row fulfils the constraint; None if every single row does."""
    column = constraint.columns[0]
    match constraint:
        case Required():
            return lambda row: row.get(column) is not None
        case ValueType(type=Scalar("F32" | "F64")):
            return lambda row: (value := row.get(column)) is None or (type(value) is float and isfinite(value))
        case ValueType() if not isinstance(constraint.type, ListOf | Vector):
            return None  # the Arrow type ensures it
        case Unique():
            return None  # a single row repeats nothing
        case EnumValue(values=values):
            return lambda row: (value := row.get(column)) is None or value in values
        case Key():
            columns = {name: definition.column(name) for name in definition.key}
            return lambda row: _has_id_of_key(definition, columns, row)
        case _:
            return lambda row: row.get(column) is None


def _has_id_of_key(definition: TypeDef, columns: Mapping[str, str], row: RowValues) -> bool:
    given = {name: row.get(column) for name, column in columns.items()}
    return None not in given.values() and row.get("id") == id_of(definition, given)


def value_violations(constraints: Sequence[Constraint], definition: TypeDef, rows: "pa.Table") -> list[Violation]:
    """The violations of these rows that need no other table."""
    found = [
        _evaluate(constraint, definition, rows) for constraint in constraints if type(constraint) in _ROW_CONSTRAINTS
    ]
    return [violation for violation in found if violation is not None]


def _evaluate(constraint: Constraint, definition: TypeDef, rows: "pa.Table") -> Violation | None:
    match constraint:
        case Required():
            return _check_required(constraint, rows)
        case ValueType():
            return _check_value_type(constraint, rows)
        case EnumValue():
            return _check_enum(constraint, rows)
        case Range():
            return _check_range(constraint, rows)
        case CheckPattern():
            return _check_pattern(constraint, rows)
        case Key():
            return _check_key(constraint, definition, rows)
        case Unique():
            return _check_unique(constraint, rows)
        case _:
            return None


def violation_of(
    constraint: Constraint, ids: Sequence[str], problem: str, remedy: str, rows: Sequence[str] = ()
) -> Violation | None:
    """The violation of a constraint by these ids; None if there are none."""
    if not ids:
        return None
    name = constraint.properties[0] if len(constraint.properties) == 1 else None
    return Violation(
        constraint.name, constraint.type_name, name, tuple(ids), problem, remedy, constraint.table_key, tuple(rows)
    )


def _check_required(constraint: Required, rows: "pa.Table") -> Violation | None:
    column = rows.column(constraint.columns[0])
    if not column.null_count:
        return None
    name = constraint.properties[0]
    return violation_of(constraint, _matching_ids(rows, column.is_null()), f"has no {name}", f"give {name} a value")


def _check_value_type(constraint: ValueType, rows: "pa.Table") -> Violation | None:
    """The Arrow type ensures the rest: only NaN, infinity and null list items have to be found."""
    kind = constraint.type
    if not isinstance(kind, ListOf | Vector) and kind not in _FLOATS:
        return None
    import pyarrow.compute as pc

    column, name = rows.column(constraint.columns[0]), constraint.properties[0]
    if not isinstance(kind, ListOf | Vector):
        bad = pc.invert(pc.is_finite(column))
        return violation_of(
            constraint, _matching_ids(rows, bad), f"has a {name} that is no finite number", "give a number or null"
        )
    given = rows.select(["id", constraint.columns[0]]).filter(column.is_valid()).combine_chunks()
    if not given.num_rows:
        return None
    lists = given.column(1).chunk(0)
    items: Any = pc.list_flatten(lists)
    bad_items: Any = pc.is_null(items)
    if isinstance(kind, Vector) or kind.item in _FLOATS:
        bad_items = pc.or_(bad_items, pc.fill_null(pc.invert(pc.is_finite(items)), True))
    bad_lists = pc.unique(pc.filter(pc.list_parent_indices(lists), bad_items))
    ids = texts(given.take(bad_lists), "id")
    return violation_of(constraint, ids, f"has null or no number among the items of {name}", "give every item a value")


def _check_enum(constraint: EnumValue, rows: "pa.Table") -> Violation | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = rows.column(constraint.columns[0])
    bad = pc.invert(pc.is_in(column, value_set=pa.array([*constraint.values, None], column.type)))
    values = ", ".join(constraint.values)
    problem = f"has {constraint.properties[0]} {_example(column, bad)}, which is not in the enum"
    return violation_of(constraint, _matching_ids(rows, bad), problem, f"give one of {values}")


def _check_range(constraint: Range, rows: "pa.Table") -> Violation | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = rows.column(constraint.columns[0])
    bad: Any = pa.scalar(False)
    for bound, inside in ((constraint.low, pc.greater_equal), (constraint.high, pc.less_equal)):
        if bound is not None:
            bad = pc.or_(bad, pc.invert(inside(column, pa.scalar(_parse_bound(bound, column.type), column.type))))
    low, high = constraint.low, constraint.high
    bounds = f"{'' if low is None else low}..{'' if high is None else high}"
    problem = f"has {constraint.properties[0]} {_example(column, bad)}, outside {bounds}"
    return violation_of(constraint, _matching_ids(rows, bad), problem, "give a value within the range")


def _parse_bound(bound: Any, kind: "pa.DataType") -> Any:
    import pyarrow as pa

    if not isinstance(bound, str):
        return bound
    return date.fromisoformat(bound) if pa.types.is_date(kind) else datetime.fromisoformat(bound)


def _check_pattern(constraint: CheckPattern, rows: "pa.Table") -> Violation | None:
    import pyarrow.compute as pc

    column = rows.column(constraint.columns[0])
    bad = pc.invert(matches_whole(column, constraint.pattern))
    problem = f"has {constraint.properties[0]} {_example(column, bad)}, which does not match {constraint.pattern}"
    return violation_of(
        constraint, _matching_ids(rows, bad), problem, "give a value that matches from beginning to end"
    )


def _check_key(constraint: Key, definition: TypeDef, rows: "pa.Table") -> Violation | None:
    """The id is derived from the key, so a key can't change. A null in a key violates `Required` instead."""
    import pyarrow.compute as compute

    pc: Any = compute
    derived = derive_ids(definition, rows)
    ids: Any = rows.column("id")
    ids = ids.chunk(0) if ids.num_chunks == 1 else ids.combine_chunks()
    if ids.equals(derived):
        return None
    other = pc.not_equal(ids, derived)  # null where the key has a null, which is another violation
    bad = _matching_ids(rows, other)
    wanted = str(derived.filter(other)[0]) if bad else ""
    problem = f"has the key of {wanted!r}"
    return violation_of(
        constraint, bad, problem, "leave the id out, or insert a row with the new key: a key never changes"
    )


def _check_unique(constraint: Unique, rows: "pa.Table") -> Violation | None:
    seen: dict[tuple[object, ...], str] = {}
    bad, first = [], ""
    for entity, values in unique_values(constraint, rows):
        other = seen.setdefault(values, entity)
        if other != entity:
            bad.append(entity)
            first = first or other
    return duplicate_in_write(constraint, bad, first)


def duplicate_in_write(constraint: Unique, ids: Sequence[str], first: str) -> Violation | None:
    """Rows with unique values of another row of the same write; `first` is the row that the first of them repeats."""
    named = ", ".join(constraint.properties)
    return violation_of(constraint, ids, f"has the same {named} as {first!r} in this write", "keep one of them")


def unique_values(constraint: Unique, rows: "pa.Table") -> list[tuple[str, tuple[object, ...]]]:
    """Ids with their unique values; rows with a null among them are left out, as nulls are never equal."""
    columns = [rows.column(name).to_pylist() for name in constraint.columns]
    pairs = zip(texts(rows, "id"), zip(*columns, strict=True), strict=True)
    return [(entity, values) for entity, values in pairs if None not in values]


def _matching_ids(rows: "pa.Table", mask: Any) -> list[str]:
    """The ids of the rows where the mask is true, not null."""
    return [str(entity) for entity in rows.column("id").filter(mask).to_pylist()]


def _example(column: Any, mask: Any) -> str:
    """One of the values that break a constraint, for the message."""
    values = column.filter(mask)
    return format_value(values[0].as_py()) if len(values) else ""
