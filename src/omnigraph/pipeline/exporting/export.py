"""Export into a directory or below a URI: for each type a folder of parts, written in parallel by a `Runner`.

    people/_export.json                what was exported, put last: an export without it is not complete
    people/Person/part-00000.parquet   rows by id
    people/Knows/part-00000.parquet

`load` takes the directory as it is. A table of a few parts is cut by id, so that the parts are in order too; a larger
one by fragments, each part in the order of its own ids. A part appears whole or not at all, and is the same bytes
however often its task runs. `destination.py` replaces the destination when
all parts are written.
"""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, cast

from omnigraph.errors import BadRequest
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.compute import ComputeOptions, SparkProvider
from omnigraph.pipeline.exporting.destination import ExportDestination, destination_at
from omnigraph.pipeline.progress import ProgressRunner
from omnigraph.pipeline.source.scans import PinnedType, fragment_tasks, pin_type, read_columns, tables_at
from omnigraph.read.export.export import Exported, between, rows_by_id, select_types
from omnigraph.read.export.export import export as export_file
from omnigraph.read.export.export_formats import FORMATS, Format, write_rows
from omnigraph.schema.catalog import TypeDef
from omnigraph.storage.location import Location
from omnigraph.storage.objects.object_store import open_store
from omnigraph.storage.table.read.partitions import row_bytes
from omnigraph.storage.table.tables import Tables
from omnigraph.storage.util.runner import LocalRunner, Runner

if TYPE_CHECKING:
    import pyarrow as pa

SPARK_ROWS_MIN = 1_000_000  # fewer are exported here before a session has started
PART_BYTES = 64 * 1024 * 1024  # of rows in memory
PART_ROWS_MAX = 500_000
_ENDINGS: Mapping[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".gz": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
ORDERED_PARTS_MAX = 8  # a table of more parts is cut by fragments: each cut by id looks at all ids


@dataclass(frozen=True, slots=True)
class ExportPart:
    """One file to write: what of which table, where to."""

    pinned: PinnedType
    format: Format
    dest: Location
    key: str
    fragments: tuple[int, ...] | None = None  # None: all of them
    ids: tuple[str, str] | None = None  # first and last

    @property
    def definition(self) -> TypeDef:
        return self.pinned.definition


@dataclass(frozen=True, slots=True)
class WrittenPart:
    key: str
    rows: int
    bytes: int


def export(
    repository: Repository,
    snapshot: Snapshot,
    dest: "str | os.PathLike[str] | IO[bytes]",
    types: Sequence[str] | None = None,
    format: Format | None = None,
    *,
    compute: ComputeOptions | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Exported:
    """Write a snapshot, or some types of it, to a file, a directory or an object store.

    An open file, or a path without a `format` or with the ending of it, gets one file; everything else a directory.
    """
    compute = compute or ComputeOptions()
    if format is not None and format not in FORMATS:
        raise BadRequest(f"{format!r} is not a format: use {', '.join(FORMATS)}.")
    whole = file_format(dest, format)
    if whole is not None:
        if compute.engine == "spark":
            raise BadRequest("Spark writes directories of files: name a directory and a format, or use engine local.")
        return export_file(repository.tables, snapshot, dest, types, whole)
    return export_directory(
        repository,
        snapshot,
        os.fspath(cast(str, dest)),
        types,
        format or "jsonl",
        compute=compute,
        overwrite=overwrite,
        storage_options=storage_options,
    )


def file_format(dest: "str | os.PathLike[str] | IO[bytes]", format: Format | None) -> Format | None:
    """The format of a destination that is one file; None where it is a directory."""
    if not isinstance(dest, str | os.PathLike):
        return format or "jsonl"
    text = os.fspath(dest)
    ending = _ENDINGS.get(os.path.splitext(text)[1])
    if "://" in text:
        if ending is not None:
            raise BadRequest(f"{text} looks like a file: an export to a URI is a directory, name one.")
        return None
    if format is None:
        return ending or "jsonl"
    return format if ending == format and not os.path.isdir(text) else None


def export_directory(
    repository: Repository,
    snapshot: Snapshot,
    dest: str,
    types: Sequence[str] | None = None,
    format: Format = "jsonl",
    *,
    compute: ComputeOptions,
    overwrite: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Exported:
    """Write types of a snapshot below `dest`, complete or not at all; where it runs is decided by their rows."""
    chosen = select_types(snapshot, types)
    place = destination_at(dest, repository.location, storage_options)
    refs = [snapshot.table(definition.table_key) for definition in chosen]
    rows = sum(ref.rows for ref in refs if ref is not None)
    place.require_free(overwrite)
    large = compute.spark is not None or rows > SPARK_ROWS_MIN
    with SparkProvider(compute) as spark:
        on_spark = compute.engine == "spark" or (compute.engine == "auto" and large)
        runner = ProgressRunner(spark.session.runner if on_spark else LocalRunner(), compute.progress)
        return export_parts(repository, snapshot, place, chosen, format, runner)


def export_parts(
    repository: Repository,
    snapshot: Snapshot,
    place: ExportDestination,
    types: Sequence[TypeDef],
    format: Format,
    runner: Runner,
) -> Exported:
    """Write the parts with a runner, and the summary last."""
    with place.writing() as dest:
        parts = [part for definition in types for part in plan_parts(repository, snapshot, definition, format, dest)]
        place.expect([part.key for part in parts])
        written = runner.run(write_part, parts, stage="export")
        place.finish(_summary(snapshot, types, format, parts, written))
    return Exported(sum(part.rows for part in written), sum(part.bytes for part in written), len(written), runner.name)


def plan_parts(
    repository: Repository, snapshot: Snapshot, definition: TypeDef, format: Format, dest: Location
) -> list[ExportPart]:
    """How a type's rows are divided into files."""
    ref = snapshot.table(definition.table_key)
    if ref is None or not ref.rows:
        return []
    pinned = pin_type(repository, snapshot, definition.name)
    size = 1 if pinned.at is None else row_bytes(repository.tables, pinned.at)
    part_rows = max(1, min(PART_ROWS_MAX, PART_BYTES // size))

    def part(number: int, fragments: tuple[int, ...] | None, ids: tuple[str, str] | None) -> ExportPart:
        key = f"{definition.name}/part-{number:05}.{format}"
        return ExportPart(pinned, format, dest, key, fragments, ids)

    count = -(-ref.rows // part_rows)
    if count == 1:
        return [part(0, None, None)]
    if count <= ORDERED_PARTS_MAX:
        return [part(number, None, ids) for number, ids in enumerate(_id_ranges(pinned, part_rows))]
    return [part(number, fragments, None) for number, fragments in enumerate(fragment_tasks(pinned, part_rows))]


def _id_ranges(pinned: PinnedType, part_rows: int) -> list[tuple[str, str]]:
    ids = _read(pinned, _all_fragments(pinned), ["id"]).sort_by("id").column("id")
    starts = range(0, len(ids), part_rows)
    return [(ids[start].as_py(), ids[min(start + part_rows, len(ids)) - 1].as_py()) for start in starts]


def write_part(part: ExportPart) -> WrittenPart:
    """Read, sort and put one part. Runs on executors."""
    tables = tables_at(part.pinned.location)
    file = io.BytesIO()
    rows = write_rows(file, part.definition, part.format, [_rows(tables, part)])
    data = file.getvalue()
    open_store(part.dest).put(part.key, data)
    return WrittenPart(part.key, rows, len(data))


def _rows(tables: Tables, part: ExportPart) -> "pa.Table":
    from omnigraph.schema.arrow import arrow_schema

    pinned, wanted = part.pinned, None if part.ids is None else between(*part.ids)
    if part.fragments is None and pinned.at is not None and pinned.overlay.is_empty:
        return rows_by_id(tables, pinned.at, pinned.definition, wanted)
    fragments = _all_fragments(pinned) if part.fragments is None else part.fragments
    return _read(pinned, fragments, arrow_schema(pinned.definition).names, wanted).sort_by("id")


def _all_fragments(pinned: PinnedType) -> tuple[int, ...]:
    return tuple(number for group in fragment_tasks(pinned) for number in group)


def _read(
    pinned: PinnedType, fragments: Sequence[int], columns: Sequence[str], row_filter: str | None = None
) -> "pa.Table":
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    whole = arrow_schema(pinned.definition)
    shape = pa.schema([whole.field(name) for name in columns])
    return pa.Table.from_batches(read_columns(pinned, fragments, columns, row_filter), schema=shape)


def _summary(
    snapshot: Snapshot,
    types: Sequence[TypeDef],
    format: Format,
    parts: Sequence[ExportPart],
    written: Sequence[WrittenPart],
) -> dict[str, object]:
    """What `_export.json` says: of which commit, in which format, and every file."""
    by_type: dict[str, list[WrittenPart]] = {definition.name: [] for definition in types}
    for part, done in zip(parts, written, strict=True):
        by_type[part.definition.name].append(done)
    return {
        "export": 1,
        "format": format,
        "branch": snapshot.manifest.branch,
        "commit_id": snapshot.commit_id,
        "schema": snapshot.manifest.schema,
        "types": {
            definition.name: {
                "kind": definition.kind,
                "rows": sum(done.rows for done in by_type[definition.name]),
                "files": [{"name": d.key, "rows": d.rows, "bytes": d.bytes} for d in by_type[definition.name]],
            }
            for definition in types
        },
    }
