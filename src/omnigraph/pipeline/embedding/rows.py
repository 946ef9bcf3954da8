"""The rows that vectors belong to, and the schema that says who made them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from omnigraph.pipeline.embedding.tasks import Embedded
from omnigraph.read.search.embedding import Embedder
from omnigraph.schema.catalog import Catalog, Property, Schema, TypeDef
from omnigraph.schema.types import Vector
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Target:
    """A vector that is made from a text."""

    definition: TypeDef
    vector: Property
    source: Property

    @property
    def dimension(self) -> int:
        assert isinstance(self.vector.type, Vector)
        return self.vector.type.dimension


def filled_rows(tables: Tables, at: TableContent, target: Target, vectors: "dict[str, tuple[str, Any]]") -> "pa.Table":
    """Whole rows with their vectors, of those that still lack one and have the text that it was made from."""
    import numpy as np
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    schema = arrow_schema(target.definition)
    rows = tables.lookup(at, vectors, schema=schema)
    texts, ids = rows.column(target.source.column).to_pylist(), rows.column("id").to_pylist()
    missing = rows.column(target.vector.column).is_null().to_pylist()
    wanted = [vectors[str(row)][0] == text and null for row, text, null in zip(ids, texts, missing, strict=True)]
    rows = rows.filter(pa.array(wanted, pa.bool_()))
    made = [vectors[str(row)][1] for row in rows.column("id").to_pylist()]
    index = schema.get_field_index(target.vector.column)
    kind: Any = schema.field(index).type
    flat: Any = pa.array(np.concatenate(made) if made else np.zeros(0, np.float32))
    column = pa.FixedSizeListArray.from_arrays(flat.cast(kind.value_type), type=kind)
    return rows.set_column(index, schema.field(index), column)


def by_id(done: Sequence[Embedded], dimension: int) -> "dict[str, tuple[str, Any]]":
    import numpy as np

    found: dict[str, tuple[str, Any]] = {}
    for answer in done:
        vectors = np.frombuffer(answer.vectors, np.float32).reshape(len(answer.ids), dimension)
        found.update(zip(answer.ids, zip(answer.texts, vectors, strict=True), strict=True))
    return found


def found_again(catalog: Catalog, target: Target) -> Target | None:
    """The same vector in another schema; None if it, its text or its length is another now."""
    definition = next((one for one in catalog.types if one.id == target.definition.id), None)
    prop = next((p for p in definition.properties if p.id == target.vector.id), None) if definition else None
    if definition is None or prop is None or prop.embed is None or prop.type != target.vector.type:
        return None
    source = definition.by_name[prop.embed.source]
    return Target(definition, prop, source) if source.id == target.source.id else None


def with_model(schema: Schema, target: Target, embedder: Embedder) -> Schema:
    """The schema with the name of the model behind the vector."""
    assert target.vector.embed is not None
    by_whom = replace(target.vector.embed, provider=embedder.provider, model=embedder.model)
    prop = replace(target.vector, embed=by_whom)
    definition = replace(
        target.definition,
        properties=tuple(prop if one.id == prop.id else one for one in target.definition.properties),
    )
    types = tuple(definition if one.id == definition.id else one for one in schema.catalog.types)
    return Schema(replace(schema.catalog, types=types), schema.source)
