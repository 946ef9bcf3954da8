from __future__ import annotations

from pathlib import Path

import pytest

from .schedules import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A graph of people, its main at manifest 1."""
    return World(tmp_path / "graph")


@pytest.fixture(params=["by hint and gallop", "by listing"])
def any_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """The same for both ways of finding a head: local disks and directory buckets, stores that list in name order."""
    return World(tmp_path / "graph", lists_in_name_order=request.param == "by listing")
