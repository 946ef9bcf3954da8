from __future__ import annotations

from pathlib import Path

import pytest

from write.world import World, make_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty graph of people."""
    return make_world(tmp_path / "graph")


@pytest.fixture
def people(world: World) -> World:
    """Ada, Bob and Eve; Acme, which needs Ada; Ada knows Bob."""
    world.mutate(
        """
        insert Person { slug: "ada", name: "Ada", age: 36, bio: "first", face: [1.0, 2.0] }
        insert Person { slug: "bob", name: "Bob" }
        insert Person { slug: "eve", name: "Eve", role: "lead" }
        insert Company { name: "acme" }
        insert Needs { from: "acme", to: "ada" }
        insert Knows { from: "ada", to: "bob" }
        """
    )
    return world
