"""An intent as a value, and as JSON: what a long write says about itself."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from omnigraph.errors import BadRequest, Damaged
from omnigraph.manifest.intent.process_liveness import Owner
from omnigraph.manifest.model.codec import decode_time, encode_time
from omnigraph.manifest.model.document import decode_document, encode_document
from omnigraph.manifest.model.manifest import BranchId, Point, Token, TxnId
from omnigraph.manifest.model.paths import parse_branch_id, recovery_folder
from omnigraph.storage.objects.object_store import ETag


class State(StrEnum):
    WORKING = "working"
    RELEASED = "released"  # no process works on it; the next start may take it over at once
    DISCARDED = "discarded"  # closed: its discard is being recorded; neither resumed nor replaced until that has ended
    FINISHED = "finished"  # ended: committed, given up or discarded; only a new start may replace it


CLOSED = (State.FINISHED, State.DISCARDED)


@dataclass(frozen=True, slots=True)
class Intent:
    """What a long write says about itself: whose it is, and what cleanup has to spare.

    Each start of it has a token of its own, the owner's. A start that takes it over keeps the tokens of those before:
    a fence honours, and a discard names, all of them.
    """

    txn_id: TxnId
    branch: str
    base: Point  # the first base: from here on its transaction is looked for
    kind: str
    actor: str | None
    owner: Owner
    state: State = State.WORKING
    first_put: datetime | None = None  # by the store; None until it was asked: then the object's own time is it
    refreshes: int = 0  # so that no two contents are equal
    details: Mapping[str, Any] = field(default_factory=dict)
    tokens: tuple[Token, ...] = ()  # of all starts, the first one first
    tables: frozenset[str] | None = frozenset()  # whose files it may write, by table id; None: unknown (format 1)
    prefix: str = ""  # of the keys of what it needs to be resumed
    named: bool = True  # its caller chose the txn id, and may start the write again under it

    def __post_init__(self) -> None:
        if not self.tokens:
            object.__setattr__(self, "tokens", (self.owner.token,))
        if not self.prefix:
            object.__setattr__(self, "prefix", f"{recovery_folder(self.txn_id)}/{self.tokens[0]}")

    @property
    def token(self) -> Token:
        """Of the start that owns it."""
        return self.owner.token

    @property
    def target(self) -> str:
        """The branch that it is to be committed on: that of its base, or one that is to be forked from there."""
        target = self.details.get("target")
        return target if isinstance(target, str) else self.branch

    def search_start(self, branch_id: BranchId) -> Point | None:
        """Behind which point of this branch it may be committed: from its first base on, or, on the branch that it was
        to fork, from the beginning. None: not there, as when the branch was deleted and its name is another's now."""
        if branch_id == self.base.branch_id:
            return self.base
        return None if self.target == self.branch else Point(branch_id, 1)

    def is_for(self, target: str, branch_id: BranchId) -> bool:
        return target == self.target and self.search_start(branch_id) is not None


@dataclass(frozen=True, slots=True)
class StoredIntent:
    """An intent as it was read: what a later change of it is conditional on."""

    intent: Intent
    tag: ETag
    modified: datetime
    age: timedelta  # since it was last refreshed, by the store's clock
    alive: bool

    @property
    def closed(self) -> bool:
        return self.intent.state in CLOSED

    @property
    def ended(self) -> bool:
        """Nothing is left of it but its object."""
        return self.intent.state is State.FINISHED

    @property
    def first_put(self) -> datetime:
        return self.intent.first_put or self.modified


def encode_intent(intent: Intent) -> bytes:
    return encode_document(
        {
            "txn_id": intent.txn_id,
            "branch": intent.branch,
            "base": [intent.base.branch_id, intent.base.manifest_version],
            "kind": intent.kind,
            "actor": intent.actor,
            "owner": asdict(intent.owner),
            "state": intent.state.value,
            "first_put": None if intent.first_put is None else encode_time(intent.first_put),
            "refreshes": intent.refreshes,
            "details": dict(intent.details),
            "tokens": list(intent.tokens),
            "tables": None if intent.tables is None else sorted(intent.tables),
            "prefix": intent.prefix,
            "named": intent.named,
        }
    )


def decode_intent(data: bytes, txn_id: TxnId) -> Intent:
    what = f"the intent of {txn_id}"
    document = decode_document(data, what)
    try:
        branch_id, number = document["base"]
        first_put = document["first_put"]
        _require_own(str(document["txn_id"]), txn_id)
        owner, tables = Owner(**document["owner"]), document.get("tables")
        return Intent(
            txn_id=txn_id,
            branch=str(document["branch"]),
            base=Point(parse_branch_id(branch_id), int(number)),
            kind=str(document["kind"]),
            actor=None if document["actor"] is None else str(document["actor"]),
            owner=owner,
            state=State(document["state"]),
            first_put=None if first_put is None else decode_time(first_put),
            refreshes=int(document["refreshes"]),
            details=dict(document["details"]),
            tokens=tuple(str(token) for token in document.get("tokens", (owner.token,))),
            tables=None if tables is None else frozenset(str(table) for table in tables),
            prefix=_prefix_below(recovery_folder(txn_id), document.get("prefix")),
            named=bool(document.get("named", True)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(what, f"{type(error).__name__}: {error}") from error


def _require_own(found: TxnId, txn_id: TxnId) -> None:
    """An intent is trusted only if it names its transaction: some file systems don't tell upper from lower case."""
    if found != txn_id and found.casefold() == txn_id.casefold():
        raise BadRequest(
            f"{txn_id!r} can't name a job, because this file system does not tell it from the job {found!r}: choose an "
            "id that differs in more than upper and lower case."
        )
    if found != txn_id:
        raise ValueError(f"it is the intent of {found!r}")


def _prefix_below(folder: str, prefix: object) -> str:
    """Objects under it may be deleted, so nothing but a part of the write's own folder may pass for one."""
    if prefix is None or prefix == folder:
        return folder  # format 1
    if not isinstance(prefix, str) or not prefix.startswith(f"{folder}/") or ".." in prefix.split("/"):
        raise ValueError(f"{prefix!r} is not below {folder}")
    return prefix
