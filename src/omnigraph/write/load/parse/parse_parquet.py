"""Typed Arrow rows, as Parquet and Spark have them: columns are cast where no value can change by it."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.types import Scalar
from omnigraph.write.load.input.chunks import open_parquet
from omnigraph.write.load.input.input_splits import Split
from omnigraph.write.load.input.table_rows import check_columns, check_types, edge_end_columns, read_table_entities
from omnigraph.write.load.parse.parse_columns import convert_arrow
from omnigraph.write.load.parse.parse_rows import ParsedColumns, combine_blocks, finish_rows, parse_one_by_one
from omnigraph.write.load.parse.parsed import MintId, ParsedBlock

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE = 131_072
_TEXT = Scalar("String")


def parse_parquet(
    split: Split, definition: TypeDef, options: Mapping[str, str] | None, mint: MintId
) -> Iterator[ParsedBlock]:
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
            yield ParsedBlock(seen={definition.table_key: 0})


def parse_table(
    rows: "pa.Table", definition: TypeDef, first_row: int, mint: MintId, shown: str | None = None
) -> ParsedBlock:
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
        return ParsedBlock(seen={key: 0})
    columns = _convert_columns(rows, definition, numbers)
    taken, uncertain = finish_rows(columns, mint)
    parts = [ParsedBlock({key: taken}, seen={key: taken.rows.num_rows})]
    if uncertain is not None:
        some = rows.filter(pa.array(uncertain))
        is_edge = definition.kind == "edge"
        entities = read_table_entities(some, definition.name, edge_end_columns(definition), is_edge=is_edge)
        raws = list(zip(numbers[uncertain].tolist(), entities, strict=True))
        parts.append(parse_one_by_one(raws, "row", {definition.name: definition}, mint))
    return combine_blocks(parts, rows.num_rows)


def _convert_columns(rows: "pa.Table", definition: TypeDef, numbers: Any) -> ParsedColumns:
    columns = ParsedColumns(definition, numbers)
    ends, found = edge_end_columns(definition), dict[str, Any]()
    for name in rows.column_names:
        held = _to_single_array(rows.column(name))
        if name == "id" or name in ends:
            found[ends.get(name, "id")], bad = convert_arrow(held, _TEXT)
        else:
            columns.values[name], bad = convert_arrow(held, definition.by_name[name].type)
        columns.mark_uncertain(bad)
    columns.ids = found.get("id")
    if ends:
        columns.ends = found["from"], found["to"]
    return columns


def _to_single_array(column: Any) -> Any:
    if column.num_chunks == 1:
        return column.chunk(0)
    made = column.combine_chunks()
    return made.chunk(0) if hasattr(made, "num_chunks") else made
