"""Running the command line, in this process or as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HEAVY = ("lance", "pyarrow", "obstore", "numpy", "duckdb", "pandas")
WATCHED = (
    "import sys; from omnigraph.cli.main import main; code = main(sys.argv[1:]); "
    f"heavy = [m for m in {HEAVY} if m in sys.modules]; sys.exit(f'imported {{heavy}}' if heavy else code)"
)


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The body that `--json` prints for an error."""
        return json.loads(self.err)


Cli = Callable[..., Run]


def process(
    *arguments: str,
    stdout: int = subprocess.PIPE,
    stdin: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float = 120,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """The command line as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "omnigraph", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        input=stdin,
        text=True,
        env=os.environ | environment,
        cwd=cwd,
        timeout=timeout,
        check=False,
    )


def without_heavy_libraries(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """As `process`, but it fails if a library was imported that takes long to import."""
    command = [sys.executable, "-c", WATCHED, *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, timeout=120, check=False)
