"""Transient faults are met with patience, refusals are not, and a conditional create is never repeated."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from omnigraph.errors import AccessDenied, BadRequest, OmnigraphError, StorageFull, Unavailable
from omnigraph.runtime import Runtime
from omnigraph.storage import meter
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.object_store import ObjectStore, PutOutcome, RetryPolicy, TransientError, open_store
from support.proxy import (
    Action,
    Answer,
    ApplyThenAnswer,
    ApplyThenDrop,
    Drop,
    Proxy,
    anything,
    creates,
    error_body,
    exists_answer,
    gets,
)
from support.s3 import S3Location

pytestmark = pytest.mark.s3

ATTEMPTS_MAX = RetryPolicy().attempts_max
TRANSIENT: dict[str, Action] = {
    "500": Answer(500, error_body("InternalError")),
    "502": Answer(502, b"<html>bad gateway</html>"),
    "503": Answer(503, error_body("SlowDown")),
    "429": Answer(429, error_body("TooManyRequests")),
    "dropped": Drop(),
    "dropped after the server did it": ApplyThenDrop(),
}
REQUESTS: dict[str, Callable[[ObjectStore], Any]] = {
    "get": lambda store: store.get("a"),
    "head": lambda store: store.head("a"),
    "list": lambda store: [entry.key for entry in store.list("")],
    "put": lambda store: store.put("a", b"here"),
    "delete": lambda store: store.delete("b"),
}


@dataclass
class RestlessClock:
    """Never really sleeps, and remembers how long it should have."""

    slept: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        return datetime(2026, 1, 31, tzinfo=UTC)

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock() -> RestlessClock:
    return RestlessClock()


@pytest.fixture
def store(s3_proxied: S3Location, clock: RestlessClock, proxy: Proxy) -> ObjectStore:
    store = open_store(parse_location(s3_proxied.uri, s3_proxied.options), Runtime(clock=clock, rng=random.Random(1)))
    store.put("a", b"here")
    proxy.reset()
    return store


@pytest.mark.parametrize("fault", TRANSIENT)
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_fault_that_passes_is_not_noticed_but_counted(
    store: ObjectStore, proxy: Proxy, clock: RestlessClock, request_: str, fault: str
) -> None:
    expected = REQUESTS[request_](store)
    proxy.reset()
    proxy.on(anything, TRANSIENT[fault], times=3)

    with meter.operation("test") as operation:
        answer = REQUESTS[request_](store)

    if request_ == "get":
        assert (answer.data, expected.data) == (b"here", b"here")
    else:
        assert answer == expected
    assert len(proxy.log) == 4, proxy.log.describe()
    assert operation.cost.requests == 4
    assert operation.cost.retries == 3
    assert len(clock.slept) == 3


def test_waits_grow_and_are_jittered(store: ObjectStore, proxy: Proxy, clock: RestlessClock) -> None:
    policy = RetryPolicy()
    waits: list[list[float]] = []
    for _ in range(5):
        proxy.reset()
        proxy.on(gets(), Answer(503), times=ATTEMPTS_MAX - 1)
        clock.slept.clear()
        store.get("a")
        waits.append(list(clock.slept))

    for of_one_request in waits:
        for attempt, wait in enumerate(of_one_request, start=1):
            assert policy.ceiling_s(attempt) / 2 <= wait <= policy.ceiling_s(attempt)
    assert len({wait for of_one_request in waits for wait in of_one_request}) == 5 * (ATTEMPTS_MAX - 1)


@pytest.mark.parametrize("fault", TRANSIENT)
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_fault_that_stays_is_unavailable(store: ObjectStore, proxy: Proxy, request_: str, fault: str) -> None:
    proxy.on(anything, TRANSIENT[fault], times=None)

    with meter.operation("test") as operation, pytest.raises(Unavailable) as raised:
        REQUESTS[request_](store)

    assert "nothing was changed, try again later" in str(raised.value)
    assert len(proxy.log) == operation.cost.requests == operation.cost.retries == ATTEMPTS_MAX


def test_a_server_that_is_not_there_is_unavailable(s3: S3Location, clock: RestlessClock) -> None:
    nowhere = s3.via("http://127.0.0.1:9")
    store = open_store(parse_location(nowhere.uri, nowhere.options), Runtime(clock=clock))

    with pytest.raises(Unavailable):
        store.get("a")
    assert store.create("b", b"").outcome is PutOutcome.UNKNOWN


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(403, "AccessDenied", AccessDenied), (401, "InvalidToken", AccessDenied), (400, "InvalidRequest", BadRequest)],
)
@pytest.mark.parametrize("request_", [*REQUESTS, "create"])
def test_a_refusal_is_reported_at_once(
    store: ObjectStore, proxy: Proxy, request_: str, status: int, code: str, kind: type[OmnigraphError]
) -> None:
    requests = REQUESTS | {"create": lambda store: store.create("c", b"new")}
    proxy.on(anything, Answer(status, error_body(code)), times=None)

    with pytest.raises(kind) as raised:
        requests[request_](store)

    assert len(proxy.log) == 1, proxy.log.describe()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_create_is_sent_once_and_its_outcome_left_open(
    store: ObjectStore, proxy: Proxy, clock: RestlessClock, fault: str
) -> None:
    proxy.on(creates(), TRANSIENT[fault], times=None)

    with meter.operation("test") as operation:
        answer = store.create("b", b"new")

    assert answer.outcome is PutOutcome.UNKNOWN
    assert answer.reason
    assert len(proxy.log) == operation.cost.requests == 1
    assert clock.slept == []
    landed = store.get("b") is not None
    assert landed == isinstance(TRANSIENT[fault], ApplyThenDrop)


def test_a_create_that_meets_another_one_in_flight_is_unknown(store: ObjectStore, proxy: Proxy) -> None:
    """S3 answers 409 while two conditional puts of one key overlap: neither has won yet."""
    proxy.on(creates(), Answer(409, error_body("ConditionalRequestConflict")))

    assert store.create("b", b"new").outcome is not PutOutcome.CREATED
    assert store.create("b", b"new").outcome is PutOutcome.CREATED


def test_an_exists_that_speaks_of_our_own_put_is_passed_on_for_the_caller_to_settle(
    store: ObjectStore, proxy: Proxy
) -> None:
    proxy.on(creates(), ApplyThenAnswer(412, exists_answer()))

    assert store.create("b", b"ours").outcome is PutOutcome.EXISTS
    assert store.get("b").data == b"ours"  # type: ignore[union-attr]


def test_a_listing_goes_on_where_a_fault_stopped_it(store: ObjectStore, proxy: Proxy) -> None:
    with meter.operation("test") as operation:
        proxy.on(gets(), Drop(), times=2)
        found = [entry.key for entry in store.list("")]

    assert found == ["a"]
    assert operation.cost.retries == 2


class Broken:
    """A backend whose every request fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def request(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            raise self.error

        return request


def test_how_long_to_be_patient_is_a_setting(clock: RestlessClock) -> None:
    backend = Broken(TransientError("hiccup"))
    retry = RetryPolicy(attempts_max=2, first_wait_s=1.0, wait_max_s=1.5)
    store = ObjectStore(parse_location("/nowhere"), backend, Runtime(clock=clock), retry)

    with pytest.raises(Unavailable, match="hiccup"):
        store.get("a")

    assert backend.calls == 2
    assert 0.75 <= clock.slept[0] <= 1.5


@pytest.mark.parametrize("request_", [*REQUESTS, "create"])
def test_a_full_disk_is_reported_at_once(clock: RestlessClock, request_: str) -> None:
    backend = Broken(StorageFull("a", "No space left on device"))
    store = ObjectStore(parse_location("/nowhere"), backend, Runtime(clock=clock))
    requests = REQUESTS | {"create": lambda store: store.create("c", b"new")}

    with pytest.raises(StorageFull):
        requests[request_](store)

    assert backend.calls == 1
    assert clock.slept == []
