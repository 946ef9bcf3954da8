"""Branches: their refs, their manifests from the oldest retained one to the head, and the choice of states to check."""

from collections.abc import Iterable, Iterator
from random import Random

from omnigraph.errors import BranchNotFound
from omnigraph.manifest.branch.refs import Ref
from omnigraph.manifest.model.manifest import MAIN, BranchId, Manifest, Point, Stub
from omnigraph.manifest.model.paths import REFS, manifest_folder, manifest_number, parse_ref_key
from omnigraph.manifest.repository import Repository
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

    def check_refs(self, found: Findings) -> list[Ref]:
        """All refs that can be read; checks that the lives of a name are numbered without a gap."""
        lives: dict[str, set[int]] = {}
        for listed in self._repository.store.list(REFS):
            name = parse_ref_key(listed.key)
            if name is not None and not name.dead:
                lives.setdefault(name.branch, set()).add(name.life)
        refs: list[Ref] = []
        for branch, numbers in sorted(lives.items()):
            missing = sorted(set(range(1, max(numbers) + 1)) - numbers)
            if missing:
                found.add(f"branch {branch!r}", f"ref {missing[0]} is missing, though later ones are there")
            for life in sorted(numbers):
                with found.catching(f"branch {branch!r}"):
                    refs.append(self._repository.refs.read(branch, life))
                    found.count("refs")
        if all(ref.branch_id != self._repository.stamp.main_id for ref in refs if ref.branch == MAIN):
            found.add("the stamp", f"it names {self._repository.stamp.main_id} as main, which no ref of main has")
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
