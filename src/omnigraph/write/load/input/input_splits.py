"""The files of a load split into parts that can be parsed independently, on any machine."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from omnigraph.threads import gather
from omnigraph.write.load.input.chunks import open_parquet
from omnigraph.write.load.input.sources import FileKind, SourceFile

SPLIT_BYTES = 32 * 1024 * 1024
SPLIT_BYTES_MAX = 256 * 1024 * 1024
SPLITS_WANTED_MAX = 4000  # more input means larger splits, which bounds the number of fragments that the driver lists


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a file.

    A byte range owns the lines that begin in it, and may read on to the end of the last one. Its lines are counted
    from 1 within the split: the line number in the file is that plus the lines of the splits before it, which have
    smaller numbers. Rows of Parquet are counted through the file, after `first_row`.
    """

    number: int  # among all splits of a load, from 0, in the order of the files
    file: int  # the index of the file among those of the load
    kind: FileKind
    path: str  # an absolute path or a URI
    shown: str  # the name of the file in messages
    offset: int = 0
    length: int = 0  # bytes; of a gzipped file or a Parquet file the whole of it, or the row groups' share
    row_groups: tuple[int, ...] = ()
    type_name: str | None = None
    first_row: int = 0  # Parquet: the number of rows before this split in its file
    file_size: int = 0  # bytes of the whole file

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Split":
        return cls(**{**document, "row_groups": tuple(document["row_groups"])})


def split_size(files: Sequence[SourceFile]) -> int:
    """The size of splits for an input."""
    total = sum(file.size for file in files)
    return max(SPLIT_BYTES, min(SPLIT_BYTES_MAX, -(-total // SPLITS_WANTED_MAX)))


def plan_splits(
    files: Sequence[SourceFile],
    split_bytes: int = SPLIT_BYTES,
    storage_options: Mapping[str, str] | None = None,
) -> list[Split]:
    """Splits of about that many bytes: byte ranges of NDJSON, whole files of gzip and CSV, row groups of Parquet.

    A CSV file is one split because a quoted field may contain newlines: from the middle of a file it is unknown
    whether a newline ends a record.
    """
    wholes = [
        Split(0, index, file.kind, file.path, file.shown, 0, file.size, (), file.type_name, 0, file.size)
        for index, file in enumerate(files)
    ]
    tables = [whole for whole in wholes if whole.kind == "parquet"]
    groups = iter(gather([partial(_row_groups, whole, split_bytes, storage_options) for whole in tables]))
    found: list[Split] = []
    for whole, file in zip(wholes, files, strict=True):
        match file.kind:
            case "ndjson":
                parts = [
                    replace(whole, offset=start, length=min(split_bytes, file.size - start))
                    for start in range(0, file.size, split_bytes)
                ]
            case "parquet":
                parts = next(groups)
            case _:
                parts = [whole]
        found += parts or [whole]
    return [replace(split, number=number) for number, split in enumerate(found)]


def _row_groups(whole: Split, split_bytes: int, options: Mapping[str, str] | None) -> list[Split]:
    """Splits of adjacent row groups, by their size on disk; decoded they are larger."""
    with open_parquet(whole.path, whole.shown, whole.file_size, options) as file:
        metadata = file.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [sum(group.column(n).total_compressed_size for n in range(group.num_columns)) for group in groups]
    parts: list[Split] = []
    numbers: list[int] = []
    size = before = rows = 0
    for number, group in enumerate(groups):
        if numbers and size + sizes[number] > split_bytes:
            parts.append(replace(whole, length=size, row_groups=tuple(numbers), first_row=before))
            numbers, size, before = [], 0, rows
        numbers.append(number)
        size, rows = size + sizes[number], rows + group.num_rows
    if numbers:
        parts.append(replace(whole, length=size, row_groups=tuple(numbers), first_row=before))
    return parts
