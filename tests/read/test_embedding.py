"""Texts as vectors: a client against a real endpoint in a thread, and the provider that needs none."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.errors import BadRequest, Unavailable
from omnigraph.read.search import embedding
from omnigraph.read.search.embedding import (
    ATTEMPTS_MAX,
    BATCH_TEXTS_MAX,
    OFFLINE_MODEL,
    HttpEmbedder,
    OfflineEmbedder,
    QueryEmbeddings,
    embed_query,
    embedder_from,
)
from omnigraph.runtime import Runtime
from omnigraph.schema.definitions import Embed, Property
from omnigraph.schema.types import Vector

Answer = tuple[int, dict[str, str], bytes]
Respond = Callable[[dict[str, Any]], Answer]


def vectors(request: dict[str, Any], dimension: int = 3) -> Answer:
    """What a provider answers, in another order than requested."""
    data = [{"index": i, "embedding": [float(len(text))] * dimension} for i, text in enumerate(request["input"])]
    return 200, {}, json.dumps({"data": data[::-1]}).encode()


@dataclass
class Endpoint:
    """An embedding endpoint: scripted responses, then ordinary ones, and the requests it received."""

    url: str = ""
    script: list[Respond] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    scripted = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            scripted.requests.append(request | {"path": self.path})
            scripted.headers.append(dict(self.headers))
            status, headers, body = scripted.script.pop(0)(request) if scripted.script else vectors(request)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # the client may have left
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    scripted.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield scripted
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class PatientClock:
    """Sleeps without waiting, and remembers for how long."""

    slept: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def client(endpoint: Endpoint, clock: PatientClock | None = None, **options: Any) -> HttpEmbedder:
    return HttpEmbedder(endpoint.url, "tiny", "secret", runtime=Runtime(clock or PatientClock()), **options)


def failing(status: int, headers: dict[str, str] | None = None, body: bytes = b"oops") -> Respond:
    return lambda request: (status, headers or {}, body)


def test_texts_are_sent_in_batches_and_vectors_come_back_in_order(endpoint: Endpoint) -> None:
    texts = ["x" * (i + 1) for i in range(BATCH_TEXTS_MAX + 5)]

    found = client(endpoint).embed(texts, 3)

    assert found == [[i + 1.0] * 3 for i in range(len(texts))]
    assert [len(request["input"]) for request in endpoint.requests] == [BATCH_TEXTS_MAX, 5]
    assert endpoint.requests[0] | {"input": []} == {
        "model": "tiny",
        "input": [],
        "encoding_format": "float",
        "path": "/v1/embeddings",
    }
    assert endpoint.headers[0]["Authorization"] == "Bearer secret"
    assert client(endpoint).embed([], 3) == []


def test_the_dimension_is_sent_to_models_that_take_it(endpoint: Endpoint) -> None:
    HttpEmbedder(endpoint.url, "text-embedding-3-small").embed(["a"], 3)

    assert endpoint.requests[0]["dimensions"] == 3
    assert "Authorization" not in endpoint.headers[0]


def test_what_may_pass_is_tried_again_later_each_time(endpoint: Endpoint) -> None:
    clock = PatientClock()
    endpoint.script = [failing(500), failing(429, {"Retry-After": "7"}), failing(503)]

    assert client(endpoint, clock).embed(["abc"], 3) == [[3.0] * 3]
    assert len(clock.slept) == 3
    assert 0.5 <= clock.slept[0] <= 1 < 7 <= clock.slept[1] <= 14
    assert 2 <= clock.slept[2] <= 4


def test_giving_up_says_so(endpoint: Endpoint) -> None:
    endpoint.script = [failing(503, body=b'{"error": {"message": "busy."}}')] * ATTEMPTS_MAX

    with pytest.raises(Unavailable, match=r"is unavailable \(busy, 5 attempts\): check OMNIGRAPH_EMBED_URL"):
        client(endpoint).embed(["abc"], 3)
    assert len(endpoint.requests) == ATTEMPTS_MAX


def test_an_endpoint_that_is_not_there_is_named() -> None:
    with pytest.raises(Unavailable, match=r"endpoint http://127\.0\.0\.1:9/v1 is unavailable"):
        HttpEmbedder("http://127.0.0.1:9/v1", "tiny", runtime=Runtime(PatientClock())).embed(["a"], 3)


def test_an_endpoint_that_does_not_answer_is_left(endpoint: Endpoint) -> None:
    def slow(request: dict[str, Any]) -> Answer:
        time.sleep(0.5)
        return vectors(request)

    endpoint.script = [slow]

    assert client(endpoint, timeout_s=0.1).embed(["ab"], 3) == [[2.0] * 3]
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    ("status", "says"),
    [(401, "Check the key in OMNIGRAPH_EMBED_API_KEY"), (404, "Check OMNIGRAPH_EMBED_URL"), (400, "now 'tiny'")],
)
def test_a_refusal_is_not_tried_again_and_says_what_to_check(endpoint: Endpoint, status: int, says: str) -> None:
    endpoint.script = [failing(status, body=b'{"error": "no such luck"}')]

    with pytest.raises(BadRequest, match=f"answered {status}: no such luck") as refused:
        client(endpoint).embed(["a"], 3)
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)
    assert len(endpoint.requests) == 1


def test_a_vector_of_another_dimension_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(
        BadRequest, match=r"'tiny' makes vectors of 3 numbers, the property has 4: declare it Vector\(3\)"
    ):
        client(endpoint).embed(["a"], 4)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"{}",
        b"[]",
        b'{"data": []}',
        b'{"data": [{"index": 1, "embedding": [1, 2, 3]}]}',
        b'{"data": [{"index": 0, "embedding": ["a"]}]}',
        b'{"data": 7}',
    ],
)
def test_an_answer_that_is_none_is_refused(endpoint: Endpoint, body: bytes) -> None:
    endpoint.script = [failing(200, body=body)]

    with pytest.raises(BadRequest, match="did not answer with one vector for each text"):
        client(endpoint).embed(["a"], 3)


def test_numbers_that_are_none_are_refused(endpoint: Endpoint) -> None:
    endpoint.script = [failing(200, body=b'{"data": [{"index": 0, "embedding": [1, NaN, 2]}]}')]

    with pytest.raises(BadRequest, match="not finite"):
        client(endpoint).embed(["a"], 3)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "set OMNIGRAPH_EMBED_API_KEY or OPENAI_API_KEY"),
        ({"OMNIGRAPH_EMBED_PROVIDER": "openai"}, "needs a key: set OMNIGRAPH_EMBED_API_KEY or OPENAI_API_KEY"),
        ({"OMNIGRAPH_EMBED_PROVIDER": "magic"}, "OMNIGRAPH_EMBED_PROVIDER is 'magic': use openai"),
        ({"OMNIGRAPH_EMBED_URL": "localhost:80"}, "OMNIGRAPH_EMBED_URL is 'localhost:80': give the base"),
        ({"OMNIGRAPH_EMBED_PROVIDER": "offline", "OMNIGRAPH_EMBED_MODEL": "big"}, "unset OMNIGRAPH_EMBED_MODEL"),
    ],
)
def test_what_the_environment_lacks_is_named(environ: dict[str, str], says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        embedder_from(environ)
    assert says in str(refused.value)


def test_the_environment_chooses_provider_model_and_key() -> None:
    own = embedder_from({"OMNIGRAPH_EMBED_URL": "http://here/v1/", "OMNIGRAPH_EMBED_MODEL": "m", "OPENAI_API_KEY": "k"})
    assert own == HttpEmbedder("http://here/v1", "m", None), "OpenAI's key is for OpenAI only"
    openai = embedder_from({"OPENAI_API_KEY": "k"})
    assert openai == HttpEmbedder("https://api.openai.com/v1", "text-embedding-3-small", "k")
    assert "k" not in repr(openai).replace("api_key", "").split("(")[1].split("openai.com")[0]
    assert embedder_from({"OMNIGRAPH_EMBED_PROVIDER": "offline"}) == OfflineEmbedder()


def prop(embed: Embed | None, dimension: int = 3) -> Property:
    return Property("p1", "vec", "vec", Vector(dimension), nullable=True, embed=embed)


def test_a_text_is_embedded_by_the_model_that_made_the_vectors_or_not_at_all(endpoint: Endpoint) -> None:
    same = prop(Embed("body", "openai", "tiny"))

    assert embed_query("abcd", same, "Doc", client(endpoint)) == (4.0, 4.0, 4.0)
    assert embed_query("abcd", prop(Embed("body")), "Doc", client(endpoint)) == (4.0, 4.0, 4.0)
    for other in (Embed("body", "openai", "huge"), Embed("body", "offline", "tiny")):
        with pytest.raises(BadRequest, match=r"Doc\.vec was embedded by '\w+' of \w+, the environment names 'tiny'"):
            embed_query("abcd", prop(other), "Doc", client(endpoint))


def test_a_repeated_query_is_embedded_once(endpoint: Endpoint) -> None:
    kept = QueryEmbeddings(2)
    one, other = client(endpoint), HttpEmbedder(endpoint.url, "other")

    for text in ("a", "a", "b", "a"):
        assert kept.get(one, text, 3) == (1.0, 1.0, 1.0)
    assert len(endpoint.requests) == 2
    kept.get(other, "a", 3)
    assert len(endpoint.requests) == 3, "another model, another vector"
    kept.get(one, "b", 3)
    assert len(endpoint.requests) == 4, "only so many are kept"


def test_the_environment_is_read_when_a_query_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (embedding.PROVIDER, embedding.URL, embedding.API_KEY, embedding.OPENAI_KEY):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadRequest, match="OMNIGRAPH_EMBED_PROVIDER=offline"):
        embed_query("a", prop(Embed("body")), "Doc")
    monkeypatch.setenv(embedding.PROVIDER, "offline")
    assert len(embed_query("a", prop(Embed("body", "offline", OFFLINE_MODEL)), "Doc")) == 3


def cosine(one: list[float], other: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def test_offline_similar_texts_are_near() -> None:
    texts = ["a graph of people in object storage", "graphs of people, stored in objects", "how to bake an apple pie"]
    same, near, far = OfflineEmbedder().embed(texts, 128)

    assert cosine(same, same) == pytest.approx(1)
    assert cosine(same, near) > 0.4 > cosine(same, far) + 0.2


def test_offline_vectors_never_change() -> None:
    assert OfflineEmbedder().embed(["graph storage"], 4)[0] == pytest.approx(
        [0.35218036253024954, -0.8804509063256238, 0.26413527189768715, 0.1760901812651248]
    )
    assert OfflineEmbedder().embed(["", "?!"], 2) == [[0.0, 0.0], [0.0, 0.0]]


@settings(max_examples=100, deadline=None)
@given(st.text(), st.integers(1, 40))
def test_offline_takes_any_text(text: str, dimension: int) -> None:
    (vector,) = OfflineEmbedder().embed([text], dimension)

    assert len(vector) == dimension
    assert math.hypot(*vector) == pytest.approx(1) or not any(vector)
