"""Embedding of texts: a client for providers with OpenAI's embeddings API, and an embedder that works offline.

The environment chooses the provider:

    OMNIGRAPH_EMBED_PROVIDER  `openai` (any compatible endpoint; the default if a key or URL is set) or `offline`
    OMNIGRAPH_EMBED_URL       the endpoint's base, default https://api.openai.com/v1
    OMNIGRAPH_EMBED_MODEL     default text-embedding-3-small
    OMNIGRAPH_EMBED_API_KEY   or OPENAI_API_KEY; a private endpoint may need none

Vectors of two models can't be compared. What fills a property's vectors records provider and model in the catalog
(`Embed`), and a text is then embedded by that model or not at all.
"""

import hashlib
import http.client
import json
import math
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol
from urllib.parse import urlsplit

from omnigraph.caches import LruCache
from omnigraph.errors import BadRequest, Unavailable
from omnigraph.fork_safety import renew_after_fork
from omnigraph.runtime import Runtime
from omnigraph.schema.definitions import Property
from omnigraph.schema.types import Vector

PROVIDER, URL, MODEL = "OMNIGRAPH_EMBED_PROVIDER", "OMNIGRAPH_EMBED_URL", "OMNIGRAPH_EMBED_MODEL"
API_KEY, OPENAI_KEY = "OMNIGRAPH_EMBED_API_KEY", "OPENAI_API_KEY"
DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "text-embedding-3-small"
OFFLINE_MODEL = "hashed-words-1"  # a change of the method needs a new name

BATCH_TEXTS_MAX = 128
ATTEMPTS_MAX = 5
TIMEOUT_S = 30.0
WAIT_MAX_S = 20.0
RESPONSE_BYTES_MAX = 256 * 1024 * 1024
CACHED_QUERIES_MAX = 256
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_CHOOSES_DIMENSION = re.compile(r"text-embedding-3-")  # models that take the dimension as a parameter
_WORD = re.compile(r"\w+")


class ProviderUnavailable(Unavailable):
    """The embedding endpoint did not respond or is overloaded. Nothing was written; try again later."""

    def __str__(self) -> str:
        return f"The embedding endpoint {self.what} is unavailable ({self.reason}): check {URL}, or try again later."


class Embedder(Protocol):
    """Makes vectors of texts; `provider` and `model` are what the catalog records."""

    @property
    def provider(self) -> str: ...

    @property
    def model(self) -> str: ...

    def embed(self, texts: Sequence[str], dimension: int) -> list[list[float]]:
        """A vector of that dimension for each text."""


@dataclass(frozen=True, slots=True)
class OfflineEmbedder:
    """Hashes words, word pairs and trigrams into a vector, so that similar texts are near.

    Deterministic across processes and releases: for tests, demos and machines without a network.
    """

    model: str = OFFLINE_MODEL
    provider: str = "offline"

    def embed(self, texts: Sequence[str], dimension: int) -> list[list[float]]:
        return [_hash_text(text, dimension) for text in texts]


@dataclass(frozen=True, slots=True)
class HttpEmbedder:
    """A client of an OpenAI-compatible endpoint: batches, bounded retries, a timeout for each request."""

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    provider: str = "openai"
    timeout_s: float = TIMEOUT_S
    runtime: Runtime = field(default_factory=Runtime, compare=False, repr=False)

    def embed(self, texts: Sequence[str], dimension: int) -> list[list[float]]:
        vectors: list[list[float]] = []
        for start in range(0, len(texts), BATCH_TEXTS_MAX):
            vectors += self._batch(texts[start : start + BATCH_TEXTS_MAX], dimension)
        return vectors

    def _batch(self, texts: Sequence[str], dimension: int) -> list[list[float]]:
        body: dict[str, Any] = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        if _CHOOSES_DIMENSION.match(self.model):
            body["dimensions"] = dimension
        return self._parse_vectors(self._post(json.dumps(body).encode()), len(texts), dimension)

    def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(f"{self.url}/embeddings", body, headers, method="POST")
        for attempt in range(1, ATTEMPTS_MAX + 1):
            ceiling_s = min(0.5 * 2**attempt, WAIT_MAX_S)
            try:
                with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                    data: bytes = answer.read(RESPONSE_BYTES_MAX)
                    return data
            except urllib.error.HTTPError as error:
                with error:
                    reason = _error_reason(error)
                    asked_s = error.headers.get("Retry-After", "")
                if error.code not in _RETRIED:
                    raise BadRequest(self._error_message(error.code, reason)) from None
                if asked_s.isdigit():
                    ceiling_s = min(max(ceiling_s, 2.0 * int(asked_s)), WAIT_MAX_S)
            except (OSError, http.client.HTTPException) as error:
                reason = str(getattr(error, "reason", error)) or type(error).__name__
            if attempt < ATTEMPTS_MAX:
                self.runtime.clock.sleep(self.runtime.jitter(ceiling_s))
        raise ProviderUnavailable(self.url, f"{reason}, {ATTEMPTS_MAX} attempts")

    def _error_message(self, status: int, reason: str) -> str:
        where = f"The embedding endpoint {self.url} answered {status}: {reason}"
        if status in (401, 403):
            return f"{where}. Check the key in {API_KEY} or {OPENAI_KEY}."
        if status == 404:
            return f"{where}. Check {URL} (with its version, such as {DEFAULT_URL}) and {MODEL}, now {self.model!r}."
        return f"{where}. Check {MODEL}, now {self.model!r}, and the texts."

    def _parse_vectors(self, answer: bytes, count: int, dimension: int) -> list[list[float]]:
        try:
            entries = json.loads(answer)["data"]
            by_index = {int(entry["index"]): [float(x) for x in entry["embedding"]] for entry in entries}
            vectors = [by_index[i] for i in range(count)]
        except (ValueError, KeyError, TypeError) as error:
            message = f"The embedding endpoint {self.url} did not answer with one vector for each text: check {URL}."
            raise BadRequest(message) from error
        for vector in vectors:
            if len(vector) != dimension:
                message = (
                    f"Model {self.model!r} makes vectors of {len(vector)} numbers, the property has {dimension}: "
                    f"declare it Vector({len(vector)}), or choose another model with {MODEL}."
                )
                raise BadRequest(message)
            if not all(map(math.isfinite, vector)):
                raise BadRequest(f"Model {self.model!r} made a vector with numbers that are not finite: try again.")
        return vectors


def embedder_from(environ: Mapping[str, str], runtime: Runtime | None = None) -> Embedder:
    """The provider that the environment names; sends no request."""
    settings = {name: environ.get(name, "").strip() for name in (PROVIDER, URL, MODEL, API_KEY, OPENAI_KEY)}
    key = settings[API_KEY] or settings[OPENAI_KEY]
    provider = settings[PROVIDER] or ("openai" if key or settings[URL] else "")
    if provider == "offline":
        if settings[MODEL] not in ("", OFFLINE_MODEL):
            raise BadRequest(f"The offline provider has one model, {OFFLINE_MODEL}: unset {MODEL}.")
        return OfflineEmbedder()
    if provider == "":
        message = f"No embedding provider is set: set {API_KEY} or {OPENAI_KEY}, {URL} for an endpoint of your own,"
        raise BadRequest(f"{message} or {PROVIDER}=offline to do without one.")
    if provider != "openai":
        raise BadRequest(f"{PROVIDER} is {provider!r}: use openai (any compatible endpoint) or offline.")
    url = (settings[URL] or DEFAULT_URL).rstrip("/")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise BadRequest(f"{URL} is {url!r}: give the base of an endpoint, such as {DEFAULT_URL}.")
    if not key and url == DEFAULT_URL:
        raise BadRequest(f"{url} needs a key: set {API_KEY} or {OPENAI_KEY}, or {URL} for an endpoint of your own.")
    if settings[URL] and not settings[API_KEY] and url != DEFAULT_URL:
        key = ""  # OpenAI's key is not sent to other endpoints
    return HttpEmbedder(url, settings[MODEL] or DEFAULT_MODEL, key or None, runtime=runtime or Runtime())


class QueryEmbeddings:
    """A cache of query texts and their vectors, because queries are often repeated."""

    def __init__(self, entries_max: int = CACHED_QUERIES_MAX) -> None:
        self._entries_max = entries_max
        renew_after_fork(self, QueryEmbeddings._renew)

    def _renew(self) -> None:
        self._vectors: LruCache[tuple[Embedder, str, int], tuple[float, ...]] = LruCache(self._entries_max)
        self._lock = threading.Lock()

    def get(self, embedder: Embedder, text: str, dimension: int) -> tuple[float, ...]:
        key = (embedder, text, dimension)
        with self._lock:
            vector = self._vectors.get(key)
        if vector is None:
            vector = tuple(embedder.embed([text], dimension)[0])
            with self._lock:
                self._vectors.put(key, vector)
        return vector


_queries = QueryEmbeddings()


def embed_query(text: str, prop: Property, type_name: str, embedder: Embedder | None = None) -> tuple[float, ...]:
    """The vector of a query's text, by the model that made the property's vectors."""
    assert isinstance(prop.type, Vector)
    chosen = embedder_from(os.environ) if embedder is None else embedder
    require_same_model(chosen, prop, type_name)
    return _queries.get(chosen, text, prop.type.dimension)


def require_same_model(embedder: Embedder, prop: Property, type_name: str) -> None:
    """Refuse a model other than the one that made the property's vectors, if there is one."""
    recorded = prop.embed
    if recorded is None or recorded.model is None:
        return
    if (recorded.provider, recorded.model) != (embedder.provider, embedder.model):
        made = f"{type_name}.{prop.name} was embedded by {recorded.model!r} of {recorded.provider}"
        now = f"the environment names {embedder.model!r} of {embedder.provider}"
        remedy = f"set {PROVIDER}={recorded.provider} and {MODEL}={recorded.model}, or give nearest a vector"
        raise BadRequest(f"{made}, {now}: {remedy}.")


def _error_reason(error: urllib.error.HTTPError) -> str:
    """The error message of the endpoint, shortened, or the HTTP reason."""
    try:
        settings = json.loads(error.read(10_000))["error"]
        text = settings["message"] if isinstance(settings, dict) else settings
    except (ValueError, KeyError, TypeError, OSError):
        text = error.reason
    return " ".join(str(text).split())[:300].rstrip(".")


def _hash_text(text: str, dimension: int) -> list[float]:
    words = _WORD.findall(text.lower())
    features = [(f"1{word}", 1.0) for word in words]
    features += [(f"2{one} {other}", 0.5) for one, other in pairwise(words)]
    features += [(f"3{word[i : i + 3]}", 0.3) for word in (f"<{word}>" for word in words) for i in range(len(word) - 2)]
    vector = [0.0] * dimension
    for feature, weight in features:
        digest = int.from_bytes(hashlib.blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        vector[digest % dimension] += weight if digest >> 63 else -weight
    length = math.sqrt(math.fsum(x * x for x in vector))
    return [x / length for x in vector] if length else vector
