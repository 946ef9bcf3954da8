"""A split of the input as typed rows.

Blocks of CSV and NDJSON are read by Arrow where that certainly gives what `load_rows.py` would give. Every other line
goes through `load_rows.py`, which accepts it or gives the reason why not. So both paths give the same rows.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from omnigraph.schema.catalog import Catalog, TypeDef
from omnigraph.schema.types import Scalar
from omnigraph.write.load.input.chunks import LINE_TOO_LONG, FileChunks, open_parquet, read_gzip_lines, read_line_range
from omnigraph.write.load.input.csv_records import (
    CsvRecord,
    Header,
    RecordBlock,
    parse_header,
    parse_records,
    read_record_blocks,
    to_entity,
)
from omnigraph.write.load.input.input_splits import Split
from omnigraph.write.load.input.sources import check_type
from omnigraph.write.load.input.table_rows import check_columns, check_types, edge_end_columns, read_table_entities
from omnigraph.write.load.parse.parse_columns import convert_arrow, convert_text
from omnigraph.write.load.parse.parse_ndjson import parse_line_blocks
from omnigraph.write.load.parse.parse_rows import ParsedColumns, combine_blocks, finish_rows, parse_one_by_one
from omnigraph.write.load.parse.parsed import IdMinter, MintId, ParsedBlock

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

ROWS_AT_ONCE = 131_072
_TEXT = Scalar("String")


def parse_split(
    split: Split, catalog: Catalog, storage_options: Mapping[str, str] | None, mint: MintId | IdMinter
) -> Iterator[ParsedBlock]:
    """The split in blocks of a few MiB, in order. An `IdMinter` is bound to the split here.

    `storage_options` are the graph's, and are used for files in a store of the same kind.
    """
    if isinstance(mint, IdMinter):
        mint = mint.for_split(split.number)
    where = (split.path, split.shown, split.file_size)
    if split.kind == "ndjson":
        blocks = read_line_range(*where, split.offset, split.length, storage_options)
        return parse_line_blocks(blocks, catalog, mint)
    if split.kind == "ndjson.gz":
        return parse_line_blocks(read_gzip_lines(*where, storage_options), catalog, mint)
    check_type(catalog, split.type_name)
    definition = catalog.by_name[split.type_name or ""]
    if split.kind == "parquet":
        return parse_parquet(split, definition, storage_options, mint)
    chunks = FileChunks(*where, storage_options)
    opened = chunks.read_decompressed() if split.kind == "csv.gz" else chunks.read()
    return parse_csv(opened, split.shown, definition, catalog, mint)


# CSV


def parse_csv(
    chunks: Iterator[bytes], shown: str, definition: TypeDef, catalog: Catalog, mint: MintId
) -> Iterator[ParsedBlock]:
    """The records of a file, numbered by the lines where they begin; the header is line 1."""
    header: Header | None = None
    for block in read_record_blocks(chunks):
        lines = block.lines
        if header is None:
            first = next(parse_records(block.data, block.line), None)
            header = parse_header(first, shown, definition)
            assert first is not None
            used = len(first.raw)
            block = block._replace(data=block.data[used:], line=block.line + first.raw.count(b"\n"))
        parts = list(_parse_record_block(block, header, definition, catalog, mint))
        named = ParsedBlock(seen={definition.table_key: 0})
        yield combine_blocks([named, *parts], lines)
    if header is None:
        parse_header(None, shown, definition)


def _parse_record_block(
    block: RecordBlock, header: Header, definition: TypeDef, catalog: Catalog, mint: MintId
) -> Iterator[ParsedBlock]:
    columns = _read_csv_columns(block, header, definition) if block.regular and block.data else None
    wanted: frozenset[int] | None = None
    if columns is not None:
        rows, uncertain = finish_rows(columns, mint)
        yield ParsedBlock({definition.table_key: rows}, seen={definition.table_key: rows.rows.num_rows})
        if uncertain is None:
            return
        wanted = frozenset(columns.numbers[uncertain].tolist())
    found = [CsvRecord(block.line, block.data, (), LINE_TOO_LONG)] if block.too_long else None
    raws = [
        (record.line, to_entity(record, header, definition))
        for record in found or parse_records(block.data, block.line)
        if not record.is_blank and (wanted is None or record.line in wanted)
    ]
    if raws:
        yield parse_one_by_one(raws, "line", catalog.by_name, mint)


def _read_csv_columns(block: RecordBlock, header: Header, definition: TypeDef) -> ParsedColumns | None:
    """The block read by Arrow; None if that fails, or does not give one row for each record."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    numbers = _record_lines(block)
    if not len(numbers):
        return None
    names = [str(index) for index in range(len(header.names))]
    options: Any = pa_csv.ConvertOptions(
        column_types={name: pa.string() for name in names},
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    reading = pa_csv.ReadOptions(use_threads=False, block_size=len(block.data) + 1, column_names=names)
    quoting: Any = pa_csv.ParseOptions(newlines_in_values=b'"' in block.data)
    source: Any = pa.BufferReader(block.data)
    try:
        table: Any = pa_csv.read_csv(source, reading, quoting, options)
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(numbers):
        return None
    return _convert_csv_columns(table.combine_chunks(), numbers, header, definition)


def _convert_csv_columns(table: Any, numbers: "Numbers", header: Header, definition: TypeDef) -> ParsedColumns:
    import pyarrow as pa
    import pyarrow.compute as compute

    pc: Any = compute
    columns = ParsedColumns(definition, numbers)
    ends, found = edge_end_columns(definition), dict[str, Any]()
    for index, (name, kind) in enumerate(zip(header.names, header.kinds, strict=True)):
        texts = table.column(index).chunk(0)
        if name in ends:
            found[ends[name]] = texts
        elif name == "id":  # an empty id is no id
            empty = pc.equal(texts, "")
            texts = pc.if_else(empty, pa.scalar(None, pa.string()), texts) if pc.any(empty).as_py() else texts
            found["id"] = texts
        else:
            columns.values[name], bad = convert_text(texts, kind)
            columns.mark_uncertain(bad)
    columns.ids = found.get("id")
    if ends:
        columns.ends = found["from"], found["to"]
    return columns


def _record_lines(block: RecordBlock) -> "Numbers":
    """The line where each record begins that is not blank, in a regular block."""
    import numpy as np

    text = np.frombuffer(block.data, np.uint8)
    newlines = np.flatnonzero(text == 10)
    ends = newlines
    if b'"' in block.data:
        ends = newlines[np.searchsorted(np.flatnonzero(text == 34), newlines) % 2 == 0]
    starts = np.concatenate(([0], ends[:-1] + 1))
    blank = (ends == starts) | ((ends == starts + 1) & (text[starts] == 13))
    starts = starts[~blank]
    lines: Numbers = (block.line + np.searchsorted(newlines, starts)).astype(np.int64)
    return lines


# Arrow and Parquet


def parse_parquet(
    split: Split, definition: TypeDef, options: Mapping[str, str] | None, mint: MintId
) -> Iterator[ParsedBlock]:
    """The row groups of a split, in batches."""
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

    BadRequest, naming `shown` or the type, if a column is unknown or can't be converted to its property's type.
    """
    import numpy as np
    import pyarrow as pa

    check_columns(shown or definition.name, definition, rows.column_names)
    check_types(shown or definition.name, definition, rows.schema)
    numbers = np.arange(first_row + 1, first_row + 1 + rows.num_rows, dtype=np.int64)
    key = definition.table_key
    if not rows.num_rows:
        return ParsedBlock(seen={key: 0})
    columns = _convert_arrow_columns(rows, definition, numbers)
    taken, uncertain = finish_rows(columns, mint)
    parts = [ParsedBlock({key: taken}, seen={key: taken.rows.num_rows})]
    if uncertain is not None:
        some = rows.filter(pa.array(uncertain))
        is_edge = definition.kind == "edge"
        entities = read_table_entities(some, definition.name, edge_end_columns(definition), is_edge=is_edge)
        raws = list(zip(numbers[uncertain].tolist(), entities, strict=True))
        parts.append(parse_one_by_one(raws, "row", {definition.name: definition}, mint))
    return combine_blocks(parts, rows.num_rows)


def _convert_arrow_columns(rows: "pa.Table", definition: TypeDef, numbers: Any) -> ParsedColumns:
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
