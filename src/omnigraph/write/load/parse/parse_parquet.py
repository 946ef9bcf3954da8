"""Typed Arrow rows, as Parquet and Spark have them: columns are cast where no value can change by it."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.types import Scalar
from omnigraph.write.load.input.chunks import open_parquet
from omnigraph.write.load.input.input_splits import Split
from omnigraph.write.load.input.table_rows import check_columns, check_types, end_columns, table_entities
from omnigraph.write.load.parse.parse_columns import from_arrow
from omnigraph.write.load.parse.parse_rows import Columns, finished, parse_carefully, together
from omnigraph.write.load.parse.parsed import Mint, Parsed

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE = 131_072
_TEXT = Scalar("String")


def parse_parquet(split: Split, definition: TypeDef, options: Mapping[str, str] | None, mint: Mint) -> Iterator[Parsed]:
    """The row groups of a split, some rows at a time."""
    import pyarrow as pa

    with open_parquet(split.path, split.shown, split.file_size, options) as file:
        check_columns(split.shown, definition, file.schema_arrow.names)
        check_types(split.shown, definition, file.schema_arrow)
        before = split.first_row
        batches = file.iter_batches(ROWS_AT_ONCE, row_groups=list(split.row_groups), use_threads=False)
        for batch in batches:
            yield parse_table(pa.table(batch), definition, before, mint, split.shown)
            before += batch.num_rows
        if before == split.first_row:
            yield Parsed(seen={definition.table_key: 0})


def parse_table(rows: "pa.Table", definition: TypeDef, first_row: int, mint: Mint, shown: str | None = None) -> Parsed:
    """Typed Arrow rows, numbered from `first_row + 1`; columns are properties, `id`, and an edge's ends.

    BadRequest, naming `shown` or the type, where a column is unknown or of a type that can't become the property's.
    """
    import numpy as np
    import pyarrow as pa

    check_columns(shown or definition.name, definition, rows.column_names)
    check_types(shown or definition.name, definition, rows.schema)
    numbers = np.arange(first_row + 1, first_row + 1 + rows.num_rows, dtype=np.int64)
    key = definition.table_key
    if not rows.num_rows:
        return Parsed(seen={key: 0})
    columns = _columns(rows, definition, numbers)
    taken, doubtful = finished(columns, mint)
    parts = [Parsed({key: taken}, seen={key: taken.rows.num_rows})]
    if doubtful is not None:
        some = rows.filter(pa.array(doubtful))
        is_edge = definition.kind == "edge"
        entities = table_entities(some, definition.name, end_columns(definition), is_edge=is_edge)
        raws = list(zip(numbers[doubtful].tolist(), entities, strict=True))
        parts.append(parse_carefully(raws, "row", {definition.name: definition}, mint))
    return together(parts, rows.num_rows)


def _columns(rows: "pa.Table", definition: TypeDef, numbers: Any) -> Columns:
    columns = Columns(definition, numbers)
    ends, found = end_columns(definition), dict[str, Any]()
    for name in rows.column_names:
        held = _one_array(rows.column(name))
        if name == "id" or name in ends:
            found[ends.get(name, "id")], bad = from_arrow(held, _TEXT)
        else:
            columns.values[name], bad = from_arrow(held, definition.by_name[name].type)
        columns.doubt(bad)
    columns.ids = found.get("id")
    if ends:
        columns.ends = found["from"], found["to"]
    return columns


def _one_array(column: Any) -> Any:
    if column.num_chunks == 1:
        return column.chunk(0)
    made = column.combine_chunks()
    return made.chunk(0) if hasattr(made, "num_chunks") else made
