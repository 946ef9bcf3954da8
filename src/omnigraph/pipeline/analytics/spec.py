"""What an analysis computes: an algorithm, the part of the graph that it reads, and the property it may write to.

Everything that can be wrong with it is found here, before anything is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from omnigraph.errors import BadRequest
from omnigraph.schema.catalog import Catalog, Property, TypeDef
from omnigraph.schema.types import Scalar

if TYPE_CHECKING:
    import pyarrow as pa

Algorithm: TypeAlias = Literal["pagerank", "components", "degrees", "triangles"]
Direction: TypeAlias = Literal["out", "in", "both"]

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
_WHOLE = ("I64", "U64", "I32", "U32")
_TYPES: dict[Algorithm, tuple[str, ...]] = {
    "pagerank": ("F64", "F32"),
    "components": ("String", *_WHOLE),
    "degrees": _WHOLE,
    "triangles": _WHOLE,
}
VALUE_NAMES: dict[Algorithm, str] = {
    "pagerank": "rank",
    "components": "component",
    "degrees": "degree",
    "triangles": "triangles",
}


@dataclass(frozen=True, slots=True)
class TargetProperty:
    """The property that values are written to."""

    definition: TypeDef
    prop: Property

    @property
    def as_number(self) -> bool:
        """Of components: whether they are numbered or named by their smallest id."""
        return self.prop.type != Scalar("String")


@dataclass(frozen=True, slots=True)
class AnalysisSpec:
    """`vertices` are the types at the ends of the edges, and the target's, in the order of their names."""

    algorithm: Algorithm
    edges: tuple[TypeDef, ...]
    vertices: tuple[TypeDef, ...]
    direction: Direction
    damping: float
    tolerance: float
    iterations: int
    target: TargetProperty | None = None
    numbered: bool = False  # components as numbers

    @property
    def tables(self) -> frozenset[str]:
        return frozenset(definition.table_key for definition in (*self.edges, *self.vertices))


def resolve_spec(
    catalog: Catalog,
    algorithm: str,
    *,
    edges: Sequence[str] | None = None,
    direction: str | None = None,
    damping: float = 0.85,
    tolerance: float = 1e-6,
    iterations: int = 100,
    write: str | None = None,
) -> AnalysisSpec:
    """The names of an analysis resolved in a schema; BadRequest, with the remedy, if that is impossible."""
    if algorithm not in ALGORITHMS:
        raise BadRequest(f"{algorithm!r} is not an analysis: choose one of {', '.join(ALGORITHMS)}.")
    chosen = _edges(catalog, edges)
    target = None if write is None else _target(catalog, algorithm, write)
    if not 0 <= damping < 1:
        raise BadRequest(f"A damping of {damping} is invalid: give a number from 0 to below 1, such as 0.85.")
    if not tolerance > 0:
        raise BadRequest(f"A tolerance of {tolerance} is invalid: give a small number above 0, such as 1e-6.")
    if iterations < 1:
        raise BadRequest(f"{iterations} iterations are too few: allow at least 1.")
    names = {name for edge in chosen for name in (edge.source, edge.target) if name is not None}
    if target is not None:
        names.add(target.definition.name)
    return AnalysisSpec(
        algorithm,
        chosen,
        tuple(catalog.by_name[name] for name in sorted(names)),
        _direction(algorithm, direction),
        damping,
        tolerance,
        iterations,
        target,
        target.as_number if target is not None and algorithm == "components" else False,
    )


def _edges(catalog: Catalog, names: Sequence[str] | None) -> tuple[TypeDef, ...]:
    every = [definition for definition in catalog.types if definition.kind == "edge"]
    if names is None:
        if not every:
            raise BadRequest("The schema has no edge type, so there is nothing to analyse: add one.")
        return tuple(sorted(every, key=lambda definition: definition.name))
    by_name = {definition.name: definition for definition in every}
    for name in names:
        if name not in by_name:
            raise BadRequest(f"The schema has no edge type {name!r}: it has {', '.join(sorted(by_name)) or 'none'}.")
    if not names:
        raise BadRequest("No edge type is named: name some, or leave them out to take all.")
    return tuple(by_name[name] for name in sorted(set(names)))


def _direction(algorithm: Algorithm, direction: str | None) -> Direction:
    if direction is None:
        return "out" if algorithm == "pagerank" else "both"
    if direction not in DIRECTIONS:
        raise BadRequest(f"{direction!r} is no direction: use {', '.join(DIRECTIONS)}.")
    if algorithm in ("components", "triangles") and direction != "both":
        raise BadRequest(f"{algorithm} takes edges both ways: leave the direction out.")
    return direction


def _target(catalog: Catalog, algorithm: Algorithm, write: str) -> TargetProperty:
    type_name, dot, name = write.partition(".")
    definition = catalog.by_name.get(type_name)
    if not dot or definition is None or definition.kind != "node":
        nodes = sorted(known.name for known in catalog.types if known.kind == "node")
        raise BadRequest(f"{write!r} names no property of a node type: give Type.property, of {', '.join(nodes)}.")
    found = definition.by_name.get(name)
    wanted = _TYPES[algorithm]
    if found is None:
        raise BadRequest(
            f"{type_name} has no property {name!r}: add `{name}: {wanted[0]}?` to the schema, or name another one."
        )
    if not isinstance(found.type, Scalar) or found.type.name not in wanted:
        raise BadRequest(f"{write} is {found.type}, {algorithm} needs {' or '.join(wanted)}: name another property.")
    ruled = {part for group in (definition.key, *definition.rules.unique) for part in group}
    if name in ruled:
        raise BadRequest(f"{write} is part of a key or @unique: an analysis gives many rows one value, name another.")
    if any(prop.embed is not None and prop.embed.source == name for prop in definition.properties):
        raise BadRequest(f"{write} is a text that a vector is made from: name another property.")
    return TargetProperty(definition, found)


def cast_values(values: "pa.ChunkedArray[Any]", target: TargetProperty) -> "pa.ChunkedArray[Any]":
    """The values as the property has them."""
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    wanted = arrow_schema(target.definition).field(target.prop.column).type
    try:
        fitting: pa.ChunkedArray[Any] = values.cast(wanted)
        return fitting
    except pa.ArrowInvalid as error:
        raise BadRequest(
            f"Some values do not fit into {target.definition.name}.{target.prop.name}, which is "
            f"{target.prop.type}: declare it I64."
        ) from error
