"""A query's result as table, json, jsonl, csv or kv.

All but json are written while they are read, batch by batch, so that memory does not grow with the rows. A json
document is written when it is complete, so that an error on the way leaves stdout empty.
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
from omnigraph.cli.output import paint_for, printable, takes_unicode, write_text

FORMATS = ("table", "json", "jsonl", "csv", "kv")
TABLE_ROWS_MEASURED = 10_000  # the columns are as wide as these need; a longer value further down stands out
COLUMN_WIDTH_MIN = 4
GAP = "  "

Row: TypeAlias = Mapping[str, Any]
Encode: TypeAlias = Callable[[Any], str]


class Result(Protocol):
    """What is needed of a query's result."""

    @property
    def columns(self) -> list[str]: ...
    def json_batches(self) -> Iterator[list[dict[str, Any]]]: ...


def write_result(format_: str, result: Result, head: Document) -> int:
    """Print all rows; `head` is what a json document says before them. Answers how many there were."""
    counted = _Counted(result.json_batches())
    match format_:
        case "json":
            _write_json(head, counted)
        case "jsonl":
            _write_batches(counted, _encoder((",", ":")))
        case "csv":
            _write_csv(result.columns, counted)
        case "kv":
            _write_kv(result.columns, counted)
        case _:
            _write_table(result.columns, counted)
    return counted.rows


class _Counted:
    """Batches, and how many rows went by."""

    def __init__(self, batches: Iterable[list[dict[str, Any]]]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        for batch in self._batches:
            self.rows += len(batch)
            yield batch


def _encoder(separators: tuple[str, str] | None = None) -> Encode:
    """JSON as stdout takes it. JSON has no infinity, which a sum may overflow to: it is written as null."""
    unicode = takes_unicode(sys.stdout)
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


def _write_batches(batches: Iterable[list[dict[str, Any]]], line: Callable[[Row], str]) -> None:
    for batch in batches:
        write_text("".join(f"{line(row)}\n" for row in batch))


def _write_csv(columns: Sequence[str], batches: Iterable[list[dict[str, Any]]]) -> None:
    """As RFC 4180 has it, with line feeds: null is nothing, an empty text is two quotes."""
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
    """`name: value` lines, the rows apart by an empty one."""
    encode = _encoder()
    names = {name: printable(name) for name in columns}
    rows = 0

    def lines(row: Row) -> str:
        nonlocal rows
        rows += 1
        own = (f"{names[name]}: {_shown(value, encode)}" for name, value in row.items())
        return ("\n" if rows > 1 else "") + "\n".join(own)

    _write_batches(batches, lines)


def _write_table(columns: Sequence[str], batches: Iterable[list[dict[str, Any]]]) -> None:
    """Aligned columns, numbers to the right; cut to the width of a terminal where there is one."""
    encode = _encoder()
    rows = chain.from_iterable(batches)
    measured = list(islice(rows, TABLE_ROWS_MEASURED))
    right = [_all_numbers(row[name] for row in measured) for name in columns]
    cells = [[_table_cell(row[name], encode) for name in columns] for row in measured]
    headings = [printable(name) for name in columns]
    widths = [max(map(_width, column)) for column in zip(headings, *cells, strict=True)]
    cut = sys.stdout.isatty()
    if cut:
        widths = _fitting(widths, shutil.get_terminal_size().columns)

    def line(values: Sequence[str]) -> str:
        shown = [_cut(value, width) for value, width in zip(values, widths, strict=True)] if cut else values
        pairs = zip(shown, widths, right, strict=True)
        return GAP.join(_padded(value, width, to_right) for value, width, to_right in pairs).rstrip()

    write_text(paint_for(sys.stdout).heading(line(headings)) + "\n")
    write_text("".join(f"{line(values)}\n" for values in cells))
    while more := list(islice(rows, TABLE_ROWS_MEASURED)):
        write_text("".join(f"{line([_table_cell(row[name], encode) for name in columns])}\n" for row in more))


def _all_numbers(values: Iterable[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _table_cell(value: Any, encode: Encode) -> str:
    return "-" if value is None else _shown(value, encode)


def _shown(value: Any, encode: Encode) -> str:
    return printable(value if isinstance(value, str) else encode(value))


def _fitting(widths: Sequence[int], room: int) -> list[int]:
    """Widths that fit into the room if that can be: the widest columns give way first."""
    room -= len(GAP) * (len(widths) - 1)
    most = max(widths)
    while most > COLUMN_WIDTH_MIN and sum(min(width, most) for width in widths) > room:
        most -= 1
    return [min(width, most) for width in widths]


def _cut(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    kept, used = [], 1  # for the ellipsis
    for character in text:
        used += _width(character)
        if used > width:
            break
        kept.append(character)
    return "".join(kept) + "…"


def _padded(text: str, width: int, to_right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if to_right else text + space


def _width(text: str) -> int:
    """In cells of a terminal: a Chinese character takes two, a combining accent none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)
