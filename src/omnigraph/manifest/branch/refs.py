"""Refs: the k-th life of a branch name. Never rewritten, never removed (`branch-ids`)."""

from collections.abc import Mapping
from dataclasses import dataclass

from omnigraph.errors import BadRequest, BranchNotFound, Damaged, Unavailable
from omnigraph.manifest.model.document import decode_document, encode_document
from omnigraph.manifest.model.manifest import BranchId, Point, TxnId
from omnigraph.manifest.model.paths import REFS, marker_key, parse_branch_id, parse_ref_key, ref_folder, ref_key
from omnigraph.runtime import Runtime
from omnigraph.storage.objects.object_store import ObjectStore, PutOutcome

PUT_ATTEMPTS_MAX = 8


@dataclass(frozen=True, slots=True)
class Ref:
    """A name, which life of it, and the branch id that this life has."""

    branch: str
    life: int
    branch_id: BranchId
    fork: Point | None
    txn_id: TxnId | None = None  # the idempotency key that its creator gave
    actor: str | None = None  # who gave the key
    request: str | None = None  # a digest of the request


@dataclass(frozen=True, slots=True)
class Life:
    """What a listing says of a name's newest life."""

    life: int
    marked_dead: bool


class Refs:
    def __init__(self, store: ObjectStore, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._known: dict[tuple[str, int], Ref] = {}

    def newest_life(self, branch: str) -> Life | None:
        """The newest life of one name; None for a name that was never used."""
        return self._newest_lives(ref_folder(branch)).get(branch)

    def all_names(self) -> Mapping[str, Life]:
        """The newest life of every name that was ever used; older ones are dead."""
        return self._newest_lives(REFS)

    def read(self, branch: str, life: int) -> Ref:
        """A ref is trusted only if it names its branch: some file systems don't tell upper from lower case, and give
        another branch's ref for this one's."""
        known = self._known.get((branch, life))
        if known is None:
            stored = self._store.get(ref_key(branch, life))
            if stored is None:
                raise Damaged(f"ref {life} of branch {branch!r}", "it is missing")
            known = _decode(stored.data, branch, life)
        if known.branch != branch:
            if _differ_in_case_only(known.branch, branch):
                raise BranchNotFound(branch)
            raise Damaged(f"ref {life} of branch {branch!r}", f"it names the branch {known.branch!r}")
        return self._keep(known)

    def reserve(self, ref: Ref) -> Ref | None:
        """Put the ref if that life is free; otherwise the ref that is there.

        A lost answer is settled by the branch id, which is fresh for every attempt. An absent ref
        after a lost answer is put again: it is the same object. Giving up is a plain failure, since a
        ref that lands later is a branch for nobody.
        """
        for attempt in range(PUT_ATTEMPTS_MAX):
            answer = self._store.create(ref_key(ref.branch, ref.life), _encode(ref))
            if answer.outcome is PutOutcome.CREATED:
                self._keep(ref)
                return None
            stored = self._store.get(ref_key(ref.branch, ref.life))
            if stored is not None:
                found = _decode(stored.data, ref.branch, ref.life)
                if _differ_in_case_only(found.branch, ref.branch):
                    raise BadRequest(
                        f"{ref.branch!r} can't name a branch, because this file system does not tell it from the "
                        f"branch {found.branch!r}: choose a name that differs in more than upper and lower case."
                    )
                self._keep(found)
                return None if found.branch_id == ref.branch_id else found
            self._runtime.clock.sleep(self._runtime.jitter(0.05 * 2.0**attempt))
        raise Unavailable(f"the ref of branch {ref.branch!r}", answer.reason)

    def mark_dead(self, branch: str, life: int) -> None:
        """Spare others a read. The tombstone has decided already."""
        self._store.put(marker_key(branch, life), b"")

    def _newest_lives(self, prefix: str) -> dict[str, Life]:
        lives: dict[str, Life] = {}
        for listed in self._store.list(prefix):
            name = parse_ref_key(listed.key)
            if name is None:
                continue
            known = lives.get(name.branch)
            if known is None or name.life > known.life:
                lives[name.branch] = Life(name.life, name.dead)
            elif name.life == known.life:
                lives[name.branch] = Life(name.life, known.marked_dead or name.dead)
        return lives

    def _keep(self, ref: Ref) -> Ref:
        self._known[ref.branch, ref.life] = ref
        return ref


def _differ_in_case_only(one: str, other: str) -> bool:
    return one != other and one.casefold() == other.casefold()


def _encode(ref: Ref) -> bytes:
    fork = None if ref.fork is None else [ref.fork.branch_id, ref.fork.manifest_version]
    key = {} if ref.txn_id is None else {"txn_id": ref.txn_id}
    if ref.request is not None:
        key |= {"request": ref.request} | ({} if ref.actor is None else {"actor": ref.actor})
    return encode_document({"branch": ref.branch, "branch_id": ref.branch_id, "fork": fork, **key})


def _decode(data: bytes, branch: str, life: int) -> Ref:
    what = f"ref {life} of branch {branch!r}"
    document = decode_document(data, what)
    try:
        fork = document["fork"]
        return Ref(
            str(document["branch"]),
            life,
            parse_branch_id(document["branch_id"]),
            None if fork is None else Point(parse_branch_id(fork[0]), int(fork[1])),
            document.get("txn_id"),
            document.get("actor"),
            document.get("request"),
        )
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise Damaged(what, f"{type(error).__name__}: {error}") from error
