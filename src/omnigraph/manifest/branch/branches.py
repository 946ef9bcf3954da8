"""Branches: create, find, list, delete, by `branch-create` and `branch-ids` in docs/protocol.md."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from omnigraph.errors import (
    AlreadyExists,
    BadRequest,
    BranchNotFound,
    CommitNotFound,
    ConflictError,
    Damaged,
    OmnigraphError,
    PreconditionFailed,
    UnsupportedFormat,
)
from omnigraph.manifest.branch.refs import Ref, Refs
from omnigraph.manifest.commit.plan import ConflictPolicy, CreateBranch, DeleteBranch, EmptyBranch, PublishPlan
from omnigraph.manifest.commit.publish import Publisher
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.history.history import Pins
from omnigraph.manifest.model.manifest import MAIN, BranchId, Manifest, TxnId
from omnigraph.manifest.model.paths import check_branch_name, commit_position
from omnigraph.manifest.model.request_key import request_of, require_same_request
from omnigraph.manifest.store.manifest_store import Manifests, Schemas
from omnigraph.runtime import Runtime
from omnigraph.threads import gather

RESERVE_ATTEMPTS_MAX = 16
SAME_KEY_ATTEMPTS_MAX = 6  # creations under one idempotency key that run at the same time
LIVES_SEARCHED_MAX = 16  # of one name, newest first, for an idempotency key


@dataclass(frozen=True, slots=True)
class Branch:
    """A living branch: its name, which life of it, and its newest manifest, confirmed."""

    name: str
    life: int
    head: Manifest


class Branches:
    def __init__(
        self,
        main_id: BranchId,
        refs: Refs,
        manifests: Manifests,
        schemas: Schemas,
        publisher: Publisher,
        runtime: Runtime,
        tags: Pins | None = None,
    ) -> None:
        self._main_id = main_id
        self._refs = refs
        self._manifests = manifests
        self._schemas = schemas
        self._publisher = publisher
        self._runtime = runtime
        self._tags = tags
        self._lives: dict[str, int] = {}  # of branches that this process found alive; a deleted life stays deleted

    def find(self, name: str) -> Branch:
        """The branch with its head confirmed in this call."""
        check_branch_name(name)
        if name == MAIN:
            head = self._manifests.read_head(self._main_id)
            if head is None:
                raise Damaged("main", "the graph's stamp names it, but it has no manifest")
            return Branch(MAIN, 1, head)
        known = self._lives.get(name)
        if known is not None and (branch := self._find_living(name, known)):
            return branch
        newest = self._refs.newest_life(name)
        if newest is None or newest.marked_dead:
            raise BranchNotFound(name)
        branch = self._find_living(name, newest.life)
        if branch is None:
            raise BranchNotFound(name)
        return branch

    def cached_head(self, name: str) -> Manifest | None:
        """The newest manifest in memory of a branch other than main, without a request; None for a deleted branch."""
        life = self._lives.get(check_branch_name(name))
        if life is None:
            return None
        head = self._manifests.cached_head(self._refs.read(name, life).branch_id)
        return None if head is None or head.tombstone is not None else head

    def names(self, wanted: Callable[[str], bool] | None = None) -> list[str]:
        """All branches, or those with a wanted name.

        A death marker saves reading the head of a deleted one; only a tombstone decides.
        """
        candidates = self._candidates(wanted)
        alive = gather([partial(self._is_alive, name, life) for name, life in candidates])
        main = [MAIN] if wanted is None or wanted(MAIN) else []
        return sorted([*main, *(name for (name, _), lives in zip(candidates, alive, strict=True) if lives)])

    def heads(self, wanted: Callable[[str], bool]) -> list[Manifest]:
        """The heads of the branches with a wanted name, but for those that can't be read."""
        heads = gather([partial(self._readable_head, name, life) for name, life in self._candidates(wanted)])
        main = [self.find(MAIN).head] if wanted(MAIN) else []
        return [*main, *(head for head in heads if head is not None)]

    def _candidates(self, wanted: Callable[[str], bool] | None) -> list[tuple[str, int]]:
        return [
            (name, life.life)
            for name, life in self._refs.all_names().items()
            if name != MAIN and not life.marked_dead and (wanted is None or wanted(name))
        ]

    def create_once(
        self, name: str, fork: Callable[[], Manifest], actor: str | None, txn_id: TxnId | None
    ) -> Manifest | None:
        """As `create`; None if an earlier call under the same key made the branch, whatever became of it since."""
        check_branch_name(name)
        for attempt in range(SAME_KEY_ATTEMPTS_MAX):
            if txn_id is not None and self._was_created_by(name, txn_id):
                return None
            try:
                return self.create(name, fork(), actor, txn_id)
            except ConflictError:
                # The other creation may be the same request, sent twice at once: then one of the two succeeds.
                if txn_id is None or attempt == SAME_KEY_ATTEMPTS_MAX - 1 or not self._is_reserved_by(name, txn_id):
                    raise
            self._runtime.clock.sleep(self._runtime.jitter(0.05 * 2.0**attempt))
        raise AssertionError("unreachable")

    def create(self, name: str, fork: Manifest, actor: str | None = None, txn_id: TxnId | None = None) -> Manifest:
        """`branch-create`. `fork` is what the branch starts from; its branch's head was confirmed in this call.

        The branch exists from manifest 1 on: a ref without one is not a branch yet.
        """
        check_branch_name(name)
        if name == MAIN:
            raise AlreadyExists(f"The branch {MAIN!r}", "choose another name")
        self._refuse_deleted_branch(fork)
        ref = self._reserve(name, fork, txn_id, actor)
        unborn = EmptyBranch(name, ref.branch_id)
        try:
            self._require_source(fork)
        except OmnigraphError:
            with suppress(OmnigraphError):  # otherwise the unfinished ref only keeps its fork point from cleanup
                self._end_unfinished(unborn, ref)
            raise
        plan = self._plan(CreateBranch(name, fork.schema, fork), ConflictPolicy.CONSTRUCTIVE, actor)
        born = self._publisher.create_branch(unborn, plan)
        if born is None:
            raise ConflictError(
                f"The branch {name!r} was created by another process meanwhile: check it, and try again."
            )
        self._lives[name] = ref.life
        return born

    def delete(self, name: str, actor: str | None = None, txn_id: TxnId | None = None) -> None:
        """The tombstone deletes the branch; the marker after it only saves others a read, and may fail.

        Under a key whose tombstone is there already nothing is deleted, though the name may live again.
        """
        check_branch_name(name)
        if name == MAIN:
            raise BadRequest(f"The branch {MAIN!r} can't be deleted: it always exists.")
        if txn_id is not None and self._was_deleted_by(name, txn_id):
            return
        try:
            self._delete(name, actor, txn_id)
        except BranchNotFound:
            if txn_id is None or not self._was_deleted_by(name, txn_id):  # by the same request, sent twice at once
                raise

    def _delete(self, name: str, actor: str | None, txn_id: TxnId | None) -> None:
        life = self._lives.get(name)
        head = None if life is None else self._manifests.cached_head(self._refs.read(name, life).branch_id)
        if life is None or head is None or head.tombstone is not None:
            branch = self.find(name)
            life, head = branch.life, branch.head
        plan = self._plan(DeleteBranch(), ConflictPolicy.MAINTENANCE, actor, txn_id)
        try:
            self._publisher.delete_branch(WriteTxn(head, self._schemas.read(head.schema)), plan)
        except BranchNotFound:
            # The life that this process knew is over; the name may live again.
            branch = self.find(name)
            life = branch.life
            self._publisher.delete_branch(WriteTxn(branch.head, self._schemas.read(branch.head.schema)), plan)
        self._lives.pop(name, None)
        with suppress(OmnigraphError):
            self._refs.mark_dead(name, life)

    def delete_merged(self, merged: Manifest, actor: str | None = None) -> bool:
        """`delete-merged`: the tombstone goes right after the manifest that was merged, past maintenance only.

        False if the branch has moved on since: then it has something that was not merged, and stays.
        """
        if merged.branch == MAIN:
            raise BadRequest(f"The branch {MAIN!r} can't be deleted: it always exists.")
        plan = replace(self._plan(DeleteBranch(), ConflictPolicy.MAINTENANCE, actor), if_commit=merged.logical_head)
        try:
            self._publisher.delete_branch(WriteTxn(merged, self._schemas.read(merged.schema)), plan)
        except PreconditionFailed:
            return False
        life = self._lives.pop(merged.branch, None)
        if life is not None and self._refs.read(merged.branch, life).branch_id == merged.branch_id:
            with suppress(OmnigraphError):
                self._refs.mark_dead(merged.branch, life)
        return True

    def _was_created_by(self, name: str, txn_id: TxnId) -> bool:
        """Whether a life of the name was created under this key; one that was ended unfinished does not count."""
        for ref in self._read_lives(name):
            if ref.txn_id == txn_id:
                head = self._manifests.read_head(ref.branch_id)
                if head and (head.tombstone is None or head.manifest_version > 1):
                    require_same_request(txn_id, ref)
                    return True
        return False

    def _is_reserved_by(self, name: str, txn_id: TxnId) -> bool:
        return any(ref.txn_id == txn_id for ref in self._read_lives(name))

    def _was_deleted_by(self, name: str, txn_id: TxnId) -> bool:
        heads = (self._manifests.read_head(ref.branch_id) for ref in self._read_lives(name))
        for head in heads:
            if head and head.tombstone and head.tombstone.txn_id == txn_id:
                require_same_request(txn_id, head.tombstone)
                return True
        return False

    def _read_lives(self, name: str) -> Iterator[Ref]:
        """The lives of a name, newest first."""
        newest = self._refs.newest_life(name)
        last = 0 if newest is None else newest.life
        for life in range(last, max(0, last - LIVES_SEARCHED_MAX), -1):
            with suppress(BranchNotFound):  # a name that differs in case only, on a file system that ignores case
                yield self._refs.read(name, life)

    def _reserve(self, name: str, fork: Manifest, txn_id: TxnId | None, actor: str | None = None) -> Ref:
        """Take the name's next life, ending an unfinished one that is in the way."""
        life = 1
        for _ in range(RESERVE_ATTEMPTS_MAX):
            ref = Ref(name, life, self._runtime.ids.short_id(), fork.point)
            if txn_id is not None:
                ref = replace(ref, txn_id=str(txn_id), actor=actor, request=request_of(txn_id))
            if self._refs.reserve(ref) is None:
                return ref
            newest = self._refs.newest_life(name)
            life = 1 if newest is None else newest.life
            if newest is not None and not newest.marked_dead and not self._end_or_is_over(name, life):
                raise AlreadyExists(f"The branch {name!r}", "choose another name, or delete it first")
            life += 1
        raise ConflictError(f"Other processes keep creating branches named {name!r}: nothing was created, try again.")

    def _end_or_is_over(self, name: str, life: int) -> bool:
        """Whether that life is over, after ending it if its creator never finished."""
        ref = self._refs.read(name, life)
        head = self._manifests.read_head(ref.branch_id)
        if head is None:
            return self._end_unfinished(EmptyBranch(name, ref.branch_id), ref)
        return head.tombstone is not None

    def _end_unfinished(self, unborn: EmptyBranch, ref: Ref) -> bool:
        """A tombstone as its manifest 1; False if its creator was first and the branch lives."""
        buried = self._publisher.create_branch(unborn, self._plan(DeleteBranch(), ConflictPolicy.MAINTENANCE, None))
        if buried is None:
            head = self._manifests.read_head(ref.branch_id)
            return head is not None and head.tombstone is not None
        return True

    def _refuse_deleted_branch(self, fork: Manifest) -> None:
        """Nothing keeps the commits of a deleted branch from cleanup, except tags."""
        known = self._manifests.cached_head(fork.branch_id)
        if known is not None and known.tombstone is not None and not self._is_tagged(fork):
            if commit_position(fork.logical_head)[0] != fork.branch_id:
                raise BranchNotFound(fork.branch)  # it had no commit of its own, and those that it had are elsewhere
            reason = f"its branch {fork.branch!r} was deleted, so it can't be forked: fork the commit that merged it"
            raise CommitNotFound(fork.logical_head, reason)

    def _is_tagged(self, fork: Manifest) -> bool:
        return self._tags is not None and self._tags.protect(fork.point)

    def _require_source(self, fork: Manifest) -> None:
        """Step 3 of `branch-create`: the source lives, and no cleanup has passed the fork point, or a tag has it."""
        known = self._manifests.cached_head(fork.branch_id) or fork
        head = self._manifests.refresh_head(known)
        kept = head.tombstone is None and head.oldest_retained <= fork.manifest_version
        if kept or self._is_tagged(fork):
            return
        if head.tombstone is not None:
            raise BranchNotFound(head.branch)
        raise ConflictError(
            f"A cleanup passed manifest {fork.manifest_version} of {head.branch!r} meanwhile: nothing was created, "
            "try again from a newer commit."
        )

    def _is_alive(self, name: str, life: int) -> bool:
        """A branch whose head can't be read is listed too."""
        try:
            return self._find_living(name, life) is not None
        except (Damaged, UnsupportedFormat):
            return True

    def _readable_head(self, name: str, life: int) -> Manifest | None:
        try:
            branch = self._find_living(name, life)
        except (Damaged, UnsupportedFormat):
            return None
        return None if branch is None else branch.head

    def _find_living(self, name: str, life: int) -> Branch | None:
        head = self._manifests.read_head(self._refs.read(name, life).branch_id)
        if head is None or head.tombstone is not None:
            self._lives.pop(name, None)
            return None
        self._lives[name] = life
        return Branch(name, life, head)

    def _plan(
        self,
        effect: CreateBranch | DeleteBranch,
        stance: ConflictPolicy,
        actor: str | None,
        txn_id: TxnId | None = None,
    ) -> PublishPlan:
        own_id = self._runtime.ids.txn_id() if txn_id is None else txn_id
        return PublishPlan(own_id, stance, effect, actor, idempotent=txn_id is not None)
