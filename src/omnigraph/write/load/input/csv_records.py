"""CSV by RFC 4180, with a header: records, and the values of fields by the type of their property.

An empty field is null, `""` is empty text (null if the type is not String). Lists and vectors are JSON, blobs are
`base64:…`, dates and times are written as everywhere. The number of a record is that of the line where it begins.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from omnigraph.errors import BadRequest
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.types import INTEGER_BOUNDS, ListOf, PropertyType, Scalar, Vector
from omnigraph.write.load.input.chunks import BOM, LINE_BYTES_MAX, LINE_TOO_LONG, SHOWN_BYTES, MalformedRecord
from omnigraph.write.load.input.strict_json import DIGITS_MAX, parse_json
from omnigraph.write.load.input.table_rows import check_columns, edge_end_columns

HEADER_HINT = "; the first line must be a header"
_FIELD = re.compile(rb'(?:"([^"]*+(?:""[^"]*+)*+)"|([^,"\n]*+))(,|\r?\n|\Z)')
_OPEN = re.compile(rb'"[^"]*+(?:""[^"]*+)*+\Z')
_ALL_BUT_NEWLINE = re.compile(rb'"[^"]*+(?:""[^"]*+)*+"\r\Z')
_INTEGER = re.compile(rf"[+-]?[0-9]{{1,{DIGITS_MAX}}}\Z", re.ASCII)
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z", re.ASCII)
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_STRAY_QUOTE = "there is a quote inside a field: quote the whole field, and double the quotes in it"
_NOT_CLOSED = "a quoted field is never closed: close it, and double the quotes inside a field"
_NOT_UTF8 = "the line is not UTF-8: write it in that encoding"


class CsvRecord(NamedTuple):
    """The fields of a record, None for an unquoted empty one; or the problem with it."""

    line: int
    raw: bytes
    fields: tuple[str | None, ...] = ()
    problem: str | None = None

    @property
    def is_blank(self) -> bool:
        return self.problem is None and self.raw.isspace() and len(self.fields) == 1


class RecordBlock(NamedTuple):
    """Some whole records; `regular` if all quotes are well placed, so that every reader parses them alike."""

    data: bytes
    line: int  # where it begins
    regular: bool = False
    too_long: bool = False

    @property
    def lines(self) -> int:
        newlines = self.data.count(b"\n")
        return newlines if self.data.endswith(b"\n") else newlines + 1


def read_record_blocks(chunks: Iterator[bytes]) -> Iterator[RecordBlock]:
    """Split a file into blocks of whole records, in bounded memory."""
    rest, line, skipping, first = b"", 1, False, True
    for chunk in chunks:
        if skipping:
            end = chunk.find(b"\n") + 1
            if not end:
                continue
            chunk, skipping = chunk[end:], False
        data = rest + (chunk.removeprefix(BOM) if first else chunk)
        first = False
        cut, regular = find_last_record_end(data)
        if cut:
            block = RecordBlock(data[:cut], line, regular)
            yield block
            line += block.lines
        rest = data[cut:]
        if len(rest) > LINE_BYTES_MAX:
            yield RecordBlock(rest[:SHOWN_BYTES], line, too_long=True)
            line += 1 + rest.count(b"\n")
            rest, skipping = b"", True
    if rest:
        yield RecordBlock(rest, line)


def find_last_record_end(data: bytes) -> tuple[int, bool]:
    """The end of the last whole record, and whether all quotes before it are well placed."""
    import numpy as np

    if b'"' not in data:
        cut = data.rfind(b"\n") + 1
        return cut, _is_unambiguous(data, cut)
    text = np.frombuffer(data, np.uint8)
    quotes, newlines = np.flatnonzero(text == 34), np.flatnonzero(text == 10)
    ends = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
    if len(ends):
        cut = int(ends[-1]) + 1
        if _has_regular_quotes(text, quotes[quotes < cut]) and _is_unambiguous(data, cut):
            return cut, True
    last = 0
    for record_end in _record_ends(data):
        last = record_end
    return last, False


def _is_unambiguous(data: bytes, cut: int) -> bool:
    """Whether there are no characters that CSV readers treat differently: carriage returns within a line, and NUL."""
    return data.count(b"\r", 0, cut) == data.count(b"\r\n", 0, cut) and data.find(b"\0", 0, cut) < 0


def _has_regular_quotes(text: Any, quotes: Any) -> bool:
    """Whether every quote begins a field, ends one, or is one of a doubled pair."""
    import numpy as np

    opens, closes = quotes[0::2], quotes[1::2]
    doubled = closes[:-1] + 1 == opens[1:]
    before = text[opens - 1]  # for the quote at 0 it is the last byte, a newline, as before any record
    after = text[closes + 1]
    good_open = (before == 44) | (before == 10) | np.concatenate(([False], doubled))
    returned = (after == 13) & (text[np.minimum(closes + 2, len(text) - 1)] == 10)
    good_close = (after == 44) | (after == 10) | returned | np.concatenate((doubled, [False]))
    return bool((good_open | (opens == 0)).all() and good_close.all())


def _record_ends(data: bytes) -> Iterator[int]:
    """The end of each whole record."""
    at = 0
    while at < len(data):
        end, _, problem = _parse_record(data, at, final=False)
        if problem is None and end == at:
            return
        at = end
        yield at


def parse_records(data: bytes, line: int) -> Iterator[CsvRecord]:
    """Parse a block of whole records; the last may lack its newline."""
    at = 0
    while at < len(data):
        end, fields, problem = _parse_record(data, at, final=True)
        raw = data[at:end]
        if problem is None:
            try:
                texts = tuple(None if one is None else one.decode() for one in fields)
                yield CsvRecord(line, raw, texts)
            except UnicodeDecodeError:
                yield CsvRecord(line, raw, (), _NOT_UTF8)
        else:
            yield CsvRecord(line, raw, (), problem)
        line += raw.count(b"\n")
        at = end


def _parse_record(data: bytes, at: int, *, final: bool) -> tuple[int, list[bytes | None], str | None]:
    """The end of a record, its fields, and its problem. Unless `final`, an incomplete record ends where it begins."""
    start, fields = at, list[bytes | None]()
    while True:
        found = _FIELD.match(data, at)
        if found is None:
            if not final and _ALL_BUT_NEWLINE.match(data, at):
                return start, [], None
            if _OPEN.match(data, at):
                return (len(data), [], _NOT_CLOSED) if final else (start, [], None)
            end = data.find(b"\n", at) + 1
            if not end and not final:
                return start, [], None
            return end or len(data), [], _STRAY_QUOTE
        quoted, plain, stop = found.groups()
        if not stop and not final:
            return start, [], None
        if quoted is not None:
            fields.append(quoted.replace(b'""', b'"'))
        else:
            field = plain.removesuffix(b"\r") if stop != b"," else plain
            fields.append(field or None)
        at = found.end()
        if stop != b",":
            return at, fields, None


class Header(NamedTuple):
    """The columns of a file (properties, `id`, the ends of an edge) and their types."""

    names: tuple[str, ...]
    kinds: tuple[PropertyType, ...]


def parse_header(record: CsvRecord | None, shown: str, definition: TypeDef) -> Header:
    if record is None or record.is_blank or record.problem is not None:
        what = "is empty" if record is None else f"does not begin with a header ({record.problem or 'a blank line'})"
        raise BadRequest(f"{shown} {what}: the first line of CSV names the columns.")
    names = tuple("" if name is None else name.strip() for name in record.fields)
    check_columns(shown, definition, names, HEADER_HINT)
    ends = edge_end_columns(definition)
    text = Scalar("String")
    kinds = tuple(text if name == "id" or name in ends else definition.by_name[name].type for name in names)
    return Header(names, kinds)


def to_entity(record: CsvRecord, header: Header, definition: TypeDef) -> "dict[str, Any] | MalformedRecord":
    """A record as an entity."""
    if record.problem is not None:
        return MalformedRecord(record.raw, record.problem)
    if len(record.fields) != len(header.names):
        count, wanted = len(record.fields), len(header.names)
        reason = f"the line has {count} field{'s' if count > 1 else ''}, the header {wanted}: give each column one"
        return MalformedRecord(record.raw, reason)
    ends = edge_end_columns(definition)
    entity: dict[str, Any] = {"edge" if ends else "type": definition.name}
    data: dict[str, Any] = {}
    for name, kind, text in zip(header.names, header.kinds, record.fields, strict=True):
        if name in ends:
            entity[ends[name]] = text  # the id of a node may be empty text, if it is quoted
        elif name != "id":
            data[name] = parse_field(text, kind)
        elif text:
            data["id"] = text
    return entity | {"data": data}


def parse_field(text: str | None, kind: PropertyType) -> Any:
    """The value of a field as NDJSON would have it. Text that is not a value of the type stays text, to be rejected."""
    if text is None or kind == Scalar("String"):
        return text
    text = text.strip()
    if not text:
        return None
    match kind:
        case Scalar("Bool"):
            return _BOOLS.get(text, text)
        case Scalar(name) if name in INTEGER_BOUNDS:
            return int(text) if _INTEGER.match(text) else text
        case Scalar("F32" | "F64"):
            if _INTEGER.match(text):
                return int(text)
            return float(text) if _FLOAT.match(text) else text
        case ListOf() | Vector():
            try:
                return parse_json(text)
            except (ValueError, RecursionError):
                return text
        case _:
            return text


def read_csv_entities(
    chunks: Iterator[bytes], shown: str, definition: TypeDef
) -> "Iterator[tuple[int, dict[str, Any] | MalformedRecord, int]]":
    """Each record with its line, as an entity, and its length."""
    header: Header | None = None
    for block in read_record_blocks(chunks):
        found: Sequence[CsvRecord] | Iterator[CsvRecord] = parse_records(block.data, block.line)
        if block.too_long:
            found = [CsvRecord(block.line, block.data, (), LINE_TOO_LONG)]
        for record in found:
            if header is None:
                header = parse_header(record, shown, definition)
            elif not record.is_blank:
                yield record.line, to_entity(record, header, definition), len(record.raw)
    if header is None:
        parse_header(None, shown, definition)
