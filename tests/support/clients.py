"""Graphs opened by clients with little patience, so that tests of faults need not wait."""

from __future__ import annotations

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.publish import PublishPolicy
from omnigraph.manifest.repository import Repository
from omnigraph.runtime import Runtime
from omnigraph.storage.meter import Cost
from omnigraph.storage.objects.object_store import RetryPolicy, open_store

from .s3 import S3Location


def impatient(location: S3Location, *, attempts: int = 2, settles_for_s: float = 5.0) -> Graph:
    """An open graph that repeats a read `attempts` times, and settles a lost answer for so long."""
    opened = omnigraph.open(location.uri, location.options).repository
    repository = Repository(
        open_store(opened.location, opened.runtime, RetryPolicy(attempts, 0.002, 0.01)),
        opened.stamp,
        runtime=Runtime(),
        policy=PublishPolicy(settles_for_s, 0.005, 0.05),
    )
    repository.snapshot()
    return Graph(repository, Cost())
