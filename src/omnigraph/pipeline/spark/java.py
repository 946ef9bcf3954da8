"""Where Java is: Spark needs 17 or newer. Looks where `scripts/java.sh` does, and installs nothing."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from omnigraph.errors import SparkNotReady

MAJOR_MIN = 17
SYSTEM_HOMES = Path("/usr/lib/jvm")
_ANSWER_S = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def java_home() -> Path:
    """The home of a Java that will do; refuses, with the remedy, where there is none."""
    too_old = []
    for binary in _candidates():
        major = _major(binary)
        if major is not None and major >= MAJOR_MIN:
            return binary.resolve().parent.parent
        if major is not None:
            too_old.append(major)
    found = f"only Java {max(too_old)}" if too_old else "no Java"
    raise SparkNotReady(
        f"Spark needs Java {MAJOR_MIN} or newer and {found} was found: install one (Debian and Ubuntu: "
        f"apt-get install openjdk-{MAJOR_MIN}-jre-headless) or set JAVA_HOME to one, or use engine local."
    )


def _candidates() -> Iterator[Path]:
    named = os.environ.get("JAVA_HOME")
    if named:
        yield Path(named, "bin", "java")
    kept = Path(sys.prefix, ".java")  # where `make` keeps what it found
    if kept.is_file():
        home = kept.read_text(encoding="utf-8", errors="replace").strip()
        if home:
            yield Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path)
    yield from sorted(SYSTEM_HOMES.glob("*/bin/java"))


@cache
def _major(binary: Path) -> int | None:
    """The major version of a java binary: 17 for "17.0.15", 8 for "1.8.0_402"; None if it is none."""
    if not os.access(binary, os.X_OK):
        return None
    try:
        answer = subprocess.run(
            [binary, "-version"], capture_output=True, text=True, errors="replace", timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None
