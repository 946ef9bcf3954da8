"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runs import Cli, Run
from omnigraph.cli.main import main


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "graph")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in this process."""
    monkeypatch.delenv("OMNIGRAPH_STORE", raising=False)

    def run(*arguments: str) -> Run:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Run(code, captured.out, captured.err)

    return run
