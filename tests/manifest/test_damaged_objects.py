"""A flipped bit in a stored object is reported as damage, wherever it is, and never returned as data."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.errors import Damaged
from omnigraph.graph.graph import Graph
from omnigraph.manifest.branch import refs, tags
from omnigraph.manifest.intent.intent import decode_intent
from omnigraph.manifest.intent.intent_store import Intents
from omnigraph.manifest.model.codec import decode_entry, encode_entry
from omnigraph.manifest.model.manifest import InlineChange, Manifest, stub_of
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.store.inline_rows import decode_change, encode_change
from omnigraph.storage.objects.object_store import StoredObject
from omnigraph.storage.table.overlay import Overlay

SCHEMA = "node Person { slug: String @key  age: I32? }"
BITS = 8
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class World:
    """A small graph, and the paths of one object of each kind."""

    def __init__(self, root: Path) -> None:
        self.root = root
        graph = omnigraph.init(str(root), schema=SCHEMA, settings=Settings(maintenance=0))
        graph.mutate('query q() { insert Person { slug: "first" } }', actor="bob")
        graph.mutate('query q() { insert Person { slug: "ada", age: 36 } }', actor="ada")
        graph.branches.create("side")
        graph.tags.create("first")
        Intents(graph.repository.store, graph.repository.runtime).acquire(
            graph.begin(), "job", kind="load", actor="ada"
        )
        head = graph.repository.snapshot("main").manifest
        newest_first = sorted((root / "__manifest" / head.branch_id).glob("*.json"))
        self.manifest, self.older = newest_first[0], newest_first[-2]
        self.ref = root / "__refs" / "side" / "1.json"
        self.tag = root / "__tags" / "first.json"
        self.intent = root / "__recovery" / "job.json"
        self.stamp = root / "_omnigraph.json"

    def open(self) -> Graph:
        return omnigraph.open(str(self.root), settings=Settings(maintenance=0))

    def make_stub(self) -> Path:
        entry = decode_entry(self.older.read_bytes(), "it")
        assert isinstance(entry, Manifest)
        self.older.write_bytes(encode_entry(stub_of(entry)))
        return self.older


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "graph")


def flipped(data: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return bytes(changed)


READERS: dict[str, Callable[[bytes], object]] = {
    "manifest": lambda data: decode_entry(data, "it"),
    "ref": lambda data: refs._decode(data, "side", 1),
    "tag": lambda data: tags._decode(StoredObject(data, NOON), "first"),
    "intent": lambda data: decode_intent(data, "job"),
}


@pytest.mark.parametrize("kind", [*READERS, "stub"])
def test_every_flipped_bit_of_a_stored_object_is_damage(world: World, kind: str) -> None:
    path = world.make_stub() if kind == "stub" else getattr(world, kind)
    read = READERS["manifest" if kind == "stub" else kind]
    data = path.read_bytes()
    read(data)
    for place in range(len(data)):
        for bit in range(BITS):
            with pytest.raises(Damaged):
                read(flipped(data, place, bit))


def flip_text(path: Path, text: bytes) -> None:
    """Another letter in its middle, so that the object still says something sensible."""
    data = path.read_bytes()
    path.write_bytes(flipped(data, data.rindex(text) + len(text) // 2, 0))


def rows_of(graph: Graph) -> object:
    return graph.query("query q() { match { $p: Person } return { $p.slug, $p.age } }")


@pytest.mark.parametrize("text", [b'"actor":"ada"', b'"upserts":"', b'"kind":"mutation"', b'"rows":'])
def test_a_damaged_manifest_is_not_read(world: World, text: bytes) -> None:
    flip_text(world.manifest, text)
    with pytest.raises(Damaged, match=r"checksum|JSON"):
        rows_of(world.open())


def test_a_flipped_bit_in_an_inline_row_is_not_returned_as_data(world: World) -> None:
    data = world.older.read_bytes()
    place = data.index(b'"upserts":"') + 11
    length = data.index(b'"', place) - place
    for step in range(0, length, 97):
        world.older.write_bytes(flipped(data, place + step, 0))
        with pytest.raises(Damaged):
            rows_of(world.open())


@pytest.mark.parametrize(
    ("kind", "text", "where"),
    [
        ("manifest", b'"actor":"ada"', "branch 'main'"),
        ("older", b'"actor":"bob"', "branch 'main'"),
        ("ref", b'"branch_id":"', "branch 'side'"),
        ("tag", b'"actor":', "tag 'first'"),
        ("intent", b'"actor":"ada"', "the intent of job"),
    ],
)
def test_verify_reports_a_flipped_bit(world: World, kind: str, text: bytes, where: str) -> None:
    graph = world.open()
    flip_text(getattr(world, kind), text)
    said = "\n".join(problem.sentence for problem in graph.verify().damage)
    assert where in said
    assert "checksum does not match its content" in said or "it is not JSON" in said


def test_a_damaged_tag_is_not_followed(world: World) -> None:
    flip_text(world.tag, b'"commit":"')
    with pytest.raises(Damaged):
        world.open().query("query q() { match { $p: Person } return { $p.slug } }", at="tag:first")


# Inline rows by themselves: those of format 1 have no checksum around them.

ROWS = pa.table(
    {
        "id": ["a", "b", "c"],
        "name": ["x", None, "zé"],
        "age": pa.array([1, None, 3], pa.int32()),
        "tags": [["p"], [], None],
        "vector": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
        "on": [True, False, None],
    }
)


def test_damaged_inline_rows_are_a_typed_error_or_rows_and_nothing_else() -> None:
    """Arrow itself raises an OSError for some, and ends the process when it follows a wrong offset."""
    stream = encode_change(Overlay.of(ROWS), (), new=True).upserts
    assert stream is not None
    damaged = 0
    for place in range(len(stream)):
        for bit in range(BITS):
            try:
                overlay = decode_change(InlineChange(flipped(stream, place, bit), (), True), "manifest x.1")
            except Damaged as error:
                assert "its inline rows can't be read" in str(error)  # noqa: PT017
                damaged += 1
            else:
                assert overlay.rows is None or overlay.rows.to_pylist() is not None
    assert damaged > len(stream)


@pytest.mark.parametrize("kept", [0, 1, 8, 100, 200])
def test_inline_rows_that_end_early_are_a_typed_error(kept: int) -> None:
    stream = encode_change(Overlay.of(ROWS), (), new=True).upserts
    assert stream is not None
    with pytest.raises(Damaged):
        decode_change(InlineChange(stream[:kept], (), True), "manifest x.1")
