"""Directories on a local disk are made by whoever comes first, and two may come at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from omnigraph.errors import BadRequest
from omnigraph.storage.objects.local import LocalBackend
from omnigraph.storage.objects.object_store import PutOutcome


def test_a_directory_that_another_makes_at_the_same_moment_is_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_dir = Path.is_dir

    def is_dir_and_then_somebody_makes_it(path: Path) -> bool:
        there = is_dir(path)
        os.makedirs(path, exist_ok=True)
        return there

    monkeypatch.setattr(Path, "is_dir", is_dir_and_then_somebody_makes_it)
    answer = LocalBackend(tmp_path / "graph", fsync=False).create("__refs/main/1.json", b"ref")

    assert answer.outcome is PutOutcome.CREATED


def test_a_file_where_a_directory_is_needed_is_named(tmp_path: Path) -> None:
    (tmp_path / "graph").write_text("a file")

    with pytest.raises(BadRequest, match="graph is a file"):
        LocalBackend(tmp_path / "graph", fsync=False).create("__refs/main/1.json", b"ref")
