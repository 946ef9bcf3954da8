"""Manifests and stubs as JSON: what is written is read back, and nothing else is believed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omnigraph.errors import Damaged, OmnigraphError, UnsupportedFormat
from omnigraph.manifest.model.codec import NO_TEXTS, decode_entry, encode_after, encode_entry
from omnigraph.manifest.model.document import FORMAT
from omnigraph.manifest.model.manifest import (
    Commit,
    CommitClass,
    Fence,
    FileRecord,
    InlineChange,
    Manifest,
    Point,
    Position,
    RowCounts,
    Stub,
    TableRef,
    Tombstone,
    stub_of,
    txn_ids,
)
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.table_content import TailEntry
from support.documents import sealed

from .builders import manifest

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(0, 2**64 - 1)
times = st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC))
points = st.builds(Point, text, numbers)
touches = st.builds(RowCounts, st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**12))
commits = st.builds(
    Commit,
    id=text,
    txn_id=text,
    parent=st.none() | text,
    merged_parent=st.none() | text,
    actor=st.none() | text,
    authored_at=times,
    kind=text,
    commit_class=st.sampled_from(CommitClass),
    touched=st.dictionaries(text, touches, max_size=3),
    token=st.none() | text,
    input=st.none() | text,
)
entries = st.builds(TailEntry, text, numbers, text, numbers, st.none() | numbers)
HASHES = tuple(f"sha256:{digit * 64}" for digit in "abc")
refs = st.builds(
    TableRef,
    stored=st.builds(TableVersion, text, numbers),
    columns=st.sampled_from(HASHES),
    rows=numbers,
    changed_at=text,
    tail=st.lists(entries, max_size=3).map(tuple),
    removed_at=st.none() | text,
) | st.builds(
    TableRef,
    stored=st.none(),
    rows=numbers,
    changed_at=text,
    tail=st.lists(entries, max_size=3).map(tuple),
    removed_at=st.none() | text,
)
positions = numbers.map(Position) | st.builds(Position, numbers, st.integers(1, 9999))
files = st.dictionaries(text, st.dictionaries(text, st.builds(FileRecord, numbers, text), max_size=2), max_size=2)
changes = st.builds(
    InlineChange, st.none() | st.binary(max_size=20), st.lists(text, max_size=3).map(tuple), st.booleans()
)
common: dict[str, Any] = {
    "branch": text,
    "branch_id": text,
    "manifest_version": numbers,
    "authored_at": times,
    "ancestry": st.dictionaries(text, positions, max_size=3),
    "commits": st.lists(commits, max_size=2).map(tuple),
    "fork": st.none() | points,
    "tombstone": st.none() | st.builds(Tombstone, text, st.none() | text),
    "discards": st.lists(text, max_size=2).map(tuple),
    "files": files,
}
manifests = st.builds(
    Manifest,
    **common,
    schema=st.sampled_from(HASHES),
    logical_head=text,
    fenced_at=numbers,
    oldest_retained=numbers,
    tables=st.dictionaries(text, refs, max_size=3),
    inline=st.lists(st.dictionaries(text, changes, max_size=2), max_size=2).map(tuple),
    fence=st.none() | st.builds(Fence, numbers, st.lists(text, max_size=2).map(tuple)),
)
stubs = st.builds(Stub, **common, was_fence=st.booleans())


@given(manifests | stubs)
def test_what_is_written_is_read_back(entry: Manifest | Stub) -> None:
    assert decode_entry(encode_entry(entry), "it", Point(entry.branch_id, entry.manifest_version)) == entry


@given(text, refs, entries, st.none() | text)
def test_a_table_whose_tail_grew_is_written_as_if_it_were_new(
    key: str, before: TableRef, entry: TailEntry, removed_at: str | None
) -> None:
    _, texts = encode_after(replace(manifest(), tables={key: before}), NO_TEXTS)
    after = TableRef(before.stored, 7, "now", (*before.tail, entry), removed_at, before.columns)
    grown = replace(manifest(), tables={key: after})

    assert encode_after(grown, texts)[0] == encode_entry(grown)


@given(text, refs, refs, st.booleans())
def test_what_was_encoded_of_another_table_is_never_taken(
    key: str, before: TableRef, after: TableRef, same_tail: bool
) -> None:
    _, texts = encode_after(replace(manifest(), tables={key: before}), NO_TEXTS)
    changed = replace(manifest(), tables={key: replace(after, tail=before.tail) if same_tail else after})

    assert encode_after(changed, texts)[0] == encode_entry(changed)


@given(manifests)
def test_a_manifest_like_the_one_before_is_encoded_like_it(entry: Manifest) -> None:
    data, texts = encode_after(entry, NO_TEXTS)

    assert encode_after(entry, texts) == (data, texts)


@given(manifests | stubs)
def test_spaces_behind_it_are_no_part_of_it(entry: Manifest | Stub) -> None:
    assert decode_entry(encode_entry(entry) + b" " * 100, "it") == entry


@given(manifests)
def test_a_stub_keeps_what_a_number_must_keep(entry: Manifest) -> None:
    """`unique-numbers`: number, commits with their txn ids, parents, ancestry."""
    stub = decode_entry(encode_entry(stub_of(entry)), "it")

    assert isinstance(stub, Stub)
    assert (stub.branch_id, stub.manifest_version) == (entry.branch_id, entry.manifest_version)
    assert (stub.commits, stub.ancestry, stub.fork) == (entry.commits, entry.ancestry, entry.fork)
    assert (stub.tombstone, stub.authored_at) == (entry.tombstone, entry.authored_at)
    assert (stub.discards, stub.files) == (entry.discards, entry.files)
    assert stub.was_fence == (entry.fence is not None)
    assert txn_ids(stub) == txn_ids(entry)


@given(st.binary(max_size=200))
@example(b"")
@example(b"null")
@example(b"[1]")
@example(b"{}")
@example(b'{"format": 1}')
@example(b"[" * 100_000)
@example(b"9" * 10_000)
def test_arbitrary_bytes_are_refused_with_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(OmnigraphError):
        decode_entry(data, "it")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | text
    | st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into a JSON document."""
    inside = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(place for key, value in inside for place in places(value, (*path, key)))]


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = put(copy[path[0]], path[1:], value)
    return copy


@given(manifests | stubs, st.data())
def test_a_document_with_one_wrong_value_is_read_or_refused_but_never_a_crash(
    entry: Manifest | Stub, data: st.DataObject
) -> None:
    document = json.loads(encode_entry(entry))
    place = data.draw(st.sampled_from(places(document)))
    wrong = put(document, place, data.draw(json_values))
    try:
        decode_entry(sealed(wrong), "it")
    except OmnigraphError:
        pass


@given(manifests | stubs, st.data())
def test_a_truncated_document_is_damaged(entry: Manifest | Stub, data: st.DataObject) -> None:
    encoded = encode_entry(entry)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(Damaged):
        decode_entry(encoded[:cut], "it")


@given(manifests, st.data())
def test_a_document_without_one_of_its_fields_is_damaged(entry: Manifest, data: st.DataObject) -> None:
    document = json.loads(encode_entry(entry))
    optional = {"fork", "fence", "tombstone", "discards", "files", "schemas", "checksum"}
    del document[data.draw(st.sampled_from(sorted(document.keys() - optional)))]
    with pytest.raises(Damaged):
        decode_entry(sealed(document), "it")


@given(manifests | stubs, st.data())
def test_a_flipped_bit_is_damage_and_never_data(entry: Manifest | Stub, data: st.DataObject) -> None:
    encoded = bytearray(encode_entry(entry))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Damaged):
        decode_entry(bytes(encoded), "it")


@given(manifests | stubs, st.data())
def test_a_document_of_this_format_without_its_checksum_is_damaged(entry: Manifest | Stub, data: st.DataObject) -> None:
    document = json.loads(encode_entry(entry))
    del document["checksum"]
    with pytest.raises(Damaged, match="checksum"):
        decode_entry(json.dumps(document).encode(), "it")


def test_a_document_of_format_1_has_no_checksum_and_names_whole_manifests() -> None:
    document = json.loads(encode_entry(manifest(3))) | {"format": 1}
    del document["checksum"]

    assert decode_entry(json.dumps(document).encode(), "it") == manifest(3)


def test_a_branch_that_format_1_forked_inside_a_group_has_the_commits_up_to_its_fork_point() -> None:
    source = "a" * 13
    first = replace(
        manifest(1),
        branch_id="b" * 13,
        fork=Point(source, 7),
        logical_head=f"{source}.7.1",
        ancestry={source: Position(6), "b" * 13: Position(1)},
        commits=(),
    )
    document = json.loads(encode_entry(first)) | {"format": 1}
    del document["checksum"]

    assert decode_entry(json.dumps(document).encode(), "it").ancestry[source] == Position(7, 2)


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 1.5, True, "3", None, -1])
def test_a_number_that_is_none_is_damaged(number: object) -> None:
    document = json.loads(encode_entry(manifest(3))) | {"fenced_at": number}
    with pytest.raises(Damaged):
        decode_entry(sealed(document), "it")


def test_a_time_that_no_calendar_has_is_damaged() -> None:
    for moment in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "yesterday", ""):
        document = json.loads(encode_entry(manifest(3))) | {"authored_at": moment}
        with pytest.raises(Damaged):
            decode_entry(sealed(document), "it")


def test_a_newer_format_is_refused_by_name_and_with_what_to_do() -> None:
    document = json.loads(encode_entry(manifest(3))) | {"format": FORMAT + 1}
    with pytest.raises(UnsupportedFormat, match=r"manifest 3 .* format 3.*upgrade omnigraph"):
        decode_entry(sealed(document), "manifest 3 of branch id x")


def test_a_manifest_under_another_name_is_damaged() -> None:
    encoded = encode_entry(manifest(3))
    for elsewhere in (Point(manifest().branch_id, 4), Point("bbbbbbbbbbbbb", 3)):
        with pytest.raises(Damaged, match="it says it is manifest 3"):
            decode_entry(encoded, "it", elsewhere)
