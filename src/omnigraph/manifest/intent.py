"""An intent as a value, and as JSON: what a long write says about itself."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from omnigraph.errors import Damaged
from omnigraph.manifest.codec import decode_json, decode_time, encode_json, encode_time
from omnigraph.manifest.keys import branch_id_of
from omnigraph.manifest.model import FORMAT, Point, TxnId
from omnigraph.manifest.owners import Owner


class State(StrEnum):
    WORKING = "working"
    RELEASED = "released"  # nobody works on it; whoever has its id may go on at once
    FINISHED = "finished"  # closed: its commit is there
    DISCARDED = "discarded"  # closed: its staged work is garbage


CLOSED = (State.FINISHED, State.DISCARDED)


@dataclass(frozen=True, slots=True)
class Intent:
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


def encode_intent(intent: Intent) -> bytes:
    return encode_json(
        {
            "format": FORMAT,
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
        }
    )


def decode_intent(data: bytes, txn_id: TxnId) -> Intent:
    what = f"the intent of {txn_id}"
    document = decode_json(data, what)
    try:
        branch_id, number = document["base"]
        first_put = document["first_put"]
        if document["txn_id"] != txn_id:
            raise ValueError(f"it is the intent of {document['txn_id']!r}")
        return Intent(
            txn_id=txn_id,
            branch=str(document["branch"]),
            base=Point(branch_id_of(branch_id), int(number)),
            kind=str(document["kind"]),
            actor=None if document["actor"] is None else str(document["actor"]),
            owner=Owner(**document["owner"]),
            state=State(document["state"]),
            first_put=None if first_put is None else decode_time(first_put),
            refreshes=int(document["refreshes"]),
            details=dict(document["details"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(what, f"{type(error).__name__}: {error}") from error
