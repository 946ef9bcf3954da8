"""Monitoring: metrics, logs, spans."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph
from omnigraph.server.http.errors import Redaction
from omnigraph.server.metrics import unindexed_rows
from omnigraph.server.run import log_to
from omnigraph.server.tracing import Tracing, configure, finish
from omnigraph.storage.table.maintain.layout import FragmentLayout, SegmentLayout, TableLayout
from support.server import ADD, PEOPLE, Served, served


def scraped(server: Served) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with server.client() as client:
        text = client.get("/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_and_latencies_are_counted_by_route(server: Served, http: httpx.Client) -> None:
    http.get("/snapshot")
    http.get("/snapshot?branch=nowhere")
    seen = scraped(server)

    route = (("method", "GET"), ("route", "/graphs/{graph}/snapshot"))
    assert seen["omnigraph_http_requests_total", (*route, ("status", "200"))] == 1
    assert seen["omnigraph_http_requests_total", (*route, ("status", "404"))] == 1
    assert seen["omnigraph_http_request_seconds_count", route] == 2
    assert seen["omnigraph_errors_total", (("code", "not_found"),)] == 1


def test_commits_batches_storage_and_conflicts_are_counted(server: Served, http: httpx.Client) -> None:
    http.post("/mutate", json={"query": ADD, "params": {"slug": "cy"}})
    http.post("/branches", json={"name": "b"})
    http.post("/branches", json={"name": "b"})
    seen = scraped(server)

    assert seen["omnigraph_commits_total", (("graph", "people"), ("kind", "mutation"))] == 1
    assert seen["omnigraph_commit_batch_size_count", (("graph", "people"),)] == 1
    assert seen["omnigraph_conflicts_total", (("kind", "AlreadyExists"),)] == 1
    kind = (("kind", "mutation"),)
    assert seen["omnigraph_operations_total", kind] == 1
    assert seen["omnigraph_storage_requests_total", kind] == 1
    assert seen["omnigraph_storage_stages_sum", kind] == 1
    assert seen["omnigraph_retries_total", kind] == 0
    assert not [name for name, labels in seen if ("kind", "request") in labels]


def test_metrics_have_the_storage_of_main_by_type(server: Served, http: httpx.Client) -> None:
    http.post("/mutate", json={"query": ADD, "params": {"slug": "cy"}})
    person = (("graph", "people"), ("type", "Person"))
    before = scraped(server)
    assert before["omnigraph_tail_length", person] == 2
    assert before["omnigraph_rows", person] == 3

    http.post("/optimize", json={}, headers={"Prefer": "wait=30"})
    http.post("/query", json={"query": PEOPLE})
    http.post("/query", json={"query": PEOPLE})
    server.service.metrics._states["people"]._looked_at = float("-inf")
    after = scraped(server)

    assert after["omnigraph_tail_length", person] == 0
    assert after["omnigraph_fragments", person] == 1
    assert after["omnigraph_unindexed_rows", person] == 0
    assert after["omnigraph_cache_bytes", (("graph", "people"),)] > 0
    assert after["omnigraph_cache_hits_total", (("graph", "people"),)] > 0


def test_rows_outside_the_index_with_the_most_gaps_are_unindexed() -> None:
    fragments = tuple(FragmentLayout(number, 10, 0, 1, str(number)) for number in range(3))
    by_id, by_slug = SegmentLayout("a", "id", frozenset({0, 1, 2})), SegmentLayout("b", "slug", frozenset({0}))

    assert unindexed_rows(TableLayout(fragments)) == 30
    assert unindexed_rows(TableLayout(fragments, (by_id,))) == 0
    assert unindexed_rows(TableLayout(fragments, (by_id, by_slug))) == 20


def test_a_log_line_is_one_object_without_what_is_secret() -> None:
    stream = io.StringIO()
    redaction = Redaction()
    redaction.hide_store("people", "s3://secret-bucket/x", {"aws_secret_access_key": "hunter2hunter2"})
    handler = log_to(stream, redaction)
    try:
        logging.getLogger("omnigraph.server").error(
            "It\nfailed at s3://secret-bucket/x.", extra={"fields": {"reason": "key hunter2hunter2"}}
        )
    finally:
        for name in ("omnigraph", "uvicorn.error"):
            logging.getLogger(name).removeHandler(handler)

    (line,) = stream.getvalue().splitlines()
    document = json.loads(line)
    assert document["level"] == "error"
    assert document["message"] == "It\nfailed at the graph 'people'."
    assert document["reason"] == "key ***"


def test_a_request_is_one_line_with_its_id_route_actor_status_time_and_cost(server: Served, http: httpx.Client) -> None:
    stream = io.StringIO()
    handler = log_to(stream, server.service.hosted.redaction)
    try:
        body = {"query": ADD, "params": {"slug": "hunter2"}}
        http.post("/mutate", json=body, headers={"X-Request-Id": "r-1"})
        http.get("/snapshot?branch=nowhere", headers={"X-Request-Id": "r 2; <script>"})
        http.get("/no/such/route")
        wait_until(lambda: len(stream.getvalue().splitlines()) >= 3)
    finally:
        for name in ("omnigraph", "uvicorn.error"):
            logging.getLogger(name).removeHandler(handler)

    made, missed, nothing = map(json.loads, stream.getvalue().splitlines())
    assert {name: made[name] for name in ("request_id", "method", "route", "status", "actor", "graph")} == {
        "request_id": "r-1",
        "method": "POST",
        "route": "/graphs/{graph}/mutate",
        "status": 200,
        "actor": None,
        "graph": "people",
    }
    assert made["ms"] > 0
    assert made["bytes"] > 100
    assert made["cost"] == {"requests": 1, "stages": 1, "bytes": made["cost"]["bytes"], "retries": 0}
    assert (missed["code"], missed["status"], missed["level"]) == ("not_found", 404, "info")
    assert missed["request_id"].isalnum()
    assert (nothing["route"], nothing["status"]) == ("none", 404)
    assert "hunter2" not in stream.getvalue()


def wait_until(done: Callable[[], bool], within_s: float = 5.0) -> None:
    end = time.monotonic() + within_s
    while not done() and time.monotonic() < end:
        time.sleep(0.01)


def test_no_request_adds_a_series_of_its_own(server: Served, http: httpx.Client, graph: Graph) -> None:
    """What clients can think of (paths, names, methods, ids) is no label."""

    def provoke(number: int) -> None:
        name = f"x{number}"
        http.get(f"/nothing/{name}")
        http.get(f"/snapshot?branch={name}")
        http.get(f"/commits/{name}")
        http.request(f"M{number}", "/snapshot")
        http.post(f"/queries/{name}", json={})
        http.post("/branches", json={"name": name})
        body = {"query": ADD, "params": {"slug": name}, "branch": name}
        http.post("/mutate", json=body, headers={"Idempotency-Key": name})
        http.delete(f"/branches/{name}")
        http.post(f"/load?type={name}", content=b"x")
        with server.client() as client:
            client.get(f"/graphs/{name}/snapshot")
            client.get(f"/{name}")

    provoke(0)
    scraped(server)  # which counts itself
    before = set(scraped(server))
    for number in range(1, 4):
        provoke(number)

    assert set(scraped(server)) == before


def test_writes_that_meet_show_as_batches_and_lost_races_as_retries(
    server: Served, http: httpx.Client, graph: Graph
) -> None:
    def write(number: int) -> None:
        if number % 4:
            assert http.post("/mutate", json={"query": ADD, "params": {"slug": f"p{number}"}}).status_code == 200
        else:
            graph.mutate(ADD, params={"slug": f"p{number}"})  # as another process would

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(write, range(48)))
    seen = scraped(server)

    people = (("graph", "people"),)
    assert seen["omnigraph_commits_total", (*people, ("kind", "mutation"))] == 36
    assert seen["omnigraph_commit_batch_size_sum", people] == 36
    assert seen["omnigraph_commit_batch_size_count", people] < 36
    assert seen["omnigraph_retries_total", (("kind", "mutation"),)] > 0


def test_every_metric_that_is_promised_is_there(server: Served, http: httpx.Client) -> None:
    http.post("/mutate", json={"query": ADD, "params": {"slug": "cy"}})
    http.post("/query", json={"query": PEOPLE})
    http.post("/branches", json={"name": "main"})
    with server.client() as client:
        text = client.get("/metrics").text
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}

    promised = (Path(__file__).parents[2] / "docs" / "server.md").read_text().partition("## Monitoring")[2]
    named = set(re.findall(r"`([a-z_]+)`", promised.partition("The log on stderr")[0])) - {"omnigraph_"}
    assert {f"omnigraph_{name}" for name in named} - told == set()


def test_every_request_is_a_span_with_its_cost_below_its_callers(graph: Graph, store: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with served({"people": store}, tracing=Tracing(provider.get_tracer("test"))) as server, server.client() as client:
        body = {"query": ADD, "params": {"slug": "cy"}}
        client.post("/graphs/people/mutate", json=body, headers={"traceparent": parent})

    (span,) = exporter.get_finished_spans()
    assert span.name == "POST /graphs/{graph}/mutate"
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["storage.requests"] == 1
    assert span.attributes["storage.stages"] == 1
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"


def test_a_request_that_fails_is_a_span_that_failed(server: Served) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for status in (404, 503):
        with Tracing(provider.get_tracer("test")).request("GET", {}) as span:
            finish(span, "GET /x", {"http.response.status_code": status}, None)

    assert [span.status.is_ok for span in exporter.get_finished_spans()] == [True, False]


def test_a_program_that_has_a_tracer_provider_gets_spans_without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    with configure({}).request("GET", {}) as span:
        assert span is not None
    with configure({"OTEL_SDK_DISABLED": "true"}).request("GET", {}) as span:
        assert span is None

    assert len(exporter.get_finished_spans()) == 1


def test_tracing_is_off_unless_it_is_configured() -> None:
    with configure({}).request("GET", {}) as span:
        assert span is None
    with configure({"OTEL_TRACES_EXPORTER": "none"}).request("GET", {}) as span:
        assert span is None
    with pytest.raises(BadRequest, match="otlp"):
        configure({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
