"""The proxy itself: what it tells about requests is true, and what it does to them is exactly what was asked."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError
from obstore.store import S3Store

from .proxy import (
    Answer,
    ApplyLate,
    ApplyThenAnswer,
    ApplyThenDrop,
    Delay,
    Drop,
    Hang,
    Log,
    Proxy,
    Request,
    anything,
    creates,
    error_body,
    exists_answer,
    gets,
    puts,
)
from .s3 import SIGNED, S3Location, keys


def connect(location: S3Location) -> S3Store:
    config: Any = {key: value for key, value in location.options.items() if key.startswith("aws_")}
    retry: Any = {"max_retries": 0}
    return S3Store.from_url(location.uri, config=config, client_options={"allow_http": True}, retry_config=retry)


@pytest.fixture
def store(s3_proxied: S3Location) -> S3Store:
    """A client without retries of its own, so that every request in the log is one the test made."""
    return connect(s3_proxied)


@pytest.fixture
def direct(s3: S3Location) -> S3Store:
    """The same objects, behind the proxy's back."""
    return connect(s3)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def exists(store: S3Store, key: str) -> bool:
    try:
        store.head(key)
    except FileNotFoundError:
        return False
    return True


def content(store: S3Store, key: str) -> bytes:
    return bytes(store.get(key).bytes())


# The log


def test_every_request_is_logged_with_what_it_asked_and_got(proxy: Proxy, store: S3Store) -> None:
    with proxy.recording() as log:
        store.put("a b", b"12345", mode="create")
        with pytest.raises(AlreadyExistsError):
            store.put("a b", b"12345", mode="create")
        assert bytes(store.get_range("a b", start=1, end=3)) == b"23"
        assert not exists(store, "c")
    store.get("a b")

    put, put_again, get, head = log
    assert [r.method for r in log] == ["PUT", "PUT", "GET", "HEAD"]
    assert [r.status for r in log] == [200, 412, 206, 404]
    assert put.path.endswith("/graph/a b")
    assert (put.if_none_match, put.request_bytes) == ("*", 5)
    assert (get.range, get.response_bytes) == ("bytes=1-2", 2)
    assert all(r.ended is not None and r.started <= r.ended for r in log)
    assert (put_again.index, head.index, len(proxy.log)) == (1, 3, 5)
    assert log.count("PUT") == log.count(path_contains="a b") - 1 == 2
    assert "4 requests, 4 serial" in log.describe()
    assert "412" in log.describe()


def test_serial_is_the_longest_chain_that_does_not_overlap() -> None:
    def log_of(*spans: tuple[float, float | None]) -> Log:
        requests = [Request(i, 0, "GET", "/", "", None, None, 0, start, end) for i, (start, end) in enumerate(spans)]
        return Log(requests, 0)

    assert log_of().serial == 0
    assert log_of((0, 9), (1, 2), (2, 3), (2.5, 8), (4, 5)).serial == 3
    assert log_of((0, 1), (0, 1), (0, 1)).serial == 1
    assert log_of((0, 1), (2, None), (3, None)).serial == 2


def test_requests_sent_together_are_one_round_trip(proxy: Proxy, store: S3Store, pool: ThreadPoolExecutor) -> None:
    proxy.delay_s = 0.05
    with proxy.recording() as log:
        list(pool.map(lambda i: store.put(str(i), b""), range(4)))
        store.get("0")

    assert (len(log), log.serial) == (5, 2), log.describe()


def test_the_cap_makes_requests_wait_but_not_look_serial(
    proxy: Proxy, store: S3Store, pool: ThreadPoolExecutor
) -> None:
    proxy.delay_s, proxy.max_in_flight = 0.1, 2
    with proxy.recording() as log:
        began = time.monotonic()
        list(pool.map(lambda i: store.put(str(i), b""), range(6)))
        took = time.monotonic() - began

    assert took >= 0.3
    assert (len(log), log.serial) == (6, 1), log.describe()


def test_lifting_the_cap_lets_the_waiting_go(proxy: Proxy, store: S3Store, pool: ThreadPoolExecutor) -> None:
    proxy.max_in_flight = 0
    put = pool.submit(store.put, "a", b"")
    wait_for(lambda: len(proxy.log) == 1)
    assert not put.done()

    proxy.max_in_flight = None

    put.result(5)


def test_reset_is_as_new(proxy: Proxy, store: S3Store) -> None:
    proxy.delay_s, proxy.max_in_flight = 5.0, 1
    proxy.on(anything, Drop(), times=None)
    proxy.cut_after(0)
    proxy.reset()

    store.put("a", b"")

    assert [r.index for r in proxy.log] == [0]


# Transparency


def test_large_objects_and_multipart_uploads_pass(proxy: Proxy, store: S3Store, direct: S3Store) -> None:
    large = bytes(range(256)) * 50_000
    store.put("large", large, use_multipart=True)

    assert content(store, "large") == content(direct, "large") == large
    assert proxy.log.count("POST") == 2


def test_listings_and_deletes_pass(proxy: Proxy, store: S3Store) -> None:
    for i in range(3):
        store.put(f"l/{i}", b"")
    store.delete("l/1")

    assert [found["path"] for page in store.list("l/") for found in page] == ["l/0", "l/2"]


def test_connections_are_kept_alive(s3: S3Location, proxy: Proxy) -> None:
    """Asked of a client that has one connection: obstore's pool now and then opens a second before it needs to."""
    raw = http.client.HTTPConnection(urlsplit(proxy.endpoint).netloc, timeout=5)
    for method, status in (("PUT", 200), ("HEAD", 200), ("GET", 200), ("DELETE", 204), ("HEAD", 404), ("GET", 404)):
        raw.request(method, f"/{s3.bucket}/k", headers=SIGNED)
        response = raw.getresponse()
        response.read()
        assert response.status == status
    raw.close()

    assert [r.connection for r in proxy.log] == [1] * 6


def test_a_client_may_wait_for_continue_and_send_chunks(s3: S3Location, proxy: Proxy, direct: S3Store) -> None:
    address = urlsplit(proxy.endpoint)
    raw = http.client.HTTPConnection(address.netloc, timeout=5)
    raw.putrequest("PUT", f"/{s3.bucket}/graph/chunked")
    for name, value in (SIGNED | {"Expect": "100-continue", "Transfer-Encoding": "chunked"}).items():
        raw.putheader(name, value)
    raw.endheaders()
    assert raw.sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    raw.send(b"4\r\nabcd\r\n3\r\nefg\r\n0\r\n\r\n")

    assert raw.getresponse().status == 200
    assert content(direct, "chunked") == b"abcdefg"
    raw.close()


def test_boto_writes_and_reads_through_it(proxy: Proxy, s3_proxied: S3Location) -> None:
    """Boto sends `Expect: 100-continue` and reads what follows with a parser of its own."""
    import boto3

    signature = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=proxy.endpoint, **signature)

    client.put_object(Bucket=s3_proxied.bucket, Key="k", Body=b"body", IfNoneMatch="*")

    assert client.get_object(Bucket=s3_proxied.bucket, Key="k")["Body"].read() == b"body"
    assert [r.status for r in proxy.log] == [200, 200]
    client.close()


def test_lance_writes_and_reads_through_it(proxy: Proxy, s3_proxied: S3Location) -> None:
    import lance
    import pyarrow as pa

    table = pa.table({"id": list(range(10))})
    lance.write_dataset(table, f"{s3_proxied.uri}/t", storage_options=s3_proxied.options)

    assert lance.dataset(f"{s3_proxied.uri}/t", storage_options=s3_proxied.options).to_table() == table
    assert proxy.log.count("PUT", ".lance") == 1, proxy.log.describe()


# Faults


def test_drop_is_not_applied(proxy: Proxy, store: S3Store, direct: S3Store) -> None:
    rule = proxy.on(puts("a"), Drop())

    with pytest.raises(BaseError):
        store.put("a", b"")

    assert not exists(direct, "a")
    assert [(r.status, r.applied) for r in rule.hits] == [(None, False)]
    store.put("a", b"")


def test_apply_then_drop_is_applied(proxy: Proxy, store: S3Store, direct: S3Store) -> None:
    rule = proxy.on(creates(), ApplyThenDrop())

    with pytest.raises(BaseError):
        store.put("a", b"1", mode="create")

    assert content(direct, "a") == b"1"
    assert (rule.hits[0].status, rule.hits[0].server_status) == (None, 200)


def test_apply_late_is_applied_after_the_client_gave_up(proxy: Proxy, store: S3Store, direct: S3Store) -> None:
    rule = proxy.on(creates(), ApplyLate(0.3))

    with pytest.raises(BaseError):
        store.put("a", b"late", mode="create")
    assert not exists(direct, "a")

    proxy.settle()

    assert content(direct, "a") == b"late"
    assert rule.hits[0].applied


def test_a_late_create_loses_to_one_that_came_first(proxy: Proxy, store: S3Store, direct: S3Store) -> None:
    rule = proxy.on(creates(), ApplyLate(0.2))
    with pytest.raises(BaseError):
        store.put("a", b"late", mode="create")

    direct.put("a", b"first", mode="create")
    proxy.settle()

    assert content(direct, "a") == b"first"
    assert rule.hits[0].server_status == 412


def test_answer_is_returned_and_not_applied(proxy: Proxy, store: S3Store, direct: S3Store) -> None:
    proxy.on(puts(), Answer(403, error_body("AccessDenied")))

    with pytest.raises(PermissionDeniedError):
        store.put("a", b"")

    assert not exists(direct, "a")


def test_apply_then_answer_is_applied_and_answered_otherwise(proxy: Proxy, store: S3Store, direct: S3Store) -> None:
    proxy.on(creates(), ApplyThenAnswer(412, exists_answer()))

    with pytest.raises(AlreadyExistsError):
        store.put("a", b"mine", mode="create")

    assert content(direct, "a") == b"mine"


def test_delay_slows_only_what_matches(proxy: Proxy, store: S3Store) -> None:
    store.put("a", b"")
    proxy.on(gets("a"), Delay(0.2))

    with proxy.recording() as log:
        store.get("a")
        store.get("a")

    slow, fast = (r.ended - r.started for r in log if r.ended is not None)
    assert slow >= 0.2 > fast


def test_a_hung_request_waits_for_the_test(
    proxy: Proxy, store: S3Store, direct: S3Store, pool: ThreadPoolExecutor
) -> None:
    hang = Hang()
    proxy.on(creates(), hang)
    put: Future[Any] = pool.submit(store.put, "a", b"held", mode="create")
    assert hang.arrived.wait(5)
    store.put("b", b"")
    assert not exists(direct, "a")
    assert not put.done()

    hang.release.set()

    put.result(5)
    assert content(direct, "a") == b"held"


def test_a_rule_is_done_after_its_times_and_the_first_added_goes_first(proxy: Proxy, store: S3Store) -> None:
    proxy.on(gets(), Answer(403, error_body("AccessDenied")), times=2)
    proxy.on(gets(), Answer(404, error_body("NoSuchKey")), times=None)

    for error in (PermissionDeniedError, PermissionDeniedError, FileNotFoundError, FileNotFoundError):
        with pytest.raises(error):
            store.get("a")


@pytest.mark.parametrize("k", [0, 1, 3])
def test_after_a_cut_exactly_k_requests_were_applied(
    k: int, proxy: Proxy, store: S3Store, s3: S3Location, pool: ThreadPoolExecutor
) -> None:
    store.put("before", b"")
    proxy.cut_after(k)

    puts_in_parallel = [pool.submit(store.put, f"p{i}", b"") for i in range(8)]

    assert sum(future.exception(5) is None for future in puts_in_parallel) == k
    assert len(keys(s3.endpoint, s3.bucket, "graph/p")) == k
    with pytest.raises(BaseError):
        store.get("before")

    proxy.restore()
    assert content(store, "before") == b""


def test_a_held_request_does_not_keep_the_proxy_from_stopping(s3: S3Location, s3_server: Any) -> None:
    hang = Hang()
    with Proxy(s3_server.endpoint) as proxy:
        proxy.on(anything, hang)
        put = threading.Thread(target=failing_put, args=(connect(s3.via(proxy.endpoint)),))
        put.start()
        assert hang.arrived.wait(5)
    put.join(5)
    assert not put.is_alive()


def failing_put(store: S3Store) -> None:
    with pytest.raises(BaseError):
        store.put("a", b"")


def wait_for(condition: Any, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.001)
