"""What a schema declares, as frozen values: properties, node and edge types, interfaces.

Names refer to names of the same catalog; ids and columns outlive them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

from omnigraph.schema.types import PropertyType

T = TypeVar("T")
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
    """`column` has the values; `annotations` is metadata that nothing here interprets."""

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
    """`@range(property, low..high)`: both ends belong to it, None is an open end."""

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


@dataclass(frozen=True)
class Rules:
    """The constraints that a body declares, by property name; an edge's may name `src` and `dst`."""

    key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    ranges: tuple[ValueRange, ...] = ()
    checks: tuple[PatternCheck, ...] = ()


@dataclass(frozen=True)
class InterfaceDef:
    """Properties and rules that node types take over; it has no rows, so its properties' ids are their names."""

    name: str
    properties: tuple[Property, ...] = ()
    rules: Rules = Rules()
    description: str | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @cached_property
    def by_name(self) -> Mapping[str, Property]:
        return {prop.name: prop for prop in self.properties}


@dataclass(frozen=True)
class TypeDef:
    """A node or edge type with all its properties, those of its interfaces first.

    `source` and `target` are an edge's ends. `property_ids` counts the ids ever given and
    `retired_columns` are columns of dropped properties: neither is used again.
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
    _derived: dict[Callable[..., Any], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def derive(self, make: Callable[["TypeDef"], T]) -> T:
        """`make(self)`, computed once: for what every write needs and takes long to make, such as the Arrow schema."""
        found: T | None = self._derived.get(make)
        if found is None:
            found = self._derived[make] = make(self)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Derived values are not pickled: they are made again where they are needed."""
        return self.__dict__ | {"_derived": {}}

    @property
    def table_key(self) -> str:
        """The name under which a manifest keeps this type's table."""
        return f"{self.kind}:{self.name}"

    @property
    def key(self) -> tuple[str, ...]:
        """The properties whose values make the id, in order; empty where ids are fresh."""
        return self.rules.key

    @property
    def physical_columns(self) -> tuple[str, ...]:
        """The columns that every row has, before its properties: also the names by which rules may refer to them."""
        return NODE_COLUMNS if self.kind == "node" else EDGE_COLUMNS

    @property
    def traversal(self) -> str:
        """How a query's traversal names this edge type: `WorksAt` is `worksAt`."""
        return self.name[:1].lower() + self.name[1:]

    @cached_property
    def by_name(self) -> Mapping[str, Property]:
        return {prop.name: prop for prop in self.properties}

    @cached_property
    def columns(self) -> Mapping[str, str]:
        """Where the values of each property are kept; `id`, `src` and `dst` are their own columns."""
        return {prop.name: prop.column for prop in self.properties} | {name: name for name in self.physical_columns}

    def column(self, name: str) -> str:
        return self.columns[name]
