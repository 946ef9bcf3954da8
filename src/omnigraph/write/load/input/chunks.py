"""Reading the files of a load from any store: blocks of whole lines in bounded memory, and Parquet.

Errors of a file as such (missing, truncated, not of the format that its name says) are raised here.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from omnigraph.errors import BadRequest
from omnigraph.storage.objects import input_files as files
from omnigraph.storage.objects.input_files import InputFile

if TYPE_CHECKING:
    import pyarrow.parquet as pq

CHUNK_BYTES = 4 * 1024 * 1024
TAIL_BYTES = 64 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024
LINE_TOO_LONG = (
    f"the line is longer than {LINE_BYTES_MAX // 2**20} MiB: no entity is that large, check that lines end where they "
    "should"
)
SHOWN_BYTES = 1000  # of a line that is too long, in a quarantine
BOM = b"\xef\xbb\xbf"


class MalformedRecord(NamedTuple):
    """A line or record that is known to be malformed before it is parsed as an entity."""

    raw: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Some whole lines; with `too_long` only the beginning of one line that exceeds the limit."""

    data: bytes
    too_long: bool = False


class FileChunks:
    """The bytes of a file in chunks, decompressed if it is gzipped."""

    def __init__(self, path: str, shown: str, size: int, options: Mapping[str, str] | None) -> None:
        self._file: InputFile = files.known_file(path, size, options)
        self._shown, self._size = shown, size

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[bytes]:
        """All bytes from the offset on. Beyond `end` only the rest of a line is needed, so reads start small."""
        more = TAIL_BYTES
        while offset < self._size:
            if end is None or offset < end:
                length = min(CHUNK_BYTES, self._size if end is None else end - offset)
            else:
                length, more = more, min(CHUNK_BYTES, 2 * more)
            data = self._file.read(offset, length)
            yield data
            offset += len(data)

    def read_decompressed(self) -> Iterator[bytes]:
        """The decompressed bytes of a gzipped file, of all its members."""
        try:
            with self._file.open() as packed, gzip.GzipFile(fileobj=packed, mode="rb") as file:
                while data := file.read(CHUNK_BYTES):
                    yield data
        except EOFError as error:
            raise self._error("is cut off and can't be read to its end", "give a whole file") from error
        except gzip.BadGzipFile as error:
            raise self._error("is not gzipped", "gzip it, or name it without .gz") from error
        except zlib.error as error:
            raise self._error("is damaged and can't be read to its end", "give a whole file") from error

    def _error(self, what: str, remedy: str) -> BadRequest:
        return BadRequest(f"{self._shown} {what}: nothing was written, {remedy}.")


def split_lines(chunks: Iterator[bytes], owned: int | None = None) -> Iterator[LineBlock]:
    """The lines of the chunks, with their newlines; with `owned`, only lines that begin within that many bytes."""
    rest, before, skipping = b"", 0, False  # `before`: the offset of `rest`
    for chunk in chunks:
        if skipping:  # the rest of a line that is too long
            end = chunk.find(b"\n") + 1
            before += end or len(chunk)
            if not end:
                continue
            chunk, skipping = chunk[end:], False
        if owned is not None and before >= owned:
            return
        data = rest + chunk
        cut = _last_line_end(data, None if owned is None else owned - before)
        if cut:
            yield LineBlock(data[:cut])
            before += cut
        rest = data[cut:]
        if owned is not None and before >= owned:
            return
        if len(rest) > LINE_BYTES_MAX:
            yield LineBlock(rest[:SHOWN_BYTES], too_long=True)
            before, rest, skipping = before + len(rest), b"", True
    if rest:
        yield LineBlock(rest)


def _last_line_end(data: bytes, owned: int | None) -> int:
    """The end of the last whole line, or of the last line that begins before `owned`; 0 if there is none."""
    if owned is None or owned > len(data):
        return data.rfind(b"\n") + 1
    end = data.find(b"\n", owned - 1) + 1
    return end or data.rfind(b"\n") + 1


def read_line_range(
    path: str, shown: str, size: int, offset: int, length: int, options: Mapping[str, str] | None
) -> Iterator[LineBlock]:
    """The lines that begin in a byte range of a plain file; the last one is read to its end, even beyond the range."""
    source = FileChunks(path, shown, size, options)
    if offset == 0:
        yield from _strip_bom(split_lines(source.read(0, length), length))
        return
    chunks = source.read(offset - 1, offset + length)  # the byte before the offset tells whether a line begins there
    skipped = 0
    for chunk in chunks:
        end = chunk.find(b"\n") + 1
        skipped += end or len(chunk)
        if skipped > length:
            return
        if end:
            rest = chunk[end:]
            yield from split_lines(_prepend(rest, chunks), length + 1 - skipped)
            return


def read_gzip_lines(path: str, shown: str, size: int, options: Mapping[str, str] | None) -> Iterator[LineBlock]:
    return _strip_bom(split_lines(FileChunks(path, shown, size, options).read_decompressed()))


def _prepend(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _strip_bom(blocks: Iterator[LineBlock]) -> Iterator[LineBlock]:
    for number, block in enumerate(blocks):
        yield block if number else LineBlock(block.data.removeprefix(BOM), block.too_long)


@contextmanager
def open_parquet(
    path: str, shown: str, size: int, options: Mapping[str, str] | None = None
) -> "Iterator[pq.ParquetFile]":
    """Open a Parquet file in any store; BadRequest if it is not one, or is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source: Any = path
    try:
        if files.is_remote(path):
            source = pa.PythonFile(files.known_file(path, size, options).open(), mode="r")
        with pq.ParquetFile(source, pre_buffer=True) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n", 1)[0].split(". ", 1)[0].strip().rstrip(".")[:200]
        raise BadRequest(
            f"{shown} can't be read as Parquet ({reason}): nothing was written, give a whole file."
        ) from error
