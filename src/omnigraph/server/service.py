"""Everything that the requests of one server share.

A graph that can't be opened is reported and opened again later; the others are not affected.

Stored queries are the `.gq` files of a directory, by name. Files in the directory itself are for every graph, those
in a subdirectory named like a graph for that one. They are parsed when the server starts and checked against each
graph's schema then, and again whenever that has another hash; a query that no longer fits is listed with the reason,
and refused by name. What a query may do is decided by its text once and for all: a read can't become a write.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import Request

from omnigraph.errors import BadRequest, NotFound, OmnigraphError, Unavailable
from omnigraph.manifest.settings import Settings, settings_from
from omnigraph.query import ast
from omnigraph.query.compile import compile_queries
from omnigraph.query.parser import parse
from omnigraph.runtime import Runtime
from omnigraph.server.auth import access
from omnigraph.server.auth.access import Action, require_no_browser
from omnigraph.server.auth.tokens import EVERYBODY, Principal, TokenFile
from omnigraph.server.http.admission import Admission, Workers
from omnigraph.server.http.errors import NoSuchGraph, Redaction, error_body, forbidden, unauthorized
from omnigraph.server.http.request_body import Bodies
from omnigraph.server.jobs import Jobs
from omnigraph.server.metrics import Metrics
from omnigraph.server.scratch import Scratch
from omnigraph.server.settings import GraphSource, ServerSettings
from omnigraph.storage.location import parse_location
from omnigraph.threads import gather

if TYPE_CHECKING:
    from omnigraph.graph.graph import Graph
    from omnigraph.manifest.commit.txn import Snapshot


SUFFIX = ".gq"
SCHEMAS_KEPT_MAX = 16

_log = logging.getLogger("omnigraph.server")


@dataclass(frozen=True, slots=True)
class StoredQueryFile:
    """A query as it was written, and what its text alone says about it."""

    name: str
    file: str
    text: str
    writes: bool
    description: str | None
    params: tuple[tuple[str, str, bool], ...]  # name, type, whether it may be left out


def read_queries(folder: Path) -> dict[str, StoredQueryFile]:
    """All queries of the files in one folder; a name that is there twice is an error of the operator's."""
    found: dict[str, StoredQueryFile] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        for query in _queries_of(path):
            if query.name in found:
                raise BadRequest(
                    f"The query {query.name} is in {found[query.name].file} and in {query.file}: rename one of them."
                )
            found[query.name] = query
    return found


def _queries_of(path: Path) -> Iterator[StoredQueryFile]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} can't be read ({type(error).__name__}): take it away, or correct it.") from error
    file = parse(text, path.name)
    for broken in file.broken:  # its error comes where those of the schema come: when it is listed or run
        yield StoredQueryFile(broken.name, path.name, text, False, None, ())
    for declaration in file.queries:
        yield StoredQueryFile(
            declaration.name,
            path.name,
            text,
            isinstance(declaration.body, ast.MutationBody),
            declaration.description,
            tuple((param.name, str(param.type), param.optional) for param in declaration.params),
        )


class StoredQueries:
    """The queries of all graphs, with what the schemas seen so far make of them."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._shared: dict[str, StoredQueryFile] = {}
        self._own: dict[str, Mapping[str, StoredQueryFile]] = {}
        self._errors: dict[tuple[str, str], Mapping[str, OmnigraphError]] = {}
        self._lock = threading.Lock()
        if folder is None:
            return
        if not folder.is_dir():
            raise BadRequest(f"{folder} is no directory: name one that holds {SUFFIX} files.")
        self._shared = read_queries(folder)
        for child in sorted(path for path in folder.iterdir() if path.is_dir()):
            self._own[child.name] = read_queries(child)

    def of_graph(self, graph_id: str) -> Mapping[str, StoredQueryFile]:
        """A graph's own go before those that are for all."""
        return {**self._shared, **self._own.get(graph_id, {})}

    def find(self, graph_id: str, name: str) -> StoredQueryFile:
        query = self.of_graph(graph_id).get(name)
        if query is None:
            raise NotFound(f"There is no stored query {name!r} for this graph: see GET /graphs/{graph_id}/queries.")
        return query

    def errors(self, graph_id: str, snapshot: "Snapshot") -> Mapping[str, OmnigraphError]:
        """What the checker says about them with this schema, by name; asked once for each schema."""
        key = (graph_id, snapshot.manifest.schema)
        with self._lock:
            known = self._errors.get(key)
        if known is not None:
            return known
        found: dict[str, OmnigraphError] = {}
        for query in self.of_graph(graph_id).values():
            try:
                compile_queries(
                    query.text,
                    snapshot.catalog,
                    query.name,
                    schema_hash=snapshot.manifest.schema,
                    source_name=query.file,
                )
            except OmnigraphError as error:
                found[query.name] = error
        for name, problem in found.items():
            fields = {"graph": graph_id, "query": name, "error": str(problem)}
            _log.warning("A stored query does not fit the schema.", extra={"fields": fields})
        with self._lock:
            while len(self._errors) >= SCHEMAS_KEPT_MAX:
                del self._errors[next(iter(self._errors))]
            self._errors[key] = found
        return found

    def require(self, graph_id: str, query: StoredQueryFile, snapshot: "Snapshot") -> None:
        """Refuse one that does not fit the schema it would run on."""
        error = self.errors(graph_id, snapshot).get(query.name)
        if error is not None:
            raise error


@dataclass(slots=True, eq=False)
class HostedGraph:
    """One of them: open, or why not."""

    id: str
    source: GraphSource
    redaction: Redaction
    graph: "Graph | None" = None
    error: OmnigraphError | None = None
    tried_at: float = 0.0
    opening: threading.Lock = field(default_factory=threading.Lock)

    def error_body(self) -> dict[str, Any] | None:
        return None if self.error is None else error_body(self.error, self.redaction)


def _location_of(source: GraphSource) -> tuple[str, Mapping[str, str]]:
    """The address in full and all options, those of the environment too: what an error may tell by accident."""
    try:
        found = parse_location(source.uri, source.storage_options)
    except OmnigraphError:
        return source.uri, source.storage_options
    return found.uri, {**source.storage_options, **found.options}


class NotOpen(Unavailable):
    """A graph that is served, but could not be opened so far."""

    def __str__(self) -> str:
        return f"The graph {self.what!r} can't be opened at the moment ({self.reason}): try again later."


class GraphRegistry:
    """All of them, by their ids."""

    def __init__(
        self,
        sources: Mapping[str, GraphSource],
        runtime: Runtime,
        reopen_s: float,
        query_bytes: int,
        on_open: "Callable[[str, Graph], None]",
    ) -> None:
        self._query_bytes = query_bytes
        self._runtime = runtime
        self._reopen_s = reopen_s
        self._on_open = on_open
        self.redaction = Redaction()
        for name, source in sources.items():
            self.redaction.hide_store(name, *_location_of(source))
        self.graphs = {name: HostedGraph(name, source, self.redaction) for name, source in sources.items()}

    def find(self, name: str) -> HostedGraph:
        found = self.graphs.get(name)
        if found is None:
            raise NoSuchGraph(name)
        return found

    def open_all(self) -> None:
        """At the start: each is tried, none holds up the server."""
        gather([partial(self._try_open, hosted) for hosted in self.graphs.values()])

    def _try_open(self, hosted: HostedGraph) -> None:
        try:
            self.open(hosted.id)
        except OmnigraphError as error:
            reason = self.redaction.text(str(hosted.error or error))
            _log.error("A graph can't be opened.", extra={"fields": {"graph": hosted.id, "error": reason}})

    def open(self, name: str) -> "Graph":
        """The graph, opened now if it was not; after a failure not before a while has passed."""
        from omnigraph.graph.graph import open as open_graph

        hosted = self.find(name)
        if hosted.graph is not None:
            return hosted.graph
        with hosted.opening:
            if hosted.graph is not None:
                return hosted.graph
            now = self._runtime.clock.monotonic()
            if hosted.error is not None and now - hosted.tried_at < self._reopen_s:
                raise NotOpen(name, hosted.error.code)
            try:
                source = hosted.source
                graph = open_graph(
                    source.uri, source.storage_options or None, source.read_only, settings=self._graph_settings()
                )
                self._on_open(name, graph)
            except OmnigraphError as error:
                hosted.error, hosted.tried_at = error, now
                raise NotOpen(name, error.code) from error
            hosted.graph, hosted.error = graph, None
            return graph

    def _graph_settings(self) -> Settings:
        """Of the environment; the server's limit of a query holds where that sets none."""
        settings = settings_from()
        return settings if settings.query_bytes else replace(settings, query_bytes=self._query_bytes)

    def all_open(self) -> "list[tuple[str, Graph]]":
        return [(hosted.id, hosted.graph) for hosted in self.graphs.values() if hosted.graph is not None]

    def stop_maintenance(self) -> None:
        """Shut down: maintenance that has not started is left to the next writer."""
        for _, graph in self.all_open():
            graph.maintenance.close(0)

    def close(self, grace_s: float) -> bool:
        """Let the maintenance that is under way end; False if it takes longer."""
        clock = self._runtime.clock
        ends_at = clock.monotonic() + grace_s
        ended = [graph.maintenance.close(max(0.0, ends_at - clock.monotonic())) for _, graph in self.all_open()]
        return all(ended)


_BEARER = "bearer "


class Service:
    """Opened with the application, closed with it."""

    def __init__(self, graphs: Mapping[str, GraphSource], settings: ServerSettings, runtime: Runtime) -> None:
        self.settings = settings
        self.runtime = runtime
        self.tokens = None if settings.tokens is None else TokenFile(settings.tokens)
        self.stored = StoredQueries(settings.queries)
        self.metrics = Metrics()
        self.hosted = GraphRegistry(graphs, runtime, settings.reopen_s, settings.limits.query_bytes, self._on_open)
        self.admission = Admission(settings.limits)
        self.workers = Workers(settings.limits, self.admission)
        self.bodies = Bodies(settings.limits)
        self.jobs = Jobs(settings.limits, runtime, self.hosted.redaction)
        self.scratch = Scratch(settings.spool, runtime)
        self.draining = False

    def identify(self, request: Request, least: Action) -> None:
        """Say who asks, and whether they may do that anywhere, before anything of the request is looked at."""
        principal = self.principal(request)
        request.state.principal = principal
        request.state.info.actor = principal.actor
        graph = request.path_params.get("graph")
        if graph is not None and not access.has_access(principal, graph):
            raise forbidden(f"anything on the graph {graph[:100]!r}")
        if graph is not None:
            access.require_somewhere(principal, least, graph)

    def principal(self, request: Request) -> Principal:
        if self.tokens is None:
            require_no_browser(request, local_only=self.settings.local_only)
            return EVERYBODY
        given = request.headers.getlist("authorization")
        if len(given) != 1 or not given[0].lower().startswith(_BEARER):
            raise unauthorized()
        found = self.tokens.principal(given[0][len(_BEARER) :].strip())
        if found is None:
            raise unauthorized()
        return found

    def _on_open(self, name: str, graph: "Graph") -> None:
        self.metrics.watch(name, graph, self.settings.metrics_every_s)
        try:
            self.stored.errors(name, graph.repository.snapshot())
        except OmnigraphError as error:  # its queries are checked when they are asked for
            fields = {"graph": name, "error": str(error)}
            _log.warning("The stored queries of a graph can't be checked yet.", extra={"fields": fields})

    def start(self) -> None:
        self.scratch.start()
        if self.settings.spark:
            self.jobs.spark.install()
        self.hosted.open_all()

    def drain(self) -> None:
        """Begin nothing more than what is asked for."""
        self.draining = True
        self.jobs.stop_accepting()
        self.hosted.stop_maintenance()

    def close(self, grace_s: float | None = None) -> bool:
        """After the last answer: jobs end or are stopped, maintenance ends, threads go. False if some go on."""
        self.drain()
        clock = self.runtime.clock
        ends_at = clock.monotonic() + (self.settings.grace_s if grace_s is None else grace_s)
        ended = self.jobs.close(ends_at - clock.monotonic())
        self.workers.close()
        self.bodies.close()
        ended = self.hosted.close(max(0.0, ends_at - clock.monotonic())) and ended
        self.metrics.close()
        self.scratch.close()
        return ended and not self.admission.running
