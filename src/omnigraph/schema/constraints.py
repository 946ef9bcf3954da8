"""Constraints on the rows of a graph, derived from its catalog as values.

They are evaluated elsewhere: against a small delta by indexed lookups, in bulk by joins; both use the values here, so
that they can't diverge. `columns` are columns of the type's table, `properties` their names in the schema, in the same
order.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from omnigraph.schema.catalog import Catalog
from omnigraph.schema.definitions import SOURCE, TARGET, RangeBound, TypeDef
from omnigraph.schema.types import Enumeration, PropertyType


@dataclass(frozen=True, slots=True)
class _ConstraintBase:
    """The table and the columns that a constraint is about."""

    table_key: str
    type_name: str
    properties: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Required(_ConstraintBase):
    """The value is never null."""

    @property
    def name(self) -> str:
        return f"{self.type_name}.{self.properties[0]} required"


@dataclass(frozen=True, slots=True)
class ValueType(_ConstraintBase):
    """The value is of the declared type."""

    type: PropertyType

    @property
    def name(self) -> str:
        return f"{self.type_name}.{self.properties[0]} type {self.type}"


@dataclass(frozen=True, slots=True)
class EnumValue(_ConstraintBase):
    """The value is one of the declared ones."""

    values: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.type_name}.{self.properties[0]} enum"


@dataclass(frozen=True, slots=True)
class Range(_ConstraintBase):
    """The value lies within the bounds, both included; None is an open end, dates are ISO text.

    Null passes, NaN does not.
    """

    low: RangeBound | None
    high: RangeBound | None

    @property
    def name(self) -> str:
        bounds = f"{'' if self.low is None else self.low}..{'' if self.high is None else self.high}"
        return f"{self.type_name}.{self.properties[0]} range {bounds}"


@dataclass(frozen=True, slots=True)
class CheckPattern(_ConstraintBase):
    """The whole text matches the pattern, as RE2 reads it. Null passes."""

    pattern: str

    @property
    def name(self) -> str:
        return f"{self.type_name}.{self.properties[0]} check {self.pattern}"


@dataclass(frozen=True, slots=True)
class Key(_ConstraintBase):
    """The id is the one that `identity.id_of` derives from the complete key tuple, so no two rows share a key."""

    @property
    def name(self) -> str:
        return f"{self.type_name} key ({', '.join(self.properties)})"


@dataclass(frozen=True, slots=True)
class Unique(_ConstraintBase):
    """No two rows agree in all of these values; a row with a null among them agrees with none."""

    @property
    def name(self) -> str:
        return f"{self.type_name} unique ({', '.join(self.properties)})"


@dataclass(frozen=True, slots=True)
class Endpoint(_ConstraintBase):
    """Every value of the edge's column is the id of a row of `node_table`.

    It works both ways: an edge needs its nodes, and a node may be deleted only when no edge refers to it here.
    """

    node_table: str
    node_type: str

    @property
    def name(self) -> str:
        return f"{self.type_name}.{self.columns[0]} in {self.node_type}"


@dataclass(frozen=True, slots=True)
class Cardinality(_ConstraintBase):
    """How many edges leave one node of `source_table`: at least `minimum`, at most `maximum` unless that is None.

    The minimum is checked for every source whose edges a commit changes, not for nodes that never had one.
    """

    source_table: str
    minimum: int
    maximum: int | None

    @property
    def name(self) -> str:
        return f"{self.type_name} card {self.minimum}..{'' if self.maximum is None else self.maximum}"


Constraint: TypeAlias = Required | ValueType | EnumValue | Range | CheckPattern | Key | Unique | Endpoint | Cardinality


@dataclass(frozen=True, slots=True)
class Constraints:
    """All constraints of a catalog, by the table whose rows they are about."""

    by_table: dict[str, tuple[Constraint, ...]]
    endpoints_of: dict[str, tuple[Endpoint, ...]]  # node table → the edge columns that may point at it
    between_rows: "dict[str, tuple[Unique | Endpoint | Cardinality, ...]]" = field(
        init=False, repr=False, compare=False
    )  # those that involve more than one row; tables without any are left out

    def __post_init__(self) -> None:
        between_rows = {
            key: tuple(one for one in constraints if isinstance(one, Unique | Endpoint | Cardinality))
            for key, constraints in self.by_table.items()
        }
        object.__setattr__(self, "between_rows", {key: some for key, some in between_rows.items() if some})

    def of(self, table_key: str) -> tuple[Constraint, ...]:
        return self.by_table.get(table_key, ())

    def referring_to(self, node_table: str) -> tuple[Endpoint, ...]:
        """The edge columns that may refer to nodes of this table: checked before a node is deleted."""
        return self.endpoints_of.get(node_table, ())


def constraints_of(catalog: Catalog) -> Constraints:
    """The constraints of every type, in a fixed order: values first, then keys, uniqueness, ends and cardinality."""
    by_table = {definition.table_key: type_constraints(definition) for definition in catalog.types}
    endpoints: dict[str, tuple[Endpoint, ...]] = {definition.table_key: () for definition in catalog.nodes}
    for constraints in by_table.values():
        for constraint in constraints:
            if isinstance(constraint, Endpoint):
                endpoints[constraint.node_table] += (constraint,)
    return Constraints(by_table, endpoints)


def type_constraints(definition: TypeDef) -> tuple[Constraint, ...]:
    """The constraints on the rows of one type."""
    return (*_value_constraints(definition), *_row_constraints(definition))


def _place(definition: TypeDef, *names: str) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
    return definition.table_key, definition.name, names, tuple(definition.column(name) for name in names)


def _value_constraints(definition: TypeDef) -> list[Constraint]:
    derived: list[Constraint] = []
    for prop in definition.properties:
        place = _place(definition, prop.name)
        derived.append(ValueType(*place, prop.type))
        if not prop.nullable:
            derived.append(Required(*place))
        if isinstance(prop.type, Enumeration):
            derived.append(EnumValue(*place, prop.type.values))
    rules = definition.rules
    derived += [Range(*_place(definition, entry.property), entry.low, entry.high) for entry in rules.ranges]
    derived += [CheckPattern(*_place(definition, entry.property), entry.pattern) for entry in rules.checks]
    return derived


def _row_constraints(definition: TypeDef) -> list[Constraint]:
    derived: list[Constraint] = []
    if definition.key:
        derived.append(Key(*_place(definition, *definition.key)))
    derived += [Unique(*_place(definition, *names)) for names in definition.rules.unique]
    if definition.source is not None and definition.target is not None:
        for column, node in ((SOURCE, definition.source), (TARGET, definition.target)):
            derived.append(Endpoint(*_place(definition, column), f"node:{node}", node))
        count = definition.cardinality
        if count is not None:
            place = _place(definition, SOURCE)
            derived.append(Cardinality(*place, f"node:{definition.source}", count.minimum, count.maximum))
    return derived
