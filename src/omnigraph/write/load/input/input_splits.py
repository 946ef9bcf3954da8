"""The files of a load cut into parts that can be parsed by themselves, on any machine."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from omnigraph.storage.util.parallel import gather
from omnigraph.write.load.input.chunks import open_parquet
from omnigraph.write.load.input.sources import FileKind, SourceFile

SPLIT_BYTES = 32 * 1024 * 1024
SPLIT_BYTES_MAX = 256 * 1024 * 1024
SPLITS_WANTED_MAX = 4000  # above it they are larger, so that the driver has not too many fragments to name


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a file.

    A byte range owns the lines that begin in it, and may read on to the end of the last one. Its lines are counted
    from 1, within the split: whoever wants a file's line numbers adds the lines of the splits before it, which have
    smaller numbers. Rows of Parquet are counted through the file, after `first_row`.
    """

    number: int  # among all splits of a load, from 0, in the order of the files
    file: int  # the index of the file among those of the load
    kind: FileKind
    path: str  # what is opened: an absolute path or a URI
    shown: str  # how messages name the file
    offset: int = 0
    length: int = 0  # bytes; of a gzipped file or a Parquet file the whole of it, or the row groups' share
    row_groups: tuple[int, ...] = ()
    type_name: str | None = None
    first_row: int = 0  # Parquet: how many rows lie before this split in its file
    file_size: int = 0  # bytes of the whole file

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Split":
        return cls(**{**document, "row_groups": tuple(document["row_groups"])})


def split_size(files: Sequence[SourceFile]) -> int:
    """How large the parts of an input are best."""
    total = sum(file.size for file in files)
    return max(SPLIT_BYTES, min(SPLIT_BYTES_MAX, -(-total // SPLITS_WANTED_MAX)))


def plan_splits(
    files: Sequence[SourceFile],
    split_bytes: int = SPLIT_BYTES,
    storage_options: Mapping[str, str] | None = None,
) -> list[Split]:
    """Parts of about that many bytes: byte ranges of NDJSON, whole files of gzip and CSV, row groups of Parquet.

    A CSV file is one part because a quoted field may hold newlines: nobody can tell from the middle of the file
    whether one ends a record.
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
    """Groups of neighbouring row groups. The bytes are those on disk, which grow when they are decoded."""
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
