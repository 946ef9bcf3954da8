"""The files of a load: paths, globs, directories and URIs as files of a known kind."""

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import unquote

from omnigraph.errors import BadRequest
from omnigraph.schema.catalog import Catalog
from omnigraph.schema.regex import matches_whole
from omnigraph.storage.objects import input_files as files
from omnigraph.threads import gather

FileKind: TypeAlias = Literal["ndjson", "ndjson.gz", "csv", "csv.gz", "parquet"]
FilePath: TypeAlias = str | os.PathLike[str]

KINDS: Mapping[str, FileKind] = {
    ".jsonl": "ndjson",
    ".ndjson": "ndjson",
    ".jsonl.gz": "ndjson.gz",
    ".ndjson.gz": "ndjson.gz",
    ".csv": "csv",
    ".csv.gz": "csv.gz",
    ".parquet": "parquet",
}
SUFFIXES = tuple(KINDS)
TYPED_KINDS: frozenset[FileKind] = frozenset({"csv", "csv.gz", "parquet"})  # whose rows do not name their type
GLOB_LENGTH_MAX = 2_000
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to load."""

    path: str  # an absolute path or a URI
    shown: str  # its name in messages and quarantines
    kind: FileKind
    size: int
    type_name: str | None = None  # None: every line names its type


def resolve_files(
    source: FilePath | Iterable[FilePath],
    catalog: Catalog,
    type_name: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> list[SourceFile]:
    """The files of a source, those of a directory by name; BadRequest if there are none, or one is of an unknown kind.

    A type is needed for CSV and Parquet: `type_name`, or the name of the file or of a folder above it (`Person.csv`,
    `Person/part-0.parquet`, `type=Person/part-0.parquet`). `storage_options` are the graph's: they are used for files
    in a store of the same kind; other stores take their options from the environment.
    """
    check_type(catalog, type_name)
    return [assign_type(file, catalog, type_name) for file in find_files(source, storage_options)]


def find_files(
    source: FilePath | Iterable[FilePath], storage_options: Mapping[str, str] | None = None
) -> list[SourceFile]:
    """The files of a source, without types."""
    places = [source] if isinstance(source, str | os.PathLike) else list(source)
    found = [file for place in places for file in _expand(os.fspath(place), storage_options)]
    names = Counter(file.shown for file in found)
    return [replace(file, shown=file.path) if names[file.shown] > 1 else file for file in found]


def is_files(source: object) -> bool:
    """Whether a source is a path or URI, or a list of them."""
    if isinstance(source, str | os.PathLike):
        return True
    return (
        isinstance(source, list | tuple) and bool(source) and all(isinstance(one, str | os.PathLike) for one in source)
    )


def check_type(catalog: Catalog, type_name: str | None) -> None:
    if type_name is not None and type_name not in catalog.by_name:
        raise BadRequest(f"The schema has no type {type_name!r}: its types are {', '.join(sorted(catalog.by_name))}.")


def assign_type(file: SourceFile, catalog: Catalog, type_name: str | None = None) -> SourceFile:
    """The file with its type, if its rows do not name one."""
    if file.kind not in TYPED_KINDS:
        if type_name is not None:
            raise BadRequest(f"every line of {file.shown} names its type: load it without --type (type=…).")
        return file
    name = type_name or _type_by_name(file.path, catalog)
    if name is None:
        raise BadRequest(
            f"The type of the rows of {file.shown} is unknown: give it (--type, type=…), or name the file or its "
            "folder after it."
        )
    return replace(file, type_name=name)


def _type_by_name(path: str, catalog: Catalog) -> str | None:
    """The type with the name of the file, or else of the nearest folder above it."""
    *folders, name = path.split("/")
    stem = name.removesuffix(_suffix(name) or "")
    for part in (stem, *(folder.removeprefix("type=") for folder in reversed(folders))):
        if part in catalog.by_name:
            return part
    return None


def _suffix(name: str) -> str | None:
    return max((suffix for suffix in SUFFIXES if name.endswith(suffix)), key=len, default=None)


def _expand(place: str, options: Mapping[str, str] | None) -> list[SourceFile]:
    if not place.strip():
        raise BadRequest("An input to load is empty: give a path, a glob or a URI.")
    if files.is_remote(place):
        return _list_remote(place, options)
    path = (
        place if not place.startswith("file://") else unquote(place.removeprefix("file://").removeprefix("localhost"))
    )
    return _list_local(place, os.path.expanduser(path))


def _source_file(path: str, size: int, given: str | None = None) -> SourceFile:
    name = path.rsplit("/", 1)[-1]
    suffix = _suffix(name)
    if suffix is None:
        kinds = ", ".join(SUFFIXES)
        raise BadRequest(f"{given or path} is not of a kind that can be loaded: give {kinds}, or a directory.")
    return SourceFile(path, name, KINDS[suffix], size)


def _is_input_file(relative: str) -> bool:
    """Whether to load a file of a directory: it has a known suffix and is not metadata (`_SUCCESS`, `.part.crc`)."""
    parts = relative.split("/")
    return _suffix(parts[-1]) is not None and not any(part.startswith((".", "_")) for part in parts)


def _no_files_error(place: str) -> BadRequest:
    return BadRequest(f"{place} has no {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file: nothing to load.")


# Local disks


def _list_local(place: str, text: str) -> list[SourceFile]:
    path = Path(os.path.abspath(text))
    try:
        if path.is_dir():
            return _list_directory(place, path)
        found = (
            [path] if path.is_file() else [Path(os.path.abspath(n)) for n in sorted(glob.glob(text, recursive=True))]
        )
        if not found:
            what = "matches no file: check the pattern" if _GLOB.search(text) else "does not exist: check the path"
            raise BadRequest(f"{place} {what}.")
        sized = [(one, one.stat().st_size) for one in found if not one.is_dir()]
        if not sized:
            raise BadRequest(f"{place} matches directories only: end it with /*, or name one of them.")
        return [_source_file(str(one), size, place if one == path else None) for one, size in sized]
    except OSError as error:
        of = f"{error.filename}, which {place} matches," if _GLOB.search(text) and error.filename else place
        raise BadRequest(f"{of} can't be read ({error.strerror}): check the path and its permissions.") from error


def _list_directory(place: str, folder: Path) -> list[SourceFile]:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    found = [folder / name for name in names if _is_input_file(name)]
    if not found:
        raise _no_files_error(place)
    return [_source_file(str(path), path.stat().st_size) for path in found]


def file_versions(sources: Sequence[SourceFile], options: Mapping[str, str] | None) -> list[tuple[str, int, str]]:
    """The name, size and content version of each file, wherever it lies."""
    tags = gather([partial(files.content_version, one.path, one.size, options) for one in sources])
    return sorted((one.path.rsplit("/", 1)[-1], one.size, tag) for one, tag in zip(sources, tags, strict=True))


# Object stores


def _list_remote(uri: str, options: Mapping[str, str] | None) -> list[SourceFile]:
    import pyarrow as pa

    root, key = files.bucket_and_key(uri)
    magic = _GLOB.search(key)
    if magic is None:
        whole = None if key.endswith("/") or not key else files.find_file(uri, options)
        if whole is not None:
            return [_source_file(uri, whole.size)]
        prefix = f"{key.rstrip('/')}/" if key else ""
        listed = list(files.list_files(uri, options))
        found = [(one.key, one.size) for one in listed if _is_input_file(one.key.removeprefix(prefix))]
        if not listed:
            raise BadRequest(f"{uri} does not exist: check the URI.")
        if not found:
            raise _no_files_error(uri)
    else:
        folder = key[: magic.start()].rpartition("/")[0]
        if len(key) > GLOB_LENGTH_MAX:
            raise BadRequest(f"{uri[:80]}… has more than {GLOB_LENGTH_MAX:,} characters: shorten it.")
        every = list(files.list_files(f"{root}/{folder}", options))
        wanted = matches_whole(pa.array([one.key for one in every], pa.string()), _glob_to_regex(key)).to_pylist()
        found = [(one.key, one.size) for one, is_wanted in zip(every, wanted, strict=True) if is_wanted]
        if not found:
            raise BadRequest(f"{uri} matches no object: check the pattern.")
    return [_source_file(f"{root}/{key}", size) for key, size in sorted(found)]


def _glob_to_regex(text: str) -> str:
    """A glob as a regular expression: `*` and `?` match within a folder, `**` across folders."""
    return "".join(_translate_glob(text))


def _translate_glob(text: str) -> Iterator[str]:
    for piece in re.findall(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", text, re.DOTALL):
        match piece:
            case "**/":
                yield "(?:.*/)?"
            case "**":
                yield ".*"
            case "*":
                yield "[^/]*"
            case "?":
                yield "[^/]"
            case _ if len(piece) > 1:
                yield f"[^{re.escape(piece[2:-1])}]" if piece[1] == "!" else f"[{_escape_class(piece[1:-1])}]"
            case _:
                yield re.escape(piece)


def _escape_class(text: str) -> str:
    return re.escape(text).replace(r"\-", "-")
