"""NDJSON by Arrow's JSON reader, type by type, where it certainly reads a line as parsing it by itself would.

The reader gets the type of every field. It rejects a block if one line has a field of another type, an unknown field,
or a field twice: then the block is halved until few lines are left, and those are parsed one by one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from omnigraph.schema.catalog import Catalog, TypeDef
from omnigraph.write.load.input.chunks import LINE_BYTES_MAX, LINE_TOO_LONG, SHOWN_BYTES, LineBlock, MalformedRecord
from omnigraph.write.load.parse.parse_columns import combine_masks, convert_json, json_type
from omnigraph.write.load.parse.parse_rows import ParsedColumns, combine_blocks, finish_rows, parse_one_by_one
from omnigraph.write.load.parse.parsed import MintId, ParsedBlock

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Mask = np.ndarray[Any, np.dtype[np.bool_]]
    Numbers = np.ndarray[Any, np.dtype[np.int64]]

FEW_LINES = 48  # too few for another attempt of the reader
GROUPS_MAX = 256  # different prefixes of the lines of a block
_TYPE = r'"(?:type|edge)"[ \t]*:[ \t]*"(?P<name>[^"\\]{1,200})"'
_ESCAPE = r"\\u00[2-7]"
_OUTER_FIELDS = {"node": frozenset({"type", "data"}), "edge": frozenset({"edge", "from", "to", "data"})}


def parse_line_blocks(blocks: Iterator[LineBlock], catalog: Catalog, mint: MintId) -> Iterator[ParsedBlock]:
    """Each block of lines, numbered from 1."""
    before = 0
    for block in blocks:
        if block.too_long:
            raws = [(before + 1, MalformedRecord(block.data, LINE_TOO_LONG))]
            parsed = combine_blocks([parse_one_by_one(raws, "line", catalog.by_name, mint)], 1)
        else:
            parsed = parse_lines(block.data, before, catalog, mint)
        before += parsed.lines
        yield parsed


def parse_lines(data: bytes, before: int, catalog: Catalog, mint: MintId) -> ParsedBlock:
    """Some whole lines, numbered from `before + 1`."""
    import numpy as np

    lines = _LineTable.of(data, before)
    slow: list[Numbers] = []
    parts: list[ParsedBlock] = []
    fit = lines.whole_objects()
    if not fit.all():
        slow.append(np.flatnonzero(~fit))
    for name, places in _group_by_type(lines, np.flatnonzero(fit)):
        definition = None if name is None else catalog.by_name.get(name)
        if definition is None:
            slow.append(places)
        else:
            _read_type(lines, places, definition, mint, parts, slow)
    raws = [raw for places in slow for raw in lines.raws(places)]
    if raws:
        parts.append(parse_one_by_one(sorted(raws), "line", catalog.by_name, mint))
    return combine_blocks(parts, len(lines.numbers))


@dataclass
class _LineTable:
    """Lines with their newlines, as an Arrow column over the bytes that were read."""

    data: bytes
    column: Any
    numbers: "Numbers"
    has_escapes: bool  # of characters that a name may have

    @classmethod
    def of(cls, data: bytes, before: int) -> "_LineTable":
        import numpy as np
        import pyarrow as pa

        newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        ends = newlines + 1 if data.endswith(b"\n") or not data else np.append(newlines + 1, len(data))
        offsets = np.concatenate(([0], ends)).astype(np.int32)
        buffer: Any = pa.py_buffer
        buffers: list[Any] = [None, buffer(offsets), buffer(data)]
        column: Any = pa.Array.from_buffers(pa.binary(), len(ends), buffers)
        numbers = np.arange(before + 1, before + 1 + len(ends), dtype=np.int64)
        return cls(data, column, numbers, b"\\u00" in data)

    def whole_objects(self) -> "Mask":
        """Lines of UTF-8 from `{` to `}`: no object can span two such lines."""
        import numpy as np

        if not len(self.numbers):
            return np.zeros(0, np.bool_)
        text = np.frombuffer(self.data, np.uint8)
        offsets = np.frombuffer(self.column.buffers()[1], np.int32)
        starts, ends = offsets[:-1], offsets[1:] - 1
        last = ends - (text[ends] == 10)
        last = last - ((text[np.maximum(last, 0)] == 13) & (last > starts))
        fit: Mask = (text[starts] == 123) & (last > starts) & (text[last] == 125) & (ends - starts < LINE_BYTES_MAX)
        return fit if self._is_utf8() else fit & self._utf8_lines()

    def _is_utf8(self) -> bool:
        if self.data.isascii():
            return True
        try:
            self.data.decode()
        except UnicodeDecodeError:
            return False
        return True

    def _utf8_lines(self) -> "Mask":
        import numpy as np

        return np.array([_is_utf8(line) for line in self.column.to_pylist()], np.bool_)

    def raws(self, places: "Numbers") -> list[tuple[int, Any]]:
        """Lines that are not blank, to be parsed one by one."""
        import pyarrow as pa

        found = zip(self.numbers[places].tolist(), self.column.take(pa.array(places)).to_pylist(), strict=True)
        return [(number, _limit_length(line)) for number, line in found if not line.isspace() and line]


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _limit_length(line: bytes) -> Any:
    return line if len(line) <= LINE_BYTES_MAX else MalformedRecord(line[:SHOWN_BYTES], LINE_TOO_LONG)


def _group_by_type(lines: _LineTable, places: "Numbers") -> "Iterator[tuple[str | None, Numbers]]":
    """Group lines by their apparent type, using the prefix of the first line that is left; the reader verifies it."""
    import pyarrow as pa
    import pyarrow.compute as compute

    pc: Any = compute
    groups: dict[str | None, list[Any]] = {}
    for _ in range(GROUPS_MAX):
        if not len(places):
            break
        column = lines.column if len(places) == len(lines.column) else lines.column.take(pa.array(places))
        prefix, name = _line_prefix(column[0].as_py())
        if prefix is None:
            break
        mask = pc.starts_with(column, prefix).to_numpy(zero_copy_only=False)
        groups.setdefault(name, []).append(places[mask])
        places = places[~mask]
    if len(places):
        column = lines.column.take(pa.array(places))
        names = pc.struct_field(pc.extract_regex(column, _TYPE), [0]).dictionary_encode()
        which = names.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        known = [found.decode("utf-8", "replace") for found in names.dictionary.to_pylist()]
        for index, name in ((-1, None), *enumerate(known)):
            groups.setdefault(name, []).append(places[which == index])
    yield from ((name, places) for name, parts in groups.items() if len(places := _concat_sorted(parts)))


def _concat_sorted(parts: list[Any]) -> Any:
    import numpy as np

    return np.sort(np.concatenate(parts)).astype(np.int64)


def _line_prefix(line: bytes) -> tuple[bytes | None, str | None]:
    """The prefix of a line up to the end of the type's name, such as `{"type":"Person"`."""
    quotes = [at for at, byte in enumerate(line[:300]) if byte == 34][:4]
    if len(quotes) < 4 or line[quotes[0] + 1 : quotes[1]] not in (b"type", b"edge"):
        return None, None
    return line[: quotes[3] + 1], line[quotes[2] + 1 : quotes[3]].decode("utf-8", "replace")


def _read_type(
    lines: _LineTable,
    places: "Numbers",
    definition: TypeDef,
    mint: MintId,
    parts: list[ParsedBlock],
    slow: "list[Numbers]",
) -> None:
    """Read rows of one type. Lines that the reader rejects, and uncertain ones, are added to `slow`."""
    import pyarrow as pa

    pending = [places]
    while pending:
        some = pending.pop()
        try:
            columns = _read_columns(lines, some, definition)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
            columns = None
        if columns is None and len(some) > FEW_LINES:
            half = len(some) // 2
            pending += [some[half:], some[:half]]
        elif columns is None:
            slow.append(some)
        else:
            rows, uncertain = finish_rows(columns, mint)
            if uncertain is not None:
                slow.append(some[uncertain])
            if rows.rows.num_rows:  # uncertain lines may be of another type
                key = definition.table_key
                parts.append(ParsedBlock({key: rows}, seen={key: rows.rows.num_rows}))


def _read_columns(lines: _LineTable, places: "Numbers", definition: TypeDef) -> ParsedColumns | None:
    """The lines as the reader gives them; None if it did not make one row of each."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as compute
    import pyarrow.json as pj

    pc: Any = compute
    whole = len(places) == len(lines.column)
    column = lines.column if whole else lines.column.take(pa.array(places))
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    body = column.buffers()[2].slice(int(offsets[0]), int(offsets[len(column)] - offsets[0]))
    options: Any = pj.ParseOptions(explicit_schema=_schema(definition), unexpected_field_behavior="error")
    reading = pj.ReadOptions(use_threads=False, block_size=max(len(body) + 1, 4096))
    source: Any = pa.BufferReader(body)
    table: Any = pj.read_json(source, read_options=reading, parse_options=options)
    if table.num_rows != len(places):
        return None
    table = table.combine_chunks()
    flat = [table.column(index).chunk(0) for index in range(table.num_columns)]
    named, data = flat[0], flat[-1]
    columns = ParsedColumns(definition, lines.numbers[places])
    right = pc.equal(named, definition.name).fill_null(False).to_numpy(zero_copy_only=False)
    columns.mark_uncertain(None if right.all() else ~right)
    columns.mark_uncertain(data.is_null().to_numpy(zero_copy_only=False) if data.null_count else None)
    if definition.kind == "edge":
        columns.ends = flat[1], flat[2]
    _set_values(columns, data, _FieldPresence(lines, column, _OUTER_FIELDS[definition.kind]))
    return columns


def _set_values(columns: ParsedColumns, data: Any, presence: "_FieldPresence") -> None:
    definition = columns.definition
    for index, prop in enumerate(definition.properties, 1):
        values, bad = convert_json(data.field(index), prop.type)
        columns.mark_uncertain(bad)
        columns.values[prop.name] = values
        absent, unsure = presence.absent(prop.name, data.field(index))
        columns.mark_uncertain(unsure)
        if absent is not None:
            columns.absent[prop.name] = absent
            if absent.all():
                del columns.values[prop.name], columns.absent[prop.name]
    ids = data.field(0)
    absent, unsure = presence.absent("id", ids)
    columns.mark_uncertain(unsure)
    if ids.null_count:
        null = ids.is_null().to_numpy(zero_copy_only=False)
        columns.mark_uncertain(null if absent is None else null & ~absent)  # an id of null is rejected
    columns.ids = None if ids.null_count == len(ids) else ids


class _FieldPresence:
    """Whether a field that the reader returns as null is null in its line, or absent: the reader does not tell.

    `"name":` in a line is the name of a field, or the end of one that the reader would have rejected. Without `"name"`
    in the line the field is absent, unless one of its characters is escaped.
    """

    def __init__(self, lines: _LineTable, column: Any, outside: frozenset[str]) -> None:
        self._lines, self._column, self._outside = lines, column, outside

    def absent(self, name: str, values: Any) -> "tuple[Mask | None, Mask | None]":
        """Masks of the rows in which the field is absent, and of those for which that is unknown."""
        import pyarrow.compute as compute

        pc: Any = compute
        if not values.null_count:
            return None, None
        null = values.is_null().to_numpy(zero_copy_only=False)
        if not name.isascii():
            return None, null
        unsure: Mask | None = None
        if self._lines.has_escapes:
            escaped = pc.match_substring_regex(self._column, _ESCAPE).to_numpy(zero_copy_only=False) & null
            unsure = escaped if escaped.any() else None
        if f'"{name}"'.encode() not in self._lines.data:
            return null, unsure
        outside = int(name in self._outside)  # every line of the type has it once outside `data`
        mentioned, named = self._count_in_lines(f'"{name}"', outside), self._count_in_lines(f'"{name}":', outside)
        absent = null & (mentioned == outside)
        spaced = null & (mentioned > outside) & (named <= outside)  # `"name" :`, or a value equal to the name
        return absent if absent.any() else None, combine_masks(unsure, spaced if spaced.any() else None)

    def _count_in_lines(self, text: str, outside: int) -> Any:
        """How often a text occurs in each line, or only whether it does if that is enough."""
        import pyarrow.compute as compute

        pc: Any = compute
        found = pc.count_substring(self._column, text) if outside else pc.match_substring(self._column, text)
        return found.to_numpy(zero_copy_only=False)


@lru_cache(maxsize=256)
def _schema_of(kind: str, properties: "Sequence[tuple[str, pa.DataType]]") -> "pa.Schema":
    import pyarrow as pa

    text = pa.string()
    data = pa.struct([pa.field("id", text), *(pa.field(name, held) for name, held in properties)])
    outside = [("type", text)] if kind == "node" else [("edge", text), ("from", text), ("to", text)]
    return pa.schema([*(pa.field(name, held) for name, held in outside), pa.field("data", data)])


def _schema(definition: TypeDef) -> "pa.Schema":
    return _schema_of(definition.kind, tuple((prop.name, json_type(prop.type)) for prop in definition.properties))
