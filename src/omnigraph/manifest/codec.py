"""Manifests and refs as JSON. Strict: what this release does not know it refuses, by name."""

import base64
import json
from binascii import b2a_base64
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring as _text_of
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
    Recovered,
    Stub,
    TableKey,
    TableRef,
    Tombstone,
    Touch,
    Turn,
)
from omnigraph.storage.content import TailEntry
from omnigraph.storage.handles import TableVersion


def encode_json(document: Mapping[str, Any]) -> bytes:
    return _json(document).encode()


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False)


_NEW = ',"new":true'
_TAIL = '"tail":['  # no table has such a key


def _json(value: object) -> str:
    return _ENCODER.encode(value)


def _maybe_text_of(text: str | None) -> str:
    return "null" if text is None else _text_of(text)


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


@lru_cache(64)  # a manifest and all its commits have the same
def encode_time(moment: datetime) -> str:
    own = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return own.isoformat(timespec="microseconds").replace("+00:00", "Z")


def decode_time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.astimezone(UTC)


def encode_entry(entry: Entry) -> bytes:
    """Put together as text: every small commit waits for this, and a general encoder would take its time."""
    ancestry = ",".join([f"{_text_of(branch)}:{number}" for branch, number in entry.ancestry.items()])
    parts = [
        f'{{"format":{FORMAT},"branch":{_text_of(entry.branch)},"branch_id":{_text_of(entry.branch_id)},'
        f'"manifest_version":{entry.manifest_version},"authored_at":"{encode_time(entry.authored_at)}",'
        f'"ancestry":{{{ancestry}}},"commits":[{",".join([_commit_text(commit) for commit in entry.commits])}]'
    ]
    if entry.fork is not None:
        parts.append(f',"fork":[{_text_of(entry.fork.branch_id)},{entry.fork.manifest_version}]')
    if entry.tombstone is not None:
        grave = entry.tombstone
        parts.append(f',"tombstone":{{"txn_id":{_text_of(grave.txn_id)},"actor":{_maybe_text_of(grave.actor)}}}')
    if isinstance(entry, Stub):
        return f'{"".join(parts)},"stub":true}}'.encode()
    parts.append(
        f',"schema":{_text_of(entry.schema)},"logical_head":{_text_of(entry.logical_head)},'
        f'"fenced_at":{entry.fenced_at},"oldest_retained":{entry.oldest_retained},'
        f'"inline":[{",".join([_group_text(group) for group in entry.inline])}]'
    )
    if entry.fence is not None:
        honoured = ",".join([_text_of(txn_id) for txn_id in entry.fence.honoured])
        parts.append(f',"fence":{{"previous":{entry.fence.previous},"honoured":[{honoured}]}}')
    if entry.turn is not None:
        parts.append(f',"turn":{{"txn_id":{_text_of(entry.turn.txn_id)},"wait_ms":{entry.turn.wait_ms}}}')
    tables = ",".join([ref.as_text.get(key) or _ref_text(key, ref) for key, ref in entry.tables.items()])
    return f'{"".join(parts)},"tables":{{{tables}}}}}'.encode()


def _commit_text(commit: Commit) -> str:
    touched = ",".join([f"{_text_of(key)}:{_touch_text(touch)}" for key, touch in commit.touched.items()])
    recovered = "" if commit.recovered is None else f',"recovered":{_json(recovered_to_json(commit.recovered))}'
    return (
        f'{{"id":{_text_of(commit.id)},"txn_id":{_text_of(commit.txn_id)},"parent":{_maybe_text_of(commit.parent)},'
        f'"merged_parent":{_maybe_text_of(commit.merged_parent)},"actor":{_maybe_text_of(commit.actor)},'
        f'"authored_at":"{encode_time(commit.authored_at)}","kind":{_text_of(commit.kind)},'
        f'"class":"{commit.commit_class}","touched":{{{touched}}}{recovered}}}'
    )


def _touch_text(touch: Touch) -> str:
    if touch.inserted and not touch.updated and not touch.deleted:
        return f'{{"inserted":{touch.inserted}}}'
    return _json(touch_to_json(touch))


def _group_text(group: Mapping[TableKey, InlineChange]) -> str:
    changes = ",".join([f"{_text_of(key)}:{_change_text(change)}" for key, change in group.items()])
    return f"{{{changes}}}"


def _change_text(change: InlineChange) -> str:
    upserts = "null" if change.upserts is None else f'"{b2a_base64(change.upserts, newline=False).decode()}"'
    deletes = ",".join([_text_of(entity) for entity in change.deletes])
    return f'{{"upserts":{upserts},"deletes":[{deletes}]{_NEW if change.new else ""}}}'


def _ref_text(key: TableKey, ref: TableRef) -> str:
    """A table's part of a manifest, made once: a commit changes one of perhaps hundreds, and writes them all."""
    tail = ref.as_text.pop(_TAIL, None)
    if tail is None:
        tail = ",".join([_tail_entry_text(key, entry) for entry in ref.tail])
    table = (
        '"table_id":null,"table_version":null'
        if ref.stored is None
        else f'"table_id":{_text_of(ref.stored.table_id)},"table_version":{ref.stored.table_version}'
    )
    text = (
        f'{_text_of(key)}:{{{table},"rows":{ref.rows},"changed_at":{_text_of(ref.changed_at)},'
        f"{_TAIL}{tail}]{_removed_text(ref)}}}"
    )
    ref.as_text[key] = text
    return text


def grown_text(key: TableKey, before: TableRef, after: TableRef) -> None:
    """Note for `_ref_text` that the tail of `after` is that of `before` with one more entry.

    A tail may be long, and every commit to its table writes all of it again.
    """
    text = before.as_text.get(key)
    if text is not None and before.tail:
        start, end = text.index(_TAIL) + len(_TAIL), len(text) - len(f"]{_removed_text(before)}}}")
        after.as_text[_TAIL] = f"{text[start:end]},{_tail_entry_text(key, after.tail[-1])}"


def _removed_text(ref: TableRef) -> str:
    return "" if ref.removed_at is None else f',"removed_at":{_text_of(ref.removed_at)}'


def _tail_entry_text(key: TableKey, entry: TailEntry) -> str:
    if entry.commits is None and entry.table_key == key:
        return f"[{_text_of(entry.branch_id)},{entry.manifest_version},{entry.size}]"
    return _json(_unusual_entry_to_json(key, entry))


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


def recovered_to_json(recovered: Recovered) -> dict[str, Any]:
    return {
        "txn_id": recovered.txn_id,
        "kind": recovered.kind,
        "actor": recovered.actor,
        "outcome": recovered.outcome,
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
        tables={key: _ref_from_json(key, ref) for key, ref in document["tables"].items()},
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
        recovered=_recovered(document["recovered"]) if "recovered" in document else None,
    )


def _recovered(document: Mapping[str, Any]) -> Recovered:
    return Recovered(
        _text(document["txn_id"]),
        _text(document["kind"]),
        _text_or_none(document["actor"]),
        _text(document["outcome"]),
    )


def _ref_from_json(key: TableKey, document: Mapping[str, Any]) -> TableRef:
    table_id = _text_or_none(document["table_id"])
    return TableRef(
        stored=None if table_id is None else TableVersion(table_id, _number(document["table_version"])),
        rows=_number(document["rows"]),
        changed_at=_text(document["changed_at"]),
        tail=tuple(_tail_entry(key, entry) for entry in document["tail"]),
        removed_at=_text_or_none(document.get("removed_at")),
    )


def _unusual_entry_to_json(key: TableKey, entry: TailEntry) -> list[Any]:
    """Branch id, number, bytes; then what is not as usual: how many of its commits, the key that the table had."""
    usual: list[Any] = [entry.branch_id, entry.manifest_version, entry.size, entry.commits]
    return usual if entry.table_key == key else [*usual, entry.table_key]


def _tail_entry(key: TableKey, stored: Any) -> TailEntry:
    branch_id, number, size, *more = stored
    commits, table_key = (*more, None, None)[:2]
    return TailEntry(
        _text(branch_id),
        _number(number),
        key if table_key is None else _text(table_key),
        _number(size),
        None if commits is None else _number(commits),
    )


def _change_from_json(document: Mapping[str, Any]) -> InlineChange:
    upserts = document["upserts"]
    return InlineChange(
        None if upserts is None else base64.b64decode(upserts, validate=True),
        tuple(_text(entity) for entity in document["deletes"]),
        document.get("new", False) is True,
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
