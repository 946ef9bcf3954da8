"""The schema's types as Spark's. Spark has no unsigned integers: a U32 is a long there, a U64 a decimal(20,0)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omnigraph.errors import BadRequest
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.types import INTEGER_BOUNDS, ListOf, PropertyType, Scalar, Vector

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

U64_DIGITS = 20


def spark_schema(definition: TypeDef, names: Sequence[str]) -> "StructType":
    """The columns of these names. All may be null: required properties are checked by the validator."""
    from pyspark.sql.types import StructType

    schema = StructType()
    for name in names:
        schema.add(name, spark_type(type_of(definition, name)))
    return schema


def type_of(definition: TypeDef, name: str) -> PropertyType:
    """The type of a property, of `id`, or of an edge's `src` and `dst`."""
    if name in definition.physical_columns:
        return Scalar("String")
    found = definition.by_name.get(name)
    if found is None:
        known = ", ".join((*definition.physical_columns, *definition.by_name))
        raise BadRequest(f"{definition.name} has no column {name!r}: its columns are {known}.")
    return found.type


def spark_type(kind: PropertyType) -> "DataType":
    from pyspark.sql import types

    match kind:
        case Scalar(name):
            return _scalar(name)
        case ListOf(item):
            return types.ArrayType(_scalar(item.name))
        case Vector():
            return types.ArrayType(types.FloatType())
        case _:
            return types.StringType()


def _scalar(name: str) -> "DataType":
    from pyspark.sql import types

    plain: dict[str, Any] = {
        "String": types.StringType,
        "Bool": types.BooleanType,
        "I32": types.IntegerType,
        "I64": types.LongType,
        "U32": types.LongType,
        "F32": types.FloatType,
        "F64": types.DoubleType,
        "Date": types.DateType,
        "DateTime": types.TimestampType,
        "Blob": types.BinaryType,
    }
    found: DataType = types.DecimalType(U64_DIGITS, 0) if name == "U64" else plain[name]()
    return found


def arrow_for_spark(schema: "StructType") -> "pa.Schema":
    """The schema of the Arrow batches that Spark accepts."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def cast_batch(batch: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """A batch with the columns of `schema`, each in its type."""
    import pyarrow as pa

    arrays = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def restore_integers(rows: "pa.Table", definition: TypeDef) -> "pa.Table":
    """Rows from Spark with decimals as the integers or floats of the properties: Spark has U64 as a decimal.

    A value that does not fit becomes text, so that the parser can name it in its error.
    """
    import pyarrow as pa

    for index, column in enumerate(rows.schema):
        prop = definition.by_name.get(column.name)
        kind = None if prop is None else prop.type.item if isinstance(prop.type, ListOf) else prop.type
        held = column.type.value_type if pa.types.is_list(column.type) else column.type
        if not pa.types.is_decimal(held) or not isinstance(kind, Scalar):
            continue
        number: pa.DataType | None = pa.float64() if kind.name in ("F32", "F64") else None
        if held.scale == 0 and kind.name in INTEGER_BOUNDS:
            number = pa.uint64() if kind.name == "U64" else pa.int64()
        if number is not None:
            values = _cast(rows.column(index), number, pa.types.is_list(column.type))
            rows = rows.set_column(index, column.name, values)
    return rows


def _cast(values: Any, number: "pa.DataType", in_list: bool) -> Any:
    import pyarrow as pa

    try:
        return values.cast(pa.list_(number) if in_list else number)
    except pa.ArrowInvalid:
        return values.cast(pa.list_(pa.string()) if in_list else pa.string())
