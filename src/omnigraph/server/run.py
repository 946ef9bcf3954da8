"""uvicorn around the application: where it binds, what it says at its start, how it ends.

A server ends by a signal: it stops listening, answers what is in flight, lets jobs and folds end, and goes. All of that
has one grace; what is not done then is cut off, which is safe at any moment. A second signal waits for nothing.
"""

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import uvicorn
from fastapi import FastAPI

from omnigraph import __version__
from omnigraph.errors import BadRequest
from omnigraph.runtime import Runtime
from omnigraph.server.auth.access import is_loopback
from omnigraph.server.http import errors
from omnigraph.server.http.connections import BoundedProtocol, Connections
from omnigraph.server.http.errors import Redaction
from omnigraph.server.http.middleware import Middleware
from omnigraph.server.openapi import openapi_document
from omnigraph.server.routes import bulk, data, graphs, history, maintenance
from omnigraph.server.service import Service
from omnigraph.server.settings import GraphSource, ServerSettings
from omnigraph.server.tracing import Tracing, configure

ROUTERS = (
    graphs.health_router,
    graphs.metrics_router,
    graphs.all_router,
    graphs.router,
    data.router,
    bulk.router,
    data.stored_router,
    history.branches_router,
    history.router,
    graphs.schema_router,
    maintenance.router,
    maintenance.jobs_router,
)
_DESCRIPTION = "A typed property graph that lives in object storage. Every error is `{error, code, details}`."


def create_app(
    graphs: Mapping[str, GraphSource],
    settings: ServerSettings | None = None,
    *,
    runtime: Runtime | None = None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The application for these graphs, by their ids. They are opened when it starts."""
    settings, runtime = settings or ServerSettings(), runtime or Runtime()
    service = Service(graphs, settings, runtime)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(service.start)
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="Omnigraph",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # pages that load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # a route of graphs.py, which takes no parameters like the others
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.service = service
    errors.install(app)
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = lambda: openapi_document(app, secured=settings.tokens is not None)  # type: ignore[method-assign]
    app.add_middleware(
        Middleware,
        runtime=runtime,
        metrics=service.metrics,
        redaction=service.hosted.redaction,
        tracing=configure() if tracing is None else tracing,
    )
    return app


BIND_DEFAULT = "127.0.0.1:8080"
KEEP_ALIVE_S = 30
BACKLOG = 1024  # connections that nobody has taken yet
ACCEPTED_AT_ONCE = 32  # in one turn of the event loop
FILES_KEPT = 256  # descriptors for everything but connections, at least
# How long a thread that computes may keep the interpreter from others. One short request takes it some five times, so
# with the usual 5 ms each thread that computes would cost every request 25 ms.
SWITCH_INTERVAL_S = 0.0005
EXIT_AT_ONCE = 130  # 128 + SIGINT, as shells count
EXIT_CUT_OFF = 1
_log = logging.getLogger("omnigraph.server")


@dataclass(frozen=True, slots=True)
class Bind:
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can connect."""
        return is_loopback(self.host)


def parse_bind(text: str) -> Bind:
    """`127.0.0.1:8080`, `[::1]:8080`, `:8080` for the loopback address."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise BadRequest(f"{text!r} is no address to bind to: write HOST:PORT, such as {BIND_DEFAULT}.")
    return Bind(host.strip("[]") or "127.0.0.1", int(port))


def require_safe(bind: Bind, settings: ServerSettings, *, unauthenticated: bool) -> None:
    """Without tokens everybody who can connect may do everything: then nobody else may be able to connect."""
    if settings.tokens is None and not bind.is_loopback and not unauthenticated:
        raise BadRequest(
            f"Without tokens everybody who reaches {bind.host} could write: give --tokens FILE (see `token create`), "
            "bind to 127.0.0.1, or say --unauthenticated if that is meant."
        )


def require_stored_queries(service: Service) -> None:
    """A stored query that does not fit the schema of an open graph is an error at the start of the server."""
    for name, graph in service.hosted.all_open():
        errors = service.stored.errors(name, graph.repository.snapshot())
        for query, error in errors.items():
            raise BadRequest(f"The stored query {query} does not fit the graph {name!r}: {error}")


def serve(
    graphs: Mapping[str, GraphSource],
    settings: ServerSettings,
    bind: Bind,
    *,
    unauthenticated: bool = False,
    log: TextIO | None = None,
) -> None:
    """Serve until a signal comes; returns when everything has ended, or ends the process with what has not."""
    require_safe(bind, settings, unauthenticated=unauthenticated)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    limits = replace(settings.limits, connections=min(settings.limits.connections, connections_possible()))
    settings = replace(settings, limits=limits, local_only=settings.tokens is None and not unauthenticated)
    app = create_app(graphs, settings)
    service: Service = app.state.service
    handler = log_to(log, service.hosted.redaction)
    server = GracefulServer(app, settings)
    try:
        with temporary_files_in(service.scratch.path):
            try:
                service.start()
                require_stored_queries(service)
                gc.freeze()  # what was imported stays; a collection that goes through it holds up all threads
                with listen(bind) as listener:
                    server.on_started = lambda: _announce(service, bind, listener.getsockname()[1])
                    server.run(sockets=[listener])
                if server.force_exit:
                    _end_process(handler, EXIT_AT_ONCE)
            finally:
                _close(service, server, handler)
    finally:
        for name in ("omnigraph", "uvicorn.error"):
            logging.getLogger(name).removeHandler(handler)


def connections_possible() -> int:
    """Half of the files that the process may open, after it has allowed itself as many as it can."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems have a lower limit than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else max(1, (allowed - FILES_KEPT) // 2)


def _close(service: Service, server: "GracefulServer", handler: logging.Handler) -> None:
    """Close the service in what is left of the grace; a signal that comes meanwhile is the second one."""

    def at_once(number: int, frame: FrameType | None) -> None:
        server.handle_exit(number, frame)
        _end_process(handler, EXIT_AT_ONCE)

    ours = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    found = {number: signal.signal(number, at_once) for number in ours}
    try:
        if not service.close(server.grace_left_s()):
            _log.warning("What had not ended was cut off.", extra={"fields": {}})
            _end_process(handler, EXIT_CUT_OFF)
    finally:
        for number, before in found.items():
            signal.signal(number, before)


def _end_process(handler: logging.Handler, code: int) -> None:
    """An ordinary exit waits for every thread; what they do is safe to break off."""
    handler.flush()
    os._exit(code)


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Whatever this process and its children put into temporary files goes there, where the next server removes it."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    named = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        if named is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = named


def _announce(service: Service, bind: Bind, port: int) -> None:
    """One line for a person or a script that waits for it."""
    graphs = {name: hosted.graph is not None for name, hosted in service.hosted.graphs.items()}
    host = f"[{bind.host}]" if ":" in bind.host else bind.host
    fields = {"url": f"http://{host}:{port}", "graphs": graphs, "tokens": service.tokens is not None}
    _log.info("serving", extra={"fields": fields})
    if not any(graphs.values()):
        _log.error("No graph could be opened.", extra={"fields": {}})


@contextmanager
def listen(bind: Bind) -> Iterator[socket.socket]:
    """A socket that takes connections; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
    # With its protocol named, asyncio turns Nagle's algorithm off, which would hold back every answer for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((bind.host, bind.port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadRequest(
                f"{bind.host}:{bind.port} can't be bound ({reason}): choose another with --bind."
            ) from error
        listener.listen(BACKLOG)
        listener.set_inheritable(False)
        yield listener
    finally:
        listener.close()


class GracefulServer(uvicorn.Server):
    """Reports itself as not ready as soon as it gets a signal, so that a load balancer sends no more requests."""

    def __init__(self, app: FastAPI, settings: ServerSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,  # the edge writes one line a request
                server_header=False,
                proxy_headers=False,  # a client is identified by its token alone
                lifespan="off",  # the service is opened before the first request
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(settings.grace_s),
                http=partial(BoundedProtocol, connections=Connections(settings.limits)),  # type: ignore[arg-type]
                ws="none",
                backlog=ACCEPTED_AT_ONCE,
            )
        )
        self._service: Service = app.state.service
        self._grace_s = settings.grace_s
        self._ends_at: float | None = None
        self.on_started: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """After `on_started` clients may connect, and a signal may end the server."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # what waits in the system may be more than what is taken at once
        self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.drain()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends it gracefully, a second one at once. None is raised again afterwards: the
        caller has to close the service, and the exit code is 0 because this is how a server ends."""
        self._service.draining = True
        if self._ends_at is None:
            self._ends_at = self._service.runtime.clock.monotonic() + self._grace_s
        _log.info("ending", extra={"fields": {"signal": signal.Signals(sig).name, "at_once": self.should_exit}})
        self.force_exit, self.should_exit = self.should_exit, True

    def grace_left_s(self) -> float:
        """Of the time that a signal leaves to everything together."""
        if self._ends_at is None:
            return self._grace_s
        return max(0.0, self._ends_at - self._service.runtime.clock.monotonic())


class JsonLines(logging.Formatter):
    """`extra={"fields": {…}}` of a record become members of the object."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        document: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            document["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(self._redaction.document(document), ensure_ascii=True, default=str)


def log_to(stream: TextIO | None, redaction: Redaction, level: int = logging.INFO) -> logging.Handler:
    """Send what the server and the graph say to a stream; answers the handler, for who wants to take it away."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines(redaction))
    for name in ("omnigraph", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
    return handler
