"""Patterns and values that freeze an engine that backtracks, from clients with few rights."""

from __future__ import annotations

import json

from hostile.siege import BOUNDS, GRAPH, JSON, Bounds, Target, besiege

PATTERNS = ["(a+)+b", "(a|a)*b", "(.*a){25}b", "((a*)*)*b", "(a{1000}){1000}", "(.?.?.?b?){900}c", "(.?.?b?){700}c"]


@BOUNDS
def test_a_default_that_a_pattern_has_to_match_delays_nobody(target: Target, bounds: Bounds) -> None:
    """Planning a schema needs the role of a reader."""

    def attack(target: Target) -> None:
        with target.client("reader") as client:
            for pattern in PATTERNS * bounds.scale:
                for default in ("a" * 40, "a" * 8_000, "ab" * 100_000 + "!"):
                    rule = f"@default({json.dumps(default)}) @check(x, {json.dumps(pattern)})"
                    body = json.dumps({"schema": f"node T {{ x: String {rule} }}"})
                    answer = client.post(f"{GRAPH}/schema/plan", content=body, headers=JSON)
                    assert answer.status_code == 400, answer.text
                    assert "OG-PG-1" in answer.text, answer.text

    besiege(target, attack, bounds)


@BOUNDS
def test_a_number_of_a_million_digits_delays_nobody(target: Target, bounds: Bounds) -> None:
    """In CSV, where a field is text until it is known to be a number."""

    def attack(target: Target) -> None:
        with target.client("writer") as client:
            for _ in range(bounds.scale):
                answer = client.post(
                    f"{GRAPH}/load?type=Person",
                    content=f"slug,age\nx,{'1' * 1_000_000}!\n",
                    headers={"Content-Type": "text/csv"},
                )
                assert answer.status_code == 422, answer.text

    besiege(target, attack, bounds)
