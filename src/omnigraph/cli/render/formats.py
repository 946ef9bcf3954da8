"""A query's result as table, json, jsonl, csv or kv.

All formats except json are streamed batch by batch, so that memory does not grow with the rows. A json document is
written when it is complete, so that an error while reading leaves stdout empty.
"""

import json
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Protocol, TypeAlias

from omnigraph.api.documents import finite
from omnigraph.api.wire_model import Document
from omnigraph.cli.output import escape_control, style_for, supports_unicode, write_text

FORMATS = ("table", "json", "jsonl", "csv", "kv")
TABLE_ROWS_MEASURED = 10_000  # determine the column widths; longer values further down overflow
COLUMN_WIDTH_MIN = 4
GAP = "  "

ResultRow: TypeAlias = Mapping[str, Any]
EncodeValue: TypeAlias = Callable[[Any], str]


class StreamedResult(Protocol):
    """The part of a query's result that is printed."""

    @property
    def columns(self) -> list[str]: ...
    def json_batches(self) -> Iterator[list[dict[str, Any]]]: ...


def write_result(format_: str, result: StreamedResult, head: Document) -> int:
    """Print all rows and return their number. `head` has the fields of a json document that precede the rows."""
    batches = _CountingBatches(result.json_batches())
    match format_:
        case "json":
            _write_json(head, batches)
        case "jsonl":
            _write_batches(batches, _encoder((",", ":")))
        case "csv":
            _write_csv(result.columns, batches)
        case "kv":
            _write_kv(result.columns, batches)
        case _:
            _write_table(result.columns, batches)
    return batches.rows


class _CountingBatches:
    """Batches, and the number of rows read so far."""

    def __init__(self, batches: Iterable[list[dict[str, Any]]]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        for batch in self._batches:
            self.rows += len(batch)
            yield batch


def _encoder(separators: tuple[str, str] | None = None) -> EncodeValue:
    """A JSON encoder for stdout's encoding. JSON has no infinity, to which a sum may overflow: it becomes null."""
    unicode = supports_unicode(sys.stdout)
    dumps = json.JSONEncoder(ensure_ascii=not unicode, separators=separators, allow_nan=False).encode

    def encode(value: Any) -> str:
        if type(value) is int:
            return str(value)
        try:
            return dumps(value)
        except ValueError:
            return dumps(finite(value))

    return encode


def _write_json(head: Document, batches: Iterable[list[dict[str, Any]]]) -> None:
    encode = _encoder()
    first, between, last = ("\n    ", ",\n    ", "\n  ") if sys.stdout.isatty() else ("", ", ", "")
    start, comma, end = ("{\n  ", ",\n  ", "\n}\n") if sys.stdout.isatty() else ("{", ", ", "}\n")
    texts = [between.join(encode(row) for row in batch) for batch in batches if batch]
    fields = [f"{encode(name)}: {encode(value)}" for name, value in head.items()]
    write_text(f'{start}{comma.join(fields)}{comma}"rows": [')
    for number, text in enumerate(texts):
        write_text(between if number else first)
        write_text(text)
    write_text(f"{last if texts else ''}]{end}")


def _write_batches(batches: Iterable[list[dict[str, Any]]], line: Callable[[ResultRow], str]) -> None:
    for batch in batches:
        write_text("".join(f"{line(row)}\n" for row in batch))


def _write_csv(columns: Sequence[str], batches: Iterable[list[dict[str, Any]]]) -> None:
    """CSV after RFC 4180, with line feeds: null is an empty field, an empty text is two quotes."""
    encode = _encoder()
    needs_quotes = re.compile(r'[,"\r\n]').search

    def cell(value: Any) -> str:
        if value is None:
            return ""
        text = value if isinstance(value, str) else encode(value)
        if not text or needs_quotes(text):
            doubled = text.replace('"', '""')
            return f'"{doubled}"'
        return text

    write_text(",".join(map(cell, columns)) + "\n")
    _write_batches(batches, lambda row: ",".join(map(cell, row.values())))


def _write_kv(columns: Sequence[str], batches: Iterable[list[dict[str, Any]]]) -> None:
    """`name: value` lines, with an empty line between rows."""
    encode = _encoder()
    names = {name: escape_control(name) for name in columns}
    rows = 0

    def lines(row: ResultRow) -> str:
        nonlocal rows
        rows += 1
        pairs = (f"{names[name]}: {_value_text(value, encode)}" for name, value in row.items())
        return ("\n" if rows > 1 else "") + "\n".join(pairs)

    _write_batches(batches, lines)


def _write_table(columns: Sequence[str], batches: Iterable[list[dict[str, Any]]]) -> None:
    """Aligned columns, numbers to the right; truncated to the width of a terminal if stdout is one."""
    encode = _encoder()
    rows = chain.from_iterable(batches)
    measured = list(islice(rows, TABLE_ROWS_MEASURED))
    right = [_all_numbers(row[name] for row in measured) for name in columns]
    cells = [[_table_cell(row[name], encode) for name in columns] for row in measured]
    headings = [escape_control(name) for name in columns]
    widths = [max(map(_width, column)) for column in zip(headings, *cells, strict=True)]
    truncate = sys.stdout.isatty()
    if truncate:
        widths = _fit_widths(widths, shutil.get_terminal_size().columns)

    def line(values: Sequence[str]) -> str:
        if truncate:
            values = [_truncate(value, width) for value, width in zip(values, widths, strict=True)]
        columns = zip(values, widths, right, strict=True)
        return GAP.join(_pad(value, width, to_right) for value, width, to_right in columns).rstrip()

    write_text(style_for(sys.stdout).heading(line(headings)) + "\n")
    write_text("".join(f"{line(values)}\n" for values in cells))
    while more := list(islice(rows, TABLE_ROWS_MEASURED)):
        write_text("".join(f"{line([_table_cell(row[name], encode) for name in columns])}\n" for row in more))


def _all_numbers(values: Iterable[Any]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present)


def _table_cell(value: Any, encode: EncodeValue) -> str:
    return "-" if value is None else _value_text(value, encode)


def _value_text(value: Any, encode: EncodeValue) -> str:
    return escape_control(value if isinstance(value, str) else encode(value))


def _fit_widths(widths: Sequence[int], total: int) -> list[int]:
    """Shrink the widest columns until all fit into `total`, but none below the minimum."""
    total -= len(GAP) * (len(widths) - 1)
    width_max = max(widths)
    while width_max > COLUMN_WIDTH_MIN and sum(min(width, width_max) for width in widths) > total:
        width_max -= 1
    return [min(width, width_max) for width in widths]


def _truncate(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    prefix, used = [], 1  # for the ellipsis
    for character in text:
        used += _width(character)
        if used > width:
            break
        prefix.append(character)
    return "".join(prefix) + "…"


def _pad(text: str, width: int, to_right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if to_right else text + space


def _width(text: str) -> int:
    """The width in terminal cells: a Chinese character takes two, a combining accent none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)
