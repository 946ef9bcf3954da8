"""Compaction and indexes of one table version: the same rows in a new version, which nothing refers to yet.

Finished work is kept (`FinishedWork`): after a race lost to a staged write, rewritten fragments and built segments are
put in place on the new version as they are, if their input is in it unchanged (`maintenance-rebase`). So writers do
not starve a long compaction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnigraph.maintenance.policy import Effort, groups_to_compact, plan_segments
from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage.location import Location
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.index import segments as index_segments
from omnigraph.storage.table.index.segments import SegmentTask
from omnigraph.storage.table.maintain import compaction
from omnigraph.storage.table.maintain.compaction import RewrittenGroup
from omnigraph.storage.table.maintain.layout import TableLayout, read_layout
from omnigraph.storage.util.runner import LocalRunner, Runner

TRAINED_MIN = 2  # vectors needed to train centroids

ChooseRunner = Callable[[int], Runner]  # by the number of rows to process


@dataclass(frozen=True, slots=True)
class BuiltSegment:
    """A segment whose files are written, and the fragments that it covers."""

    index: DeclaredIndex
    over: frozenset[str]
    fragments: frozenset[int]
    metadata: Any = field(repr=False)


@dataclass(slots=True)
class FinishedWork:
    """What was written for a table, whether or not a version refers to it yet."""

    rewritten: list[RewrittenGroup] = field(default_factory=list)
    built: list[BuiltSegment] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What was done for one index of a table."""

    name: str
    built: int = 0  # segments
    extended: bool = False  # the index existed before
    pending: str | None = None


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """A version with the same rows, and how it differs from the one before."""

    at: TableVersion
    fragments: int
    rewritten: int  # fragments of the version before
    indexes: tuple[IndexReport, ...] = ()

    @property
    def pending(self) -> tuple[str, ...]:
        return tuple(index.pending for index in self.indexes if index.pending is not None)


def maintain_table(
    location: Location,
    at: TableVersion,
    indexes: Sequence[DeclaredIndex],
    effort: Effort,
    choose: ChooseRunner | None = None,
    finished: FinishedWork | None = None,
) -> MaintainedTable:
    """Do what is due to a table version; returns `at` itself if nothing is."""
    work = _Work(location, tuple(indexes), effort, choose or (lambda _: LocalRunner()), finished or FinishedWork())
    before = read_layout(location, at)
    compacted, rewritten = work.compact(at, before)
    after = before if compacted == at else read_layout(location, compacted)
    made, done = work.build_indexes(compacted, after, frozenset(segment.index for segment in before.segments))
    return MaintainedTable(made, len(after.fragments), rewritten, done)


@dataclass(frozen=True, slots=True)
class _Work:
    location: Location
    indexes: tuple[DeclaredIndex, ...]
    effort: Effort
    choose: ChooseRunner
    finished: FinishedWork

    def compact(self, at: TableVersion, shape: TableLayout) -> tuple[TableVersion, int]:
        """A version with fewer fragments, and how many were rewritten."""
        carried = [one for one in self.finished.rewritten if one.fits(shape)]
        taken = {document for one in carried for document in one.originals}
        rest = tuple(one for one in shape.fragments if one.document not in taken)
        groups = groups_to_compact(TableLayout(rest), self.effort)
        if groups:
            effort, numbers = self.effort, shape.by_number
            runner = self.choose(sum(numbers[number].rows for group in groups for number in group))
            tasks = compaction.plan_compaction(self.location, at, groups, effort.target_rows, effort.target_bytes)
            results = runner.run(compaction.run_compaction, tasks, stage="compact")
            carried += compaction.number_fragments(_with_numbers_of(shape, carried), results)
        self.finished.rewritten[:] = carried
        made = compaction.commit_compaction(self.location, at, carried)
        return made, sum(len(one.originals) for one in carried)

    def build_indexes(
        self, at: TableVersion, shape: TableLayout, existing: frozenset[str]
    ) -> tuple[TableVersion, tuple[IndexReport, ...]]:
        """A version whose indexes cover every row, as far as the effort allows; `existing` are its indexes before."""
        done: list[IndexReport] = []
        new: list[BuiltSegment] = []
        leaving: list[str] = []
        for index in self.indexes:
            if index.column not in shape.columns or not shape.fragments:
                continue
            carried = self._reusable_segments(shape, index)
            given = frozenset[int]().union(*(one.fragments for one in carried))
            due = plan_segments(shape, index.name, self.effort, given)
            built, pending = self._build_segments(at, shape, index, due.build) if due.build else ([], None)
            leaving += due.dead if pending else due.dead + due.replaced
            new += carried + built
            if due or carried:
                done.append(IndexReport(index.name, len(carried) + len(built), index.name in existing, pending))
        declared = {index.name for index in self.indexes}
        leaving += [segment.uuid for segment in shape.segments if segment.index not in declared]
        self.finished.built[:] = new
        return index_segments.commit_segments(self.location, at, [one.metadata for one in new], leaving), tuple(done)

    def _reusable_segments(self, shape: TableLayout, index: DeclaredIndex) -> list[BuiltSegment]:
        """Segments of an earlier attempt over fragments that are unchanged."""
        return [one for one in self.finished.built if one.index == index and one.over <= shape.documents]

    def _build_segments(
        self, at: TableVersion, shape: TableLayout, index: DeclaredIndex, groups: Sequence[tuple[int, ...]]
    ) -> tuple[list[BuiltSegment], str | None]:
        """Build a segment over each group of fragments; or the reason why there is none."""
        numbers = shape.by_number
        fragments = [number for group in groups for number in group]
        centroids = None
        if index.kind == "vector":
            # Train on few new vectors as on all; in a table with few vectors, searches compare each of them.
            counted = [one.number for one in shape.fragments] if self.effort.whole_segments else fragments
            found = index_segments.count_stored_vectors(self.location, at, index, counted)
            if found < max(self.effort.vectors_min, TRAINED_MIN):
                return [], f"{index.name}: it needs {self.effort.vectors_min} vectors, there are {found}"
            centroids = index_segments.train_stored_centroids(self.location, at, index, counted)
        tasks = [SegmentTask(self.location, at, index, group, centroids) for group in groups]
        runner = self.choose(sum(numbers[number].rows for number in fragments))
        results = runner.run(index_segments.run_segment_task, tasks, stage="index")
        built = [
            BuiltSegment(index, frozenset(numbers[number].document for number in group), frozenset(group), metadata)
            for group, metadata in zip(groups, results, strict=True)
            if metadata is not None
        ]
        return built, None


def _with_numbers_of(shape: TableLayout, carried: Sequence[RewrittenGroup]) -> TableLayout:
    """The shape with the numbers of carried fragments taken too."""
    highest = max([shape.highest, *(one.highest for one in carried)])
    return TableLayout(shape.fragments, shape.segments, shape.columns, highest)
