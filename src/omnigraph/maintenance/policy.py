"""What is due: pure functions of a manifest and of how tables are stored.

Folds are decided from the manifest alone, so that a writer can tell for nothing. Compaction and indexes are decided
from the shape of a table version, with two kinds of effort: `THOROUGH` leaves a table as if it had just been loaded;
`GENTLE` runs behind a stream of small folds, and its work grows with what was added and not with what is there.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from omnigraph.manifest.model.manifest import Manifest, TableKey, TableRef
from omnigraph.manifest.settings import Settings
from omnigraph.storage.table.index.segments import INDEXED_ROWS_MIN, VECTORS_MIN
from omnigraph.storage.table.maintain.layout import FragmentLayout, SegmentLayout, TableLayout
from omnigraph.storage.table.table_content import TailEntry
from omnigraph.storage.table.write.fragments import BYTES_MAX, ROWS_MAX

_size = attrgetter("size")
FAN = 8  # fragments of about one size that are put together behind folds


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done to a table.

    `fan` is how many fragments of a size are worth putting together, None for any; but what a lookup would have to ask
    many little ones for is kept in one. `rows_min` are those from which on a table gets its indexes; `whole_segments`
    puts the segments of an index together up to `segment_rows`.
    """

    target_rows: int = ROWS_MAX  # of a fragment
    target_bytes: int = BYTES_MAX
    deleted_share: float = 0.1  # of a fragment's rows, from which on it is rewritten for them alone
    fan: int | None = None
    little_rows: int = 8192  # of fragments that are put together whatever their number, where `fan` counts
    little_bytes: int = 2 * 1024 * 1024
    whole_segments: bool = True
    segment_rows: int = 4 * 1024 * 1024
    rows_min: int = 1
    rows_max: int | None = None  # that are rewritten together, or indexed; more are left to somebody with more effort
    vectors_min: int = VECTORS_MIN

    def allows(self, rows: int) -> bool:
        return self.rows_max is None or rows <= self.rows_max


THOROUGH = Effort()
GENTLE = Effort(deleted_share=0.25, fan=FAN, whole_segments=False, rows_min=INDEXED_ROWS_MIN, rows_max=4 * 1024 * 1024)


# Folds


def folds_due(manifest: Manifest, settings: Settings, factor: int = 1) -> tuple[TableKey, ...]:
    """The tables whose tails are to be folded: those that are too long, and the oldest while all are too many."""
    left: dict[TableKey, TableRef] = {}
    due: list[TableKey] = []
    entries = 0
    for key, ref in manifest.tables.items():
        if ref.tail and _is_long(ref, settings, factor):
            due.append(key)
        elif ref.tail:
            left[key] = ref
            entries += len(ref.tail)
    if (
        entries > settings.tails_manifests * factor
        and len(_manifests_in_tails(left.values())) > settings.tails_manifests * factor
    ):
        oldest_first = sorted(left, key=lambda key: _age(manifest, left[key].tail[0]))
        for key in oldest_first:  # half, so that the next commit does not find the limit passed again
            if len(_manifests_in_tails(left.values())) <= settings.tails_manifests * factor // 2:
                break
            due.append(key)
            del left[key]
    return tuple(due)


def _is_long(ref: TableRef, settings: Settings, factor: int) -> bool:
    return len(ref.tail) > settings.tail_manifests * factor or sum(map(_size, ref.tail)) > settings.tail_bytes * factor


def _manifests_in_tails(refs: Iterable[TableRef]) -> set[tuple[str, int]]:
    return {(entry.branch_id, entry.manifest_version) for ref in refs for entry in ref.tail}


def _age(manifest: Manifest, entry: TailEntry) -> tuple[bool, int]:
    """What a branch inherited is older than all of its own."""
    return entry.branch_id == manifest.branch_id, entry.manifest_version


# Compaction


def plan_compaction(shape: TableLayout, effort: Effort) -> list[tuple[int, ...]]:
    """Which fragments are to be rewritten together."""
    small = [one for one in shape.fragments if _is_small(one, effort) or _has_many_deletions(one, effort)]
    bins = _fill_bins(small, effort) if effort.fan is None else _group_by_size(small, effort, effort.fan)
    return [tuple(one.number for one in some) for some in bins if effort.allows(sum(one.rows for one in some))]


def _is_small(one: FragmentLayout, effort: Effort) -> bool:
    return one.rows < effort.target_rows and one.size < effort.target_bytes


def _has_many_deletions(one: FragmentLayout, effort: Effort) -> bool:
    return one.deleted > 0 and one.deleted >= effort.deleted_share * (one.rows + one.deleted)


def _fill_bins(fragments: Sequence[FragmentLayout], effort: Effort) -> Iterator[list[FragmentLayout]]:
    """Neighbours up to the wanted size, where that makes them fewer or rids them of deleted rows."""
    bins: list[list[FragmentLayout]] = [[]]
    for one in fragments:
        if bins[-1] and _fragments_after([*bins[-1], one], effort) > 1:
            bins.append([])
        bins[-1].append(one)
    for some in bins:
        if _fragments_after(some, effort) < len(some) or any(_has_many_deletions(one, effort) for one in some):
            yield some


def _fragments_after(fragments: Sequence[FragmentLayout], effort: Effort) -> int:
    """How many fragments these become."""
    rows, size = sum(one.rows for one in fragments), sum(one.size for one in fragments)
    return max(math.ceil(rows / effort.target_rows), math.ceil(size / effort.target_bytes), 1)


@dataclass(slots=True)
class _Group:
    """Fragments that are one, or are about to be."""

    members: list[FragmentLayout] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.members)


def _group_by_size(fragments: Sequence[FragmentLayout], effort: Effort, fan: int) -> Iterator[list[FragmentLayout]]:
    """The little ones as one, and of larger ones `fan` of one order of magnitude.

    So a row is rewritten with every fold while it is among few, and after that once for each order of magnitude.
    """
    little = _smallest(fragments, effort)
    others = [one for one in fragments if one not in little]
    heaps = [_Group([one]) for one in others if not _has_many_deletions(one, effort)]
    heaps += [_Group(little)] if little else []
    magnitude = 0
    while any(heap.rows >= fan**magnitude for heap in heaps):
        alike = [heap for heap in heaps if fan**magnitude <= max(heap.rows, 1) < fan ** (magnitude + 1)]
        if len(alike) >= fan:
            together = _Group([one for heap in alike for one in heap.members])
            heaps = [*(heap for heap in heaps if not any(heap is one for one in alike)), together]
        magnitude += 1
    yield from ([one] for one in others if _has_many_deletions(one, effort))
    for heap in heaps:
        if _fragments_after(heap.members, effort) < len(heap.members) or any(
            _has_many_deletions(one, effort) for one in heap.members
        ):
            yield heap.members


def _smallest(fragments: Sequence[FragmentLayout], effort: Effort) -> list[FragmentLayout]:
    """The smallest ones, as many as are little even together."""
    found: list[FragmentLayout] = []
    rows = size = 0
    for one in sorted(fragments, key=lambda one: (one.rows, one.number)):
        rows, size = rows + one.rows, size + one.size
        if rows > effort.little_rows or size > effort.little_bytes:
            break
        found.append(one)
    return found


# Indexes


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """What is to be done for one index: segments to build, each over some fragments, and uuids of those that go."""

    build: tuple[tuple[int, ...], ...] = ()
    dead: tuple[str, ...] = ()  # none of their fragments is left, or another covers what they did
    replaced: tuple[str, ...] = ()  # by what is built

    def __bool__(self) -> bool:
        return bool(self.build or self.dead or self.replaced)


def plan_segments(shape: TableLayout, index: str, effort: Effort, given: frozenset[int] = frozenset()) -> SegmentPlan:
    """How the segments of an index are to change so that it covers every row; fragments that are `given` it does."""
    present = shape.by_number.keys()
    own = [segment for segment in shape.segments if segment.index == index]
    alive = [segment for segment in own if segment.fragments & present and not segment.fragments & given]
    kept = _usable_segments(alive, shape, effort)
    covered = given.union(*(segment.fragments for segment in kept))
    left = [one for one in shape.fragments if one.number not in covered]
    build = _group_fragments(left, effort.segment_rows)
    if effort.whole_segments:
        exact = {segment.fragments: segment for segment in alive if segment not in kept}
        kept += [exact[frozenset(group)] for group in build if frozenset(group) in exact]
        build = [group for group in build if frozenset(group) not in exact]
    dead = tuple(segment.uuid for segment in own if segment not in alive)
    too_few = not own and not given and shape.rows < effort.rows_min
    if too_few or not effort.allows(sum(one.rows for one in left)):
        return SegmentPlan((), dead)
    return SegmentPlan(tuple(build), dead, tuple(segment.uuid for segment in alive if segment not in kept))


def _usable_segments(own: Sequence[SegmentLayout], shape: TableLayout, effort: Effort) -> list[SegmentLayout]:
    """The segments that stay whatever else is built. What a segment says of fragments that are gone does no harm."""
    present = shape.by_number
    good, seen = [], set[int]()
    for segment in own:
        alive = segment.fragments & present.keys()
        if alive & seen:
            continue
        if effort.whole_segments:
            stays = alive == segment.fragments and sum(present[one].rows for one in alive) >= effort.segment_rows // 2
        else:
            stays = 2 * len(alive) >= len(segment.fragments)
        if stays:
            good.append(segment)
            seen |= alive
    return good


def _group_fragments(fragments: Sequence[FragmentLayout], segment_rows: int) -> list[tuple[int, ...]]:
    groups: list[list[int]] = [[]]
    held = 0
    for one in fragments:
        if groups[-1] and held + one.rows > segment_rows:
            groups.append([])
            held = 0
        groups[-1].append(one.number)
        held += one.rows
    return [tuple(group) for group in groups if group]
