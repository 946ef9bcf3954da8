"""Manifests and their stubs as JSON. Strict: what this release does not know it refuses, by name."""

import base64
from binascii import b2a_base64
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring as _quoted
from typing import Any, NamedTuple, TypeAlias

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
from omnigraph.manifest.model.paths import commit_position
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.table_content import TailEntry

_NEW = ',"new":true'
_WAS_FENCE = ',"was_fence":true'
_SCHEMA_DIGITS = 12  # of a schema's hash, by which a table names one of those that its manifest lists


class TableText(NamedTuple):
    """One table of a manifest as JSON, and the entries of its tail alone."""

    ref: TableRef
    tail: str
    text: str


TableTexts: TypeAlias = Mapping[TableKey, TableText]
NO_TEXTS: TableTexts = {}


def _quoted_or_null(text: str | None) -> str:
    return "null" if text is None else _quoted(text)


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
    return encode_after(entry, NO_TEXTS)[0]


def encode_after(entry: Entry, before: TableTexts) -> tuple[bytes, TableTexts]:
    """An entry as JSON, and the parts that are its tables, for the next call.

    `before` are those of an earlier manifest of the branch: a commit changes one of perhaps hundreds of tables, and
    only that one is encoded again. Decision 16 says why this is not left to a general encoder.
    """
    ancestry = ",".join(
        [
            f"{_quoted(branch)}:{number}" if commits == WHOLE else f"{_quoted(branch)}:[{number},{commits}]"
            for branch, (number, commits) in entry.ancestry.items()
        ]
    )
    parts = [
        f'{{"format":{FORMAT},"branch":{_quoted(entry.branch)},"branch_id":{_quoted(entry.branch_id)},'
        f'"manifest_version":{entry.manifest_version},"authored_at":"{encode_time(entry.authored_at)}",'
        f'"ancestry":{{{ancestry}}},"commits":[{",".join([_commit_text(commit) for commit in entry.commits])}]'
    ]
    if entry.fork is not None:
        parts.append(f',"fork":[{_quoted(entry.fork.branch_id)},{entry.fork.manifest_version}]')
    if entry.tombstone is not None:
        tombstone = entry.tombstone
        parts.append(
            f',"tombstone":{{"txn_id":{_quoted(tombstone.txn_id)},"actor":{_quoted_or_null(tombstone.actor)}'
            f"{_optional('request', tombstone.request)}}}"
        )
    if entry.discards:
        parts.append(f',"discards":{to_json(entry.discards)}')
    if entry.files:
        parts.append(f',"files":{to_json(_files_to_json(entry.files))}')
    if isinstance(entry, Stub):
        return seal(f'{"".join(parts)}{_WAS_FENCE if entry.was_fence else ""},"stub":true'.encode()), NO_TEXTS
    parts.append(
        f',"schema":{_quoted(entry.schema)},"logical_head":{_quoted(entry.logical_head)},'
        f'"fenced_at":{entry.fenced_at},"oldest_retained":{entry.oldest_retained},'
        f'"inline":[{",".join([_group_text(group) for group in entry.inline])}]'
    )
    if entry.fence is not None:
        honoured = ",".join([_quoted(txn_id) for txn_id in entry.fence.honoured])
        parts.append(f',"fence":{{"previous":{entry.fence.previous},"honoured":[{honoured}]}}')
    if entry.reservation is not None:
        parts.append(f',"turn":{{"txn_id":{_quoted(entry.reservation.txn_id)},"wait_ms":{entry.reservation.wait_ms}}}')
    if other := {ref.columns for ref in entry.tables.values()} - {None, entry.schema}:
        parts.append(f',"schemas":{to_json(sorted(filter(None, other)))}')
    texts = {
        key: known if (known := before.get(key)) is not None and known.ref is ref else _table_text(key, ref, known)
        for key, ref in entry.tables.items()
    }
    tables = ",".join([made.text for made in texts.values()])
    return seal(f'{"".join(parts)},"tables":{{{tables}}}'.encode()), texts


def _commit_text(commit: Commit) -> str:
    touched = ",".join([f"{_quoted(key)}:{_row_counts_text(touch)}" for key, touch in commit.touched.items()])
    recovered = "" if commit.recovered is None else f',"recovered":{to_json(recovered_to_json(commit.recovered))}'
    return (
        f'{{"id":{_quoted(commit.id)},"txn_id":{_quoted(commit.txn_id)},"parent":{_quoted_or_null(commit.parent)},'
        f'"merged_parent":{_quoted_or_null(commit.merged_parent)},"actor":{_quoted_or_null(commit.actor)},'
        f'"authored_at":"{encode_time(commit.authored_at)}","kind":{_quoted(commit.kind)},'
        f'"class":"{commit.commit_class}","touched":{{{touched}}}{recovered}'
        f"{_optional('token', commit.token)}{_optional('input', commit.input)}{_optional('request', commit.request)}}}"
    )


def _optional(field: str, text: str | None) -> str:
    return "" if text is None else f',"{field}":{_quoted(text)}'


def _files_to_json(files: Files) -> dict[str, Any]:
    return {
        table_id: {path: [record.size, record.checksum] for path, record in records.items()}
        for table_id, records in files.items()
    }


def _row_counts_text(touch: RowCounts) -> str:
    if touch.inserted and not touch.updated and not touch.deleted:
        return f'{{"inserted":{touch.inserted}}}'
    return to_json(row_counts_to_json(touch))


def _group_text(group: Mapping[TableKey, InlineChange]) -> str:
    changes = ",".join([f"{_quoted(key)}:{_change_text(change)}" for key, change in group.items()])
    return f"{{{changes}}}"


def _change_text(change: InlineChange) -> str:
    upserts = "null" if change.upserts is None else f'"{b2a_base64(change.upserts, newline=False).decode()}"'
    deletes = ",".join([_quoted(entity) for entity in change.deletes])
    return f'{{"upserts":{upserts},"deletes":[{deletes}]{_NEW if change.new else ""}}}'


def _table_text(key: TableKey, ref: TableRef, before: TableText | None) -> TableText:
    """`before` is the same table in an earlier manifest: a tail may be long, and usually has one more entry now."""
    if before is not None and before.tail and ref.tail[:-1] == before.ref.tail:
        tail = f"{before.tail},{_tail_entry_text(key, ref.tail[-1])}"
    else:
        tail = ",".join([_tail_entry_text(key, entry) for entry in ref.tail])
    table = (
        '"table_id":null,"table_version":null'
        if ref.stored is None
        else f'"table_id":{_quoted(ref.stored.table_id)},"table_version":{ref.stored.table_version}'
        f"{_columns_text(ref.columns)}"
    )
    removed = "" if ref.removed_at is None else f',"removed_at":{_quoted(ref.removed_at)}'
    text = (
        f'{_quoted(key)}:{{{table},"rows":{ref.rows},"changed_at":{_quoted(ref.changed_at)},"tail":[{tail}]{removed}}}'
    )
    return TableText(ref, tail, text)


def _columns_text(schema: str | None) -> str:
    return "" if schema is None else f',"columns":"{_schema_name(schema)}"'


def _schema_name(schema: str) -> str:
    return schema.removeprefix("sha256:")[:_SCHEMA_DIGITS]


def _tail_entry_text(key: TableKey, entry: TailEntry) -> str:
    if entry.commits is None and entry.table_key == key:
        return f"[{_quoted(entry.branch_id)},{entry.manifest_version},{entry.size}]"
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


def row_counts_to_json(touch: RowCounts) -> dict[str, int]:
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
        reservation=_reservation(document["turn"]) if "turn" in document else None,
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
        touched={key: _row_counts(touch) for key, touch in document["touched"].items()},
        recovered=_recovered(document["recovered"]) if "recovered" in document else None,
        token=_text_or_none(document.get("token")),
        input=_text_or_none(document.get("input")),
        request=_text_or_none(document.get("request")),
    )


def _positions_of_format_1(document: Mapping[str, Any], common: Mapping[str, Any]) -> Ancestry:
    """Format 1 named whole manifests only: a branch forked inside manifest N said N-1 of its source.

    Its first manifest still says which commit of N it was forked from.
    """
    ancestry: Ancestry = common["ancestry"]
    fork: Point | None = common["fork"]
    if fork is None or common["manifest_version"] != 1 or common["tombstone"] is not None:
        return ancestry
    branch_id, position = commit_position(_text(document["logical_head"]))
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


def _reservation(document: Mapping[str, Any]) -> Reservation:
    return Reservation(_text(document["txn_id"]), _number(document["wait_ms"]))


def _tombstone(document: Mapping[str, Any]) -> Tombstone:
    return Tombstone(
        _text(document["txn_id"]), _text_or_none(document["actor"]), _text_or_none(document.get("request"))
    )


def _row_counts(document: Mapping[str, Any]) -> RowCounts:
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
