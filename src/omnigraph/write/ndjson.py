"""What a load reads: lines of NDJSON files, entity dicts, or tables; each entity with the place it stands at.

Nothing here knows a schema. A line that is no entity by its form comes with the reason; whether its type and
properties exist is for `incoming.py` to say.
"""

import glob
import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from omnigraph.errors import BadRequest

ROWS_MAX = 100_000
BYTES_MAX = 64 * 1024 * 1024
SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_NODE_FIELDS = frozenset({"type", "data"})
_EDGE_FIELDS = frozenset({"edge", "from", "to", "data"})

Source: TypeAlias = (
    "str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Iterable[Mapping[str, Any]] | Mapping[str, Any]"
)

DIGITS_MAX = 100  # of a number; a longer one is not worth reading


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

    def entities(self) -> "Iterator[tuple[Place, Entity | str]]":
        """Each entity, or why it can't be read as one."""
        for place, raw in self.raw:
            try:
                yield place, _entity(place, raw)
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
                'engine, and this release has none yet: split the input, or insist with engine="local".'
            )


UNLIMITED = Limits(2**62, 2**62)


def read_input(source: Source, limits: Limits | None = None) -> Input:
    """Read everything, up to the limits."""
    limits = limits or Limits()
    found = Input(tables=tuple(source) if isinstance(source, Mapping) else ())
    size = 0
    for place, raw, length in _raw_entities(source, limits):
        size += length
        found.raw.append((place, raw))
        limits.check(len(found.raw), size)
    return found


def paths_of(source: Source) -> list[Path]:
    """The files of a source, in name order; none where it is not about files."""
    if isinstance(source, Mapping):
        return []
    if isinstance(source, str | os.PathLike):
        return _files(os.fspath(source))
    if isinstance(source, list | tuple) and source and all(isinstance(one, str | os.PathLike) for one in source):
        return [path for one in source for path in _files(os.fspath(one))]
    return []


def _files(text: str) -> list[Path]:
    text = text.removeprefix("file://")
    if "://" in text:
        raise BadRequest(f"{text} can't be loaded from its store yet: copy it to a local file and load that.")
    path = Path(text)
    if path.is_dir():
        found = [entry for entry in sorted(path.rglob("*")) if entry.is_file() and entry.name.endswith(SUFFIXES)]
        if not found:
            raise BadRequest(f"{text} holds no {SUFFIXES[0]} or {SUFFIXES[2]} file: nothing to load.")
        return found
    found = [path] if path.is_file() else [Path(name) for name in sorted(glob.glob(text, recursive=True))]
    if not found:
        raise BadRequest(f"{text} does not exist: check the path.")
    for one in found:
        if not one.name.endswith(SUFFIXES):
            raise BadRequest(f"{one} is of no kind that can be loaded: give {', '.join(SUFFIXES)}, or a directory.")
    return found


_Raw: TypeAlias = tuple[Place, Any, int]


def _raw_entities(source: Source, limits: Limits) -> Iterator[_Raw]:
    paths = paths_of(source)
    if paths:
        plain = [path for path in paths if path.suffix != ".gz"]
        limits.check(0, sum(path.stat().st_size for path in plain))
        alike = len({path.name for path in paths}) < len(paths)
        return chain.from_iterable(_lines(path, str(path) if alike else path.name) for path in paths)
    if isinstance(source, Mapping):
        return chain.from_iterable(_table_rows(name, table, limits) for name, table in source.items())
    if not isinstance(source, Iterable):
        raise BadRequest(f"{type(source).__name__} can't be loaded: give a file, entities or tables.")
    entities: Any = source
    return ((Place("", "entity", number), entity, 0) for number, entity in enumerate(entities, 1))


def _lines(path: Path, name: str) -> Iterator[_Raw]:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        try:
            for number, line in enumerate(file, 1):
                text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if not text.isspace() and text:
                    yield Place(name, "line", number), text, len(line)
        except (OSError, EOFError) as error:
            raise BadRequest(
                f"{path} can't be read to its end, {_why(error)}: nothing was written, give a whole file."
            ) from error


def _why(error: OSError | EOFError) -> str:
    if isinstance(error, gzip.BadGzipFile):
        return "it is not gzipped"
    return "it is cut off" if isinstance(error, EOFError) else error.strerror or str(error)


def _table_rows(name: str, table: Any, limits: Limits) -> Iterator[_Raw]:
    """The rows of an Arrow table or a pandas frame; a column that is not there says nothing about its property."""
    rows = _arrow_table(name, table)
    limits.check(rows.num_rows, rows.nbytes)
    edges = {"src": "from", "dst": "to", "from": "from", "to": "to"}
    is_edge = bool(edges.keys() & set(rows.column_names))
    number = 0
    for batch in rows.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            number += 1
            ends = {edges[column]: row.pop(column) for column in list(row) if column in edges} if is_edge else {}
            yield Place(name, "row", number), {"edge" if is_edge else "type": name, **ends, "data": row}, 0


def _arrow_table(name: str, table: Any) -> Any:
    import pyarrow as pa

    if type(table).__module__.startswith("pyspark"):
        raise TooLargeForProcess(f"{name} is a Spark DataFrame, and this release has no bulk engine yet: collect it.")
    if isinstance(table, pa.RecordBatch):
        table = pa.table(table)
    elif not isinstance(table, pa.Table):
        if type(table).__module__.partition(".")[0] != "pandas":
            raise BadRequest(f"{name} is a {type(table).__name__}: give an Arrow table or a pandas DataFrame.")
        table = _whole_numbers(pa.Table.from_pandas(table, preserve_index=False))
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # Python's times end at microseconds
            micros = pa.timestamp("us", column.type.tz)
            table = table.set_column(index, column.name, table.column(index).cast(micros, safe=False))
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


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are given once: of two values one would be lost without a word."""
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice: keep one of them")
    return made


def _number(digits: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise ValueError(f"the number {digits[:20]}… has {len(digits)} digits: no type holds so many")
    return int(digits)


_parsed = json.JSONDecoder(object_pairs_hook=_once, parse_int=_number).decode


def _entity(place: Place, raw: Any) -> Entity:
    """The entity; ValueError with the reason where it is none."""
    if isinstance(raw, bytes):
        try:
            raw = _parsed(raw.decode())
        except UnicodeDecodeError:
            raise ValueError("the line is not UTF-8: write it in that encoding") from None
        except RecursionError:
            raise ValueError("the line nests too deeply: an entity has no more than lists of values") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"the line is no JSON ({error}): write one entity a line") from None
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
