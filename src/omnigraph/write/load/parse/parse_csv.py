"""CSV by Arrow's reader where quotes stand as they should; other stretches, and doubtful rows, record by record."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from omnigraph.schema.catalog import Catalog, TypeDef
from omnigraph.write.load.input.chunks import LINE_TOO_LONG
from omnigraph.write.load.input.csv_records import (
    CsvRecord,
    Header,
    RecordBlock,
    parse_header,
    parse_records,
    read_record_blocks,
    to_entity,
)
from omnigraph.write.load.input.table_rows import edge_end_columns
from omnigraph.write.load.parse.parse_columns import convert_text
from omnigraph.write.load.parse.parse_rows import ParsedColumns, combine_blocks, finish_rows, parse_one_by_one
from omnigraph.write.load.parse.parsed import MintId, ParsedBlock

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.int64]]


def parse_csv(
    chunks: Iterator[bytes], shown: str, definition: TypeDef, catalog: Catalog, mint: MintId
) -> Iterator[ParsedBlock]:
    """The records of a file, numbered by the lines at which they begin; the header is line 1."""
    header: Header | None = None
    for block in read_record_blocks(chunks):
        lines = block.lines
        if header is None:
            first = next(parse_records(block.data, block.line), None)
            header = parse_header(first, shown, definition)
            assert first is not None
            used = len(first.raw)
            block = block._replace(data=block.data[used:], line=block.line + first.raw.count(b"\n"))
        parts = list(_parse_block(block, header, definition, catalog, mint))
        named = ParsedBlock(seen={definition.table_key: 0})
        yield combine_blocks([named, *parts], lines)
    if header is None:
        parse_header(None, shown, definition)


def _parse_block(
    block: RecordBlock, header: Header, definition: TypeDef, catalog: Catalog, mint: MintId
) -> Iterator[ParsedBlock]:
    columns = _read_columns(block, header, definition) if block.regular and block.data else None
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


def _read_columns(block: RecordBlock, header: Header, definition: TypeDef) -> ParsedColumns | None:
    """The stretch as Arrow reads it; None if it does not, or not one row of each record."""
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
    return _convert_columns(table.combine_chunks(), numbers, header, definition)


def _convert_columns(table: Any, numbers: "Numbers", header: Header, definition: TypeDef) -> ParsedColumns:
    import pyarrow as pa
    import pyarrow.compute as compute

    pc: Any = compute
    columns = ParsedColumns(definition, numbers)
    ends, found = edge_end_columns(definition), dict[str, Any]()
    for index, (name, kind) in enumerate(zip(header.names, header.kinds, strict=True)):
        texts = table.column(index).chunk(0)
        if name in ends:
            found[ends[name]] = texts
        elif name == "id":  # an empty one is none
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
    """The line at which each record begins that is not blank; the stretch is regular."""
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
