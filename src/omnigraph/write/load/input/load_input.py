"""What a load reads: lines of NDJSON files, entity dicts, or rows of tables and files of one type; each with its place.

Nothing here knows a schema but for files whose rows don't say their type. A line that is no entity by its form comes
with the reason; whether its type and properties exist is for `incoming.py` to say.
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
    Stretch,
    Unreadable,
    gzip_stretches,
    open_parquet,
    owned_stretches,
)
from omnigraph.write.load.input.csv_records import csv_entities
from omnigraph.write.load.input.sources import TYPED_KINDS, SourceFile, check_type, find_files, is_files, typed
from omnigraph.write.load.input.strict_json import parse_json
from omnigraph.write.load.input.table_rows import check_columns, check_types, end_columns, table_entities

ROWS_MAX = 100_000
BYTES_MAX = 64 * 1024 * 1024
_NODE_FIELDS = frozenset({"type", "data"})
_EDGE_FIELDS = frozenset({"edge", "from", "to", "data"})
_ENDS = {"src": "from", "dst": "to", "from": "from", "to": "to"}

Source: TypeAlias = (
    "str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Iterable[Mapping[str, Any]] | Mapping[str, Any]"
)


class TooLargeForProcess(BadRequest):
    """More than one process should load. The bulk engine takes it, or `engine="local"` insists."""


class Place(NamedTuple):
    """Where an entity stands: a file's line, an iterable's entity, a table's row."""

    source: str
    unit: str
    number: int

    def __str__(self) -> str:
        return f"{self.source} {self.unit} {self.number}".strip()


class Entity(NamedTuple):
    """A node or an edge as it is written."""

    place: Place
    type_name: str
    is_edge: bool
    source: str
    target: str
    data: dict[str, Any]


@dataclass
class Input:
    """All of one load as it was read: lines stay text until they are asked for, which takes a fifth of the memory."""

    raw: list[tuple[Place, Any]] = field(default_factory=list)
    tables: tuple[str, ...] = ()  # types that tables were given for, with rows or without
    files: tuple[SourceFile, ...] = ()

    def entities(self) -> "Iterator[tuple[Place, Entity | str]]":
        """Each entity, or why it can't be read as one."""
        for place, raw in self.raw:
            try:
                yield place, entity_of(place, raw)
            except ValueError as error:
                yield place, str(error)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process loads."""

    rows: int = ROWS_MAX
    bytes: int = BYTES_MAX

    def check(self, rows: int, size: int) -> None:
        if rows > self.rows or size > self.bytes:
            raise TooLargeForProcess(
                f"The input has more than {self.rows:,} rows or {self.bytes // 2**20} MiB, which is for the bulk "
                'engine: load it with engine="spark", or insist on this process with engine="local".'
            )


UNLIMITED = Limits(2**62, 2**62)


def read_input(
    source: Source,
    limits: Limits | None = None,
    *,
    catalog: Callable[[], Catalog] | None = None,
    type_name: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Input:
    """Read everything, up to the limits. The catalog is asked for only if there are files that need a type."""
    limits = limits or Limits()
    if is_files(source):
        found, entities = _files(source, limits, catalog, type_name, storage_options)
    elif type_name is not None:
        raise BadRequest("A type is for files of rows, CSV or Parquet: entities and tables say theirs.")
    else:
        found = Input(tables=tuple(source) if isinstance(source, Mapping) else ())
        entities = _given_entities(source, limits, catalog)
    size = 0
    for place, raw, length in entities:
        size += length
        found.raw.append((place, raw))
        limits.check(len(found.raw), size)
    return found


_Raw: TypeAlias = tuple[Place, Any, int]


def _given_entities(source: Any, limits: Limits, catalog: Callable[[], Catalog] | None) -> Iterator[_Raw]:
    if isinstance(source, Mapping):
        return chain.from_iterable(_table_rows(name, table, limits, catalog) for name, table in source.items())
    if not isinstance(source, Iterable):
        raise BadRequest(f"{type(source).__name__} can't be loaded: give a file, entities or tables.")
    return ((Place("", "entity", number), entity, 0) for number, entity in enumerate(source, 1))


def _files(
    source: Any,
    limits: Limits,
    catalog: Callable[[], Catalog] | None,
    type_name: str | None,
    options: Mapping[str, str] | None,
) -> tuple[Input, Iterator[_Raw]]:
    found = find_files(source, options)
    limits.check(0, sum(file.size for file in found if not file.kind.endswith(".gz")))
    types: Catalog | None = None
    if type_name is not None or any(file.kind in TYPED_KINDS for file in found):
        if catalog is None:
            raise BadRequest(f"{found[0].shown} has rows of one type, and no schema is known: load it into a graph.")
        types = catalog()
        check_type(types, type_name)
        found = [typed(file, types, type_name) for file in found]
    names = dict.fromkeys(file.type_name for file in found if file.type_name is not None)
    rows = chain.from_iterable(_file_rows(file, types, limits, options) for file in found)
    return Input(tables=tuple(names), files=tuple(found)), rows


def _file_rows(
    file: SourceFile, catalog: Catalog | None, limits: Limits, options: Mapping[str, str] | None
) -> Iterator[_Raw]:
    where = (file.path, file.shown, file.size)
    if file.kind == "ndjson":
        return _lines(owned_stretches(*where, 0, file.size, options), file.shown)
    if file.kind == "ndjson.gz":
        return _lines(gzip_stretches(*where, options), file.shown)
    assert catalog is not None, "no file of this kind is without a type"
    assert file.type_name is not None, "no file of this kind is without a type"
    definition = catalog.by_name[file.type_name]
    if file.kind == "parquet":
        return _parquet_rows(file, definition, limits, options)
    chunks = FileChunks(*where, options)
    records = csv_entities(chunks.unpacked() if file.kind == "csv.gz" else chunks.plain(), file.shown, definition)
    return ((Place(file.shown, "line", number), raw, length) for number, raw, length in records)


def _lines(stretches: Iterator[Stretch], shown: str) -> Iterator[_Raw]:
    number = 0
    for stretch in stretches:
        if stretch.too_long:
            number += 1
            yield Place(shown, "line", number), Unreadable(stretch.data, LINE_TOO_LONG), len(stretch.data)
            continue
        for line in io.BytesIO(stretch.data):
            number += 1
            if len(line) > LINE_BYTES_MAX:
                yield Place(shown, "line", number), Unreadable(line[:SHOWN_BYTES], LINE_TOO_LONG), len(line)
            elif not line.isspace() and line:
                yield Place(shown, "line", number), line, len(line)


def _parquet_rows(
    file: SourceFile, definition: TypeDef, limits: Limits, options: Mapping[str, str] | None
) -> Iterator[_Raw]:
    with open_parquet(file.path, file.shown, file.size, options) as parquet:
        limits.check(parquet.metadata.num_rows, 0)
        check_columns(file.shown, definition, parquet.schema_arrow.names)
        check_types(file.shown, definition, parquet.schema_arrow)
        rows = parquet.read()
    entities = table_entities(rows, definition.name, end_columns(definition), is_edge=definition.kind == "edge")
    for number, entity in enumerate(entities, 1):
        yield Place(file.shown, "row", number), entity, 0


def _table_rows(name: str, table: Any, limits: Limits, catalog: Callable[[], Catalog] | None) -> Iterator[_Raw]:
    """The rows of an Arrow table or a pandas frame; which columns are ends, the type says if there may be any."""
    rows = arrow_table(name, table)
    limits.check(rows.num_rows, rows.nbytes)
    ends, is_edge = _ENDS, bool(_ENDS.keys() & set(rows.column_names))
    definition = catalog().by_name.get(name) if is_edge and catalog is not None else None
    if definition is not None:
        ends, is_edge = end_columns(definition), definition.kind == "edge"
    for number, entity in enumerate(table_entities(rows, name, ends, is_edge=is_edge), 1):
        yield Place(name, "row", number), entity, 0


def arrow_table(name: str, table: Any) -> Any:
    import pyarrow as pa

    if type(table).__module__.startswith("pyspark"):
        raise TooLargeForProcess(f'{name} is a Spark DataFrame, which is for the bulk engine: use engine="spark".')
    if isinstance(table, pa.RecordBatch):
        table = pa.table(table)
    elif not isinstance(table, pa.Table):
        if type(table).__module__.partition(".")[0] != "pandas":
            raise BadRequest(f"{name} is a {type(table).__name__}: give an Arrow table or a pandas DataFrame.")
        table = _whole_numbers(pa.Table.from_pandas(table, preserve_index=False))
    return table


def _whole_numbers(table: Any) -> Any:
    """Pandas makes floats of integers as soon as one is missing; here they are integers again."""
    import pyarrow as pa

    for index, column in enumerate(table.schema):
        if pa.types.is_floating(column.type) and table.column(index).null_count:
            try:
                table = table.set_column(index, column.name, table.column(index).cast(pa.int64()))
            except pa.ArrowInvalid:
                continue  # they were floats
    return table


def entity_of(place: Place, raw: Any) -> Entity:
    """The entity; ValueError with the reason where it is none."""
    if isinstance(raw, Unreadable):
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
                f"the line is no JSON ({why} at character {error.pos + 1}): write one entity a line"
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
        raise ValueError("the type's name is no text")
    if not isinstance(data, Mapping):
        raise ValueError('"data" is no object: write {"property": value, …}')
    source, target = (_end(raw, "from"), _end(raw, "to")) if is_edge else ("", "")
    return Entity(place, name, is_edge, source, target, data if isinstance(data, dict) else dict(data))


def _end(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    if value is None:
        raise ValueError(f"the edge has no {name!r}: give the id of a node as text")
    if not isinstance(value, str):
        raise ValueError(f"the edge's {name!r} is no text: give the id of a node as text")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"the edge's {name!r} holds half a surrogate pair: give whole characters")
    return value
