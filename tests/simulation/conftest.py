"""Graphs with a recorded history, for the tests of the checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation import ops
from simulation.histories import knows, mutate, person
from simulation.serial import Serial


@pytest.fixture
def serial(tmp_path: Path) -> Serial:
    return Serial(tmp_path)


@pytest.fixture
def branched(serial: Serial) -> Serial:
    """c0 and c1 on main, c2 forks, c3 on the branch, c4 on main."""
    serial.commit(mutate(person("ada", age=1), person("bob", age=2)))
    serial.commit(mutate(knows("ada", "bob")))
    serial.call(ops.CreateBranch("b0"))
    serial.commit(mutate(person("cy"), branch="b0"))
    serial.commit(mutate(person("ada", age=3)))
    return serial
