"""The stores that tests run on: one moto server per test process, a fresh bucket and proxy per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.proxy import Proxy
from support.s3 import S3Location, S3Server
from support.soak import soak_report

__all__ = ["soak_report"]  # a fixture, used by its name


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
