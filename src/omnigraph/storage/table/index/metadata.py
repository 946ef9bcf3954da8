"""The index metadata of a stored version, complete enough to be used from another dataset.

Lance's description of an index lacks the settings it was built with (without them a view refuses phrase queries) and
its file sizes (without them a view requests them again). Both are in the version file's index section, a protobuf
message; the few fields needed are decoded here.
"""

import struct
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from omnigraph.storage.table.handles import lance_module

if TYPE_CHECKING:
    from lance import LanceDataset

_MANIFEST_INDEX_SECTION = 6
_MANIFEST_HIGHEST_FRAGMENT = 11
_INDEX_UUID, _INDEX_DETAILS, _INDEX_FILE = 1, 6, 10


def has_indexes(dataset: "LanceDataset") -> bool:
    """Whether the version has an index section; needs no request."""
    manifest: bytes = dataset._ds.serialized_manifest()
    return any(number == _MANIFEST_INDEX_SECTION for number, _ in _fields(manifest))


def highest_fragment(dataset: "LanceDataset") -> int:
    """The highest id that a fragment ever had, including removed ones; -1 for none."""
    manifest: bytes = dataset._ds.serialized_manifest()
    return max((value for number, value in _fields(manifest) if number == _MANIFEST_HIGHEST_FRAGMENT), default=-1)


def segments(dataset: "LanceDataset") -> list[Any]:
    """All segments of all indexes, as an operation takes them."""
    return [_index_entry(*found) for found in _describe_segments(dataset)] if has_indexes(dataset) else []


def rebase_indexes(dataset: "LanceDataset", version_file: bytes, base_id: int) -> list[Any]:
    """Every index segment of `dataset`, with its files under base path `base_id`."""
    recorded = dict(_parse_index_section(version_file))
    index_file = lance_module("lance.dataset").IndexFile
    return [
        replace(
            _index_entry(description, segment),
            created_at=segment.created_at,
            base_id=base_id,
            files=[index_file(path, size) for path, size in recorded[segment.uuid][1]] or None,
            index_details=recorded[segment.uuid][0],
            covering_fields=segment.covering_fields,
        )
        for description, segment in _describe_segments(dataset)
    ]


def _describe_segments(dataset: "LanceDataset") -> Iterator[tuple[Any, Any]]:
    for description in dataset.describe_indices():
        for segment in description.segments:
            yield description, segment


def _index_entry(description: Any, segment: Any) -> Any:
    return lance_module("lance.dataset").Index(
        uuid=segment.uuid,
        name=description.name,
        fields=description.fields,
        dataset_version=segment.dataset_version_at_last_update,
        fragment_ids=segment.fragment_ids,
        index_version=segment.index_version,
    )


def recorded_files(version_file: bytes) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Each index uuid with its files and their sizes, from the version file."""
    for key, (_, files) in _parse_index_section(version_file):
        yield key, files


_Recorded = tuple[tuple[str, bytes], list[tuple[str, int]]]


def _parse_index_section(version_file: bytes) -> Iterator[tuple[str, _Recorded]]:
    """Each index uuid with its details and files, from the version file."""
    (position,) = struct.unpack_from("<Q", version_file, len(version_file) - 16)
    for number, offset in _fields(_message_at(version_file, position)):
        if number != _MANIFEST_INDEX_SECTION:
            continue
        for _, index in _fields(_message_at(version_file, offset)):
            key, details, files = "", ("", b""), []
            for field, value in _fields(index):
                if field == _INDEX_UUID:
                    key = str(uuid.UUID(bytes=_field(value, 1, b"")))
                elif field == _INDEX_DETAILS:
                    details = (_field(value, 1, b"").decode(), _field(value, 2, b""))
                elif field == _INDEX_FILE:
                    files.append((_field(value, 1, b"").decode(), _field(value, 2, 0)))
            yield key, (details, files)


def _message_at(data: bytes, position: int) -> bytes:
    (size,) = struct.unpack_from("<I", data, position)
    return data[position + 4 : position + 4 + size]


def _field(message: bytes, number: int, default: Any) -> Any:
    return next((value for field, value in _fields(message) if field == number), default)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The number and value of each field of a protobuf message: an integer or bytes."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        wire = key & 7
        if wire == 0:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        size, position = _varint(message, position) if wire == 2 else ({1: 8, 5: 4}[wire], position)
        yield key >> 3, message[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
