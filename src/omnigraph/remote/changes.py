"""Changes found by a server: read while they arrive, with values of the types of the two states' schemas."""

import codecs
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from omnigraph.api.models import ChangesExplained
from omnigraph.diff.changes import Explained
from omnigraph.diff.entity_changes import EntityChange, _printers
from omnigraph.errors import OmnigraphError
from omnigraph.remote.wire.decode import decode_cost
from omnigraph.remote.wire.values import python_value
from omnigraph.storage.meter import Cost

if TYPE_CHECKING:
    import httpx

    from omnigraph.remote.session import Session
    from omnigraph.remote.transport import HttpRequest
    from omnigraph.schema.catalog import Catalog, TypeDef

_SPACE = " \t\r\n"


class ListHead(NamedTuple):
    members: dict[str, Any]


class ListItem(NamedTuple):
    value: Any


class ListTail(NamedTuple):
    members: dict[str, Any]


class NotADocument(OmnigraphError):
    """A server's answer is not of the documented form."""

    def __str__(self) -> str:
        return (
            "The server's answer is not of the documented form: check that it is an Omnigraph server of this release."
        )


def read_list(pieces: Iterator[bytes], name: str) -> Iterator[ListHead | ListItem | ListTail]:
    """One `ListHead`, the items of the member `name`, one `Tail`."""
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
        yield ListHead(members)
        members = {}
        text.expect("[")
        while not text.accept("]"):
            text.accept(",")
            yield ListItem(text.value())
    yield ListTail(members)


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


LIST = "changes"


class RemoteChanges:
    """As `GraphChanges`: each iteration sends a new request; the first one reads the response that is already open."""

    def __init__(
        self,
        session: "Session",
        request: "HttpRequest",
        limit: int | None,
        branch: str | None,
        *,
        nothing: bool = False,
    ) -> None:
        self._session = session
        self._branch = branch
        self._nothing = nothing  # the filters let nothing through
        self._request = request
        self._limit = limit
        self.next_page: str | None = None
        self.explained = Explained("direct", "nothing was compared yet")
        self.cost = Cost()
        self._first: _Page | None = _Page.fetch(session, request)
        self.from_commit: str = self._first.head["from"]
        self.to_commit: str = self._first.head["to"]
        self.schema_changed: bool = self._first.head["schema_changed"]

    def __iter__(self) -> Iterator[EntityChange]:
        page, self._first = self._first or _Page.fetch(self._session, self._request), None
        self.next_page, self.cost = None, Cost()
        self.explained = replace(self.explained, reads=())
        typed = TypedChanges(self._session, self.to_commit, self.from_commit, self._branch)
        number = 0
        while True:
            for document in page.items():
                if not self._nothing:
                    number += 1
                    yield typed.change(document)
            self._add_explanation(page.tail)
            following = page.tail["next_page"]
            if following is None or number == self._limit:
                self.next_page = following
                return
            rest = None if self._limit is None else self._limit - number
            params = {**self._request.params, "page": following} | ({} if rest is None else {"limit": rest})
            page = _Page.fetch(self._session, replace(self._request, params=params))

    def _add_explanation(self, tail: Mapping[str, Any]) -> None:
        sent = tail.get("explain")
        if sent is None:
            return
        found: Explained = ChangesExplained.decode(sent)
        reads = () if self._nothing else (*self.explained.reads, *found.reads)
        self.explained = replace(found, reads=reads)
        self.cost += decode_cost({"retries": 0} | sent["cost"])

    def __del__(self) -> None:
        first = getattr(self, "_first", None)
        if first is not None:  # nobody wanted to know after all
            first.close()


@dataclass
class _Page:
    """One answer."""

    response: "httpx.Response"
    parts: Iterator[Any]
    head: Mapping[str, Any]
    tail: Mapping[str, Any]

    @staticmethod
    def fetch(session: "Session", request: "HttpRequest") -> "_Page":
        response = session.transport.open_stream(request)
        try:
            parts = read_list(session.transport.pieces(response), LIST)
            head = next(parts)
        except BaseException:
            response.close()
            raise
        assert isinstance(head, ListHead)
        return _Page(response, parts, head.members, {})

    def items(self) -> Iterator[Mapping[str, Any]]:
        try:
            for part in self.parts:
                if isinstance(part, ListItem):
                    yield part.value
                else:
                    self.tail = part.members
        finally:
            self.close()

    def close(self) -> None:
        self.response.close()


class TypedChanges:
    """Changes with their values in Python's form, by the schema of the later state, or of the earlier one."""

    def __init__(self, session: "Session", newer: str, older: str, branch: str | None) -> None:
        self._session = session
        self._branch = branch  # None: that of the newer commit
        self._states = (newer, older)
        self._types: dict[tuple[str, str], TypeDef | None] = {}

    def change(self, document: Mapping[str, Any]) -> EntityChange:
        definition = self._definition(document["kind"], document["type_name"])
        return EntityChange(
            document["operation"],
            document["kind"],
            document["type_name"],
            document["id"],
            _image(document["before"], definition),
            _image(document["after"], definition),
            tuple(document["changed"]),
            "" if definition is None else definition.id,
            {} if definition is None else _printers(definition),
        )

    def _definition(self, kind: str, name: str) -> "TypeDef | None":
        if (kind, name) not in self._types:
            self._types[kind, name] = next(
                filter(None, (_find(self._catalog(at), kind, name) for at in self._states)), None
            )
        return self._types[kind, name]

    def _catalog(self, commit_id: str) -> "Catalog":
        if self._branch is None:
            self._branch = self._session.read_details(self._states[0]).branch
        return self._session.schema_at(commit_id, self._branch).catalog


def _find(catalog: "Catalog", kind: str, name: str) -> "TypeDef | None":
    return next((entry for entry in catalog.types if (entry.kind, entry.name) == (kind, name)), None)


def _image(document: Mapping[str, Any] | None, definition: "TypeDef | None") -> Mapping[str, Any] | None:
    if document is None or definition is None:
        return document
    kinds = {prop.name: prop.type for prop in definition.properties}
    return {name: python_value(value, kinds[name]) if name in kinds else value for name, value in document.items()}
