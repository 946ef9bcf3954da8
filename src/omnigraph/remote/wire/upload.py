"""What a load sends: one file as it is, several as a tar, entities as lines, tables as Parquet.

A server names places by the names it was sent; `Upload.place` says what the caller calls them.
"""

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from omnigraph.errors import BadRequest
from omnigraph.remote.transport import BodySource, SingleUseBody
from omnigraph.remote.wire.values import wire_value
from omnigraph.write.load.input.chunks import FileChunks
from omnigraph.write.load.input.sources import TYPED_KINDS, SourceFile, assign_type, check_type, find_files, is_files

if TYPE_CHECKING:
    from omnigraph.schema.catalog import Catalog

BODY_NAME = "body.jsonl"  # what a server calls lines that come without a name
CHUNK_BYTES = 256 * 1024
NDJSON, TAR = "application/x-ndjson", "application/x-tar"
_PLACE = re.compile(r"(?P<name>.+) (?P<unit>line|row) (?P<number>\d+)\Z")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ -]{0,199}\.(jsonl|ndjson|csv|parquet)\Z")
_ENDINGS = {"ndjson": ".jsonl", "ndjson.gz": ".jsonl", "csv": ".csv", "csv.gz": ".csv", "parquet": ".parquet"}


@dataclass(frozen=True, slots=True)
class SourceRange:
    """A part of what was sent under one name: from which line or row on it is the caller's, and which one of theirs."""

    first: int
    name: str
    unit: str | None = None  # None: as the server says
    first_here: int = 1


@dataclass(slots=True)
class Upload:
    """A body, its headers, and how places in it are called here."""

    body: BodySource
    headers: Mapping[str, str]
    names: Mapping[str, Sequence[SourceRange]]
    files: Sequence[Path] = ()  # local ones, beside the first of which a quarantine goes
    entities: bool = False  # lines are entities that the caller gave as objects

    def local_place(self, text: str) -> str:
        match = _PLACE.match(text)
        if match is None or match["name"] not in self.names:
            return text
        number = int(match["number"])
        own = [stretch for stretch in self.names[match["name"]] if stretch.first <= number][-1]
        return f"{own.name} {own.unit or match['unit']} {number - own.first + own.first_here}".strip()

    def local_message(self, text: str) -> str:
        """A sentence that names a file as a whole."""
        for name, stretches in self.names.items():
            if stretches[0].name and name != stretches[0].name:
                text = text.replace(name, stretches[0].name)
        return text


def prepare_upload(source: Any, type_name: str | None, catalog: "Callable[[], Catalog]", stack: ExitStack) -> Upload:
    """What to send for a source of `load`; files that have to be made first live as long as the stack."""
    if is_files(source):
        return _files(find_files(source), type_name, catalog, stack)
    if type_name is not None:
        raise BadRequest("A type is for CSV and Parquet files: entities and tables name theirs.")
    if isinstance(source, Mapping):
        return _tables(source, stack)
    if not isinstance(source, Iterable):
        raise BadRequest(f"{type(source).__name__} can't be loaded: give a file, entities or tables.")
    names = {BODY_NAME: [SourceRange(1, "", "entity")]}
    again = isinstance(source, Sequence | set | frozenset)
    body: BodySource = (lambda: _lines(source)) if again else SingleUseBody(_lines(source))
    return Upload(body, {"Content-Type": NDJSON}, names, entities=True)


# Entities


def _lines(entities: Iterable[Any]) -> Iterator[bytes]:
    """A line for each, in pieces of a fair size: the next ones are asked for when these are on their way."""
    held: list[bytes] = []
    size = 0
    for entity in entities:
        line = json.dumps(wire_value(entity), ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        held.append(line)
        size += len(line)
        if size >= CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


# Files


def _files(
    found: list[SourceFile], type_name: str | None, catalog: "Callable[[], Catalog]", stack: ExitStack
) -> Upload:
    local = [Path(file.path) for file in found if "://" not in file.path]
    if type_name is not None or any(file.kind in TYPED_KINDS for file in found):
        types = catalog()
        check_type(types, type_name)
        found = [assign_type(file, types, type_name) for file in found]
    if len(found) == 1 and found[0].type_name is None:
        return _one_file(found[0], local)
    members = _TarMembers(stack)
    for file in found:
        members.add(file)
    return Upload(members.body, {"Content-Type": TAR}, members.names, local)


def _one_file(file: SourceFile, local: Sequence[Path]) -> Upload:
    """As it is, packed or not."""
    packed = {"Content-Encoding": "gzip"} if file.kind.endswith(".gz") else {}
    names = {BODY_NAME: [SourceRange(1, file.shown)]}
    return Upload(lambda: _read_bytes(file), {"Content-Type": NDJSON, **packed}, names, local)


def _read_bytes(file: SourceFile, *, unpacked: bool = False) -> Iterator[bytes]:
    chunks = FileChunks(file.path, file.shown, file.size, None)
    return chunks.read_decompressed() if unpacked else chunks.read()


def _tables(source: Mapping[str, Any], stack: ExitStack) -> Upload:
    """Each as a Parquet file named after its type: so a table without rows is one too."""
    import pyarrow.parquet as pq

    from omnigraph.write.load.input.load_input import to_arrow_table

    if not source:
        return Upload(lambda: iter([b""]), {"Content-Type": NDJSON}, {})
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="omnigraph-")))
    members = _TarMembers(stack)
    for name, given in source.items():
        if not isinstance(name, str) or not _NAME.match(f"{name}.parquet"):
            raise BadRequest(f"{name!r} is no name of a type: give a dict of type names and tables.")
        if type(given).__module__.startswith("pyspark"):
            raise BadRequest(
                f"{name} is a Spark DataFrame, which a server can't read: write it to files and load those."
            )
        path = folder / f"{name}.parquet"
        pq.write_table(to_arrow_table(name, given), path)
        members._put(path.name, path, [SourceRange(1, name)])
    return Upload(members.body, {"Content-Type": TAR}, members.names)


@dataclass
class _TarMembers:
    """The files of a tar: each under a name that says its type, several of one type put together."""

    stack: ExitStack
    parts: dict[str, Path | SourceFile] = field(default_factory=dict)
    names: dict[str, list[SourceRange]] = field(default_factory=dict)
    folder: Path | None = None

    def _put(self, name: str, part: Path | SourceFile, stretches: list[SourceRange]) -> None:
        self.parts[name] = part
        self.names[name] = stretches

    def add(self, file: SourceFile) -> None:
        ending = _ENDINGS[file.kind]
        name = self._free_name(file, ending)
        if name in self.parts:
            self._append(name, file, ending)
            return
        part: Path | SourceFile = file
        if file.kind.endswith(".gz") or "://" in file.path:  # a tar says the size of a file before the file
            part = self._spool(name)
            with part.open("wb") as spool:
                spool.writelines(_read_bytes(file, unpacked=file.kind.endswith(".gz")))
        self._put(name, part, [SourceRange(1, file.shown)])

    def _free_name(self, file: SourceFile, ending: str) -> str:
        if file.type_name is not None:
            return f"{file.type_name}{ending}"
        name = Path(file.path).name.removesuffix(".gz")
        if _NAME.match(name) and name not in self.parts:
            return name
        return f"{len(self.parts)}-lines{ending}"

    def _spool(self, name: str) -> Path:
        if self.folder is None:
            self.folder = Path(self.stack.enter_context(TemporaryDirectory(prefix="omnigraph-")))
        return self.folder / name

    def _append(self, name: str, file: SourceFile, ending: str) -> None:
        """A further file of a type: rows are counted on, so that each is still found in its own file."""
        before, path = self.parts[name], self._spool(f"{len(self.names[name])}-{name}")
        if ending == ".parquet":
            first = _join_parquet(before, file, path)
            begins = 1
        else:
            first = _join_csv(before, file, path)
            begins = 2  # the head was left out
        self._put(name, path, [*self.names[name], SourceRange(first, file.shown, None, begins)])

    def body(self) -> Iterator[bytes]:
        for name, part in self.parts.items():
            size = part.stat().st_size if isinstance(part, Path) else part.size
            info = tarfile.TarInfo(name)
            info.size = size
            yield info.tobuf(tarfile.PAX_FORMAT)
            yield from _plain_bytes(part)
            yield b"\0" * (-size % tarfile.BLOCKSIZE)
        yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _plain_bytes(part: Path | SourceFile) -> Iterator[bytes]:
    if isinstance(part, SourceFile):
        yield from _read_bytes(part)
        return
    with part.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield data


def _join_parquet(before: Path | SourceFile, file: SourceFile, path: Path) -> int:
    """Both files as one; answers the number of the first row of the second."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.read_table(io.BytesIO(b"".join(_plain_bytes(part)))) for part in (before, file)]
    try:
        pq.write_table(pa.concat_tables(tables, promote_options="default"), path)
    except pa.ArrowInvalid as error:
        raise BadRequest(f"{file.shown} has other columns than the files before it: load it by itself.") from error
    return tables[0].num_rows + 1


def _join_csv(before: Path | SourceFile, file: SourceFile, path: Path) -> int:
    """The lines of both under one head; answers the number of the first line of the second."""
    lines, last = 0, b"\n"
    with path.open("wb") as joined:
        for data in _plain_bytes(before):
            lines += data.count(b"\n")
            joined.write(data)
            last = data[-1:]
        if last != b"\n":
            joined.write(b"\n")
            lines += 1
        rest = _read_bytes(file, unpacked=file.kind.endswith(".gz"))
        head = b""
        while b"\n" not in head and (data := next(rest, b"")):
            head += data
        head, _, data = head.partition(b"\n")
        own = next(_plain_bytes(before), b"").partition(b"\n")[0]
        if own.rstrip(b"\r") != head.rstrip(b"\r"):
            raise BadRequest(f"{file.shown} has other columns than the files before it: load it by itself.")
        joined.write(data)
        joined.writelines(rest)
    return lines + 1
