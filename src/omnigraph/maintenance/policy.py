"""Maintenance policy: which fragments and indexes of a table are due, as pure functions of its layout.

What is done depends on an effort: `THOROUGH` leaves a table as if it had just been loaded; `GENTLE` runs behind a
stream of small folds, and its work grows with what was added and not with the size of the table. Which tables are due
to be folded depends on the manifest alone: see `folds_due` in `background.py`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from omnigraph.storage.table.index.segments import INDEXED_ROWS_MIN, VECTORS_MIN
from omnigraph.storage.table.maintain.layout import FragmentLayout, SegmentLayout, TableLayout
from omnigraph.storage.table.write.fragments import BYTES_MAX, ROWS_MAX

FAN = 8  # fragments of similar size that are compacted together behind folds


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done to a table.

    `fan` is how many fragments of similar size are worth compacting, None for any number; but small fragments are
    always compacted into one, because a lookup reads each of them. A table gets its indexes from `rows_min` rows on;
    `whole_segments` merges the segments of an index up to `segment_rows`.
    """

    target_rows: int = ROWS_MAX  # of a fragment
    target_bytes: int = BYTES_MAX
    deleted_share: float = 0.1  # a fragment with this share of deleted rows is rewritten
    fan: int | None = None
    small_rows: int = 8192  # with `fan`: small fragments are compacted whatever their number, up to so many rows
    small_bytes: int = 2 * 1024 * 1024
    whole_segments: bool = True
    segment_rows: int = 4 * 1024 * 1024
    rows_min: int = 1
    rows_max: int | None = None  # rows rewritten together, or indexed; more are left to a run with more effort
    vectors_min: int = VECTORS_MIN

    def allows(self, rows: int) -> bool:
        return self.rows_max is None or rows <= self.rows_max


THOROUGH = Effort()
GENTLE = Effort(deleted_share=0.25, fan=FAN, whole_segments=False, rows_min=INDEXED_ROWS_MIN, rows_max=4 * 1024 * 1024)


# Compaction


def groups_to_compact(shape: TableLayout, effort: Effort) -> list[tuple[int, ...]]:
    """The fragments that are due to be rewritten, by groups."""
    small = [one for one in shape.fragments if _is_small(one, effort) or _has_many_deletions(one, effort)]
    bins = _fill_bins(small, effort) if effort.fan is None else _group_by_size(small, effort, effort.fan)
    return [tuple(one.number for one in some) for some in bins if effort.allows(sum(one.rows for one in some))]


def _is_small(one: FragmentLayout, effort: Effort) -> bool:
    return one.rows < effort.target_rows and one.size < effort.target_bytes


def _has_many_deletions(one: FragmentLayout, effort: Effort) -> bool:
    return one.deleted > 0 and one.deleted >= effort.deleted_share * (one.rows + one.deleted)


def _fill_bins(fragments: Sequence[FragmentLayout], effort: Effort) -> Iterator[list[FragmentLayout]]:
    """Neighbours up to the target size, where that reduces their number or removes deleted rows."""
    bins: list[list[FragmentLayout]] = [[]]
    for one in fragments:
        if bins[-1] and _fragments_after([*bins[-1], one], effort) > 1:
            bins.append([])
        bins[-1].append(one)
    for some in bins:
        if _fragments_after(some, effort) < len(some) or any(_has_many_deletions(one, effort) for one in some):
            yield some


def _fragments_after(fragments: Sequence[FragmentLayout], effort: Effort) -> int:
    """How many fragments these become when they are rewritten."""
    rows, size = sum(one.rows for one in fragments), sum(one.size for one in fragments)
    return max(math.ceil(rows / effort.target_rows), math.ceil(size / effort.target_bytes), 1)


@dataclass(slots=True)
class _Group:
    """Fragments that are one already, or will be."""

    members: list[FragmentLayout] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.members)


def _group_by_size(fragments: Sequence[FragmentLayout], effort: Effort, fan: int) -> Iterator[list[FragmentLayout]]:
    """The small ones as one, and larger ones by `fan` of one order of magnitude.

    So a row is rewritten by every fold while it is in the small fragment, and then once per order of magnitude.
    """
    small = _smallest(fragments, effort)
    others = [one for one in fragments if one not in small]
    groups = [_Group([one]) for one in others if not _has_many_deletions(one, effort)]
    groups += [_Group(small)] if small else []
    magnitude = 0
    while any(group.rows >= fan**magnitude for group in groups):
        similar = [group for group in groups if fan**magnitude <= max(group.rows, 1) < fan ** (magnitude + 1)]
        if len(similar) >= fan:
            joined = _Group([one for group in similar for one in group.members])
            groups = [*(group for group in groups if not any(group is one for one in similar)), joined]
        magnitude += 1
    yield from ([one] for one in others if _has_many_deletions(one, effort))
    for group in groups:
        if _fragments_after(group.members, effort) < len(group.members) or any(
            _has_many_deletions(one, effort) for one in group.members
        ):
            yield group.members


def _smallest(fragments: Sequence[FragmentLayout], effort: Effort) -> list[FragmentLayout]:
    """The smallest ones, as many as are small even together."""
    found: list[FragmentLayout] = []
    rows = size = 0
    for one in sorted(fragments, key=lambda one: (one.rows, one.number)):
        rows, size = rows + one.rows, size + one.size
        if rows > effort.small_rows or size > effort.small_bytes:
            break
        found.append(one)
    return found


# Indexes


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """What is due for one index: segments to build, each over some fragments, and uuids of segments to remove."""

    build: tuple[tuple[int, ...], ...] = ()
    dead: tuple[str, ...] = ()  # none of their fragments is left, or another segment covers them
    replaced: tuple[str, ...] = ()  # by the new segments

    def __bool__(self) -> bool:
        return bool(self.build or self.dead or self.replaced)


def plan_segments(shape: TableLayout, index: str, effort: Effort, given: frozenset[int] = frozenset()) -> SegmentPlan:
    """The changes of an index after which it covers every row; new segments cover the fragments `given` already."""
    present = shape.by_number.keys()
    own = [segment for segment in shape.segments if segment.index == index]
    alive = [segment for segment in own if segment.fragments & present and not segment.fragments & given]
    usable = _usable_segments(alive, shape, effort)
    covered = given.union(*(segment.fragments for segment in usable))
    left = [one for one in shape.fragments if one.number not in covered]
    build = _group_fragments(left, effort.segment_rows)
    if effort.whole_segments:
        exact = {segment.fragments: segment for segment in alive if segment not in usable}
        usable += [exact[frozenset(group)] for group in build if frozenset(group) in exact]
        build = [group for group in build if frozenset(group) not in exact]
    dead = tuple(segment.uuid for segment in own if segment not in alive)
    too_few = not own and not given and shape.rows < effort.rows_min
    if too_few or not effort.allows(sum(one.rows for one in left)):
        return SegmentPlan((), dead)
    return SegmentPlan(tuple(build), dead, tuple(segment.uuid for segment in alive if segment not in usable))


def _usable_segments(own: Sequence[SegmentLayout], shape: TableLayout, effort: Effort) -> list[SegmentLayout]:
    """The segments that stay. Entries of a segment for fragments that no longer exist do no harm."""
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
