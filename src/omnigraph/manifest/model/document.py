"""Stored JSON documents: each carries its format and, from format 2 on, a checksum of everything before it.

    {"format":2,…,"checksum":"<first 32 hex digits of SHA-256>"}

The checksum is of the bytes up to the comma in front of it, so it is verified without knowing the fields, and before
any of them is believed: a flipped bit in a row or a name is reported as damage and never returned as data.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from omnigraph.errors import Damaged, UnsupportedFormat

FORMAT = 2  # what this release writes
FORMATS_READ = (1, 2)

_CHECKSUM_DIGITS = 32
_BEFORE_CHECKSUM = b',"checksum":"'
_SEAL_LENGTH = len(_BEFORE_CHECKSUM) + _CHECKSUM_DIGITS + len(b'"}')
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False)


def to_json(value: object) -> str:
    return _ENCODER.encode(value)


def encode_document(document: Mapping[str, Any]) -> bytes:
    """A document of the current format with its checksum."""
    return seal(to_json({"format": FORMAT, **document})[:-1].encode())


def seal(body: bytes) -> bytes:
    """An object's JSON text, given without its closing brace, with the checksum as its last field."""
    return b"".join((body, _BEFORE_CHECKSUM, sha256(body).hexdigest()[:_CHECKSUM_DIGITS].encode(), b'"}'))


def decode_document(data: bytes, what: str) -> dict[str, Any]:
    """A stored document whose format this release reads and whose checksum holds; otherwise an error that names it."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(what, "it is not JSON") from error
    if not isinstance(document, dict) or "format" not in document:
        raise Damaged(what, "it carries no format")
    found = document["format"]
    # A checksum is compared whatever the format says, since the format itself may be what was damaged.
    if ("checksum" in document or found == FORMAT) and not _is_sealed(data):
        raise Damaged(what, "its checksum does not match its content")
    if found not in FORMATS_READ or isinstance(found, bool):
        raise UnsupportedFormat(what, found, FORMAT)
    return document


def is_format_1(data: bytes) -> bool:
    """Whether a document that could be decoded is one of format 1."""
    return data.startswith((b'{"format":1,', b'{"format": 1,'))


def _is_sealed(data: bytes) -> bool:
    stored = data.rstrip(b" ")  # a manifest on a local disk is padded to whole blocks
    body, end = stored[:-_SEAL_LENGTH], stored[-_SEAL_LENGTH:]
    return seal(body).endswith(end) and len(end) == _SEAL_LENGTH
