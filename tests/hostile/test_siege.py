"""The harness itself: it notices what it is there for, and nothing else."""

from __future__ import annotations

import signal
import time

import pytest

from hostile.siege import EVERY_DAY, GRAPH, JSON, POINT, STRICT, Target, besiege, watch

STALL_S = 3.0


def test_other_clients_do_not_notice_one_that_asks_a_few_questions(target: Target) -> None:
    def attack(target: Target) -> None:
        with target.client("reader") as client:
            for _ in range(20):
                assert client.post(f"{GRAPH}/query", content=POINT, headers=JSON).status_code == 200

    report = besiege(target, attack, EVERY_DAY)

    assert all(len(latencies.samples) > 0 for latencies in (*report.idle.values(), *report.attacked.values()))


def test_a_server_that_stands_still_is_noticed_by_every_kind_of_client(target: Target) -> None:
    def attack(target: Target) -> None:
        target.process.signal(signal.SIGSTOP)
        time.sleep(STALL_S)
        target.process.signal(signal.SIGCONT)

    report = watch(target, attack)

    for latencies in report.attacked.values():
        assert latencies.max_s > STALL_S - 1
        assert latencies.p95_s > STALL_S / 2
    with pytest.raises(AssertionError, match="was delayed"):
        report.require(STRICT)
