"""Ids that nobody else has, and that sort by time."""

import re
import subprocess
import sys
import time

from omnigraph.runtime import RandomIds, ulid

IDS = 5_000


def test_a_txn_id_is_a_ulid_of_the_moment() -> None:
    before = time.time_ns() // 1_000_000
    made = RandomIds().txn_id()
    after = time.time_ns() // 1_000_000

    assert re.fullmatch(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", made)
    assert ulid(before, 0) <= made <= ulid(after, 2**80 - 1)


def test_txn_ids_of_later_moments_sort_behind() -> None:
    ids = RandomIds()
    made = []
    for _ in range(5):
        made.append(ids.txn_id())
        time.sleep(0.002)

    assert made == sorted(made)


def test_no_two_txn_ids_are_the_same() -> None:
    ids, others = RandomIds(), RandomIds()

    assert len({source.txn_id() for _ in range(IDS) for source in (ids, others)}) == 2 * IDS


def test_every_character_of_the_random_part_is_as_likely_as_any() -> None:
    ids = RandomIds()
    ends = [ids.txn_id()[10:] for _ in range(IDS)]
    counts = {char: sum(end.count(char) for end in ends) for char in "0123456789ABCDEFGHJKMNPQRSTVWXYZ"}

    expected = IDS * 16 / 32
    assert all(0.8 * expected < count < 1.2 * expected for count in counts.values()), counts


FORKING = """
import os
from omnigraph.runtime import RandomIds

ids = RandomIds()
ids.txn_id()  # there are more at hand now
child = os.fork()
if child:
    os.waitpid(child, 0)
print(*(ids.txn_id()[10:] for _ in range(20)), flush=True)
if not child:
    os._exit(0)
"""


def test_a_forked_child_makes_none_of_its_parents_ids() -> None:
    told = subprocess.run([sys.executable, "-c", FORKING], check=True, capture_output=True, text=True, timeout=60)

    ids = told.stdout.split()
    assert len(ids) == 40
    assert len(set(ids)) == 40
