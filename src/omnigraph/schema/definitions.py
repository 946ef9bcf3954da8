"""The declarations of a schema as frozen values: properties, node and edge types, interfaces.

Names refer to names of the same catalog; ids and columns outlive them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from omnigraph.schema.types import PropertyType

Kind: TypeAlias = Literal["node", "edge"]
Metric: TypeAlias = Literal["cosine", "l2"]
SchemaValue: TypeAlias = str | bool | int | float | tuple["SchemaValue", ...]  # as in load data: dates are ISO text
RangeBound: TypeAlias = int | float | str

DEFAULT_METRIC: Metric = "cosine"
ID, SOURCE, TARGET = "id", "src", "dst"
NODE_COLUMNS = (ID,)
EDGE_COLUMNS = (ID, SOURCE, TARGET)


@dataclass(frozen=True, slots=True)
class Embed:
    """The vector is made from the text of `source`, by `provider` and `model` once one has filled it."""

    source: str
    provider: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Property:
    """`column` is where the values are stored; `annotations` is metadata that is not interpreted."""

    id: str
    name: str
    column: str
    type: PropertyType
    nullable: bool = False
    annotations: Mapping[str, Any] = field(default_factory=dict, hash=False)
    default: SchemaValue | None = None  # in canonical form
    indexed: bool = False
    metric: Metric | None = None  # as declared; None is DEFAULT_METRIC
    embed: Embed | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class ValueRange:
    """`@range(property, low..high)`: both ends are included, None is an open end."""

    property: str
    low: RangeBound | None
    high: RangeBound | None

    def __str__(self) -> str:
        return f"{'' if self.low is None else self.low}..{'' if self.high is None else self.high}"


@dataclass(frozen=True, slots=True)
class PatternCheck:
    """`@check(property, "regex")`: the whole value must match."""

    property: str
    pattern: str


@dataclass(frozen=True, slots=True)
class EdgeCount:
    """`@card(minimum..maximum)`: how many edges of a type leave one source node; no maximum is None."""

    minimum: int
    maximum: int | None

    def __str__(self) -> str:
        return f"{self.minimum}..{'' if self.maximum is None else self.maximum}"


@dataclass(frozen=True, slots=True)
class Rules:
    """The constraints that a body declares, by property name; an edge's may name `src` and `dst`."""

    key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    ranges: tuple[ValueRange, ...] = ()
    checks: tuple[PatternCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class InterfaceDef:
    """Properties and rules that node types inherit; it has no rows, so its properties' ids are their names."""

    name: str
    properties: tuple[Property, ...] = ()
    rules: Rules = Rules()
    description: str | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict, hash=False)
    by_name: Mapping[str, Property] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {prop.name: prop for prop in self.properties})


@dataclass(frozen=True, slots=True)
class TypeDef:
    """A node or edge type with all its properties, those of its interfaces first.

    `source` and `target` are an edge's ends. `property_ids` counts the ids ever assigned and `retired_columns` are the
    columns of dropped properties: neither is reused. `columns` has the column of each property; `id`, `src` and `dst`
    are their own columns. `key` are the properties from whose values the id is derived, in order; empty where ids are
    generated.
    """

    id: str
    kind: Kind
    name: str
    properties: tuple[Property, ...] = ()
    source: str | None = None
    target: str | None = None
    rules: Rules = Rules()
    annotations: Mapping[str, Any] = field(default_factory=dict, hash=False)
    cardinality: EdgeCount | None = None
    implements: tuple[str, ...] = ()
    description: str | None = None
    property_ids: int = 0
    retired_columns: tuple[str, ...] = ()
    by_name: Mapping[str, Property] = field(init=False, repr=False, compare=False)
    columns: Mapping[str, str] = field(init=False, repr=False, compare=False)
    key: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.rules.key)
        columns = {prop.name: prop.column for prop in self.properties}
        object.__setattr__(self, "by_name", {prop.name: prop for prop in self.properties})
        object.__setattr__(self, "columns", columns | {name: name for name in self.physical_columns})

    @property
    def table_key(self) -> str:
        """The key of this type's table in a manifest."""
        return f"{self.kind}:{self.name}"

    @property
    def physical_columns(self) -> tuple[str, ...]:
        """The columns that every row has, before its properties: also the names by which rules may refer to them."""
        return NODE_COLUMNS if self.kind == "node" else EDGE_COLUMNS

    @property
    def traversal(self) -> str:
        """The name of this edge type in a query's traversal: `worksAt` for `WorksAt`."""
        return self.name[:1].lower() + self.name[1:]

    def column(self, name: str) -> str:
        return self.columns[name]
