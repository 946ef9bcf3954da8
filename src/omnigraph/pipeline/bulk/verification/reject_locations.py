"""File, line and text of rows in the input: looked up only for rows that are rejected.

Nothing of it is kept in the good case. The split is parsed again, which gives the same rows in the same order, and
the lines are read a second time for their text.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from omnigraph.manifest.model.manifest import TableKey
from omnigraph.pipeline.bulk.job import BulkJob, SplitResult
from omnigraph.pipeline.bulk.staging.assemble import Positions
from omnigraph.pipeline.bulk.staging.stage import BUFFER_BYTES_MAX, concat_rows, prepare_rows, stretch_masks
from omnigraph.storage.util.runner import Runner
from omnigraph.write.load.input.chunks import FileChunks, open_parquet, read_gzip_lines, read_line_range
from omnigraph.write.load.input.csv_records import read_csv_entities
from omnigraph.write.load.input.input_splits import Split
from omnigraph.write.load.input.load_input import InputPlace
from omnigraph.write.load.input.table_rows import edge_end_columns, read_table_entities
from omnigraph.write.load.parse.parse import parse_split
from omnigraph.write.load.parse.parsed import ParsedRows

if TYPE_CHECKING:
    import numpy as np

BY_LINE = 2  # a "stretch" of rows that were never written: their ordinals are numbers of lines


@dataclass(frozen=True)
class RowQuery:
    """Rows of one split to look up, by table, stretch and ordinal."""

    split: Split
    rows: Mapping[tuple[TableKey, int], tuple[int, ...]]
    texts: bool = False


@dataclass
class RowLocations:
    """The line number of each row, and the text of lines."""

    split: int
    numbers: dict[tuple[TableKey, int, int], int] = field(default_factory=dict)
    texts: dict[int, Any] = field(default_factory=dict)  # by line
    minted: dict[TableKey, int] = field(default_factory=dict)  # of these rows, those with an id of the load's making


class RowLocator:
    """Looks up rows of one load in its input."""

    def __init__(self, runner: Runner, job: BulkJob, splits: Sequence[Split], results: Sequence[SplitResult]) -> None:
        self._runner = runner
        self._job = job
        self._splits = {split.number: split for split in splits}
        self._before = _lines_before(splits, results)

    def locate(self, rows: Mapping[TableKey, Positions], *, texts: bool = False) -> dict[int, RowLocations]:
        """The locations of these rows, by split."""
        wanted: dict[int, dict[tuple[TableKey, int], set[int]]] = {}
        for key, positions in rows.items():
            every = zip(
                positions.splits.tolist(), positions.stretches.tolist(), positions.ordinals.tolist(), strict=True
            )
            for split, stretch, ordinal in every:
                wanted.setdefault(split, {}).setdefault((key, stretch), set()).add(ordinal)
        items = [
            RowQuery(self._splits[split], {where: tuple(sorted(some)) for where, some in of.items()}, texts)
            for split, of in sorted(wanted.items())
        ]
        located = self._runner.run(partial(locate_rows, self._job), items, stage="finding rejected rows")
        return {one.split: one for one in located}

    def place(self, split: int, number: int) -> InputPlace:
        """A line of a split as a place in its file."""
        of = self._splits[split]
        return InputPlace(of.shown, "row" if of.kind == "parquet" else "line", self._before[split] + number)

    def places(self, key: TableKey, positions: Positions) -> list[InputPlace]:
        """The places of these rows in the input, in their order."""
        located = self.locate({key: positions})
        every = zip(positions.splits.tolist(), positions.stretches.tolist(), positions.ordinals.tolist(), strict=True)
        return [self.place(split, located[split].numbers[key, stretch, ordinal]) for split, stretch, ordinal in every]


def locate_rows(job: BulkJob, wanted: RowQuery) -> RowLocations:
    """The task: parse the split again and find the rows of a query."""
    located = RowLocations(wanted.split.number)
    finding = {key: _RejectFinder(job, key, wanted, located) for key, _ in wanted.rows}
    if any(stretch != BY_LINE for _, stretch in wanted.rows):
        for parsed in parse_split(wanted.split, job.catalog, job.source_options, job.minter):
            for key, rows in parsed.types.items():
                if key in finding:
                    finding[key].add(rows)
    for one in finding.values():
        one.finish()
    if wanted.texts:
        numbers = frozenset(located.numbers.values())
        located.texts = {number: raw for number, raw in raw_rows(job, wanted.split) if number in numbers}
    return located


class _RejectFinder:
    """Counts the rows of one table as staging did."""

    def __init__(self, job: BulkJob, key: TableKey, wanted: RowQuery, located: RowLocations) -> None:
        self._job, self._key, self._found = job, key, located
        self._wanted = {stretch: rows for (table, stretch), rows in wanted.rows.items() if table == key}
        self._count = dict.fromkeys(self._wanted, 0)
        self._waiting: list[ParsedRows] = []
        self._bytes = 0

    def add(self, rows: ParsedRows) -> None:
        self._waiting.append(rows)
        self._bytes += rows.rows.nbytes
        if self._bytes > BUFFER_BYTES_MAX:
            self.finish()

    def finish(self) -> None:
        for number in self._wanted.get(BY_LINE, ()):
            self._found.numbers[self._key, BY_LINE, number] = number
        if not self._waiting:
            return
        incoming = concat_rows(self._waiting)
        self._waiting, self._bytes = [], 0
        upserts = prepare_rows(self._job, self._key, incoming)
        for stretch, mask in enumerate(stretch_masks(upserts)):
            if stretch in self._wanted:
                self._find(stretch, incoming.numbers[mask], upserts.minted[mask])

    def _find(self, stretch: int, numbers: "np.ndarray[Any, Any]", minted: "np.ndarray[Any, Any]") -> None:
        before = self._count[stretch]
        self._count[stretch] += len(numbers)
        for ordinal in self._wanted[stretch]:
            if before <= ordinal < self._count[stretch]:
                self._found.numbers[self._key, stretch, ordinal] = int(numbers[ordinal - before])
                fresh = int(minted[ordinal - before])
                self._found.minted[self._key] = self._found.minted.get(self._key, 0) + fresh


def raw_rows(job: BulkJob, split: Split) -> Iterator[tuple[int, Any]]:
    """The lines or entities of a split as they were written, numbered as parsing numbers them."""
    where = (split.path, split.shown, split.file_size)
    options = job.source_options
    if split.kind in ("ndjson", "ndjson.gz"):
        number = 0
        stretches = (
            read_line_range(*where, split.offset, split.length, options)
            if split.kind == "ndjson"
            else read_gzip_lines(*where, options)
        )
        for stretch in stretches:
            for line in [stretch.data] if stretch.too_long else io.BytesIO(stretch.data):
                number += 1
                yield number, line
        return
    definition = job.catalog.by_name[split.type_name or ""]
    if split.kind == "parquet":
        import pyarrow as pa

        number = split.first_row
        ends, is_edge = edge_end_columns(definition), definition.kind == "edge"
        with open_parquet(*where, options) as file:
            for batch in file.iter_batches(row_groups=list(split.row_groups)):
                for entity in read_table_entities(pa.table(batch), definition.name, ends, is_edge=is_edge):
                    number += 1
                    yield number, entity
        return
    chunks = FileChunks(*where, options)
    opened = chunks.read_decompressed() if split.kind == "csv.gz" else chunks.read()
    for number, raw, _ in read_csv_entities(opened, split.shown, definition):
        yield number, raw


def _lines_before(splits: Sequence[Split], results: Sequence[SplitResult]) -> dict[int, int]:
    """How many lines of its file lie before each split; rows of Parquet are counted through the file anyway."""
    lines = {result.split: result.lines for result in results}
    before: dict[int, int] = {}
    so_far: dict[int, int] = {}
    for split in sorted(splits, key=lambda one: one.number):
        before[split.number] = 0 if split.kind == "parquet" else so_far.get(split.file, 0)
        so_far[split.file] = so_far.get(split.file, 0) + lines.get(split.number, 0)
    return before
