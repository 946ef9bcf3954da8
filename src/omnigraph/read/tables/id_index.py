"""The index from ids to row numbers: the sorted hashes of all ids, in numpy.

A Python dict of the same ids takes ten times the memory and several times as long to build.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.read.tables.arrow_numpy import ArrowArray, NumArray, to_mask

_WORDS_MAX = 64  # of eight bytes; ids that differ only beyond them are compared as text
_SEED = np.uint64(0x9E3779B97F4A7C15)
_ALL = 2**64 - 1
_PRIME = np.uint64(0xFF51AFD7ED558CCD)


def hashes(texts: ArrowArray) -> NumArray:
    """A 64-bit hash of each text, vectorised, eight bytes at a time."""
    offset_type = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, offset_buffer, data_buffer = texts.buffers()
    rows = len(texts)
    if not rows or offset_buffer is None:
        return np.zeros(rows, np.uint64)
    offsets = np.frombuffer(offset_buffer, offset_type, rows + 1, texts.offset * np.dtype(offset_type).itemsize)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + 8, np.uint8)
    if last > first:
        data[: last - first] = np.frombuffer(data_buffer, np.uint8, last - first, first)
    words = np.ndarray((last - first + 1,), "<u8", data, strides=(1,))
    starts = offsets[:-1].astype(np.int64) - first
    left = np.diff(offsets).astype(np.int64)
    result = left.astype(np.uint64) * _SEED
    active: Any = slice(None)
    for _ in range(_WORDS_MAX):
        more = left > 0
        if not more.all():
            (kept,) = np.nonzero(more)
            active = kept if isinstance(active, slice) else active[kept]
            starts, left = starts[kept], left[kept]
        if not len(left):
            break
        unused = np.maximum(8 - left, 0).astype(np.uint64) * np.uint64(8)
        word = (words[starts] << unused) >> unused
        mixed = (result[active] ^ word) * _PRIME
        result[active] = mixed ^ (mixed >> np.uint64(32))
        starts, left = starts + 8, left - 8
    return result


def hash_of(text: str) -> np.uint64:
    """`hashes` of one text, without arrays."""
    data = text.encode()
    result = len(data) * int(_SEED) & _ALL
    for start in range(0, min(len(data), 8 * _WORDS_MAX), 8):
        result = (result ^ int.from_bytes(data[start : start + 8], "little")) * int(_PRIME) & _ALL
        result ^= result >> 32
    return np.uint64(result)


@dataclass(frozen=True, slots=True)
class IdIndex:
    """`ids` in row order, and their hashes in ascending order with the row of each."""

    ids: ArrowArray
    sorted_hashes: NumArray
    rows: NumArray

    @staticmethod
    def of(ids: ArrowArray) -> "IdIndex":
        found = hashes(ids)
        order = np.argsort(found)
        return IdIndex(ids, found[order], order.astype(np.int32))

    @property
    def nbytes(self) -> int:
        return int(self.sorted_hashes.nbytes + self.rows.nbytes)

    def find_one(self, wanted: str) -> int:
        """The row of one id, -1 where there is none."""
        wanted_hash = hash_of(wanted)
        position = int(self.sorted_hashes.searchsorted(wanted_hash))
        while position < len(self.rows) and self.sorted_hashes[position] == wanted_hash:
            row = int(self.rows[position])
            if self.ids[row].as_py() == wanted:
                return row
            position += 1
        return -1

    def find(self, wanted: ArrowArray) -> NumArray:
        """The row of each wanted id, -1 where there is none."""
        result = np.full(len(wanted), -1, np.int64)
        if not len(self.ids) or not len(wanted):
            return result
        if wanted.type != self.ids.type:
            wanted = wanted.cast(self.ids.type)
        wanted_hash = hashes(wanted)
        positions = np.searchsorted(self.sorted_hashes, wanted_hash)
        open_ = np.arange(len(wanted))
        while True:
            inside = positions < len(self.sorted_hashes)
            inside[inside] = self.sorted_hashes[positions[inside]] == wanted_hash[open_[inside]]
            open_, positions = open_[inside], positions[inside]
            if not len(open_):
                return result
            rows = self.rows[positions]
            same = to_mask(pc.equal(self.ids.take(pa.array(rows)), wanted.take(pa.array(open_))))
            result[open_[same]] = rows[same]
            open_, positions = open_[~same], positions[~same] + 1
