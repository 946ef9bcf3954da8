"""Stubs for the manifests that nothing retained needs, branch by branch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from omnigraph.gc.mark import Marks
from omnigraph.manifest.model.manifest import BranchId, Manifest, Point
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.manifest.store.stub_index import StubIndex
from omnigraph.storage.util.parallel import gather

AT_ONCE = 256


@dataclass(frozen=True)
class Expiry:
    """What is to become of one branch below `end`."""

    branch_id: BranchId
    known: StubIndex
    after: StubIndex
    doomed: tuple[int, ...]  # to be made stubs

    @property
    def is_news(self) -> bool:
        return self.after != self.known


def plan_expiry(manifests: Manifests, marks: Marks, branch_id: BranchId, end: int) -> Expiry:
    """All below `end` that is unmarked; what was pinned once and is not any more lies between stubs, as noted.

    Another cleanup may have gone further meanwhile. What it kept from `end` on is not this one's to judge, because the
    marks know only what was there when this one began.
    """
    known = manifests.read_stub_index(branch_id)
    marked = sorted(number for number in marks.of_branch(branch_id) if number < end)
    states = [number for number in marked if Point(branch_id, number) in marks.states]
    rows = [number for number in marked if Point(branch_id, number) not in marks.states]
    looked_at = sorted({*(number for number in known.whole if number < end), *range(known.below, end)} - {*marked})
    doomed = tuple(entry.manifest_version for entry in _whole(manifests, branch_id, looked_at))
    after = StubIndex(
        max(known.below, end),
        tuple(sorted({*states, *(number for number in known.states if number >= end)})),
        tuple(sorted({*rows, *(number for number in known.rows if number >= end)})),
    )
    return Expiry(branch_id, known, after, doomed)


def carry_out(manifests: Manifests, expiry: Expiry) -> None:
    """The stubs, then the note that they are there."""
    for entries in _batches(expiry.doomed):
        whole = _whole(manifests, expiry.branch_id, entries)
        gather([partial(manifests.replace_with_stub, manifest) for manifest in whole])
    if expiry.is_news:
        manifests.update_stub_index(expiry.branch_id, expiry.after)


def _whole(manifests: Manifests, branch_id: BranchId, numbers: Sequence[int]) -> Iterator[Manifest]:
    for batch in _batches(numbers):
        entries = gather([partial(manifests.read, Point(branch_id, number), cached=False) for number in batch])
        yield from (entry for entry in entries if isinstance(entry, Manifest) and entry.tombstone is None)


def _batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[start : start + AT_ONCE] for start in range(0, len(numbers), AT_ONCE))
