"""The Arrow columns of a type's rows.

Columns are nullable even where a property is required: the schema may relax that without touching data, and the
validator, not the file, enforces it.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from omnigraph.caches import DerivedCache
from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.types import Enumeration, ListOf, PropertyType, Scalar, Vector

_SCALARS: dict[str, pa.DataType] = {
    "String": pa.string(),
    "Bool": pa.bool_(),
    "I32": pa.int32(),
    "I64": pa.int64(),
    "U32": pa.uint32(),
    "U64": pa.uint64(),
    "F32": pa.float32(),
    "F64": pa.float64(),
    "Date": pa.date32(),
    "DateTime": pa.timestamp("ms", tz="UTC"),
    "Blob": pa.large_binary(),
}


def arrow_type(kind: PropertyType) -> pa.DataType:
    match kind:
        case Scalar(name):
            return _SCALARS[name]
        case ListOf(item):
            return pa.list_(_SCALARS[item.name])
        case Vector(dimension):
            return pa.list_(pa.float32(), dimension)
        case Enumeration():
            return pa.string()


def arrow_schema(definition: TypeDef) -> pa.Schema:
    """The columns of a type's table: `id`, an edge's ends, then the properties."""
    return _SCHEMAS.of(definition)


def arrow_rows(definition: TypeDef, rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """A table of rows that are mappings by column; a column that a row lacks is null."""
    structs = pa.array(rows, _STRUCTS.of(definition))
    assert isinstance(structs, pa.StructArray)
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(structs)])


def _make_schema(definition: TypeDef) -> pa.Schema:
    physical = ["id"] if definition.kind == "node" else ["id", "src", "dst"]
    fields: list[pa.Field[pa.DataType]] = [pa.field(name, _SCALARS["String"]) for name in physical]
    fields += [pa.field(prop.column, arrow_type(prop.type)) for prop in definition.properties]
    return pa.schema(fields)


def _make_struct(definition: TypeDef) -> pa.StructType:
    return pa.struct(list(arrow_schema(definition)))


_SCHEMAS = DerivedCache(_make_schema)  # every write asks for them
_STRUCTS = DerivedCache(_make_struct)
