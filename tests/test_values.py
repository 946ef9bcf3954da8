"""Values that the type checker guards, and the interpreter only while tests run."""

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

import omnigraph
from omnigraph.manifest.model.manifest import Point, RowCounts

CHANGED = "from omnigraph.manifest.model.manifest import RowCounts\nRowCounts(1).inserted = 2\n"


def test_the_type_checker_refuses_to_change_one(tmp_path: Path) -> None:
    (tmp_path / "changed.py").write_text(CHANGED, encoding="utf-8")

    told = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", f"--cache-dir={tmp_path}/cache", "changed.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(Path(omnigraph.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert told.returncode == 1, told.stdout + told.stderr
    assert 'changed.py:2: error: Property "inserted" defined in "RowCounts" is read-only' in told.stdout


def test_equal_values_are_one_in_a_set_and_survive_copies_and_pickles() -> None:
    point = Point("b", 1)

    assert {point, Point("b", 1), copy.copy(point), pickle.loads(pickle.dumps(point))} == {point}
    assert replace(RowCounts(1), updated=2) == RowCounts(1, 2)


def test_tests_run_with_values_that_can_not_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        RowCounts(1).inserted = 2  # type: ignore[misc]


def test_elsewhere_they_are_made_without_the_guard() -> None:
    changed = [sys.executable, "-c", CHANGED]
    environment = {name: value for name, value in os.environ.items() if name != "OMNIGRAPH_FREEZE_VALUES"}

    assert subprocess.run(changed, env=environment, timeout=300, check=False).returncode == 0
