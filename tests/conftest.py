"""The stores that tests run on: one moto server per test process, a fresh bucket and proxy per test."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings

from support.proxy import Proxy
from support.s3 import S3Location, S3Server
from support.soak import soak_report
from support.spark import spark, spark_session

# How long an example takes says more about the machine than about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

__all__ = ["soak_report", "spark", "spark_session"]  # fixtures, used by their names

MAINTENANCE_ENDS_S = 60.0
# Tests count requests, and this one comes whenever its thread runs; `test_clock_ahead.py` turns it on.
os.environ["OMNIGRAPH_CLOCK_AHEAD_S"] = "0"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make groups count: pytest-xdist 3.8 tells of a test's group in a field that pytest 9.2 no longer reads.

    Without that the marks `xdist_group` do nothing, silently: every worker starts Spark, and makes every shared graph.
    """
    for item in items:
        grouped = getattr(item, "_nodeid", item.nodeid)
        if item.nodeid != grouped:
            item._id = type(item.id).parse(grouped)
            assert item.nodeid == grouped, "the groups of pytest-xdist would be lost"


@pytest.fixture(autouse=True)
def _maintenance_ends_with_its_test() -> Iterator[None]:
    """What goes on behind the graphs of a test is over before the next: that may count requests, or read the log."""
    yield
    for thread in threading.enumerate():
        if thread.name in ("omnigraph-maintenance", "omnigraph-clock"):
            thread.join(MAINTENANCE_ENDS_S)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server) -> Iterator[S3Location]:
    """An empty place on S3, reached directly."""
    location = s3_server.bucket()
    yield location
    s3_server.drop(location.bucket)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    """A proxy before the S3 server that logs, and does nothing else until told."""
    with Proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def s3_proxied(s3: S3Location, proxy: Proxy) -> S3Location:
    """The place of `s3`, reached through `proxy`."""
    return s3.via(proxy.endpoint)
