"""Opaque tokens: a position in a result or in the feed, as text that the client stores and returns.

They are JSON in URL-safe base64 with a digest. A token that was altered or belongs to another request is refused.
"""

import base64
import binascii
import hashlib
import json
from typing import Any

from omnigraph.errors import BadRequest

VERSION = 1
_DIGEST_LENGTH = 16


def encode_token(kind: str, fields: dict[str, Any]) -> str:
    body = json.dumps({"v": VERSION, "k": kind, **fields}, separators=(",", ":"), sort_keys=True).encode()
    return base64.urlsafe_b64encode(_digest(body) + body).decode().rstrip("=")


def decode_token(kind: str, token: str, remedy: str) -> dict[str, Any]:
    """The fields of a token of this kind; `remedy` says what to do if it is invalid."""
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        digest, body = data[: _DIGEST_LENGTH // 2], data[_DIGEST_LENGTH // 2 :]
        if digest != _digest(body):
            raise ValueError("its digest does not fit")
        fields: dict[str, Any] = json.loads(body)
        if fields.pop("v") != VERSION or fields.pop("k") != kind:
            raise ValueError("it is of another kind")
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError, UnicodeEncodeError):
        raise BadRequest(f"Invalid {kind}: {remedy}.") from None
    return fields


def fingerprint(*parts: Any) -> str:
    """Equal for equal requests: a token is valid only for the request that returned it."""
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()[:_DIGEST_LENGTH]


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[: _DIGEST_LENGTH // 2]
