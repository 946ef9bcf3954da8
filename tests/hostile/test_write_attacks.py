"""Writes that cost much and change nothing, from a client that may write: other clients are still served."""

from __future__ import annotations

import json
from functools import partial

import pytest

from hostile.siege import EVERY_DAY, GRAPH, JSON, Target, at_once, besiege
from hostile.texts import repeated

ROWS = 10_000
AT_ONCE = 4
LOADS = {
    "values outside of their type": lambda n: {"type": "Person", "data": {"slug": f"x{n}", "age": "much"}},
    "unknown properties": lambda n: {"type": "Person", "data": {"slug": f"x{n}", "nothing": n}},
    "unknown types": lambda n: {"type": f"T{n}", "data": {}},
    "one id again and again": lambda n: {"type": "Person", "data": {"slug": "x"}},
    "edges to nowhere": lambda n: {"edge": "Knows", "from": f"x{n}", "to": f"y{n}", "data": {}},
    "rows that exist": lambda n: {"type": "Person", "data": {"slug": f"p{n % 10_000}"}},
}
ANSWER_MAX = 20_000  # letters


@pytest.mark.parametrize("name", LOADS)
def test_loads_with_nothing_but_errors_stall_nobody_and_report_only_some(target: Target, name: str) -> None:
    text = "".join(f"{json.dumps(LOADS[name](n))}\n" for n in range(ROWS))
    answers: list[tuple[int, int]] = []

    def load(target: Target) -> None:
        with target.client("writer") as client:
            headers = {"Content-Type": "application/x-ndjson", "Prefer": "wait=100"}
            answer = client.post(f"{GRAPH}/load", content=text, headers=headers)
            answers.append((answer.status_code, len(answer.text)))

    def attack(target: Target) -> None:
        with at_once([partial(load, target)] * AT_ONCE):
            pass

    besiege(target, attack, EVERY_DAY)
    assert all(status in (400, 409, 422) and length < ANSWER_MAX for status, length in answers), answers


def test_mutations_of_thousands_of_statements_stall_nobody(target: Target) -> None:
    update = repeated('update Person set { age: # } where text starts_with "zz#"', 3_000)
    statuses: set[int] = set()

    def mutate(target: Target) -> None:
        headers = {**JSON, "Request-Timeout": "3"}
        with target.client("writer") as client:
            body = {"query": f"query q() {{ {update} }}"}
            statuses.add(client.post(f"{GRAPH}/mutate", json=body, headers=headers).status_code)

    def attack(target: Target) -> None:
        with at_once([partial(mutate, target)] * AT_ONCE):
            pass

    besiege(target, attack, EVERY_DAY)
    assert statuses <= {200, 503}, statuses
