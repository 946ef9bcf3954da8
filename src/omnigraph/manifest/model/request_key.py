"""Idempotency keys: a key belongs to an actor and to one request of it.

The key travels as the transaction id of a write. What it made records the actor and a digest of the request, so that
the same key from another actor, or for another request, is refused instead of answered.
"""

import hashlib
import json
from typing import Protocol

from omnigraph.errors import KeyReused
from omnigraph.manifest.model.manifest import Commit, CommitId, FreshTxnId, TxnId

DIGEST_LENGTH = 32


class RequestKey(str):
    """A key with its request. `anyone`: the request decides alone, as for jobs, which other actors may restart."""

    __slots__ = ("actor", "anyone", "digest", "seen")
    actor: str | None
    digest: str
    seen: CommitId | None  # that of a `FreshTxnId`
    anyone: bool

    def __new__(
        cls, key: str, actor: str | None, digest: str, seen: CommitId | None = None, anyone: bool = False
    ) -> "RequestKey":
        made = super().__new__(cls, key)
        made.actor, made.digest, made.seen, made.anyone = actor, digest, seen, anyone
        return made

    def __getnewargs__(self) -> tuple[str, str | None, str, CommitId | None, bool]:  # type: ignore[override]
        return str(self), self.actor, self.digest, self.seen, self.anyone


class Keyed(Protocol):
    """What a key made: a commit, a tombstone, a ref, a tag."""

    @property
    def actor(self) -> str | None: ...
    @property
    def request(self) -> str | None: ...


def request_key(txn_id: TxnId | None, actor: str | None, verb: str, *arguments: object) -> TxnId | None:
    """The caller's key with its request. None stays None: ids that this library makes need no digest.

    Preconditions (`if_commit`, `on_conflict`) and what only says where the work is done (`engine`) are not part of
    the request.
    """
    if txn_id is None or isinstance(txn_id, RequestKey):
        return txn_id
    return RequestKey(txn_id, actor, digest_of(verb, *arguments), seen_before(txn_id))


def digest_of(*values: object) -> str:
    """A digest of plain values: equal for equal ones, in whatever order a mapping has them."""
    try:
        text = json.dumps(values, sort_keys=True, default=_plain)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, values that contain themselves
        text = repr(values)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]


def _plain(value: object) -> object:
    """What JSON does not know: arrays and numbers of numpy, dates, bytes."""
    to_list = getattr(value, "tolist", None)
    return f"{type(value).__name__} {value!r}" if to_list is None else to_list()


def request_of(txn_id: TxnId) -> str | None:
    """The digest to record with what a transaction makes."""
    return txn_id.digest if isinstance(txn_id, RequestKey) else None


def seen_before(txn_id: TxnId | None) -> CommitId | None:
    """A commit that is older than the id, if its maker named one."""
    return txn_id.seen if isinstance(txn_id, RequestKey | FreshTxnId) else None


def require_same_request(txn_id: TxnId, made: Keyed) -> None:
    """Raise `KeyReused` if a key made this for another actor or request. Older releases recorded no digest: then it is
    taken for the same."""
    if not isinstance(txn_id, RequestKey) or made.request is None:
        return
    actor = made.actor
    if isinstance(made, Commit) and made.recovered is not None:
        actor = made.recovered.actor  # of whom the long write was that recovery completed
    if made.request != txn_id.digest or (actor != txn_id.actor and not txn_id.anyone):
        raise KeyReused(txn_id)
