"""The result of parsing a part of the input: typed rows with their line numbers, and rejected lines."""

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
    """Rows of one type, in the order of the input. An id may occur twice: finding that needs the whole input.

    Values that were not given are defaults. `given` is None if every row gives every property.
    """

    definition: TypeDef
    rows: "pa.Table"  # in exactly arrow_schema(definition)
    given: "dict[str, Mask] | None"  # by column: rows in which it was given
    minted: "Mask"  # rows whose id was minted
    numbers: "Numbers"  # line or row of each, from 1; see `Split`

    def given_in(self, column: str) -> "Mask":
        """A mask of the rows that give a property."""
        import numpy as np

        return np.ones(self.rows.num_rows, np.bool_) if self.given is None else self.given[column]


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """A rejected line or row, and one reason: a row with two bad values occurs twice."""

    number: int
    reason: str | Violation  # text if it is malformed
    raw: Any  # for the quarantine: the line's bytes, or the row as an entity dict


@dataclass(frozen=True, eq=False)
class ParsedBlock:
    """The rows of a block of input; `lines` counts its lines (CSV: records, Parquet: rows)."""

    types: dict[TableKey, ParsedRows] = field(default_factory=dict)
    rejected: list[RejectedLine] = field(default_factory=list)
    seen: dict[TableKey, int] = field(default_factory=dict)  # entities of each type, valid or not
    lines: int = 0


@dataclass(frozen=True, slots=True)
class IdMinter:
    """Ids for rows without one, the same each time that a split is parsed.

    They look like the ULIDs of other writes: the job's time, then a number that starts at a hash of the job's salt and
    counts splits in its upper half and rows in its lower half. So no two rows of a job have the same id, and adjacent
    rows have adjacent ids.
    """

    milliseconds: int
    salt: str
    split: int = 0

    def for_split(self, number: int) -> "IdMinter":
        return replace(self, split=number)

    def __call__(self, number: int) -> str:
        return ulid(self.milliseconds, (self._start() + (self.split << _HALF) + number) % (1 << 2 * _HALF))

    def mint_many(self, numbers: "Numbers") -> "pa.Array[Any]":
        """The ids of several rows, computed by numpy."""
        import numpy as np
        import pyarrow as pa

        if not len(numbers):
            return pa.array([], pa.string())
        half, start = np.uint64(_HALF), self._start()
        low = np.uint64(start & _LOWER) + numbers.astype(np.uint64)
        letters = np.frombuffer(_CROCKFORD, np.uint8)
        pairs = np.stack([np.repeat(letters, 32), np.tile(letters, 32)], axis=1).view(np.uint16).ravel()
        text = np.empty((len(numbers), 13), np.uint16)  # two letters (ten bits) at a time
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
    """The ids of these rows from any function that mints ids."""
    import pyarrow as pa

    if isinstance(mint, IdMinter):
        import numpy as np

        return mint.mint_many(np.asarray(numbers, np.int64))
    return pa.array([mint(int(number)) for number in numbers], pa.string())
