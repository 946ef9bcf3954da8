"""Everything that the requests of one server share."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastapi import Request

from omnigraph.errors import OmnigraphError
from omnigraph.runtime import Runtime
from omnigraph.server.auth import access
from omnigraph.server.auth.access import require_no_browser
from omnigraph.server.auth.tokens import EVERYBODY, Principal, TokenFile
from omnigraph.server.graph_registry import GraphRegistry
from omnigraph.server.http.admission import Admission, Workers
from omnigraph.server.http.errors import Forbidden, Unauthorized
from omnigraph.server.jobs import Jobs
from omnigraph.server.metrics import Metrics
from omnigraph.server.scratch import Scratch
from omnigraph.server.settings import GraphSource, ServerSettings
from omnigraph.server.stored_queries import StoredQueries

if TYPE_CHECKING:
    from omnigraph.graph.graph import Graph

_log = logging.getLogger("omnigraph.server")
_BEARER = "bearer "


class Service:
    """Opened with the application, closed with it."""

    def __init__(self, graphs: Mapping[str, GraphSource], settings: ServerSettings, runtime: Runtime) -> None:
        self.settings = settings
        self.runtime = runtime
        self.tokens = None if settings.tokens is None else TokenFile(settings.tokens)
        self.stored = StoredQueries(settings.queries)
        self.metrics = Metrics()
        self.hosted = GraphRegistry(graphs, runtime, settings.reopen_s, self._on_open)
        self.admission = Admission(settings.limits)
        self.workers = Workers(settings.limits, self.admission)
        self.jobs = Jobs(settings.limits, runtime, self.hosted.redaction)
        self.scratch = Scratch(settings.spool, runtime)
        self.draining = False

    def identify(self, request: Request) -> None:
        """Say who asks, before anything of the request is looked at."""
        principal = self.principal(request)
        request.state.principal = principal
        request.state.info.actor = principal.actor
        graph = request.path_params.get("graph")
        if graph is not None and not access.has_access(principal, graph):
            raise Forbidden(f"anything on the graph {graph[:100]!r}")

    def principal(self, request: Request) -> Principal:
        if self.tokens is None:
            require_no_browser(request, local_only=self.settings.local_only)
            return EVERYBODY
        given = request.headers.getlist("authorization")
        if len(given) != 1 or not given[0].lower().startswith(_BEARER):
            raise Unauthorized
        found = self.tokens.principal(given[0][len(_BEARER) :].strip())
        if found is None:
            raise Unauthorized
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
        ended = self.hosted.close(max(0.0, ends_at - clock.monotonic())) and ended
        self.metrics.close()
        self.scratch.close()
        return ended and not self.admission.running
