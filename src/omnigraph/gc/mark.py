"""What a cleanup must keep (`fence-before-sweep`, step 2): manifests, and the table versions that they name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from omnigraph.errors import ConflictError, Damaged
from omnigraph.manifest.history.txn_lookup import read_entries_back
from omnigraph.manifest.model.manifest import Ancestry, BranchId, Manifest, Point, Position, Stub
from omnigraph.manifest.model.paths import commit_place
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.storage.table.handles import TableVersion


class Overtaken(ConflictError):
    """Another cleanup has gone further than this one: what this one would delete is no longer its to judge."""

    def __init__(self, point: Point) -> None:
        super().__init__(
            f"Another cleanup has passed manifest {point.manifest_version} of branch id {point.branch_id} meanwhile: "
            "this one has stopped and deleted nothing, run it again."
        )


@dataclass(frozen=True, slots=True)
class Holder:
    """The oldest marked state of a branch that has an ancestor at one position."""

    point: Point
    ancestry: Ancestry


@dataclass
class Marks:
    """What must stay."""

    manifests: set[Point] = field(default_factory=set)
    versions: set[TableVersion] = field(default_factory=set)
    states: set[Point] = field(default_factory=set)  # those manifests whose tables are marked too
    holders: dict[BranchId, dict[tuple[BranchId, Position], Holder]] = field(default_factory=dict)  # by ancestor
    heads_on: set[BranchId] = field(default_factory=set)  # where the newest logical commits of marked states are

    def add(self, manifest: Manifest, manifests: Manifests) -> None:
        """A state with all that reading it takes: its tables, and the manifests whose rows are in their tails.

        Of a manifest that only a tail names its rows are needed: its own tables are not.
        """
        if manifest.point in self.states:
            return
        self.states.add(manifest.point)
        self.manifests.add(manifest.point)
        self.heads_on.add(commit_place(manifest.logical_head)[0])
        holder = Holder(manifest.point, manifest.ancestry)
        for ancestor, position in manifest.ancestry.items():
            known = self.holders.setdefault(ancestor, {}).setdefault((manifest.branch_id, position), holder)
            if known.point.manifest_version > manifest.manifest_version:
                self.holders[ancestor][manifest.branch_id, position] = holder
        for ref in manifest.tables.values():
            if ref.stored is not None:
                self.versions.add(ref.stored)
            for entry in ref.tail:
                point = Point(entry.branch_id, entry.manifest_version)
                if point not in self.manifests:
                    _require(manifests, point)
                    self.manifests.add(point)

    def of_branch(self, branch_id: BranchId) -> frozenset[int]:
        return frozenset(point.manifest_version for point in self.manifests if point.branch_id == branch_id)


def _require(manifests: Manifests, point: Point) -> None:
    """A manifest that must be there whole; a stub in its place means that another cleanup was faster."""
    entry = manifests.read(point)
    if isinstance(entry, Stub):
        raise Overtaken(point)
    if entry is None:
        raise Damaged(f"manifest {point.manifest_version} of branch id {point.branch_id}", "it is missing")


def mark_branch(marks: Marks, manifests: Manifests, head: Manifest, oldest: int) -> None:
    """All retained states of a branch, up to a head; a tombstone has none."""
    expected = head.manifest_version
    for entry in read_entries_back(manifests, head.manifest_version, oldest, head.branch_id):
        if entry.manifest_version != expected:
            break
        expected -= 1
        if isinstance(entry, Stub):
            if entry.tombstone is None:
                raise Overtaken(Point(entry.branch_id, entry.manifest_version))
        elif entry.tombstone is None:
            marks.add(entry, manifests)
    if expected >= oldest:
        raise Damaged(f"manifest {expected} of branch id {head.branch_id}", "it is missing")


def mark_pinned(
    marks: Marks, manifests: Manifests, points: Iterable[Point], heads: Mapping[BranchId, Manifest]
) -> None:
    """States that something outside their branch needs: a tag, an unfinished ref, a job, a merge to come.

    One that had expired before this cleanup began (`heads` are from then) is not marked: its tag or ref lost its race.
    One that has become a stub since then was expired by another cleanup, which has overtaken this one.
    """
    for point in sorted(set(points), key=lambda point: (point.branch_id, point.manifest_version)):
        if point in marks.states:
            continue
        entry = manifests.read(point)
        if isinstance(entry, Manifest):
            if entry.tombstone is None:
                marks.add(entry, manifests)
            if len(entry.commits) > 1:  # a commit in the middle of a group is read from the manifest before
                before = manifests.read(Point(point.branch_id, point.manifest_version - 1))
                if isinstance(before, Manifest):
                    marks.add(before, manifests)
            continue
        head = heads.get(point.branch_id)
        if entry is not None and head is not None and head.oldest_retained <= point.manifest_version:
            raise Overtaken(point)
