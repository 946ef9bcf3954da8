"""The input of a load: lines of NDJSON files, entity dicts, or rows of tables and files of one type, with their places.

The schema is needed only for files whose rows do not name their type. A malformed line is returned with the reason;
whether an entity's type and properties exist is checked in `load_rows.py`.
"""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from omnigraph.errors import BadRequest
from omnigraph.schema.catalog import Catalog, TypeDef
from omnigraph.write.load.input.chunks import (
    LINE_BYTES_MAX,
    LINE_TOO_LONG,
    SHOWN_BYTES,
    FileChunks,
    LineBlock,
    MalformedRecord,
    open_parquet,
    read_gzip_lines,
    read_line_range,
)
from omnigraph.write.load.input.csv_records import read_csv_entities
from omnigraph.write.load.input.sources import (
    TYPED_KINDS,
    SourceFile,
    assign_type,
    check_type,
    file_versions,
    find_files,
    is_files,
)
from omnigraph.write.load.input.strict_json import parse_json
from omnigraph.write.load.input.table_rows import check_columns, check_types, edge_end_columns, read_table_entities

ROWS_MAX = 100_000
BYTES_MAX = 64 * 1024 * 1024
_NODE_FIELDS = frozenset({"type", "data"})
_EDGE_FIELDS = frozenset({"edge", "from", "to", "data"})
_ENDS = {"src": "from", "dst": "to", "from": "from", "to": "to"}

Source: TypeAlias = (
    "str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Iterable[Mapping[str, Any]] | Mapping[str, Any]"
)


class TooLargeForProcess(BadRequest):
    """The input is too large for a load in one process: use the bulk engine, or force it with `engine="local"`."""


class InputPlace(NamedTuple):
    """The place of an entity in the input: a file's line, an iterable's entity, a table's row."""

    source: str
    unit: str
    number: int

    def __str__(self) -> str:
        return f"{self.source} {self.unit} {self.number}".strip()


class InputEntity(NamedTuple):
    """A node or an edge as the input has it."""

    place: InputPlace
    type_name: str
    is_edge: bool
    source: str
    target: str
    data: dict[str, Any]


@dataclass
class LoadInput:
    """The whole input of a load. Lines stay text until `entities` parses them, which takes a fifth of the memory."""

    raw: list[tuple[InputPlace, Any]] = field(default_factory=list)
    tables: tuple[str, ...] = ()  # types of the tables given, with or without rows
    files: tuple[SourceFile, ...] = ()

    def content(self, options: Mapping[str, str] | None) -> object:
        """What tells this input from others: the versions of its files, or its entities."""
        if self.files:
            return file_versions(self.files, options)
        return self.tables, [raw for _, raw in self.raw]

    def entities(self) -> "Iterator[tuple[InputPlace, InputEntity | str]]":
        """Each entity, or the reason why the record is malformed."""
        for place, raw in self.raw:
            try:
                yield place, parse_entity(place, raw)
            except ValueError as error:
                yield place, str(error)


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """How much a load in one process takes."""

    rows: int = ROWS_MAX
    bytes: int = BYTES_MAX

    def check(self, rows: int, size: int) -> None:
        if rows > self.rows or size > self.bytes:
            raise TooLargeForProcess(
                f"The input has more than {self.rows:,} rows or {self.bytes // 2**20} MiB, which is for the bulk "
                'engine: load it with engine="spark", or force this process with engine="local".'
            )


UNLIMITED = LoadLimits(2**62, 2**62)


def read_input(
    source: Source,
    limits: LoadLimits | None = None,
    *,
    catalog: Callable[[], Catalog] | None = None,
    type_name: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> LoadInput:
    """Read all records, up to the limits. `catalog` is called only if there are files that need a type."""
    limits = limits or LoadLimits()
    if is_files(source):
        found, entities = _read_files(source, limits, catalog, type_name, storage_options)
    elif type_name is not None:
        raise BadRequest("A type is for CSV and Parquet files: entities and tables name theirs.")
    else:
        found = LoadInput(tables=tuple(source) if isinstance(source, Mapping) else ())
        entities = _read_objects(source, limits, catalog)
    size = 0
    for place, raw, length in entities:
        size += length
        found.raw.append((place, raw))
        limits.check(len(found.raw), size)
    return found


_PlacedRecord: TypeAlias = tuple[InputPlace, Any, int]


def _read_objects(source: Any, limits: LoadLimits, catalog: Callable[[], Catalog] | None) -> Iterator[_PlacedRecord]:
    if isinstance(source, Mapping):
        return chain.from_iterable(_read_table(name, table, limits, catalog) for name, table in source.items())
    if not isinstance(source, Iterable):
        raise BadRequest(f"{type(source).__name__} can't be loaded: give a file, entities or tables.")
    return ((InputPlace("", "entity", number), entity, 0) for number, entity in enumerate(source, 1))


def _read_files(
    source: Any,
    limits: LoadLimits,
    catalog: Callable[[], Catalog] | None,
    type_name: str | None,
    options: Mapping[str, str] | None,
) -> tuple[LoadInput, Iterator[_PlacedRecord]]:
    found = find_files(source, options)
    limits.check(0, sum(file.size for file in found if not file.kind.endswith(".gz")))
    types: Catalog | None = None
    if type_name is not None or any(file.kind in TYPED_KINDS for file in found):
        if catalog is None:
            raise BadRequest(f"{found[0].shown} has rows of one type, and no schema is known: load it into a graph.")
        types = catalog()
        check_type(types, type_name)
        found = [assign_type(file, types, type_name) for file in found]
    names = dict.fromkeys(file.type_name for file in found if file.type_name is not None)
    rows = chain.from_iterable(_read_file(file, types, limits, options) for file in found)
    return LoadInput(tables=tuple(names), files=tuple(found)), rows


def _read_file(
    file: SourceFile, catalog: Catalog | None, limits: LoadLimits, options: Mapping[str, str] | None
) -> Iterator[_PlacedRecord]:
    where = (file.path, file.shown, file.size)
    if file.kind == "ndjson":
        return _read_lines(read_line_range(*where, 0, file.size, options), file.shown)
    if file.kind == "ndjson.gz":
        return _read_lines(read_gzip_lines(*where, options), file.shown)
    assert catalog is not None, "no file of this kind is without a type"
    assert file.type_name is not None, "no file of this kind is without a type"
    definition = catalog.by_name[file.type_name]
    if file.kind == "parquet":
        return _read_parquet(file, definition, limits, options)
    chunks = FileChunks(*where, options)
    records = read_csv_entities(
        chunks.read_decompressed() if file.kind == "csv.gz" else chunks.read(), file.shown, definition
    )
    return ((InputPlace(file.shown, "line", number), raw, length) for number, raw, length in records)


def _read_lines(blocks: Iterator[LineBlock], shown: str) -> Iterator[_PlacedRecord]:
    number = 0
    for block in blocks:
        if block.too_long:
            number += 1
            yield InputPlace(shown, "line", number), MalformedRecord(block.data, LINE_TOO_LONG), len(block.data)
            continue
        for line in io.BytesIO(block.data):
            number += 1
            if len(line) > LINE_BYTES_MAX:
                yield InputPlace(shown, "line", number), MalformedRecord(line[:SHOWN_BYTES], LINE_TOO_LONG), len(line)
            elif not line.isspace() and line:
                yield InputPlace(shown, "line", number), line, len(line)


def _read_parquet(
    file: SourceFile, definition: TypeDef, limits: LoadLimits, options: Mapping[str, str] | None
) -> Iterator[_PlacedRecord]:
    with open_parquet(file.path, file.shown, file.size, options) as parquet:
        limits.check(parquet.metadata.num_rows, 0)
        check_columns(file.shown, definition, parquet.schema_arrow.names)
        check_types(file.shown, definition, parquet.schema_arrow)
        rows = parquet.read()
    entities = read_table_entities(
        rows, definition.name, edge_end_columns(definition), is_edge=definition.kind == "edge"
    )
    for number, entity in enumerate(entities, 1):
        yield InputPlace(file.shown, "row", number), entity, 0


def _read_table(
    name: str, table: Any, limits: LoadLimits, catalog: Callable[[], Catalog] | None
) -> Iterator[_PlacedRecord]:
    """The rows of an Arrow table or a pandas DataFrame; the type decides which columns are ends of edges."""
    rows = to_arrow_table(name, table)
    limits.check(rows.num_rows, rows.nbytes)
    ends, is_edge = _ENDS, bool(_ENDS.keys() & set(rows.column_names))
    definition = catalog().by_name.get(name) if is_edge and catalog is not None else None
    if definition is not None:
        ends, is_edge = edge_end_columns(definition), definition.kind == "edge"
    for number, entity in enumerate(read_table_entities(rows, name, ends, is_edge=is_edge), 1):
        yield InputPlace(name, "row", number), entity, 0


def to_arrow_table(name: str, table: Any) -> Any:
    import pyarrow as pa

    if type(table).__module__.startswith("pyspark"):
        raise TooLargeForProcess(f'{name} is a Spark DataFrame, which is for the bulk engine: use engine="spark".')
    if isinstance(table, pa.RecordBatch):
        table = pa.table(table)
    elif not isinstance(table, pa.Table):
        if type(table).__module__.partition(".")[0] != "pandas":
            raise BadRequest(f"{name} is a {type(table).__name__}: give an Arrow table or a pandas DataFrame.")
        table = _restore_integers(pa.Table.from_pandas(table, preserve_index=False))
    return table


def _restore_integers(table: Any) -> Any:
    """Turn floats back into integers: pandas stores integers as floats as soon as one is missing."""
    import pyarrow as pa

    for index, column in enumerate(table.schema):
        if pa.types.is_floating(column.type) and table.column(index).null_count:
            try:
                table = table.set_column(index, column.name, table.column(index).cast(pa.int64()))
            except pa.ArrowInvalid:
                continue  # real floats
    return table


def parse_entity(place: InputPlace, raw: Any) -> InputEntity:
    """Parse a record; ValueError with the reason if it is not an entity."""
    if isinstance(raw, MalformedRecord):
        raise ValueError(raw.reason)
    if isinstance(raw, bytes):
        try:
            raw = parse_json(raw.decode())
        except UnicodeDecodeError:
            raise ValueError("the line is not UTF-8: write it in that encoding") from None
        except RecursionError:
            raise ValueError("the line nests too deeply: an entity has no more than lists of values") from None
        except json.JSONDecodeError as error:
            why = error.msg[:1].lower() + error.msg[1:]
            raise ValueError(
                f"the line is not JSON ({why} at character {error.pos + 1}): write one entity a line"
            ) from None
    if not isinstance(raw, Mapping):
        raise ValueError('an entity is an object such as {"type": …, "data": {…}}')
    is_edge = "edge" in raw
    if not is_edge and "type" not in raw:
        raise ValueError('it has neither "type" nor "edge": a node names its type, an edge its edge type')
    allowed = _EDGE_FIELDS if is_edge else _NODE_FIELDS
    if not raw.keys() <= allowed:
        unknown = next(name for name in raw if name not in allowed)
        kind = "an edge" if is_edge else "a node"
        raise ValueError(f"unknown field {unknown!r}: {kind} has {', '.join(sorted(allowed))}")
    name, data = raw["edge" if is_edge else "type"], raw.get("data", {})
    if not isinstance(name, str):
        raise ValueError("the type's name is not text")
    if not isinstance(data, Mapping):
        raise ValueError('"data" is not an object: write {"property": value, …}')
    source, target = (_parse_end(raw, "from"), _parse_end(raw, "to")) if is_edge else ("", "")
    return InputEntity(place, name, is_edge, source, target, data if isinstance(data, dict) else dict(data))


def _parse_end(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    if value is None:
        raise ValueError(f"the edge has no {name!r}: give the id of a node as text")
    if not isinstance(value, str):
        raise ValueError(f"the edge's {name!r} is not text: give the id of a node as text")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"the edge's {name!r} holds half a surrogate pair: give whole characters")
    return value
