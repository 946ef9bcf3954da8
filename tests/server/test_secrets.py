"""Nothing that is secret leaves the server: not in answers, not in the log, not in metrics."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import AccessDenied, Unavailable
from omnigraph.runtime import Runtime
from omnigraph.server.http.errors import Redaction, error_body
from omnigraph.server.run import log_to
from omnigraph.server.service import GraphRegistry
from omnigraph.server.settings import GraphSource, ServerSettings
from support.server import ADD, QUICK, people_graph, served, token

SECRET = "wJalrXUtnFEMI/K7MDENG"
OPTIONS = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": SECRET, "allow_http": "true"}
ADDRESS = "s3://private-bucket/graphs/people"


@pytest.fixture(scope="module")
def denying() -> Iterator[str]:
    """A store that lets nobody in, and repeats what it was given, as some do."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (
                f"<Error><Code>AccessDenied</Code><Message>{SECRET} {self.headers['Authorization']}</Message></Error>"
            )
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        do_HEAD = do_PUT = do_GET  # noqa: N815  # as the base class has them

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_neither_answers_nor_the_log_nor_metrics_tell_where_a_graph_is_or_how_it_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, denying: str
) -> None:
    log = io.StringIO()
    tokens = tmp_path / "tokens.json"
    text = token(tokens, "ada", "admin")
    people_graph(tmp_path / "open")
    closed = GraphSource(ADDRESS, {**OPTIONS, "aws_endpoint": denying})
    graphs: dict[str, Any] = {"closed": closed, "open": GraphSource(str(tmp_path / "open"), QUICK)}
    with served(graphs, ServerSettings(tokens=tokens, grace_s=1.0)) as server:
        handler = log_to(log, server.service.hosted.redaction)
        for record in caplog.records:  # of the start
            handler.emit(record)
        try:
            with server.client(text) as client:
                told = [
                    client.get("/graphs"),
                    client.get("/graphs/closed/snapshot"),
                    client.get("/graphs/nowhere/snapshot"),
                    client.get("/graphs/open/snapshot?branch=nowhere"),
                    client.post("/graphs/open/mutate", json={"query": ADD, "params": {"slug": "cy"}}),
                    client.post("/graphs/open/load?type=Person", content=b"x", headers={"Content-Type": "text/csv"}),
                    client.get("/metrics"),
                    client.get("/readyz"),
                    client.get("/openapi.json"),
                ]
        finally:
            for name in ("omnigraph", "uvicorn.error"):
                logging.getLogger(name).removeHandler(handler)

    answers = "".join(answer.text + str(answer.headers) for answer in told)
    assert "can't be opened" in log.getvalue()
    assert told[1].status_code == 503
    assert told[0].json()["graphs"][0]["error"]["code"] == "forbidden"
    for secret in (SECRET, "AKIDEXAMPLE", text, "Bearer og_"):
        assert secret not in answers + log.getvalue(), secret
    for address in ("private-bucket", denying, str(tmp_path)):  # which the operator's log may name
        assert address not in answers, address
    assert all(json.loads(line)["time"] for line in log.getvalue().splitlines())


@pytest.mark.parametrize(
    ("uri", "leak"),
    [
        ("s3://key:pass%2Fword@bucket/graph", "pass/word"),
        ("s3://key:pass%2Fword@bucket/graph", "pass%2Fword"),
        ("az://container/graph?sig=c2lnbmF0dXJl", "c2lnbmF0dXJl"),
    ],
)
def test_credentials_in_an_address_are_hidden_wherever_they_turn_up(uri: str, leak: str) -> None:
    redaction = Redaction()
    redaction.hide_store("people", uri, {})

    assert leak not in redaction.text(f"GET https://host/x failed with {leak}")


def test_what_the_environment_says_is_hidden_too_and_a_short_name_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store called `g` must not turn every g of a sentence into something else."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    sources = {"people": GraphSource("s3://bucket/graph"), "g": GraphSource("g")}
    redaction = GraphRegistry(sources, Runtime(), 1.0, 0, lambda *_: None).redaction

    assert SECRET not in redaction.text(f"the signature with {SECRET} is wrong")
    assert redaction.text("Nothing was changed in the graph.") == "Nothing was changed in the graph."
    assert str(Path("g").absolute()) not in redaction.text(f"{Path('g').absolute()}/manifest can't be read")


def test_the_words_of_a_store_stay_in_the_log() -> None:
    for error in (Unavailable("x", "10.0.0.9 refused"), AccessDenied("x", "key AKID is wrong")):
        told = json.dumps(error_body(error, Redaction()))
        assert "10.0.0.9" not in told
        assert "AKID" not in told
