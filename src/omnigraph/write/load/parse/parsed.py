"""What parsing a part of a load's input gives: typed rows with the lines they stood at, and lines that are no rows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.errors import Violation
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.runtime import ulid
from omnigraph.schema.catalog import TypeDef

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Mask = np.ndarray[Any, np.dtype[np.bool_]]
    Numbers = np.ndarray[Any, np.dtype[np.int64]]

MintId: TypeAlias = Callable[[int], str]

_CROCKFORD = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_HALF = 40  # bits: half of what a ULID has besides its time
_LOWER = (1 << _HALF) - 1


@dataclass(frozen=True, eq=False)
class ParsedRows:
    """Rows of one type, in the order of the input. An id may occur twice: finding that needs all of the input.

    Values that were not given are the default's. `given` is None where every property was said in every row.
    """

    definition: TypeDef
    rows: "pa.Table"  # in exactly arrow_schema(definition)
    given: "dict[str, Mask] | None"  # by column: in which rows it was said
    minted: "Mask"  # rows whose id was made here
    numbers: "Numbers"  # line or row of each, from 1; see `Split`

    def given_in(self, column: str) -> "Mask":
        """In which rows a property was said."""
        import numpy as np

        return np.ones(self.rows.num_rows, np.bool_) if self.given is None else self.given[column]


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """A line or row that can't be taken, and one reason: a row with two bad values is here twice."""

    number: int
    reason: str | Violation  # a text where it is no row at all by its form
    raw: Any  # the line's bytes, or the row as an entity dict; what a quarantine keeps


@dataclass(frozen=True, eq=False)
class ParsedBlock:
    """A stretch of the input: `lines` is how many lines (CSV: records, Parquet: rows) it went over."""

    types: dict[TableKey, ParsedRows] = field(default_factory=dict)
    rejected: list[RejectedLine] = field(default_factory=list)
    seen: dict[TableKey, int] = field(default_factory=dict)  # entities of each type, taken or not
    lines: int = 0


@dataclass(frozen=True, slots=True)
class IdMinter:
    """Ids for rows without one, the same ones each time that a split is parsed.

    They look like the ULIDs of other writes: the job's time, then a number that starts at a hash of the job's salt and
    counts splits in its upper half and rows in its lower one, so that no two rows of a job meet, and rows that lie
    together have ids that sort together.
    """

    milliseconds: int
    salt: str
    split: int = 0

    def for_split(self, number: int) -> "IdMinter":
        return replace(self, split=number)

    def __call__(self, number: int) -> str:
        return ulid(self.milliseconds, (self._start() + (self.split << _HALF) + number) % (1 << 2 * _HALF))

    def mint_many(self, numbers: "Numbers") -> "pa.Array[Any]":
        """The ids of several rows, as fast as numpy can write them."""
        import numpy as np
        import pyarrow as pa

        if not len(numbers):
            return pa.array([], pa.string())
        half, start = np.uint64(_HALF), self._start()
        low = np.uint64(start & _LOWER) + numbers.astype(np.uint64)
        letters = np.frombuffer(_CROCKFORD, np.uint8)
        pairs = np.stack([np.repeat(letters, 32), np.tile(letters, 32)], axis=1).view(np.uint16).ravel()
        text = np.empty((len(numbers), 13), np.uint16)  # two letters, ten bits, at a time
        text[:] = np.frombuffer(self(int(numbers[0])).encode(), np.uint16)
        carried = low >> half
        parts = [(low, 9)]
        if (carried != carried[0]).any():  # else the upper half is that of the first
            parts.append(((np.uint64((start >> _HALF) + self.split) + carried) & np.uint64(_LOWER), 5))
        for part, place in parts:
            for pair in range(4):
                text[:, place + pair] = pairs[(part >> np.uint64(30 - 10 * pair)) & np.uint64(1023)]
        offsets = np.arange(0, 26 * (len(numbers) + 1), 26, dtype=np.int32)
        buffer: Any = pa.py_buffer
        buffers: list[Any] = [None, buffer(offsets), buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(numbers), buffers)

    def _start(self) -> int:
        return int.from_bytes(blake2b(self.salt.encode(), digest_size=10).digest())


def mint_ids(mint: MintId, numbers: "Iterable[int] | Numbers") -> "pa.Array[Any]":
    """Ids for these rows by any minter."""
    import pyarrow as pa

    if isinstance(mint, IdMinter):
        import numpy as np

        return mint.mint_many(np.asarray(numbers, np.int64))
    return pa.array([mint(int(number)) for number in numbers], pa.string())
