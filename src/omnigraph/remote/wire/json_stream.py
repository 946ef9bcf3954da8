"""A JSON document with a long list in it, read while it comes: the members before the list, its items, those behind."""

import codecs
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from omnigraph.errors import OmnigraphError

_SPACE = " \t\r\n"


class Head(NamedTuple):
    members: dict[str, Any]


class Item(NamedTuple):
    value: Any


class Tail(NamedTuple):
    members: dict[str, Any]


class NotADocument(OmnigraphError):
    """A server's answer is not of the documented form."""

    def __str__(self) -> str:
        return (
            "The server's answer is not of the documented form: check that it is an Omnigraph server of this release."
        )


def read_list(pieces: Iterator[bytes], name: str) -> Iterator[Head | Item | Tail]:
    """One `Head`, the items of the member `name`, one `Tail`."""
    text = _Text(pieces)
    members: dict[str, Any] = {}
    text.expect("{")
    while not text.accept("}"):
        text.accept(",")
        key = text.value()
        text.expect(":")
        if key != name:
            members[key] = text.value()
            continue
        yield Head(members)
        members = {}
        text.expect("[")
        while not text.accept("]"):
            text.accept(",")
            yield Item(text.value())
    yield Tail(members)


class _Text:
    """The text so far, from the place on that has not been understood."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._scan = json.JSONDecoder().raw_decode
        self._held = ""
        self._at = 0

    def accept(self, sign: str) -> bool:
        if self._next() != sign:
            return False
        self._at += 1
        return True

    def expect(self, sign: str) -> None:
        if not self.accept(sign):
            raise NotADocument

    def value(self) -> Any:
        """The value that begins here; a number that ends with the text so far may go on."""
        self._next()
        while True:
            try:
                found, end = self._scan(self._held, self._at)
            except json.JSONDecodeError:
                if not self._more():
                    raise NotADocument from None
                continue
            if end == len(self._held) and not isinstance(found, dict | list | str) and self._more():
                continue
            self._at = end
            return found

    def _next(self) -> str:
        while True:
            while self._at < len(self._held) and self._held[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._held):
                return self._held[self._at]
            if not self._more():
                raise NotADocument

    def _more(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._held = self._held[self._at :] + self._utf8.decode(piece)
        self._at = 0
        return True
