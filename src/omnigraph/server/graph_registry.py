"""The graphs that are served. One that can't be opened is reported and tried again; the others don't notice."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from omnigraph.errors import OmnigraphError, Unavailable
from omnigraph.runtime import Runtime
from omnigraph.server.http.errors import NoSuchGraph, Redaction, error_body
from omnigraph.server.settings import GraphSource
from omnigraph.storage.location import parse_location
from omnigraph.storage.util.parallel import gather

if TYPE_CHECKING:
    from omnigraph.graph.graph import Graph

_log = logging.getLogger("omnigraph.server")


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
        on_open: "Callable[[str, Graph], None]",
    ) -> None:
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
                graph = open_graph(source.uri, source.storage_options or None, source.read_only)
                self._on_open(name, graph)
            except OmnigraphError as error:
                hosted.error, hosted.tried_at = error, now
                raise NotOpen(name, error.code) from error
            hosted.graph, hosted.error = graph, None
            return graph

    def all_open(self) -> "list[tuple[str, Graph]]":
        return [(hosted.id, hosted.graph) for hosted in self.graphs.values() if hosted.graph is not None]

    def stop_maintenance(self) -> None:
        """The server ends: what maintenance has not begun is left to whoever writes next."""
        for _, graph in self.all_open():
            graph.maintenance.close(0)

    def close(self, grace_s: float) -> bool:
        """Let the maintenance that is under way end; False if it takes longer."""
        clock = self._runtime.clock
        ends_at = clock.monotonic() + grace_s
        ended = [graph.maintenance.close(max(0.0, ends_at - clock.monotonic())) for _, graph in self.all_open()]
        return all(ended)
