"""Lost heads: manifests that something names, and that are gone together with all newer ones.

Whatever names a manifest was written after it (`unique-numbers` in docs/protocol.md). So all names are collected first
and the manifests are read afterwards: concurrent writers can't cause a false report.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial

from omnigraph.errors import CommitNotFound
from omnigraph.manifest.branch.refs import Ref
from omnigraph.manifest.intent.intent import decode_intent
from omnigraph.manifest.model.manifest import BranchId, CommitId, Entry, Manifest, Point
from omnigraph.manifest.model.paths import (
    RECOVERY,
    REFS,
    TAGS,
    intent_txn,
    manifest_folder,
    manifest_number,
    parse_commit_id,
    parse_ref_key,
    tag_name,
)
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.store.used_numbers import UsedNumber, UsedNumbers
from omnigraph.storage.util.parallel import gather
from omnigraph.verify.report import Findings


class LostHeads:
    """Collects what names manifests of each branch; `memory` has the numbers that this process knows to be used."""

    def __init__(self, repository: Repository, memory: Mapping[BranchId, UsedNumber]) -> None:
        self._repository = repository
        self._manifests = repository.manifests
        self._named = UsedNumbers()
        self._ended: set[BranchId] = set()  # branches whose ref is marked as dead
        for branch_id, used in memory.items():
            self._named.record(branch_id, used.number, used.evidence)

    def check(self, found: Findings, refs: Sequence[Ref], only: BranchId | None = None) -> None:
        """Report every branch whose head is below a used number, or `only` a single branch."""
        self._collect(refs)
        names = {ref.branch_id: ref.branch for ref in refs}
        for branch_id, used in sorted(self._named.items()):
            if only is None or branch_id == only:
                with found.catching(f"branch {names.get(branch_id, branch_id)!r}"):
                    self._check_branch(found, names, branch_id, used)
        for ref in refs:
            if ref.branch_id in self._ended and (only is None or ref.branch_id == only):
                with found.catching(f"branch {ref.branch!r}"):
                    self._check_dead_branch(found, ref)

    def _check_branch(
        self, found: Findings, names: Mapping[BranchId, str], branch_id: BranchId, used: UsedNumber
    ) -> None:
        if self._manifests.read(Point(branch_id, used.number), cached=False) is not None:
            return
        head = self._highest_number(branch_id)
        if head > used.number:
            return  # a gap, and not the head
        left = self._manifests.read(Point(branch_id, head), cached=False) if head else None
        if head in self._manifests.read_stub_index(branch_id).rows:
            left = None  # cleanup has kept it for its inline rows only
        name = names.get(branch_id) or (branch_id if left is None else left.branch)
        what = f"its newest manifest is {head}" if head else "it has no manifest"
        found.add(
            f"branch {name!r}",
            f"its head is lost: {what}, but number {used.number} was used, because {used.evidence}",
            _remedy(branch_id, left, used),
        )

    def _highest_number(self, branch_id: BranchId) -> int:
        """The highest listed number, whatever is missing below; 0 without manifests."""
        listed = self._repository.store.list(manifest_folder(branch_id))
        return max((number for one in listed if (number := manifest_number(one.key)) is not None), default=0)

    def _check_dead_branch(self, found: Findings, ref: Ref) -> None:
        left = self._manifests.find_remaining_head(ref.branch_id)
        if left is not None and left.tombstone is None:
            found.add(
                f"branch {ref.branch!r}",
                f"its head is lost: its life {ref.life} is marked as deleted, but the tombstone that ended it is gone, "
                f"and its newest manifest is {left.manifest_version}",
                _remedy(ref.branch_id, left, None),
            )

    # Collect what names manifests. What can't be read is skipped: other checks report it.

    def _collect(self, refs: Sequence[Ref]) -> None:
        for ref in refs:
            if ref.fork is not None:
                self._note(ref.fork, f"branch {ref.branch!r} was forked from it")
        self._collect_markers()
        self._collect_tags()
        self._collect_intents()
        branch_ids = {ref.branch_id for ref in refs} | {branch_id for branch_id, _ in self._named.items()}
        gather([partial(self._collect_branch, branch_id) for branch_id in sorted(branch_ids)])

    def _collect_markers(self) -> None:
        for listed in self._repository.store.list(REFS):
            name = parse_ref_key(listed.key)
            if name is not None and name.dead:
                with _silent():
                    self._ended.add(self._repository.refs.read(name.branch, name.life).branch_id)

    def _collect_tags(self) -> None:
        for listed in self._repository.store.list(TAGS):
            name = tag_name(listed.key)
            if name is not None:
                with _silent():
                    tag = self._repository.tags.find(name)
                    if tag is not None:
                        self._note_commit(tag.commit_id, f"tag {name!r} names it")

    def _collect_intents(self) -> None:
        for listed in self._repository.store.list(RECOVERY):
            txn_id = intent_txn(listed.key)
            stored = None if txn_id is None else self._repository.store.get(listed.key)
            if txn_id is not None and stored is not None:
                with _silent():
                    self._note(decode_intent(stored.data, txn_id).base, f"the job {txn_id} started from it")

    def _collect_branch(self, branch_id: BranchId) -> None:
        with _silent():
            hint = self._manifests.read_hint(branch_id)
            if hint is not None:
                doubt = "" if hint.is_proof else ", without a checksum: the hint itself may be damaged"
                self._note(Point(branch_id, hint.number), f"the hint beside its manifests names it{doubt}")
        with _silent():
            stubbed = self._manifests.read_stub_index(branch_id)
            for number in (stubbed.below - 1, *stubbed.whole):
                self._note(Point(branch_id, number), "cleanup has noted it as expired")
        with _silent():
            head = self._manifests.find_remaining_head(branch_id)
            if head is not None:
                self._collect_names(head)

    def _collect_names(self, head: Manifest) -> None:
        """Collect all that a manifest names. Only dead branches leave an ancestry, so the newest manifest suffices."""
        where = f"manifest {head.manifest_version} of branch {head.branch!r}"
        self._named.record_lineage(head)
        if head.fork is not None:
            self._note(head.fork, f"{where} was forked from it")
        for commit in head.commits:
            for parent in (commit.parent, commit.merged_parent):
                self._note_commit(parent, f"{where} has it as a parent")
        for key, ref in head.tables.items():
            self._note_commit(ref.changed_at, f"{where} says that it changed {key}")
            self._note_commit(ref.removed_at, f"{where} says that it removed rows of {key}")
            for entry in ref.tail:
                point = Point(entry.branch_id, entry.manifest_version)
                self._note(point, f"{where} reads rows of {key} from it")

    def _note(self, point: Point, evidence: str) -> None:
        self._named.record(point.branch_id, point.manifest_version, evidence)

    def _note_commit(self, commit: CommitId | None, evidence: str) -> None:
        if commit is not None:
            with suppress(CommitNotFound):  # a malformed commit id is reported with its manifest
                self._note(parse_commit_id(commit), evidence)


def _silent() -> AbstractContextManager[None]:
    return Findings().catching("")


def _remedy(branch_id: BranchId, left: Entry | None, used: UsedNumber | None) -> str:
    upto = "" if used is None else f" up to {used.number}"
    restore = (
        f"stop all writers and restore its manifests{upto} below {manifest_folder(branch_id)}/ from a copy of the "
        "store or from earlier versions of the objects"
    )
    if not isinstance(left, Manifest):
        return restore  # no state is left to continue from
    return (
        f"{restore}, or give them up: in a new process, start a branch from what is left (`branch create NAME --from "
        f"{left.logical_head}`) and work there, or export it and load it into a new graph"
    )
