"""Export: a snapshot as NDJSON, ordered by type and id, such that loading it again gives the same graph.

Every property is written, nulls too: a value that is left out would get the schema's default when it is loaded.
"""

import base64
import datetime as dt
import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from omnigraph.errors import BadRequest
from omnigraph.manifest.txn import Snapshot
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.types import ListOf, PropertyType, Scalar, Vector
from omnigraph.schema.values import BLOB_PREFIX, print_datetime
from omnigraph.storage.tables import Tables, TableVersion

if TYPE_CHECKING:
    import pyarrow as pa

SORTED_ROWS_MAX = 50_000  # that are held and sorted at once; a larger table is read range by range
BATCH_ROWS = 5_000
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class Exported:
    """How much was written."""

    rows: int
    bytes: int


def export(
    tables: Tables,
    snapshot: Snapshot,
    dest: "str | os.PathLike[str] | IO[bytes]",
    types: Sequence[str] | None = None,
) -> Exported:
    """Write a snapshot to a file, gzipped if its name ends so, or into an open binary file.

    A file appears under its name only when it is complete.
    """
    if not isinstance(dest, str | os.PathLike):
        return _write(dest, export_lines(tables, snapshot, types))
    path = Path(dest)
    if not path.name or path.is_dir():
        raise BadRequest(f"{str(dest)!r} is no file to write to: name one, such as graph.jsonl.")
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
                    done = _write(packed, export_lines(tables, snapshot, types))
            else:
                done = _write(file, export_lines(tables, snapshot, types))
        partial.replace(path)
    except OSError as error:
        raise BadRequest(f"{path} can't be written ({error.strerror}): choose another file.") from error
    finally:
        partial.unlink(missing_ok=True)
    return done


def export_lines(tables: Tables, snapshot: Snapshot, types: Sequence[str] | None = None) -> Iterator[bytes]:
    """The entities of these types, or of all, one line each; memory is bounded by a batch, not by the graph."""
    for definition in _chosen(snapshot, types):
        ref = snapshot.table(definition.table_key)
        if ref is None:
            continue
        line = _line_maker(definition)
        for batch in _sorted_batches(tables, TableVersion(ref.table_id, ref.table_version), definition):
            yield from line(batch)


def _write(file: Any, lines: Iterator[bytes]) -> Exported:
    rows = size = 0
    for line in lines:
        file.write(line)
        rows, size = rows + 1, size + len(line)
    return Exported(rows, size)


def _chosen(snapshot: Snapshot, types: Sequence[str] | None) -> list[TypeDef]:
    by_name = snapshot.catalog.by_name
    for name in types or ():
        if name not in by_name:
            raise BadRequest(f"The schema has no type {name!r}: its types are {', '.join(sorted(by_name))}.")
    return [by_name[name] for name in sorted(by_name if types is None else set(types))]


def _sorted_batches(tables: Tables, at: TableVersion, definition: TypeDef) -> "Iterator[pa.Table]":
    """All rows by id. A table that is too large to sort at once is read in ranges of ids."""
    from omnigraph.schema.arrow import arrow_schema

    names = arrow_schema(definition).names
    ranges: list[str | None] = [None]
    if tables.count(at) > SORTED_ROWS_MAX:
        ids = tables.scan(at, ["id"]).sort_by("id").column("id")
        starts = range(0, len(ids), SORTED_ROWS_MAX)
        bounds = [(ids[start].as_py(), ids[min(start + SORTED_ROWS_MAX, len(ids)) - 1].as_py()) for start in starts]
        ranges = [f"id >= {_quoted(low)} AND id <= {_quoted(high)}" for low, high in bounds]
        del ids
    for one in ranges:
        rows = tables.scan(at, names, one).sort_by("id")
        for start in range(0, rows.num_rows, BATCH_ROWS):
            yield rows.slice(start, BATCH_ROWS)


def _line_maker(definition: TypeDef) -> "Callable[[pa.Table], Iterator[bytes]]":
    """How a batch of a type's rows becomes lines."""
    writers = [(prop.name, prop.column, _printer(prop.type)) for prop in definition.properties]
    is_edge = definition.kind == "edge"

    def lines(rows: "pa.Table") -> Iterator[bytes]:
        columns = [(name, print_column(rows.column(column).to_pylist())) for name, column, print_column in writers]
        names = ["id", *(name for name, _ in columns)]
        values = zip(rows.column("id").to_pylist(), *(column for _, column in columns), strict=True)
        entries = (dict(zip(names, row, strict=True)) for row in values)
        if is_edge:
            ends = zip(rows.column("src").to_pylist(), rows.column("dst").to_pylist(), strict=True)
            for (source, target), data in zip(ends, entries, strict=True):
                yield _line({"edge": definition.name, "from": source, "to": target, "data": data})
        else:
            for data in entries:
                yield _line({"type": definition.name, "data": data})

    return lines


def _line(entity: dict[str, Any]) -> bytes:
    return _dumps(entity).encode() + b"\n"


def _printer(kind: PropertyType) -> Callable[[list[Any]], list[Any]]:
    """How the values of a column are written: as a load reads them, floats in the shortest form of their own width."""
    match kind:
        case Scalar("F32"):
            return _singles
        case Vector() | ListOf(Scalar("F32")):
            return lambda values: [None if value is None else _singles(value) for value in values]
        case ListOf(item):
            one = _plain(item)
            if one is None:
                return lambda values: values
            return lambda values: [None if value is None else [one(entry) for entry in value] for value in values]
        case _:
            plain = _plain(kind)
            if plain is None:
                return lambda values: values
            return lambda values: [None if value is None else plain(value) for value in values]


def _plain(kind: PropertyType) -> Callable[[Any], Any] | None:
    match kind:
        case Scalar("Date"):
            return dt.date.isoformat
        case Scalar("DateTime"):
            return print_datetime
        case Scalar("Blob"):
            return lambda value: BLOB_PREFIX + base64.b64encode(value).decode()
        case _:
            return None


def _singles(values: list[Any]) -> list[Any]:
    """F32s as the shortest numbers that read back as the same F32: numpy prints them so."""
    import numpy as np

    given = [value for value in values if value is not None]
    short = iter(np.array(given, np.float32).astype(str).astype(np.float64).tolist())
    return [None if value is None else next(short) for value in values]


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
