"""OpenTelemetry spans, one a request, when they are configured; otherwise nothing is imported and nothing is done.

They are configured as OpenTelemetry says: by `OTEL_TRACES_EXPORTER` or `OTEL_EXPORTER_OTLP_ENDPOINT`, or by a program
that has set a tracer provider before it makes the application.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from omnigraph.errors import BadRequest
from omnigraph.storage.meter import Cost

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

_NAME = "omnigraph.server"
_VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Tracing:
    """Spans of requests; `tracer` is None where none are wanted."""

    def __init__(self, tracer: "Tracer | None" = None) -> None:
        self._tracer = tracer

    @contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> "Iterator[Span | None]":
        """A span around a request, below the one that `traceparent` names."""
        if self._tracer is None:
            yield None
            return
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        with self._tracer.start_as_current_span(method, extract(headers), kind=SpanKind.SERVER) as span:
            yield span


def finish(span: "Span | None", name: str, attributes: Mapping[str, Any], cost: Cost | None) -> None:
    """What is known at the end: the route, the answer, and what it cost."""
    if span is None:
        return
    span.update_name(name)
    if attributes.get("http.response.status_code", 0) >= 500:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR)
    for key, value in attributes.items():
        if value is not None:
            span.set_attribute(key, value)
    if cost is not None:
        span.set_attribute("storage.requests", cost.requests)
        span.set_attribute("storage.stages", cost.stages)
        span.set_attribute("storage.bytes", cost.bytes)
        span.set_attribute("storage.retries", cost.retries)


def configure(environment: Mapping[str, str] | None = None) -> Tracing:
    """Tracing as the environment says; nothing where it says nothing."""
    found = os.environ if environment is None else environment
    if found.get("OTEL_SDK_DISABLED", "").lower() == "true" or found.get("OTEL_TRACES_EXPORTER") == "none":
        return Tracing()
    if not any(found.get(name) for name in _VARIABLES):
        return _program_tracing()
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise BadRequest(
            "Tracing is configured, but OpenTelemetry is not installed: pip install 'omnigraph[tracing]', or unset "
            f"{_VARIABLES[0]}."
        ) from error
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_exporter(found)))
    trace.set_tracer_provider(provider)
    return Tracing(provider.get_tracer(_NAME))


def _program_tracing() -> Tracing:
    """Spans, if a provider is set; a process that has not imported OpenTelemetry has none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(provider := trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return Tracing()
    return Tracing(provider.get_tracer(_NAME))


def _exporter(environment: Mapping[str, str]) -> "SpanExporter":
    wanted = environment.get("OTEL_TRACES_EXPORTER", "otlp")
    if wanted == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise BadRequest(
            f"The exporter {wanted!r} is not installed: pip install opentelemetry-exporter-otlp-proto-http, or set "
            f"{_VARIABLES[0]}=console."
        ) from error
    exporter: SpanExporter = OTLPSpanExporter()
    return exporter
