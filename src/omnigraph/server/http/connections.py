"""Connections: how many there are, how long the head of a request may take, and how a request may be framed.

A connection that has not sent a whole request costs its client nothing, so it is the first to go when there are too
many, in all or of one peer. Every state in which a connection waits for its client has a deadline. Requests whose end
somebody else could see elsewhere (bare line feeds, two lengths) are refused, because a proxy may be that somebody.
"""

import asyncio
import logging
import re
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from omnigraph.errors import BadRequest, OmnigraphError, TooManyRequests
from omnigraph.server.http.errors import json_response
from omnigraph.server.settings import Limits

READ_BYTES = 16 * 1024  # at once: what comes in one piece is handled in one go
DRAIN_S = 10.0  # for a body that nobody reads
SMALL_CHUNKS_MAX = 1000
CHUNK_BYTES_MIN = 16  # on average, if there are more than that
PROGRESS_BYTES = (64 * 1024, 1024 * 1024)  # that a reader takes in `stall_s` at least, of a short and of a long answer
REFUSALS_LOGGED_EVERY_S = 10.0

_STRAY_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_FOLDED = re.compile(rb"\r\n[ \t]")
_LENGTH = re.compile(rb"\r\ncontent-length[ \t]*:", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_log = logging.getLogger("omnigraph.server")


class _Refused(h11.RemoteProtocolError):
    """What is refused here; its words are ours."""


class BoundedConnection(h11.Connection):
    """The HTTP of one connection; what h11 takes and others may take for something else is refused."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(h11.SERVER, limits.head_bytes)
        self._limits = limits
        self._chunks = 0
        self._chunk_bytes = 0
        self.refusal: h11.RemoteProtocolError | None = None

    @property
    def buffered(self) -> bool:
        return bool(self.trailing_data[0])

    def next_event(self) -> Any:
        try:
            return self._checked_event()
        except h11.RemoteProtocolError as error:
            self.refusal = error
            raise

    def _checked_event(self) -> Any:
        if self.their_state is h11.IDLE:
            self._check_head(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._check_request(event)
        elif isinstance(event, h11.Data):
            self._check_chunk(event)
        return event

    def _check_head(self, data: bytes) -> None:
        end = data.find(_HEAD_END)
        head = data if end < 0 else data[: end + len(_HEAD_END)]
        if _STRAY_LINE_END.search(head):
            raise _Refused("A line of the head does not end with CRLF")
        if _FOLDED.search(head):
            raise _Refused("A header goes on in the next line")
        if len(head) > self._limits.head_bytes or head.count(b"\n") > self._limits.headers + 2:
            raise _Refused("The head is too large", error_status_hint=431)
        if len(_LENGTH.findall(head)) > 1:
            raise _Refused("Content-Length is given twice")

    def _check_request(self, request: h11.Request) -> None:
        self._chunks = self._chunk_bytes = 0
        names = {name for name, _ in request.headers}
        if b"transfer-encoding" in names and (b"content-length" in names or request.http_version < b"1.1"):
            raise _Refused("Transfer-Encoding is given with Content-Length, or in HTTP/1.0")

    def _check_chunk(self, data: h11.Data) -> None:
        self._chunks += data.chunk_start
        self._chunk_bytes += len(data.data)
        if self._chunks > SMALL_CHUNKS_MAX and self._chunk_bytes < self._chunks * CHUNK_BYTES_MIN:
            raise _Refused("The chunks of the body are too small")


class Connections:
    """All of them, by peer: an address, behind which there may be a proxy."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._all: dict[BoundedProtocol, str] = {}
        self._of_peer: Counter[str] = Counter()
        self._unasked: dict[BoundedProtocol, None] = {}  # that have sent no request yet, oldest first
        self._idle: dict[BoundedProtocol, None] = {}  # between two requests
        self._unread: dict[BoundedProtocol, None] = {}  # whose answers wait for their readers, longest first
        self._logged_at = 0.0

    def admit(self, connection: "BoundedProtocol") -> bool:
        """Find a place for a new one, if need be that of another that does nothing."""
        peer = connection.peer
        if self._of_peer[peer] >= self.limits.connections_per_peer and not self._shed(peer):
            return self._refuse(connection, "this peer")
        if len(self._all) >= self.limits.connections and not self._shed(None):
            return self._refuse(connection, "all peers")
        self._all[connection] = peer
        self._of_peer[peer] += 1
        self._unasked[connection] = None
        return True

    def _shed(self, peer: str | None) -> bool:
        """Close the oldest that does nothing: of this peer, or of the one that has the most."""
        resting = [one for one in (*self._unasked, *self._idle) if peer is None or one.peer == peer]
        if not resting:
            return False
        connection = max(resting, key=lambda one: self._of_peer[one.peer])  # the first of equal ones
        self.remove(connection)
        connection.transport.abort()
        return True

    def _refuse(self, connection: "BoundedProtocol", whose: str) -> bool:
        now = connection.loop.time()
        if now - self._logged_at > REFUSALS_LOGGED_EVERY_S:
            self._logged_at = now
            fields = {"peer": connection.peer, "open": len(self._all), "of_peer": self._of_peer[connection.peer]}
            _log.warning(f"Connections are refused: those of {whose} are at their limit.", extra={"fields": fields})
        return False

    def works(self, connection: "BoundedProtocol") -> None:
        """It has sent the head of a request."""
        self._unasked.pop(connection, None)
        self._idle.pop(connection, None)

    def rests(self, connection: "BoundedProtocol") -> None:
        if connection in self._all:
            self._idle[connection] = None

    def waits_for_reader(self, connection: "BoundedProtocol") -> None:
        """Answers that nobody reads may take so much memory, and then the one that has waited longest is given up."""
        self._unread[connection] = None
        sizes = {one: one.transport.get_write_buffer_size() for one in self._unread}
        total = sum(sizes.values())
        for one, size in sizes.items():
            if total <= self.limits.unread_bytes or one is connection:
                break
            total -= size
            self.remove(one)
            one.transport.abort()

    def was_read(self, connection: "BoundedProtocol") -> None:
        self._unread.pop(connection, None)

    def remove(self, connection: "BoundedProtocol") -> None:
        self.was_read(connection)
        peer = self._all.pop(connection, None)
        if peer is None:
            return
        self.works(connection)
        self._of_peer[peer] -= 1
        if not self._of_peer[peer]:
            del self._of_peer[peer]


class BoundedProtocol(H11Protocol):
    """One connection, with a deadline wherever it waits for its client."""

    def __init__(self, *arguments: Any, connections: Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._connections = connections
        self._limits = connections.limits
        self.conn: BoundedConnection = BoundedConnection(self._limits)
        self.peer = ""
        self._waits_for = ""  # head, request or rest of a body, if it waits
        self._deadline: asyncio.TimerHandle | None = None
        self._reader_deadline: asyncio.TimerHandle | None = None
        self._unread = 0

    # Events of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]  # of asyncio's own transports
        self.peer = self.client[0] if self.client else ""
        if self._connections.admit(self):
            self._watch()
        else:
            self._refuse(503, TooManyRequests("There are too many connections: try again later.", 1))

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._wait_for("")
        if self._reader_deadline is not None:
            self._reader_deadline.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    # What it waits for

    def _watch(self) -> None:
        if self.transport.is_closing():
            self._wait_for("")
        elif self.conn.their_state is h11.IDLE:
            self._wait_for("head" if self.conn.buffered or self.cycle is None else "request")
        elif self.conn.their_state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete:
            self._wait_for("rest")
        else:
            self._wait_for("")
            self._connections.works(self)

    def _wait_for(self, what: str) -> None:
        """The deadline is that of the whole: what comes of it in between does not put it off."""
        if what == self._waits_for:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._waits_for = what
        if what == "request":
            self._connections.rests(self)
        if what:
            seconds = {"head": self._limits.head_s, "request": self.timeout_keep_alive, "rest": DRAIN_S}[what]
            self._deadline = self.loop.call_later(seconds, self._too_late)

    def _too_late(self) -> None:
        if self._waits_for == "head" and self.conn.buffered:
            message = f"The head of the request did not come within {self._limits.head_s:g} s: send it at once."
            self._refuse(408, BadRequest(message))
        else:
            self._close()

    # Refusals

    def send_400_response(self, msg: str) -> None:
        """The words of h11 repeat bytes of the request, so they are not sent."""
        refusal = self.conn.refusal
        what = str(refusal) if isinstance(refusal, _Refused) else "The request is no HTTP/1.1"
        hint = getattr(refusal, "error_status_hint", 400)
        self._refuse(hint if hint in (431, 501) else 400, BadRequest(f"{what}: correct it (see RFC 9112)."))

    def _refuse(self, status: int, error: OmnigraphError) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = json_response(error.to_json(), status)
            headers = [*answer.raw_headers, (b"connection", b"close")]
            events = (
                h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            )
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        self._close()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _close(self) -> None:
        """Once all is sent; or not all, if it is not read."""
        if not self.transport.is_closing():
            self._wait_for("")
            self.transport.close()
            self._watch_reader()

    # Answers that are not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._connections.waits_for_reader(self)
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connections.was_read(self)
        if self._reader_deadline is not None and not self.transport.is_closing():
            self._reader_deadline.cancel()
            self._reader_deadline = None

    def _watch_reader(self) -> None:
        if self._reader_deadline is None:
            self._unread = self.transport.get_write_buffer_size()
            self._reader_deadline = self.loop.call_later(self._limits.stall_s, self._require_progress)

    def _require_progress(self) -> None:
        self._reader_deadline = None
        unread, self._unread = self._unread, self.transport.get_write_buffer_size()
        if unread - self._unread < PROGRESS_BYTES[unread > 2 * PROGRESS_BYTES[1]]:
            self.transport.abort()
        else:
            self._watch_reader()
