"""Manifests and refs as JSON. Strict: what this release does not know it refuses, by name."""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from omnigraph.errors import Damaged, UnsupportedFormat
from omnigraph.manifest.model import (
    FORMAT,
    Commit,
    CommitClass,
    Entry,
    Fence,
    InlineChange,
    Manifest,
    Point,
    Stub,
    TableRef,
    Tombstone,
    Touch,
    Turn,
)


def encode_json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def decode_json(data: bytes, what: str) -> dict[str, Any]:
    """A stored document whose format this release knows; otherwise an error that names it."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(what, "it is not JSON") from error
    if not isinstance(document, dict) or "format" not in document:
        raise Damaged(what, "it carries no format")
    if document["format"] != FORMAT:
        raise UnsupportedFormat(what, document["format"], FORMAT)
    return document


def encode_time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def decode_time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.astimezone(UTC)


def encode_entry(entry: Entry) -> bytes:
    document: dict[str, Any] = {
        "format": FORMAT,
        "branch": entry.branch,
        "branch_id": entry.branch_id,
        "manifest_version": entry.manifest_version,
        "authored_at": encode_time(entry.authored_at),
        "ancestry": dict(entry.ancestry),
        "commits": [commit_to_json(commit) for commit in entry.commits],
    }
    if entry.fork is not None:
        document["fork"] = [entry.fork.branch_id, entry.fork.manifest_version]
    if entry.tombstone is not None:
        document["tombstone"] = {"txn_id": entry.tombstone.txn_id, "actor": entry.tombstone.actor}
    if isinstance(entry, Stub):
        document["stub"] = True
        return encode_json(document)
    document |= {
        "schema": entry.schema,
        "logical_head": entry.logical_head,
        "fenced_at": entry.fenced_at,
        "oldest_retained": entry.oldest_retained,
        "tables": {key: _ref_to_json(ref) for key, ref in entry.tables.items()},
        "inline": [{key: _change_to_json(change) for key, change in group.items()} for group in entry.inline],
    }
    if entry.fence is not None:
        document["fence"] = {"previous": entry.fence.previous, "honoured": list(entry.fence.honoured)}
    if entry.turn is not None:
        document["turn"] = {"txn_id": entry.turn.txn_id, "wait_ms": entry.turn.wait_ms}
    return encode_json(document)


def decode_entry(data: bytes, what: str, expected: Point | None = None) -> Entry:
    """The manifest or stub in an object; it must be the one that its name promises."""
    document = decode_json(data, what)
    try:
        entry = _entry_from_json(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Damaged(what, f"{type(error).__name__}: {error}") from error
    if expected is not None and Point(entry.branch_id, entry.manifest_version) != expected:
        raise Damaged(what, f"it says it is manifest {entry.manifest_version} of branch id {entry.branch_id}")
    return entry


def commit_to_json(commit: Commit) -> dict[str, Any]:
    return {
        "id": commit.id,
        "txn_id": commit.txn_id,
        "parent": commit.parent,
        "merged_parent": commit.merged_parent,
        "actor": commit.actor,
        "authored_at": encode_time(commit.authored_at),
        "kind": commit.kind,
        "class": commit.commit_class.value,
        "touched": {key: touch_to_json(touch) for key, touch in commit.touched.items()},
    }


def touch_to_json(touch: Touch) -> dict[str, int]:
    """Only what happened: a commit that inserted says nothing of updates."""
    counts = {"inserted": touch.inserted, "updated": touch.updated, "deleted": touch.deleted}
    return {verb: count for verb, count in counts.items() if count}


def _entry_from_json(document: Mapping[str, Any]) -> Entry:
    common: dict[str, Any] = {
        "branch": _text(document["branch"]),
        "branch_id": _text(document["branch_id"]),
        "manifest_version": _number(document["manifest_version"]),
        "authored_at": decode_time(document["authored_at"]),
        "ancestry": {_text(branch): _number(number) for branch, number in document["ancestry"].items()},
        "commits": tuple(_commit_from_json(commit) for commit in document["commits"]),
        "fork": _point(document["fork"]) if "fork" in document else None,
        "tombstone": _tombstone(document["tombstone"]) if "tombstone" in document else None,
    }
    if document.get("stub"):
        return Stub(**common)
    return Manifest(
        **common,
        schema=_text(document["schema"]),
        logical_head=_text(document["logical_head"]),
        fenced_at=_number(document["fenced_at"]),
        oldest_retained=_number(document["oldest_retained"]),
        tables={key: _ref_from_json(ref) for key, ref in document["tables"].items()},
        inline=tuple({key: _change_from_json(change) for key, change in group.items()} for group in document["inline"]),
        fence=_fence(document["fence"]) if "fence" in document else None,
        turn=_turn(document["turn"]) if "turn" in document else None,
    )


def _commit_from_json(document: Mapping[str, Any]) -> Commit:
    return Commit(
        id=_text(document["id"]),
        txn_id=_text(document["txn_id"]),
        parent=_text_or_none(document["parent"]),
        merged_parent=_text_or_none(document["merged_parent"]),
        actor=_text_or_none(document["actor"]),
        authored_at=decode_time(document["authored_at"]),
        kind=_text(document["kind"]),
        commit_class=CommitClass(document["class"]),
        touched={key: _touch(touch) for key, touch in document["touched"].items()},
    )


def _ref_to_json(ref: TableRef) -> dict[str, Any]:
    return {
        "table_id": ref.table_id,
        "table_version": ref.table_version,
        "rows": ref.rows,
        "changed_at": ref.changed_at,
        "tail": [[point.branch_id, point.manifest_version] for point in ref.tail],
    } | ({} if ref.removed_at is None else {"removed_at": ref.removed_at})


def _ref_from_json(document: Mapping[str, Any]) -> TableRef:
    return TableRef(
        table_id=_text(document["table_id"]),
        table_version=_number(document["table_version"]),
        rows=_number(document["rows"]),
        changed_at=_text(document["changed_at"]),
        tail=tuple(_point(point) for point in document["tail"]),
        removed_at=_text_or_none(document.get("removed_at")),
    )


def _change_to_json(change: InlineChange) -> dict[str, Any]:
    upserts = None if change.upserts is None else base64.b64encode(change.upserts).decode()
    return {"upserts": upserts, "deletes": list(change.deletes)}


def _change_from_json(document: Mapping[str, Any]) -> InlineChange:
    upserts = document["upserts"]
    return InlineChange(
        None if upserts is None else base64.b64decode(upserts, validate=True),
        tuple(_text(entity) for entity in document["deletes"]),
    )


def _point(pair: Any) -> Point:
    branch_id, number = pair
    return Point(_text(branch_id), _number(number))


def _fence(document: Mapping[str, Any]) -> Fence:
    return Fence(_number(document["previous"]), tuple(_text(txn) for txn in document["honoured"]))


def _turn(document: Mapping[str, Any]) -> Turn:
    return Turn(_text(document["txn_id"]), _number(document["wait_ms"]))


def _tombstone(document: Mapping[str, Any]) -> Tombstone:
    return Tombstone(_text(document["txn_id"]), _text_or_none(document["actor"]))


def _touch(document: Mapping[str, Any]) -> Touch:
    return Touch(**{verb: _number(count) for verb, count in document.items()})


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"expected a number, found {value!r}")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value
