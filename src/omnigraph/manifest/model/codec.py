"""Manifests and their stubs as JSON. Strict: what this release does not know it refuses, by name."""

import base64
from binascii import b2a_base64
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring as _text_of
from typing import Any

from omnigraph.errors import Damaged
from omnigraph.manifest.model.document import FORMAT, decode_document, seal, to_json
from omnigraph.manifest.model.manifest import (
    WHOLE,
    Ancestry,
    Commit,
    CommitClass,
    Entry,
    Fence,
    FileRecord,
    Files,
    InlineChange,
    Manifest,
    Point,
    Position,
    Recovered,
    Reservation,
    RowCounts,
    Stub,
    TableKey,
    TableRef,
    Tombstone,
)
from omnigraph.manifest.model.paths import commit_place
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.table_content import TailEntry

_NEW = ',"new":true'
_WAS_FENCE = ',"was_fence":true'
_SCHEMA_DIGITS = 12  # of a schema's hash, by which a table names one of those that its manifest lists
_TAIL = '"tail":['  # no table has such a key


def _maybe_text_of(text: str | None) -> str:
    return "null" if text is None else _text_of(text)


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
    ancestry = ",".join(
        [
            f"{_text_of(branch)}:{number}" if commits == WHOLE else f"{_text_of(branch)}:[{number},{commits}]"
            for branch, (number, commits) in entry.ancestry.items()
        ]
    )
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
    if entry.discards:
        parts.append(f',"discards":{to_json(entry.discards)}')
    if entry.files:
        parts.append(f',"files":{to_json(_files_to_json(entry.files))}')
    if isinstance(entry, Stub):
        return seal(f'{"".join(parts)}{_WAS_FENCE if entry.was_fence else ""},"stub":true'.encode())
    parts.append(
        f',"schema":{_text_of(entry.schema)},"logical_head":{_text_of(entry.logical_head)},'
        f'"fenced_at":{entry.fenced_at},"oldest_retained":{entry.oldest_retained},'
        f'"inline":[{",".join([_group_text(group) for group in entry.inline])}]'
    )
    if entry.fence is not None:
        honoured = ",".join([_text_of(txn_id) for txn_id in entry.fence.honoured])
        parts.append(f',"fence":{{"previous":{entry.fence.previous},"honoured":[{honoured}]}}')
    if entry.reservation is not None:
        parts.append(f',"turn":{{"txn_id":{_text_of(entry.reservation.txn_id)},"wait_ms":{entry.reservation.wait_ms}}}')
    if other := {ref.columns for ref in entry.tables.values()} - {None, entry.schema}:
        parts.append(f',"schemas":{to_json(sorted(filter(None, other)))}')
    tables = ",".join([ref.as_text.get(key) or _ref_text(key, ref) for key, ref in entry.tables.items()])
    return seal(f'{"".join(parts)},"tables":{{{tables}}}'.encode())


def _commit_text(commit: Commit) -> str:
    touched = ",".join([f"{_text_of(key)}:{_touch_text(touch)}" for key, touch in commit.touched.items()])
    recovered = "" if commit.recovered is None else f',"recovered":{to_json(recovered_to_json(commit.recovered))}'
    return (
        f'{{"id":{_text_of(commit.id)},"txn_id":{_text_of(commit.txn_id)},"parent":{_maybe_text_of(commit.parent)},'
        f'"merged_parent":{_maybe_text_of(commit.merged_parent)},"actor":{_maybe_text_of(commit.actor)},'
        f'"authored_at":"{encode_time(commit.authored_at)}","kind":{_text_of(commit.kind)},'
        f'"class":"{commit.commit_class}","touched":{{{touched}}}{recovered}'
        f"{_optional('token', commit.token)}{_optional('input', commit.input)}}}"
    )


def _optional(field: str, text: str | None) -> str:
    return "" if text is None else f',"{field}":{_text_of(text)}'


def _files_to_json(files: Files) -> dict[str, Any]:
    return {
        table_id: {path: [record.size, record.checksum] for path, record in records.items()}
        for table_id, records in files.items()
    }


def _touch_text(touch: RowCounts) -> str:
    if touch.inserted and not touch.updated and not touch.deleted:
        return f'{{"inserted":{touch.inserted}}}'
    return to_json(touch_to_json(touch))


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
        f"{_columns_text(ref.columns)}"
    )
    text = (
        f'{_text_of(key)}:{{{table},"rows":{ref.rows},"changed_at":{_text_of(ref.changed_at)},'
        f"{_TAIL}{tail}]{_removed_text(ref)}}}"
    )
    ref.as_text[key] = text
    return text


def _columns_text(schema: str | None) -> str:
    return "" if schema is None else f',"columns":"{_schema_name(schema)}"'


def _schema_name(schema: str) -> str:
    return schema.removeprefix("sha256:")[:_SCHEMA_DIGITS]


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
    return to_json(_unusual_entry_to_json(key, entry))


def decode_entry(data: bytes, what: str, expected: Point | None = None) -> Entry:
    """The manifest or stub in an object; it must be the one that its name promises."""
    document = decode_document(data, what)
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


def touch_to_json(touch: RowCounts) -> dict[str, int]:
    """Only what happened: a commit that inserted says nothing of updates."""
    counts = {"inserted": touch.inserted, "updated": touch.updated, "deleted": touch.deleted}
    return {verb: count for verb, count in counts.items() if count}


def _entry_from_json(document: Mapping[str, Any]) -> Entry:
    common: dict[str, Any] = {
        "branch": _text(document["branch"]),
        "branch_id": _text(document["branch_id"]),
        "manifest_version": _number(document["manifest_version"]),
        "authored_at": decode_time(document["authored_at"]),
        "ancestry": {_text(branch): _position(stored) for branch, stored in document["ancestry"].items()},
        "commits": tuple(_commit_from_json(commit) for commit in document["commits"]),
        "fork": _point(document["fork"]) if "fork" in document else None,
        "tombstone": _tombstone(document["tombstone"]) if "tombstone" in document else None,
        "discards": tuple(_text(token) for token in document.get("discards", ())),
        "files": _files(document.get("files", {})),
    }
    if document.get("stub"):
        return Stub(**common, was_fence=document.get("was_fence", False) is True)
    schema = _text(document["schema"])
    schemas = {_schema_name(known): known for known in (schema, *map(_text, document.get("schemas", ())))}
    if document["format"] == 1:
        common["ancestry"] = _positions_of_format_1(document, common)
    return Manifest(
        **common,
        schema=schema,
        logical_head=_text(document["logical_head"]),
        fenced_at=_number(document["fenced_at"]),
        oldest_retained=_number(document["oldest_retained"]),
        tables={key: _ref_from_json(key, ref, schemas, schema) for key, ref in document["tables"].items()},
        inline=tuple({key: _change_from_json(change) for key, change in group.items()} for group in document["inline"]),
        fence=_fence(document["fence"]) if "fence" in document else None,
        reservation=_turn(document["turn"]) if "turn" in document else None,
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
        token=_text_or_none(document.get("token")),
        input=_text_or_none(document.get("input")),
    )


def _positions_of_format_1(document: Mapping[str, Any], common: Mapping[str, Any]) -> Ancestry:
    """Format 1 named whole manifests only: a branch forked inside manifest N said N-1 of its source.

    Its first manifest still says which commit of N it was forked from.
    """
    ancestry: Ancestry = common["ancestry"]
    fork: Point | None = common["fork"]
    if fork is None or common["manifest_version"] != 1 or common["tombstone"] is not None:
        return ancestry
    branch_id, position = commit_place(_text(document["logical_head"]))
    if branch_id == fork.branch_id and position.number == fork.manifest_version > ancestry[branch_id].number:
        return {**ancestry, branch_id: position}
    return ancestry


def _position(stored: Any) -> Position:
    if isinstance(stored, list):
        number, commits = stored
        return Position(_number(number), _number(commits))
    return Position(_number(stored))


def _files(document: Mapping[str, Any]) -> Files:
    return {
        _text(table_id): {
            _text(path): FileRecord(_number(size), _text(checksum)) for path, (size, checksum) in records.items()
        }
        for table_id, records in document.items()
    }


def _recovered(document: Mapping[str, Any]) -> Recovered:
    return Recovered(
        _text(document["txn_id"]),
        _text(document["kind"]),
        _text_or_none(document["actor"]),
        _text(document["outcome"]),
    )


def _ref_from_json(key: TableKey, document: Mapping[str, Any], schemas: Mapping[str, str], schema: str) -> TableRef:
    """`schemas` by the names that tables use; a table of format 1 names none: it has the columns of the manifest's."""
    table_id = _text_or_none(document["table_id"])
    named = document.get("columns")
    return TableRef(
        stored=None if table_id is None else TableVersion(table_id, _number(document["table_version"])),
        rows=_number(document["rows"]),
        changed_at=_text(document["changed_at"]),
        tail=tuple(_tail_entry(key, entry) for entry in document["tail"]),
        removed_at=_text_or_none(document.get("removed_at")),
        columns=None if table_id is None else schema if named is None else schemas[named],
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


def _turn(document: Mapping[str, Any]) -> Reservation:
    return Reservation(_text(document["txn_id"]), _number(document["wait_ms"]))


def _tombstone(document: Mapping[str, Any]) -> Tombstone:
    return Tombstone(_text(document["txn_id"]), _text_or_none(document["actor"]))


def _touch(document: Mapping[str, Any]) -> RowCounts:
    return RowCounts(**{verb: _number(count) for verb, count in document.items()})


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
