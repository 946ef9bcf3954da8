"""Branches: their refs, their manifests from the oldest that is retained to the head, and the states worth a look."""

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
ROWS_MAX = 20_000_000  # of all states of a branch together: up to here every state is looked into, if all is asked for
MISSING_MAX = 16  # missing manifests of a branch that are told
ROUNDS_MAX = 5  # a branch that moves on, with a cleanup behind it, is begun again


class BranchChecks:
    def __init__(self, repository: Repository, states: SnapshotChecks, *, full: bool, seed: int) -> None:
        self._repository = repository
        self._manifests = repository.manifests
        self._states = states
        self._full = full
        self._seed = seed

    # Refs.

    def check_refs(self, found: Findings) -> list[Ref]:
        """All refs that can be read; lives are numbered without a gap, and all but the last of a name have ended."""
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
        """The refs of living branches; what was never born is a branch for nobody."""
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
                    found.add(f"branch {ref.branch!r}", f"its life {ref.life} has not ended, though another began")
                elif head is not None and head.tombstone is None:
                    living.append(ref)
        return living

    # One branch.

    def check(self, found: Findings, ref: Ref) -> None:
        """From a head that is pinned now; begun again where a cleanup overtakes it."""
        for _ in range(ROUNDS_MAX):
            head = self._read_head(found, ref)
            if head is None:
                return
            aside = found.tentative()
            self._check_history(aside, ref, head)
            if self._check_state(aside, ref.branch, head, rows=True):
                break
        else:
            told = "cleanups expire its states faster than they can be looked at"
            found.add(f"branch {ref.branch!r}", told, "run it again when less is going on", NOTICE)
            return
        found.count("branches")
        for manifest in self._older_states(aside, ref, head):
            self._check_state(aside, ref.branch, manifest, rows=True)
        found.absorb(aside)

    def _read_head(self, found: Findings, ref: Ref) -> Manifest | None:
        """The newest manifest. Where a number is missing, one that gallops upwards stops short of it."""
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
        """That no number is missing, and that manifests follow from one another."""
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
        """All retained numbers or some, each with the one before it; first and last are always among them.

        The one before the oldest may be a stub by now.
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
            # A missing one was told with the listing.
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
        """Older states whose tables are looked into.

        Where everything is asked for, that is all of them or, of a long history, the newest state of each set of stored
        versions: what lies between two of those differs in the tails alone, which grow until they are folded. The
        others have their rows counted.
        """
        oldest = head.oldest_retained
        numbers: Iterable[int] = range(head.manifest_version - 1, oldest - 1, -1)
        if not self._full:
            count = min(STATES_SAMPLED, len(range(oldest, head.manifest_version)))
            dice = Random(f"{self._seed} {ref.branch_id} states")
            numbers = sorted(dice.sample(range(oldest, head.manifest_version), count), reverse=True)
        stored = {key: table.stored for key, table in head.tables.items()}
        rows = sum(table.rows for table in head.tables.values())
        few = rows * (head.manifest_version - oldest) <= ROWS_MAX
        for number in numbers:
            entry = None
            with found.tentative().catching(""):  # what can't be read was told by the walk
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
        """False where a cleanup has expired it meanwhile: then what was found says nothing."""
        aside = found.tentative()
        self._states.check(aside, _manifest_name(branch, manifest.manifest_version), manifest, rows=rows)
        if aside.damaged and self._is_expired(manifest.point):
            found.count("overtaken")
            return False
        found.absorb(aside)
        return True

    def _is_expired(self, point: Point) -> bool:
        """Whether a cleanup may have taken this manifest's files, or the branch is gone, by now."""
        head = self._manifests.find_remaining_head(point.branch_id)
        gone = head is None or head.tombstone is not None or head.oldest_retained > point.manifest_version
        return gone and not self._repository.tags.protect(point)


def find_ref(refs: Iterable[Ref], name: str, main_id: BranchId) -> Ref:
    """The newest life of a name; of main, the one that the stamp names."""
    own = [ref for ref in refs if ref.branch == name and (name != MAIN or ref.branch_id == main_id)]
    if not own:
        raise BranchNotFound(name)
    return own[-1]


def _manifest_name(branch: str, number: int) -> str:
    return f"manifest {number} of branch {branch!r}"
