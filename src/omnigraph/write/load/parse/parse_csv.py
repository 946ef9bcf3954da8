"""CSV by Arrow's reader where quotes stand as they should; other stretches, and doubtful rows, record by record."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from omnigraph.schema.catalog import Catalog, TypeDef
from omnigraph.write.load.input.chunks import LINE_TOO_LONG
from omnigraph.write.load.input.csv_records import (
    CsvStretch,
    Header,
    Record,
    csv_stretches,
    header_of,
    record_entity,
    records,
)
from omnigraph.write.load.input.table_rows import end_columns
from omnigraph.write.load.parse.parse_columns import from_text
from omnigraph.write.load.parse.parse_rows import Columns, finished, parse_carefully, together
from omnigraph.write.load.parse.parsed import Mint, Parsed

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.int64]]


def parse_csv(
    chunks: Iterator[bytes], shown: str, definition: TypeDef, catalog: Catalog, mint: Mint
) -> Iterator[Parsed]:
    """The records of a file, numbered by the lines at which they begin; the header is line 1."""
    header: Header | None = None
    for stretch in csv_stretches(chunks):
        lines = stretch.lines
        if header is None:
            first = next(records(stretch.data, stretch.line), None)
            header = header_of(first, shown, definition)
            assert first is not None
            used = len(first.raw)
            stretch = stretch._replace(data=stretch.data[used:], line=stretch.line + first.raw.count(b"\n"))
        parts = list(_parts(stretch, header, definition, catalog, mint))
        named = Parsed(seen={definition.table_key: 0})
        yield together([named, *parts], lines)
    if header is None:
        header_of(None, shown, definition)


def _parts(stretch: CsvStretch, header: Header, definition: TypeDef, catalog: Catalog, mint: Mint) -> Iterator[Parsed]:
    columns = _columns(stretch, header, definition) if stretch.regular and stretch.data else None
    wanted: frozenset[int] | None = None
    if columns is not None:
        rows, doubtful = finished(columns, mint)
        yield Parsed({definition.table_key: rows}, seen={definition.table_key: rows.rows.num_rows})
        if doubtful is None:
            return
        wanted = frozenset(columns.numbers[doubtful].tolist())
    found = [Record(stretch.line, stretch.data, (), LINE_TOO_LONG)] if stretch.too_long else None
    raws = [
        (record.line, record_entity(record, header, definition))
        for record in found or records(stretch.data, stretch.line)
        if not record.is_blank and (wanted is None or record.line in wanted)
    ]
    if raws:
        yield parse_carefully(raws, "line", catalog.by_name, mint)


def _columns(stretch: CsvStretch, header: Header, definition: TypeDef) -> Columns | None:
    """The stretch as Arrow reads it; None if it does not, or not one row of each record."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    numbers = _record_lines(stretch)
    if not len(numbers):
        return None
    names = [str(index) for index in range(len(header.names))]
    options: Any = pa_csv.ConvertOptions(
        column_types={name: pa.string() for name in names},
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    reading = pa_csv.ReadOptions(use_threads=False, block_size=len(stretch.data) + 1, column_names=names)
    quoting: Any = pa_csv.ParseOptions(newlines_in_values=b'"' in stretch.data)
    source: Any = pa.BufferReader(stretch.data)
    try:
        table: Any = pa_csv.read_csv(source, reading, quoting, options)
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(numbers):
        return None
    return _typed(table.combine_chunks(), numbers, header, definition)


def _typed(table: Any, numbers: "Numbers", header: Header, definition: TypeDef) -> Columns:
    import pyarrow as pa
    import pyarrow.compute as compute

    pc: Any = compute
    columns = Columns(definition, numbers)
    ends, found = end_columns(definition), dict[str, Any]()
    for index, (name, kind) in enumerate(zip(header.names, header.kinds, strict=True)):
        texts = table.column(index).chunk(0)
        if name in ends:
            found[ends[name]] = texts
        elif name == "id":  # an empty one is none
            empty = pc.equal(texts, "")
            texts = pc.if_else(empty, pa.scalar(None, pa.string()), texts) if pc.any(empty).as_py() else texts
            found["id"] = texts
        else:
            columns.values[name], bad = from_text(texts, kind)
            columns.doubt(bad)
    columns.ids = found.get("id")
    if ends:
        columns.ends = found["from"], found["to"]
    return columns


def _record_lines(stretch: CsvStretch) -> "Numbers":
    """The line at which each record begins that is not blank; the stretch is regular."""
    import numpy as np

    text = np.frombuffer(stretch.data, np.uint8)
    newlines = np.flatnonzero(text == 10)
    ends = newlines
    if b'"' in stretch.data:
        ends = newlines[np.searchsorted(np.flatnonzero(text == 34), newlines) % 2 == 0]
    starts = np.concatenate(([0], ends[:-1] + 1))
    blank = (ends == starts) | ((ends == starts + 1) & (text[starts] == 13))
    starts = starts[~blank]
    lines: Numbers = (stretch.line + np.searchsorted(newlines, starts)).astype(np.int64)
    return lines
