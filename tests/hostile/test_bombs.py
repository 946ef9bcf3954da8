"""Expensive queries keep to their deadline and their memory budget: see bombs.py and bomb_run.py."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hostile.bomb_graph import SCHEMA
from hostile.bombs import bomb
from omnigraph.query.compile import compile_queries
from omnigraph.schema.lang.compile import compile_schema

CATALOG = compile_schema(SCHEMA).catalog


def test_every_generated_query_is_valid() -> None:
    for seed in range(100):
        made = bomb(seed)
        compile_queries(made.text, CATALOG).bind_read(made.params, now=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("seed", [3, 17])
def test_a_seed_always_makes_the_same_query(seed: int) -> None:
    assert bomb(seed) == bomb(seed)
