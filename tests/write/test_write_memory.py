"""A load at the limit of one process fits into a gigabyte."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROWS = 100_000  # the limit of surface.md, at about 600 bytes a row: its other limit, 64 MiB, is near
PEAK_BYTES_MAX = 1 << 30
SCHEMA = "node Person { slug: String @key  name: String  age: I32?  bio: String? }"
LOAD = """
import sys
import omnigraph
graph = omnigraph.open(sys.argv[1])
result = graph.load(sys.argv[2], mode=sys.argv[3])
# Not ru_maxrss: a new process starts with its parent's.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(sum(result.counts.values()), int(peak) * 1024)
"""


@pytest.mark.parametrize(
    "mode",
    ["append", pytest.param("merge", marks=pytest.mark.soak), pytest.param("overwrite", marks=pytest.mark.soak)],
)
def test_a_load_at_the_limit_stays_under_a_gigabyte(tmp_path: Path, mode: str) -> None:
    import omnigraph

    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    data = tmp_path / "people.jsonl"
    bio = "She wrote about engines that weave patterns. " * 12
    with data.open("w") as file:
        for number in range(ROWS):
            row = {"slug": f"p{number:06d}", "name": f"Person {number}", "age": number % 100, "bio": f"{number} {bio}"}
            file.write(json.dumps({"type": "Person", "data": row}) + "\n")
    if mode == "merge":
        graph.load(data)  # every row is there already: each is read, compared and found the same

    run = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "graph"), str(data), mode],
        capture_output=True,
        text=True,
        check=True,
    )

    rows, peak = (int(part) for part in run.stdout.split())
    print(f"\n{mode}: {peak / 2**20:.0f} MiB for {rows} rows", file=sys.stderr)
    assert rows == ROWS
    assert peak < PEAK_BYTES_MAX
