"""JSON of anybody, as the standard has it: parsed strictly, within bounds, and without holding up other threads.

The parser of the standard library is one call in C, during which no other thread of the process runs. It is used for
short texts only. A longer one is parsed here in steps of a bounded number of bytes and values. Between steps it pauses:
a thread that never waits would let others run only after each switch interval, and one request waits for many of them.
"""

import json
import math
import re
import time
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from omnigraph.errors import BadRequest
from omnigraph.server.http.errors import too_large

SHORT_BYTES = 32 * 1024
STEP_BYTES = 64 * 1024  # of a text, in one call of C
STEP_VALUES = 1000  # before other threads are let in
PAUSE_S = 0.001
CONTAINER_WEIGHT = 10  # of an array or object, as values: the garbage collector goes through all of them in one step
NUMBER_BYTES_MAX = 16 * 1024
MEMBERS_MAX = 10_000  # of one object
NAME_SHOWN_MAX = 100

_SPACE = re.compile(rb"[ \t\n\r]*+")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*+)(\.[0-9]++)?([eE][-+]?[0-9]++)?")
_CHARACTERS = re.compile(rb'(?:[^"\\]++|\\(?:u.{4}|[^u]))*+', re.DOTALL)  # whole escapes only
_LITERALS = ((b"true", True), (b"false", False), (b"null", None))


class _DuplicateKey(ValueError):
    """A name that an object has twice. Who reads the first and who reads the last would see different requests."""


class _TooDeep(Exception):
    pass


def parse_json(data: bytes, depth_max: int, values_max: int) -> Any:
    """The value of a text, or an error that says what is wrong with it."""
    try:
        if len(data) > SHORT_BYTES:
            return _Parser(data, depth_max, values_max).document()
        return _parse_short(data, depth_max)
    except UnicodeError:
        raise BadRequest("The body holds what is no text in UTF-8: send whole characters.") from None
    except (_TooDeep, RecursionError):
        raise BadRequest(f"The body has more than {depth_max} levels of arrays and objects: send it flatter.") from None
    except _DuplicateKey as error:
        raise BadRequest(f"The body has {str(error)!r} twice in one object: leave one of them out.") from None
    except ValueError as error:
        place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadRequest(f"The body is no JSON{place}: send one JSON document.") from None


# Short texts


def _parse_short(data: bytes, depth_max: int) -> Any:
    text = data.decode("utf-8")
    value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_refuse_duplicates)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # half a character, written as an escape
    _check_depth(value, depth_max)
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is beyond every float")
    return number


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        raise _DuplicateKey(next(name for name, _ in pairs if name in seen or seen.add(name))[:NAME_SHOWN_MAX])  # type: ignore[func-returns-value]
    return found


def _check_depth(value: Any, depth_max: int) -> None:
    level = [value]
    for _ in range(depth_max):
        level = [
            item
            for container in level
            if isinstance(container, dict | list)
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise _TooDeep


# Long texts


class _Parser:
    """One text. Its methods return the value that begins at the position, and move on behind it."""

    def __init__(self, data: bytes, depth_max: int, values_max: int) -> None:
        self._data = data
        self._at = 0
        self._depth_max = depth_max
        self._values_max = values_max
        self._values = 0
        self._due = STEP_VALUES  # until the next pause

    def document(self) -> Any:
        self._skip_space()
        value = self._value(0)
        self._skip_space()
        if self._at < len(self._data):
            raise self._error()
        return value

    def _error(self) -> json.JSONDecodeError:
        return json.JSONDecodeError("no JSON", "", self._at)

    def _next(self) -> bytes:
        return self._data[self._at : self._at + 1]

    def _skip_space(self) -> None:
        while self._data[self._at : self._at + 1] in (b" ", b"\n", b"\r", b"\t"):
            found = _SPACE.match(self._data, self._at, self._at + STEP_BYTES)
            assert found is not None
            if found.end() == self._at + STEP_BYTES:
                time.sleep(PAUSE_S)
            self._at = found.end()

    def _value(self, depth: int) -> Any:
        first = self._next()
        self._count(CONTAINER_WEIGHT if first in (b"{", b"[") else 1)
        if first == b'"':
            return self._string()
        if first in (b"{", b"["):
            if depth == self._depth_max:
                raise _TooDeep
            return self._object(depth + 1) if first == b"{" else self._array(depth + 1)
        for literal, value in _LITERALS:
            if first == literal[:1] and self._data.startswith(literal, self._at):
                self._at += len(literal)
                return value
        return self._number()

    def _count(self, weight: int) -> None:
        self._values += weight
        if self._values > self._values_max:
            raise too_large("The body", self._values_max, "values", "send less at once")
        self._due -= weight
        if self._due < 0:
            self._due = STEP_VALUES
            time.sleep(PAUSE_S)

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._opens_empty(b"}"):
            return found
        while True:
            if self._next() != b'"':
                raise self._error()
            name = self._string()
            if name in found:
                raise _DuplicateKey(name[:NAME_SHOWN_MAX])
            if len(found) == MEMBERS_MAX:
                raise too_large("An object of the body", MEMBERS_MAX, "members", "send less at once")
            self._skip_space()
            if self._next() != b":":
                raise self._error()
            self._at += 1
            self._skip_space()
            found[name] = self._value(depth)
            if self._closes(b"}"):
                return found

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        if self._opens_empty(b"]"):
            return found
        while True:
            found.append(self._value(depth))
            if self._closes(b"]"):
                return found

    def _opens_empty(self, end: bytes) -> bool:
        self._at += 1
        self._skip_space()
        if self._next() != end:
            return False
        self._at += 1
        return True

    def _closes(self, end: bytes) -> bool:
        """Whether a container ends here; if not, another item follows."""
        self._skip_space()
        following = self._next()
        if following not in (b",", end) or not following:
            raise self._error()
        self._at += 1
        if following == end:
            return True
        self._skip_space()
        return False

    def _number(self) -> int | float:
        found = _NUMBER.match(self._data, self._at, self._at + NUMBER_BYTES_MAX)
        if found is None or found.end() == self._at + NUMBER_BYTES_MAX:
            raise self._error()
        self._at = found.end()
        text = found[0].decode("ascii")
        return int(text) if found[1] is None and found[2] is None else _finite(text)

    def _string(self) -> str:
        """In pieces that are unescaped one by one; half a character at the end of a piece waits for the next."""
        self._at += 1
        pieces: list[str] = []
        while self._next() != b'"':
            piece = self._piece()
            if pieces and "\ud800" <= pieces[-1][-1] <= "\udbff" and "\udc00" <= piece[0] <= "\udfff":
                both = pieces[-1][-1] + piece[0]
                pieces[-1] = pieces[-1][:-1] + both.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
                piece = piece[1:]
            if piece:
                pieces.append(piece)
        self._at += 1
        for piece in pieces:
            piece.encode("utf-8")
        return pieces[0] if len(pieces) == 1 else "".join(pieces)

    def _piece(self) -> str:
        begin = self._at
        found = _CHARACTERS.match(self._data, begin, begin + STEP_BYTES)
        assert found is not None
        end = found.end()
        if end == begin:
            raise self._error()  # the text ends here, or in an escape
        while end < len(self._data) and self._data[end] & 0xC0 == 0x80 and end > begin + 1:
            end -= 1  # not within a character
        if found.end() == begin + STEP_BYTES:
            time.sleep(PAUSE_S)
        text = self._data[begin:end].decode("utf-8")
        try:
            piece: str = scanstring(f'{text}"', 0, True)[0]
        except json.JSONDecodeError:
            raise self._error() from None
        self._at = end
        return piece
