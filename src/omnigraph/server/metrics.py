"""What Prometheus sees. The meter tells of every operation when it ends; the rest is looked up when it is asked for.

How tables are stored is read from version files, which may cost a request for a version that is new here: so that is
done at most every few seconds, in a thread, and a scrape gets what was seen last.
"""

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from omnigraph.errors import OmnigraphError
from omnigraph.manifest.model.manifest import MAIN, CommitClass, Manifest
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost

if TYPE_CHECKING:
    from omnigraph.graph.graph import Graph
    from omnigraph.storage.table.maintain.layout import TableLayout

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST = "request"  # the kind of the account around a whole request: its parts are counted themselves
_METHODS = frozenset({"GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"})
_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_STAGES = (0, 1, 2, 3, 4, 5, 6, 8, 12, 20, 50, 200)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nobody reads
        registry = self.registry = CollectorRegistry()
        labels = ("method", "route")
        self.requests = Counter("omnigraph_http_requests_total", "Requests.", (*labels, "status"), registry=registry)
        self.latency = Histogram(
            "omnigraph_http_request_seconds", "Until the last byte.", labels, buckets=_SECONDS, registry=registry
        )
        self.running = Gauge("omnigraph_http_running", "Requests that work now.", registry=registry)
        self.waiting = Gauge("omnigraph_http_waiting", "Requests in line.", registry=registry)
        self.token_file_refusals = Gauge(
            "omnigraph_token_file_refusals", "How often a changed token file was refused.", registry=registry
        )
        self.errors = Counter("omnigraph_errors_total", "Answers that are errors.", ("code",), registry=registry)
        self.conflicts = Counter(
            "omnigraph_conflicts_total", "Writes refused as conflicts.", ("kind",), registry=registry
        )
        self.commits = Counter(
            "omnigraph_commits_total", "Commits made here, without maintenance.", ("graph", "kind"), registry=registry
        )
        self.batches = Histogram(
            "omnigraph_commit_batch_size", "Commits in a manifest.", ("graph",), buckets=_BATCHES, registry=registry
        )
        kind = ("kind",)
        self.operations = Counter("omnigraph_operations_total", "Operations that ended.", kind, registry=registry)
        self.storage_requests = Counter(
            "omnigraph_storage_requests_total", "Requests to the store.", kind, registry=registry
        )
        self.storage_bytes = Counter("omnigraph_storage_bytes_total", "Bytes moved.", kind, registry=registry)
        self.storage_stages = Histogram(
            "omnigraph_storage_stages", "Serial round trips.", kind, buckets=_STAGES, registry=registry
        )
        self.retries = Counter("omnigraph_retries_total", "Tries made again.", kind, registry=registry)
        self._states: dict[str, StoredState] = {}
        self._unsubscribe = meter.subscribe(self.operation_ended)

    def operation_ended(self, kind: str, cost: Cost) -> None:
        if kind == REQUEST:
            return
        self.operations.labels(kind).inc()
        self.storage_requests.labels(kind).inc(max(0, cost.requests))
        self.storage_bytes.labels(kind).inc(max(0, cost.bytes))
        self.storage_stages.labels(kind).observe(cost.stages)
        self.retries.labels(kind).inc(cost.retries)

    def request_ended(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else "other"  # anybody can think of more
        self.requests.labels(method, route, str(status)).inc()
        self.latency.labels(method, route).observe(seconds)

    def failed(self, error: OmnigraphError) -> None:
        self.errors.labels(error.code).inc()
        if error.code == "conflict":
            self.conflicts.labels(type(error).__name__).inc()

    def watch(self, name: str, graph: "Graph", every_s: float) -> None:
        """Count the commits that land through this graph, and look at how it is stored when asked."""

        def count(manifest: Manifest) -> None:
            logical = [commit for commit in manifest.commits if commit.commit_class is CommitClass.LOGICAL]
            for commit in manifest.commits:
                self.commits.labels(name, commit.kind).inc()
            if logical:
                self.batches.labels(name).observe(len(logical))

        graph.repository.publisher.listeners.append(count)
        self._states[name] = StoredState(name, graph, every_s)
        self.registry.register(self._states[name])

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def close(self) -> None:
        self._unsubscribe()


class StoredState:
    """How the main branch of a graph is stored, and what its caches did."""

    def __init__(self, name: str, graph: "Graph", every_s: float) -> None:
        self._name = name
        self._graph = graph
        self._every_s = every_s
        self._shapes: dict[str, tuple[object, int, int]] = {}
        self._looked_at = float("-inf")
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        return ()  # what there is depends on the schema

    def collect(self) -> Iterable[Metric]:
        yield from self._caches()
        head = self._graph.repository.cached_head(MAIN)
        if head is None:
            return
        self._refresh(head)
        tail = GaugeMetricFamily("omnigraph_tail_length", "Manifests not folded yet.", labels=("graph", "type"))
        rows = GaugeMetricFamily("omnigraph_rows", "Rows of a type.", labels=("graph", "type"))
        fragments = GaugeMetricFamily("omnigraph_fragments", "Fragments of a type.", labels=("graph", "type"))
        unindexed = GaugeMetricFamily("omnigraph_unindexed_rows", "Rows in no index.", labels=("graph", "type"))
        for key, ref in head.tables.items():
            type_name = key.partition(":")[2]
            tail.add_metric((self._name, type_name), len(ref.tail))
            rows.add_metric((self._name, type_name), ref.rows)
            _, count, bare = self._shapes.get(key, (None, 0, 0))
            fragments.add_metric((self._name, type_name), count)
            unindexed.add_metric((self._name, type_name), bare)
        yield from (tail, rows, fragments, unindexed)

    def _caches(self) -> Iterable[Metric]:
        counts = self._graph.cache_counts
        for what, value in (("hits", counts.hits), ("misses", counts.misses), ("forgotten", counts.forgotten)):
            metric = CounterMetricFamily(f"omnigraph_cache_{what}", f"Of the read caches: {what}.", labels=("graph",))
            metric.add_metric((self._name,), value)
            yield metric
        held = GaugeMetricFamily("omnigraph_cache_bytes", "Held by the read caches.", labels=("graph",))
        held.add_metric((self._name,), counts.bytes_held)
        yield held

    def _refresh(self, head: Manifest) -> None:
        from omnigraph.storage.table.maintain.layout import read_layout  # lance is imported by the first who needs it

        repository = self._graph.repository
        now = repository.runtime.clock.monotonic()
        with self._lock:
            if now - self._looked_at < self._every_s:
                return
            self._looked_at = now
            for key, ref in head.tables.items():
                if ref.stored is None or self._shapes.get(key, (None, 0, 0))[0] == ref.stored:
                    continue
                try:
                    shape = read_layout(repository.location, ref.stored)
                except OmnigraphError:
                    continue  # a scrape reports no errors of the store; reads will
                self._shapes[key] = (ref.stored, len(shape.fragments), unindexed_rows(shape))


def unindexed_rows(shape: "TableLayout") -> int:
    """Rows that the index with the most gaps does not cover."""
    covered: dict[str, set[int]] = {}
    for segment in shape.segments:
        covered.setdefault(segment.index, set()).update(segment.fragments)
    if not covered:
        return shape.rows
    return max(
        sum(fragment.rows for fragment in shape.fragments if fragment.number not in known) for known in covered.values()
    )
