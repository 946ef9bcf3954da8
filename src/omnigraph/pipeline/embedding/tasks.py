"""Asking a provider for vectors: a batch a task, on threads here or on executors, and not faster than allowed."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from omnigraph.errors import BadRequest
from omnigraph.read.search.embedding import Embedder, HttpEmbedder
from omnigraph.runtime import Runtime

T = TypeVar("T")
R = TypeVar("R")

_TEXT_ERRORS = ("answered 400", "answered 413", "answered 422")  # what may be the fault of a single text


@dataclass(frozen=True, slots=True)
class Provider:
    """An embedder in a form that can be sent to executors; the key goes along, their environment has none."""

    embedder: Embedder | None
    url: str = ""
    model: str = ""
    api_key: str | None = field(default=None, repr=False)

    @staticmethod
    def of(embedder: Embedder) -> "Provider":
        if isinstance(embedder, HttpEmbedder):
            return Provider(None, embedder.url, embedder.model, embedder.api_key)
        return Provider(embedder)

    def made(self) -> Embedder:
        return self.embedder if self.embedder is not None else HttpEmbedder(self.url, self.model, self.api_key)


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of some rows, to be sent in one request."""

    number: int
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    dimension: int
    provider: Provider
    pause_s: float = 0.0  # between two requests of one process
    embedder: Embedder | None = field(default=None, compare=False)  # the caller's own, in this process only


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors as 32-bit floats, one after the other; `refused` are rows whose text the provider does not take."""

    number: int
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    vectors: bytes
    refused: tuple[tuple[str, str], ...] = ()


class Pacer:
    """A rate limiter: lets one request go at a time, with a pause between them."""

    def __init__(self, pause_s: float, runtime: Runtime) -> None:
        self._pause_s = pause_s
        self._runtime = runtime
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        if self._pause_s <= 0:
            return
        with self._lock:
            now = self._runtime.clock.monotonic()
            at = max(now, self._next)
            self._next = at + self._pause_s
        if at > now:
            self._runtime.clock.sleep(at - now)


def embed_batch(batch: Batch, pacer: Pacer | None = None) -> Embedded:
    """The vectors of one batch. A text that the provider refuses is found by halving, so that the others pass."""
    import numpy as np

    embedder = batch.embedder or batch.provider.made()
    turn = pacer or _process_pacer(batch.pause_s)
    refused: list[tuple[str, str]] = []
    found: list[tuple[str, str, list[float]]] = []

    def ask(ids: Sequence[str], texts: Sequence[str]) -> None:
        turn.wait()
        try:
            vectors = embedder.embed(texts, batch.dimension)
        except BadRequest as error:
            if not any(sign in str(error) for sign in _TEXT_ERRORS):
                raise
            if len(texts) == 1:
                refused.append((ids[0], str(error)))
                return
            middle = len(texts) // 2
            ask(ids[:middle], texts[:middle])
            ask(ids[middle:], texts[middle:])
        else:
            found.extend(zip(ids, texts, vectors, strict=True))

    ask(batch.ids, batch.texts)
    if refused and not found:
        raise BadRequest(refused[0][1])  # all of them: it is not the texts
    data = np.asarray([vector for _, _, vector in found], np.float32).tobytes()
    return Embedded(
        batch.number, tuple(row for row, _, _ in found), tuple(text for _, text, _ in found), data, tuple(refused)
    )


@lru_cache(maxsize=4)
def _process_pacer(pause_s: float) -> Pacer:
    """One in a worker process, for all tasks that it runs."""
    return Pacer(pause_s, Runtime())


class Threads:
    """A `Runner` for tasks that wait for somebody else: some of them at once, in this process."""

    name = "local"

    def __init__(self, parallelism: int, pacer: Pacer) -> None:
        self.parallelism = parallelism
        self._pacer = pacer

    def run(
        self,
        task: Callable[[Any], R],
        items: Sequence[Any],
        *,
        stage: str,
        on_done: Callable[[R], None] | None = None,
    ) -> list[R]:
        """The first failure ends the rest; `on_done` got the answers before it."""
        del stage  # nobody draws it here
        answers: dict[int, R] = {}
        with ThreadPoolExecutor(self.parallelism) as pool:
            paced: Any = task
            asked = {pool.submit(paced, item, self._pacer): place for place, item in enumerate(items)}
            try:
                for future in as_completed(asked):
                    answer = answers[asked[future]] = future.result()
                    if on_done is not None:
                        on_done(answer)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                for future, place in asked.items():  # what was asked and paid for meanwhile counts too
                    if future.done() and not future.cancelled() and future.exception() is None and place not in answers:
                        answers[place] = future.result()
                        if on_done is not None:
                            on_done(answers[place])
                raise
        return [answers[place] for place in range(len(items))]
