"""Translates errors of Lance, which raises `OSError` and `ValueError` with the details in the text."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from omnigraph.errors import AccessDenied, AlreadyExists, Damaged, OmnigraphError, StorageFull, Unavailable

_EXISTS = re.compile(r"Dataset already exists: ")
_FULL = re.compile(r"No space left|os error 28\b|os error 122\b|quota exceeded|os error 27\b", re.IGNORECASE)
_DENIED = re.compile(
    r"\b40[13] (Forbidden|Unauthorized)|AccessDenied|permission denied|os error (1|13|30)\b|Unauthenticated"
    r"|the operation lacked the necessary privileges",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"Dataset at path .* was not found|(?i:(^|error: )not found: )|LanceError\(NotFound\)|No such file or directory"
    r"|Object at location .* not found|os error 2\b"
)
_CORRUPT = re.compile(
    r"corrupt file|failed to decode Protobuf|file size is too small|does not have sufficient data"
    r"|Invalid range \S+ for object of size|Range started at \d+ and ended at|outside (file of size|metadata region)"
    r"|does not appear to be a Lance file|correct footer|Unable to get root as|failed to fill whole buffer"
    r"|Invalid direct \w+ encoding|missing its page layout|Unknown Lance storage version|references parent id"
    r"|invalid seek|Version not found|panicked with message|terminated before end of stream"
)
_UNAVAILABLE = re.compile(
    r"error sending request|max_retries|retry_timeout|timed? ?out|connection (refused|reset|closed)"
    r"|status code: (5\d\d|408|409|429)|Failed to resolve region|dns error|Input/output error|os error 5\b",
    re.IGNORECASE,
)
_TEXT_LENGTH_MAX = 4_000  # read of a message: it may quote a user's value, and some expressions below are quadratic
_SOURCE_POSITION = re.compile(r",? /(home|rustc|root)/\S+\.rs:\d+(:\d+)?")


def translate(error: Exception, what: str) -> OmnigraphError | None:
    """Our error for one of Lance's, or None if the store did not cause it."""
    text = str(error)[:_TEXT_LENGTH_MAX]
    reason = _SOURCE_POSITION.sub("", text).split("\n", 1)[0].strip()[:300]
    if _EXISTS.search(text):
        return AlreadyExists(what, "a table's id is used once, choose a fresh one")
    if _FULL.search(text):
        return StorageFull(what, reason)
    if _DENIED.search(text):
        return AccessDenied(what, reason)
    if _MISSING.search(text):
        return Damaged(what, f"a stored file is missing ({reason})")
    if _UNAVAILABLE.search(text):
        return Unavailable(what, reason)
    if _CORRUPT.search(text):
        return Damaged(what, f"a stored file can't be understood: {reason}")
    return None


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Run calls into Lance about `what`; failures of the store are raised as an `OmnigraphError`."""
    try:
        yield
    except OmnigraphError:
        raise
    except (
        OSError,
        ValueError,
        RuntimeError,
        TypeError,
    ) as error:  # TypeError comes from functions that Lance calls back
        ours = translate(error, what)
        if ours is None:
            raise
        raise ours from error
