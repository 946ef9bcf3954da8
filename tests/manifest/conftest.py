from __future__ import annotations

from pathlib import Path

import pytest

from omnigraph.manifest.settings import Settings
from support.unordered import unordered_listings

from .schedules import SMALL, STAGED, World

__all__ = ["any_world", "settings", "unordered_listings", "world"]  # fixtures, used by their names


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every schedule runs with rows that ride in manifests and with rows that are staged, unless it says which."""
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "settings" in metafunc.fixturenames and "settings" not in given and "test_schedule_" in metafunc.module.__name__:
        metafunc.parametrize("settings", [SMALL, STAGED], ids=["small", "staged"])


@pytest.fixture
def settings() -> Settings:
    return SMALL


@pytest.fixture
def world(tmp_path: Path, settings: Settings) -> World:
    """A graph of people, its main at manifest 1."""
    return World(tmp_path / "graph", settings=settings)


@pytest.fixture(params=["by hint and gallop", "by listing"])
def any_world(request: pytest.FixtureRequest, tmp_path: Path, settings: Settings) -> World:
    """The same for both ways of finding a head: local disks and directory buckets, stores that list in name order."""
    return World(tmp_path / "graph", lists_in_name_order=request.param == "by listing", settings=settings)
