"""Query and schema texts of the largest size, from a client that may only read: nobody else waits for them."""

from __future__ import annotations

from functools import partial

import pytest

from hostile.siege import BOUNDS, GRAPH, JSON, Bounds, Target, at_once, besiege
from hostile.texts import QUERIES, SCHEMAS

DEADLINE_S = 3


def send(target: Target, path: str, body: dict[str, str], times: int, statuses: set[int]) -> None:
    headers = {**JSON, "Request-Timeout": str(DEADLINE_S)}
    with target.client("reader") as client:
        for _ in range(times):
            statuses.add(client.post(f"{GRAPH}/{path}", json=body, headers=headers).status_code)


def attack_by(target: Target, path: str, bodies: list[dict[str, str]], bounds: Bounds) -> None:
    statuses: set[int] = set()

    def attack(target: Target) -> None:
        with at_once([partial(send, target, path, body, bounds.scale, statuses) for body in bodies]):
            pass

    besiege(target, attack, bounds)
    assert statuses <= {200, 400, 503}, statuses


@BOUNDS
@pytest.mark.parametrize("path", ["query", "lint"])
def test_ten_queries_of_the_largest_size_delay_nobody(target: Target, path: str, bounds: Bounds) -> None:
    names = ["filters", "columns", "negations", "hops", "aggregates"]
    texts = [
        QUERIES[name](10_000).replace("$p.bio", "$p.text").replace("query q", f"query q{n}")
        for n in (1, 2)
        for name in names
    ]

    attack_by(target, path, [{"query": text} for text in texts], bounds)


@BOUNDS
def test_ten_schemas_of_the_largest_size_delay_nobody(target: Target, bounds: Bounds) -> None:
    names = ["properties", "node types", "interfaces of one type", "unique properties", "ranges"]
    texts = [SCHEMAS[name](12_000) + f" node Last{n} {{ }}" for n in (1, 2) for name in names]

    attack_by(target, "schema/plan", [{"schema": text} for text in texts], bounds)
