"""Small writes are stored in the manifest by the size of their encoded rows, whether one row or several."""

from pathlib import Path

import pytest

import omnigraph
from omnigraph.manifest.model.manifest import TableRef
from omnigraph.manifest.settings import Settings
from support.arrow import values_of

SCHEMA = "node Note { text: String }"
NOTE = "node:Note"
BYTES = 4_000


def written(path: Path, *texts: str) -> TableRef:
    graph = omnigraph.init(path / "graph", SCHEMA, {"fsync": "false"}, settings=Settings(inline_bytes=BYTES))
    statements = " ".join(f"insert Note {{ text: $t{number} }}" for number in range(len(texts)))
    params = {f"t{number}": text for number, text in enumerate(texts)}
    declared = ", ".join(f"${name}: String" for name in params)
    graph.mutate(f"query add({declared}) {{ {statements} }}", params=params)
    snapshot = graph.snapshot()
    assert sorted(values_of(snapshot.to_arrow(NOTE)["text"])) == sorted(texts)
    return snapshot.pinned.manifest.tables[NOTE]


@pytest.mark.parametrize("rows", [1, 20])
def test_rows_that_take_little_ride_in_the_manifest(tmp_path: Path, rows: int) -> None:
    ref = written(tmp_path, *["short"] * rows)

    assert (ref.stored, len(ref.tail)) == (None, 1)


@pytest.mark.parametrize("rows", [1, 20])
def test_rows_that_take_too_much_there_are_stored_however_few_they_are(tmp_path: Path, rows: int) -> None:
    ref = written(tmp_path, *["long" * (BYTES // rows)] * rows)

    assert ref.stored is not None
    assert ref.tail == ()
