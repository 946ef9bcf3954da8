"""Export into one file: a snapshot as NDJSON, or one type of it as CSV or Parquet, ordered by type and id.

Loading it again gives the same graph. `export_formats.py` says how values are written, `pipeline/exporting/export.py`
writes directories of many files in parallel.
"""

import gzip
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from omnigraph.cancellation import checkpoint
from omnigraph.errors import BadRequest
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.read.export.export_formats import Format, line_encoder, write_rows
from omnigraph.schema.catalog import TypeDef
from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables

if TYPE_CHECKING:
    import pyarrow as pa

SORTED_ROWS_MAX = 50_000  # sorted at once; a larger table is read in ranges of ids
BATCH_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class Exported:
    """How much was written, in how many files, and where it ran."""

    rows: int
    bytes: int
    files: int = 1
    engine: str = "local"


def export(
    tables: Tables,
    snapshot: Snapshot,
    dest: "str | os.PathLike[str] | IO[bytes]",
    types: Sequence[str] | None = None,
    format: Format = "jsonl",
) -> Exported:
    """Write a snapshot to a file, gzipped if its name ends with `.gz`, or into an open binary file.

    A file appears under its name only when it is complete. CSV and Parquet files have one type.
    """
    if not isinstance(dest, str | os.PathLike):
        return _write(dest, tables, snapshot, types, format)
    with new_file(dest) as file:
        return _write(file, tables, snapshot, types, format)


@contextmanager
def new_file(dest: "str | os.PathLike[str]") -> Iterator[IO[bytes]]:
    """A new file, gzipped if its name ends with `.gz`; it appears under its name only when it is complete."""
    path = Path(dest)
    if not path.name or path.is_dir():
        remedy = "name one, such as graph.jsonl, or say in which format a directory is to be written"
        raise BadRequest(f"{str(dest)!r} is not a file to write to: {remedy}.")
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
                    yield cast("IO[bytes]", packed)
            else:
                yield file
        partial.replace(path)
    except OSError as error:
        raise BadRequest(f"{path} can't be written ({error.strerror}): choose another file.") from error
    finally:
        partial.unlink(missing_ok=True)


def export_lines(tables: Tables, snapshot: Snapshot, types: Sequence[str] | None = None) -> Iterator[bytes]:
    """The entities of these types, or of all, one line each; memory is bounded by a batch, not by the graph."""
    for definition in select_types(snapshot, types):
        line = line_encoder(definition)
        for batch in _batches_of(tables, snapshot, definition, BATCH_ROWS):
            checkpoint()
            yield from line(batch)


def _write(file: Any, tables: Tables, snapshot: Snapshot, types: Sequence[str] | None, format: Format) -> Exported:
    if format == "jsonl":
        rows = size = 0
        for line in export_lines(tables, snapshot, types):
            file.write(line)
            rows, size = rows + 1, size + len(line)
        return Exported(rows, size)
    chosen = select_types(snapshot, types)
    if len(chosen) != 1:
        raise BadRequest(f"A file of {format} holds one type, not {len(chosen)}: name one, or write a directory.")
    sized = _CountingFile(file)
    batches = _batches_of(tables, snapshot, chosen[0], SORTED_ROWS_MAX)
    return Exported(write_rows(sized, chosen[0], format, batches), sized.size)


class _CountingFile(io.RawIOBase):
    """Counts the bytes that are written to a file; Arrow does not need it to be seekable."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        taken = bytes(data)
        self._file.write(taken)
        self.size += len(taken)
        return len(taken)


def _batches_of(tables: Tables, snapshot: Snapshot, definition: TypeDef, batch_rows: int) -> "Iterator[pa.Table]":
    content = snapshot.content(definition.table_key)
    if content is not None:
        yield from _sorted_batches(tables, content, definition, batch_rows)


def select_types(snapshot: Snapshot, types: Sequence[str] | None) -> list[TypeDef]:
    """These types, or all, by name."""
    by_name = snapshot.catalog.by_name
    for name in types or ():
        if name not in by_name:
            raise BadRequest(f"The schema has no type {name!r}: its types are {', '.join(sorted(by_name))}.")
    return [by_name[name] for name in sorted(by_name if types is None else set(types))]


def _sorted_batches(
    tables: Tables, content: TableContent, definition: TypeDef, batch_rows: int
) -> "Iterator[pa.Table]":
    """All rows, sorted by id. A table that is too large to sort at once is read in ranges of ids."""
    from omnigraph.schema.arrow import arrow_schema

    schema = arrow_schema(definition)
    ranges: list[str | None] = [None]
    if tables.count(content, schema=schema) > SORTED_ROWS_MAX:
        ids = tables.scan(content, ["id"], schema=schema).sort_by("id").column("id")
        starts = range(0, len(ids), SORTED_ROWS_MAX)
        bounds = [(ids[start].as_py(), ids[min(start + SORTED_ROWS_MAX, len(ids)) - 1].as_py()) for start in starts]
        ranges = [between(low, high) for low, high in bounds]
        del ids
    for one in ranges:
        rows = rows_by_id(tables, content, definition, one)
        for start in range(0, rows.num_rows, batch_rows):
            yield rows.slice(start, batch_rows)


def rows_by_id(tables: Tables, content: TableContent, definition: TypeDef, filter: str | None = None) -> "pa.Table":
    """The rows that pass, sorted by id, aligned to the schema, whose columns an older version may lack."""
    from omnigraph.schema.arrow import arrow_schema

    schema = arrow_schema(definition)
    there = set(tables.dataset(content, schema=schema).schema.names)
    rows = tables.scan(content, [name for name in schema.names if name in there], filter, schema=schema)
    return align_table(rows, schema).sort_by("id")


def between(low: str, high: str) -> str:
    """A Lance filter for a range of ids, both ends included."""
    from omnigraph.read.match.filters import quote_text

    return f"id >= {quote_text(low)} AND id <= {quote_text(high)}"
