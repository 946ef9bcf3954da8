"""One row encoded as an Arrow IPC message, without Arrow.

Every small commit writes such a message, and building the arrays of a single row in Arrow takes many times longer than
writing the few bytes of its body. The header is copied from a message that Arrow made for a row with the same nulls:
only the offsets and lengths of the buffers differ.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.caches import DerivedCache
from omnigraph.schema.definitions import TypeDef

if TYPE_CHECKING:
    import pyarrow as pa

RowValues: TypeAlias = Mapping[str, object]

END = b"\xff\xff\xff\xff\0\0\0\0"  # of stream
_WORD = 8  # the alignment of buffers
_ZEROS = [bytes(count) for count in range(_WORD)]
_NULL = bytes(2 * _WORD)  # a validity bitmap, and a value or the offsets of a text
_TEMPLATES_MAX = 64  # for each schema; there is one for each set of null columns
_offsets = struct.Struct("<ii").pack
_I32, _I64 = struct.Struct("<i4x").pack, struct.Struct("<q").pack
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = _EPOCH.toordinal()
_MILLISECOND = timedelta(milliseconds=1)


def _date(value: date) -> bytes:
    return _I32(value.toordinal() - _EPOCH_DAY)


def _instant(value: datetime) -> bytes:
    whole, rest = divmod(value - _EPOCH, _MILLISECOND)
    if rest:
        raise ValueError("finer than the column")
    return _I64(whole)


# The class of a column's values, their length, and their encoder, padded to a word. A value of another class is left to
# Arrow, which converts some and refuses the others.
_NUMBERS: dict[str, tuple[type, int, Callable[[Any], bytes]]] = {
    "int32": (int, 4, _I32),
    "int64": (int, 8, _I64),
    "uint32": (int, 4, struct.Struct("<I4x").pack),
    "uint64": (int, 8, struct.Struct("<Q").pack),
    "float": (float, 4, struct.Struct("<f4x").pack),
    "double": (float, 8, struct.Struct("<d").pack),
    "bool": (bool, 1, struct.Struct("<?7x").pack),
    "date32[day]": (date, 4, _date),
    "timestamp[ms, tz=UTC]": (datetime, 8, _instant),
}


@dataclass(frozen=True, slots=True)
class _Template:
    """A message up to its body, and the offsets in it of the body's length and of the buffer descriptors."""

    head: bytes
    body_length_at: int
    buffers_at: int
    buffers: struct.Struct


class EncodedRow:
    """A row that was encoded from values; `table_of` decodes it on demand."""

    __slots__ = ("_encoder", "_message", "values")

    num_rows = 1

    def __init__(self, maker: "RowEncoder", values: RowValues, message: bytes) -> None:
        self._encoder = maker
        self.values = values
        self._message = message

    @property
    def schema(self) -> "pa.Schema":
        return self._encoder.schema

    @property
    def stream(self) -> bytes:
        """The row as a whole Arrow stream."""
        return stream_of([self])


def stream_of(rows: Sequence[EncodedRow]) -> bytes:
    """Rows of one encoder as an Arrow stream."""
    return b"".join([rows[0]._encoder.head, *[row._message for row in rows], END])


def table_of(rows: Sequence[EncodedRow]) -> "pa.Table":
    """Rows of one encoder as a table."""
    import pyarrow as pa

    return pa.ipc.open_stream(stream_of(rows)).read_all()


def same_encoder(one: EncodedRow, other: EncodedRow) -> bool:
    return one._encoder is other._encoder


def encode_row(definition: TypeDef, row: RowValues) -> EncodedRow | None:
    """One row of values by column, encoded; None where only Arrow can convert a value."""
    return _ENCODERS.of(definition).encode(row)


def _make_encoder(definition: TypeDef) -> "RowEncoder":
    from omnigraph.schema.arrow import arrow_schema

    return RowEncoder(arrow_schema(definition))


_ENCODERS = DerivedCache(_make_encoder)


class RowEncoder:
    """Encodes single rows of one schema."""

    def __init__(self, schema: "pa.Schema") -> None:
        self.schema = schema
        self.head = schema.serialize().to_pybytes()  # the start of a stream of such rows
        self._columns = [(column.name, _NUMBERS.get(str(column.type))) for column in schema]  # None: a text
        self._possible = all(str(column.type) == "string" or str(column.type) in _NUMBERS for column in schema)
        self._templates: dict[tuple[int, ...], _Template] = {}

    def __reduce__(self) -> "tuple[type[RowEncoder], tuple[pa.Schema]]":
        """Types and rows are sent to tasks; templates can't be pickled, and are soon made again."""
        return RowEncoder, (self.schema,)

    def encode(self, row: RowValues) -> EncodedRow | None:
        message = self.message(row)
        return None if message is None else EncodedRow(self, row, message)

    def message(self, row: RowValues) -> bytes | None:
        """The row as a message of a stream; None where only Arrow can convert a value."""
        if not self._possible:
            return None
        body: list[bytes] = []
        places: list[int] = []
        nulls: list[int] = []
        at = 0
        try:
            for name, kind in self._columns:
                value = row.get(name)
                if kind is None:
                    if type(value) is str:
                        text = value.encode()
                        length = len(text)
                        places += (at, 0, at, _WORD, at + _WORD, length)
                        body += (_offsets(0, length), text, _ZEROS[-length % _WORD])
                        at += _WORD + length + -length % _WORD
                    elif value is None:
                        nulls.append(len(places))
                        places += (at, 1, at + _WORD, _WORD, at + 2 * _WORD, 0)
                        body.append(_NULL)
                        at += 2 * _WORD
                    else:
                        return None
                else:
                    wanted, length, pack = kind
                    if type(value) is wanted:
                        places += (at, 0, at, length)
                        body.append(pack(value))
                        at += _WORD
                    elif value is None:
                        nulls.append(len(places))
                        places += (at, 1, at + _WORD, length)
                        body.append(_NULL)
                        at += 2 * _WORD
                    else:
                        return None
        except (ValueError, TypeError, OverflowError, struct.error):  # invalid text, or out of the column's range
            return None
        template = self._templates.get(tuple(nulls)) or self._template(row, tuple(nulls))
        head = bytearray(template.head)
        struct.pack_into("<q", head, template.body_length_at, at)
        template.buffers.pack_into(head, template.buffers_at, *places)
        return b"".join((head, *body))

    def _template(self, row: RowValues, nulls: tuple[int, ...]) -> _Template:
        """From a message that Arrow made for the row."""
        import pyarrow as pa

        made = pa.RecordBatch.from_pylist([dict(row)], schema=self.schema).serialize().to_pybytes()
        template = _parse_template(made)
        if len(self._templates) >= _TEMPLATES_MAX:
            self._templates.clear()
        self._templates[nulls] = template
        return template


def _parse_template(message: bytes) -> _Template:
    """The offsets in a message with a record batch: fields 2 and 3 of its table, field 2 of the batch's."""
    start = 8  # after a marker and the header's length
    (length,) = struct.unpack_from("<i", message, 4)
    root = _follow(message, start)
    batch = _follow(message, _field(message, root, 2))
    buffers = _follow(message, _field(message, batch, 2))
    (count,) = struct.unpack_from("<I", message, buffers)
    return _Template(message[: start + length], _field(message, root, 3), buffers + 4, struct.Struct(f"<{2 * count}q"))


def _follow(message: bytes, at: int) -> int:
    (distance,) = struct.unpack_from("<I", message, at)
    return at + int(distance)


def _field(message: bytes, table: int, number: int) -> int:
    """The offset of a table's field with this number."""
    (back,) = struct.unpack_from("<i", message, table)
    (distance,) = struct.unpack_from("<H", message, table - int(back) + 4 + 2 * number)
    return table + int(distance)
