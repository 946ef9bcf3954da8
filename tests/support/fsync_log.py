"""What was synced to the disk, and in which order."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest


class Synced:
    """Every path of a test that was synced, by looking at what the file descriptor points to."""

    def __init__(self, within: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: set[Path] = set()
        fsync, fdatasync = os.fsync, os.fdatasync

        def noting(sync: Callable[[int], None], fd: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if path.is_relative_to(within):
                self.paths.add(path)
            sync(fd)

        monkeypatch.setattr(os, "fsync", partial(noting, fsync))
        monkeypatch.setattr(os, "fdatasync", partial(noting, fdatasync))
