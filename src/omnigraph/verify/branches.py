"""Branches: their refs, their manifests from the oldest retained one to the head, and the choice of states to check.

A lost head is a manifest that something names, and that is gone together with all newer ones. Whatever names a manifest
was written after it (`unique-numbers` in docs/protocol.md). So all names are collected first and the manifests are read
afterwards: concurrent writers can't cause a false report.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from random import Random

from omnigraph.errors import BranchNotFound, CommitNotFound
from omnigraph.manifest.branch.refs import Ref
from omnigraph.manifest.intent.intent import decode_intent
from omnigraph.manifest.model.manifest import MAIN, BranchId, CommitId, Entry, Manifest, Point, Stub
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
from omnigraph.manifest.store.head_search import read_hint
from omnigraph.manifest.store.manifest_store import UsedNumber, UsedNumbers
from omnigraph.threads import gather
from omnigraph.verify.lineage import fork_problems, link_problems, manifest_problems
from omnigraph.verify.report import NOTICE, RESTORE, REWRITE, Findings
from omnigraph.verify.snapshot_checks import SnapshotChecks

LINKS_SAMPLED = 16  # pairs of neighbouring manifests
STATES_SAMPLED = 4  # older than the head
ROWS_MAX = 20_000_000  # in all states of a branch together: up to here `full` reads the rows of every state
MISSING_MAX = 16  # missing manifests of a branch that are reported
ROUNDS_MAX = 5  # how often the check of a branch restarts because a cleanup has overtaken it


class BranchChecks:
    def __init__(self, repository: Repository, states: SnapshotChecks, *, full: bool, seed: int) -> None:
        self._repository = repository
        self._manifests = repository.manifests
        self._states = states
        self._full = full
        self._seed = seed

    # Refs.

    def check_refs(self, found: Findings, only: str | None = None) -> list[Ref]:
        """All refs that can be read; checks that the lives of a name, or of `only` one, are numbered without a gap."""
        lives: dict[str, set[int]] = {}
        for listed in self._repository.store.list(REFS):
            name = parse_ref_key(listed.key)
            if name is not None and not name.dead:
                lives.setdefault(name.branch, set()).add(name.life)
        refs: list[Ref] = []
        everything = found
        for branch, numbers in sorted(lives.items()):
            found = everything if only in (None, branch) else everything.tentative()  # of which nothing is told
            missing = sorted(set(range(1, max(numbers) + 1)) - numbers)
            if missing:
                found.add(f"branch {branch!r}", f"ref {missing[0]} is missing, though later ones are there")
            for life in sorted(numbers):
                with found.catching(f"branch {branch!r}"):
                    refs.append(self._repository.refs.read(branch, life))
                    found.count("refs")
        if all(ref.branch_id != self._repository.stamp.main_id for ref in refs if ref.branch == MAIN):
            everything.add("the stamp", f"it names {self._repository.stamp.main_id} as main, which no ref of main has")
        return refs

    def find_living(self, found: Findings, refs: Iterable[Ref]) -> list[Ref]:
        """The refs of living branches. A ref without a manifest is no branch; all but the last life must have ended."""
        newest = {ref.branch: ref for ref in refs if ref.branch != MAIN}  # in order of their lives
        living: list[Ref] = []
        for ref in refs:
            if ref.branch == MAIN and ref.branch_id != self._repository.stamp.main_id:
                continue  # an init that was never finished
            with found.catching(f"branch {ref.branch!r}"):
                head = self._manifests.find_remaining_head(ref.branch_id)
                if head is None and ref.branch == MAIN:
                    found.add(f"branch {ref.branch!r}", "the graph's stamp names it, but it has no manifest")
                elif head is not None and head.tombstone is None and newest.get(ref.branch, ref) is not ref:
                    found.add(f"branch {ref.branch!r}", f"its life {ref.life} has not ended, although another began")
                elif head is not None and head.tombstone is None:
                    living.append(ref)
        return living

    # One branch.

    def check(self, found: Findings, ref: Ref) -> None:
        """Check a branch from its current head; restarts where a cleanup overtakes it."""
        for _ in range(ROUNDS_MAX):
            head = self._read_head(found, ref)
            if head is None:
                return
            tentative = found.tentative()
            self._check_history(tentative, ref, head)
            if self._check_state(tentative, ref.branch, head, rows=True):
                break
        else:
            message = "cleanups expire its states faster than they can be checked"
            found.add(f"branch {ref.branch!r}", message, "run `verify` again when there are fewer writes", NOTICE)
            return
        found.count("branches")
        for manifest in self._older_states(tentative, ref, head):
            self._check_state(tentative, ref.branch, manifest, rows=True)
        found.absorb(tentative)

    def _read_head(self, found: Findings, ref: Ref) -> Manifest | None:
        """The newest manifest by the listing: if a number is missing, the search for the head stops below it."""
        with found.catching(f"branch {ref.branch!r}"):
            highest = max(self._numbers(ref), default=0)
            head = self._manifests.find_remaining_head(ref.branch_id)
            if head is not None and head.manifest_version < highest:
                beyond = self._manifests.read(Point(ref.branch_id, highest), cached=False)
                head = beyond if isinstance(beyond, Manifest) else head
            return None if head is None or head.tombstone is not None else head
        return None

    def _numbers(self, ref: Ref) -> set[int]:
        return {
            number
            for listed in self._repository.store.list(manifest_folder(ref.branch_id))
            if (number := manifest_number(listed.key)) is not None
        }

    def _check_history(self, found: Findings, ref: Ref, head: Manifest) -> None:
        """Check that no number is missing, and that each manifest follows from the one before."""
        numbers = self._numbers(ref)
        newest = max([*numbers, head.manifest_version])
        for number in sorted(set(range(1, newest + 1)) - numbers)[:MISSING_MAX]:  # a listing may miss the newest
            with found.catching(_manifest_name(ref.branch, number)):
                if self._manifests.read(Point(ref.branch_id, number), cached=False) is None:
                    found.add(f"branch {ref.branch!r}", f"manifest {number} is missing, though {newest} is there")
        before: Manifest | None = None
        for number in self._choose_numbers(ref, head):
            manifest = self._read(found, ref, head, number)
            if manifest is None:
                before = None
                continue
            where = _manifest_name(ref.branch, number)
            if number >= head.oldest_retained:
                self._check_manifest(found, where, ref, manifest)
            if before is not None and before.manifest_version == number - 1:
                for what in link_problems(before, manifest):
                    found.add(where, what, REWRITE)
            before = manifest

    def _choose_numbers(self, ref: Ref, head: Manifest) -> list[int]:
        """All retained numbers or a sample, each with the one before it; the first and the last are always included.

        The one before the oldest may be a stub.
        """
        oldest, newest = max(1, head.oldest_retained - 1), head.manifest_version
        if self._full or newest - oldest < 2 * LINKS_SAMPLED:
            return list(range(oldest, newest + 1))
        some = Random(f"{self._seed} {ref.branch_id}").sample(range(oldest + 1, newest), LINKS_SAMPLED)
        wanted = {*some, *(number - 1 for number in some), oldest, newest - 1, newest}
        return sorted(wanted)

    def _read(self, found: Findings, ref: Ref, head: Manifest, number: int) -> Manifest | None:
        point = Point(ref.branch_id, number)
        where = _manifest_name(ref.branch, number)
        with found.catching(where):
            entry = self._manifests.read(point, cached=False)
            found.count("manifests")
            if isinstance(entry, Manifest):
                return entry
            if number < head.oldest_retained:
                return None
            if self._is_expired(point):
                found.count("overtaken")
            elif isinstance(entry, Stub):
                found.add(where, "it is a stub, though it is retained")
            # A missing one was reported with the listing.
        return None

    def _check_manifest(self, found: Findings, where: str, ref: Ref, manifest: Manifest) -> None:
        for what in manifest_problems(manifest, ref.branch):
            found.add(where, what, REWRITE)
        self._states.check_schema(found, where, manifest)
        if manifest.manifest_version != 1:
            return
        if manifest.fork != ref.fork:
            found.add(where, f"it says that it was forked at {manifest.fork}, its ref says {ref.fork}")
        with found.catching(where):
            fork = None if manifest.fork is None else self._manifests.read(manifest.fork, cached=False)
            if isinstance(fork, Manifest):
                for what in fork_problems(fork, manifest):
                    found.add(where, what, REWRITE)
            elif fork is None and manifest.fork is not None:
                found.add(where, f"its fork point {manifest.fork} is missing", RESTORE)

    def _older_states(self, found: Findings, ref: Ref, head: Manifest) -> Iterator[Manifest]:
        """Older states whose rows are checked.

        With `full` these are all of them or, of a long history, the newest state of each set of stored versions: the
        states in between differ only in their tails, which grow until they are folded. Of the others only the row
        counts are checked.
        """
        oldest = head.oldest_retained
        numbers: Iterable[int] = range(head.manifest_version - 1, oldest - 1, -1)
        if not self._full:
            count = min(STATES_SAMPLED, len(range(oldest, head.manifest_version)))
            random = Random(f"{self._seed} {ref.branch_id} states")
            numbers = sorted(random.sample(range(oldest, head.manifest_version), count), reverse=True)
        stored = {key: table.stored for key, table in head.tables.items()}
        rows = sum(table.rows for table in head.tables.values())
        few = rows * (head.manifest_version - oldest) <= ROWS_MAX
        for number in numbers:
            entry = None
            with found.tentative().catching(""):  # what can't be read was reported with the history
                entry = self._manifests.read(Point(ref.branch_id, number))
            if not isinstance(entry, Manifest):
                continue
            own = {key: table.stored for key, table in entry.tables.items()}
            if own != stored or not self._full or few:
                yield entry
            else:
                self._check_state(found, ref.branch, entry, rows=False)
            stored = own

    # One state.

    def _check_state(self, found: Findings, branch: str, manifest: Manifest, *, rows: bool) -> bool:
        """False if a cleanup has expired the state meanwhile: then the findings are discarded."""
        tentative = found.tentative()
        self._states.check(tentative, _manifest_name(branch, manifest.manifest_version), manifest, rows=rows)
        if tentative.damaged and self._is_expired(manifest.point):
            found.count("overtaken")
            return False
        found.absorb(tentative)
        return True

    def _is_expired(self, point: Point) -> bool:
        """Whether a cleanup may have deleted this manifest's files, or the branch was deleted."""
        head = self._manifests.find_remaining_head(point.branch_id)
        gone = head is None or head.tombstone is not None or head.oldest_retained > point.manifest_version
        return gone and not self._repository.tags.protect(point)


def find_ref(refs: Iterable[Ref], name: str, main_id: BranchId) -> Ref:
    """The newest life of a name; of main, the one in the stamp."""
    own = [ref for ref in refs if ref.branch == name and (name != MAIN or ref.branch_id == main_id)]
    if not own:
        raise BranchNotFound(name)
    return own[-1]


def _manifest_name(branch: str, number: int) -> str:
    return f"manifest {number} of branch {branch!r}"


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
            hint = read_hint(self._repository.store, branch_id)
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
