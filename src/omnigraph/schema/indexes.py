"""The indexes of a type's table, as values; storage/table/index/ builds them."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from omnigraph.schema.definitions import DEFAULT_METRIC, Metric, TypeDef
from omnigraph.schema.types import Enumeration, Scalar, Vector

IndexKind: TypeAlias = Literal["btree", "full_text", "vector"]


@dataclass(frozen=True, slots=True)
class DeclaredIndex:
    """One index over one column; `metric` is a vector's."""

    column: str
    kind: IndexKind
    metric: Metric | None = None

    @property
    def name(self) -> str:
        """Stable: a rename keeps columns, and a column has at most one index of a kind."""
        return f"{self.column}_{self.kind}"


def declared_indexes(definition: TypeDef) -> tuple[DeclaredIndex, ...]:
    """The indexes of a type, in the order of its columns.

    Ids and ends have a B-tree, and so have keys and `@unique` properties, which constraints look up. `@index` adds a
    B-tree on any type with an order, a full-text index on a String, and a vector index on a Vector, which `@embed`
    implies.
    """
    looked_up = {name for group in (definition.key, *definition.rules.unique) for name in group}
    indexes = [DeclaredIndex(column, "btree") for column in definition.physical_columns]
    for prop in definition.properties:
        if isinstance(prop.type, Vector):
            if prop.indexed or prop.embed is not None:
                indexes.append(DeclaredIndex(prop.column, "vector", prop.metric or DEFAULT_METRIC))
            continue
        if prop.name in looked_up or (prop.indexed and isinstance(prop.type, Scalar | Enumeration)):
            indexes.append(DeclaredIndex(prop.column, "btree"))
        if prop.indexed and prop.type == Scalar("String"):
            indexes.append(DeclaredIndex(prop.column, "full_text"))
    return tuple(indexes)
