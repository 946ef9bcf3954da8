"""Stores that are not graphs, are damaged, denied or full: one clear error each, and nothing is written."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.cli.main import main as command_line
from omnigraph.errors import (
    AccessDenied,
    AlreadyExists,
    BadRequest,
    Damaged,
    NotAGraph,
    NotFound,
    OmnigraphError,
    ReadOnly,
    UnsupportedFormat,
)
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.manifest.model.manifest import Point
from omnigraph.manifest.model.paths import STAMP, manifest_key, schema_key
from omnigraph.manifest.settings import Settings
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.object_store import ObjectStore, open_store
from support.catalogs import COMPANY, KNOWS, PERSON, company_rows, ids_of, knows_rows, people, person_rows
from support.documents import sealed
from support.proxy import Answer, Matcher, Proxy, anything, error_body, puts
from support.s3 import S3Location, keys

pytestmark = pytest.mark.xdist_group("bad input")  # one process, which starts each of those that are limited once

Listing = dict[str, str]


def one_sentence(error: OmnigraphError, named: str) -> None:
    """A message is one sentence that names the thing, and survives the trip to other processes."""
    message = str(error)
    assert named in message, message
    assert "\n" not in message, message
    assert message.endswith("."), message
    assert not re.search(r"[.!?] +[A-Z]", message), f"more than one sentence: {message}"
    assert len(message) < 600, message
    assert error.to_json() == {"error": message, "code": error.code, "details": error.details}


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line as a user runs it."""
    command = [sys.executable, "-m", "omnigraph", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def command_fails_with(error: OmnigraphError, *arguments: str) -> None:
    """The command line tells the same error, in one line, without a traceback."""
    for flags in ((), ("--json",)):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = command_line([*arguments, *flags])
        assert code == error.exit_code
        assert out.getvalue() == ""
        (line,) = err.getvalue().splitlines()
        assert (json.loads(line) == error.to_json()) if flags else (line == f"error: {error}"), line


# A store that is not a graph


def is_missing(path: Path) -> None:
    pass


def is_an_empty_directory(path: Path) -> None:
    path.mkdir()


def is_a_file(path: Path) -> None:
    path.write_text("not a graph")


def is_a_directory_of_other_files(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("not a graph")
    (path / "tables").mkdir()


def is_below_a_file(path: Path) -> None:
    path.parent.mkdir()
    path.parent.rmdir()
    path.parent.write_text("not a directory")


def has_a_directory_for_a_stamp(path: Path) -> None:
    (path / STAMP).mkdir(parents=True)


def is_a_graph_whose_making_was_cut_short(path: Path) -> None:
    omnigraph.init(path, people())
    (path / STAMP).unlink()


NO_GRAPHS = [
    is_missing,
    is_an_empty_directory,
    is_a_file,
    is_a_directory_of_other_files,
    is_below_a_file,
    has_a_directory_for_a_stamp,
    is_a_graph_whose_making_was_cut_short,
]


@pytest.mark.parametrize("read_only", [False, True], ids=["to write", "read-only"])
@pytest.mark.parametrize("make", NO_GRAPHS, ids=lambda make: make.__name__.replace("_", " "))
def test_a_store_that_is_not_a_graph(tmp_path: Path, make: Callable[[Path], None], read_only: bool) -> None:
    path = tmp_path / "folder" / "store" if make is is_below_a_file else tmp_path / "store"
    make(path)
    before = listing(tmp_path)

    with pytest.raises(NotAGraph) as raised:
        omnigraph.open(path, read_only=read_only)

    one_sentence(raised.value, str(path))
    assert listing(tmp_path) == before
    if not read_only:
        command_fails_with(raised.value, "snapshot", str(path))


@pytest.mark.s3
def test_a_prefix_that_is_not_a_graph(s3: S3Location) -> None:
    with pytest.raises(NotAGraph) as raised:
        omnigraph.open(s3.uri, s3.options)

    one_sentence(raised.value, s3.uri)
    assert keys(s3.endpoint, s3.bucket) == []


@pytest.mark.s3
def test_a_bucket_that_does_not_exist(s3: S3Location) -> None:
    for verb in (omnigraph.open, lambda uri, options: omnigraph.init(uri, people(), options)):
        with pytest.raises(NotFound) as raised:
            verb("s3://no-such-bucket/graph", s3.options)
        one_sentence(raised.value, "'no-such-bucket'")


def test_a_place_that_holds_a_graph_is_not_made_into_another(tmp_path: Path) -> None:
    omnigraph.init(tmp_path / "graph", people())
    before = listing(tmp_path)

    with pytest.raises(AlreadyExists) as raised:
        omnigraph.init(tmp_path / "graph", people())

    one_sentence(raised.value, str(tmp_path / "graph"))
    assert listing(tmp_path) == before


@pytest.mark.parametrize("make", [is_a_file, is_below_a_file], ids=["a file", "below a file"])
def test_a_graph_is_not_made_where_a_file_is(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "folder" / "store"
    path.parent.mkdir()
    if make is is_below_a_file:
        path.parent.rmdir()
    make(path)
    before = listing(tmp_path)

    with pytest.raises(BadRequest) as raised:
        omnigraph.init(path, people())

    one_sentence(raised.value, str(path if make is is_a_file else path.parent))
    assert listing(tmp_path) == before


BAD_PLACES = {
    "unknown scheme": ("ftp://host/graph", {}, "'ftp'"),
    "no bucket": ("s3:///graph", {}, "s3:///graph"),
    "nothing": ("", {}, "empty"),
    "unknown option": ("s3://bucket/graph", {"colour": "green"}, "'colour'"),
    "unknown aws option": ("s3://bucket/graph", {"aws_colour": "green"}, "aws_colour"),
    "unknown local option": ("/tmp/graph", {"colour": "green"}, "'colour'"),
}


@pytest.mark.parametrize("case", BAD_PLACES)
def test_a_place_that_can_not_be_meant(case: str) -> None:
    uri, options, named = BAD_PLACES[case]
    for verb in (omnigraph.open, lambda uri, options: omnigraph.init(uri, people(), options)):
        with pytest.raises(BadRequest) as raised:
            verb(uri, options)
        one_sentence(raised.value, named)
    if uri and not options:
        command_fails_with(raised.value, "snapshot", uri)


# A graph that is damaged


@dataclass
class Place:
    """A graph with two branches: main has Ada, Bob and Acme; side was forked before Bob and has Eve instead."""

    uri: str
    options: dict[str, str]

    def __post_init__(self) -> None:
        graph = omnigraph.init(self.uri, people(), self.options)
        graph.write([Append(PERSON, person_rows("ada")), Append(COMPANY, company_rows("acme"))])
        graph.branches.create("side")
        graph.write([Append(PERSON, person_rows("bob"))])
        graph.write([Append(PERSON, person_rows("eve"))], branch="side")

    def open(self) -> Graph:
        return omnigraph.open(self.uri, self.options)

    @property
    def store(self) -> ObjectStore:
        return open_store(parse_location(self.uri, self.options))

    @property
    def everything(self) -> Listing:
        store = self.store
        return {entry.key: digest(store.get(entry.key).data) for entry in store.list("")}  # type: ignore[union-attr]

    def manifest_key(self, branch: str) -> str:
        return manifest_key(self.open().snapshot(branch).pinned.manifest.point)

    def open_staging(self) -> Graph:
        """Whose commits all have files of their own."""
        return omnigraph.open(self.uri, self.options, settings=Settings(inline_rows=0, maintenance=0))

    def main_alone_reads(self) -> set[str]:
        """The table files that main's newest commit added."""
        graph = self.open_staging()
        graph.write([Upsert(PERSON, person_rows("bob"))])  # from now on there is a table
        before = {entry.key for entry in self.store.list("tables")}
        graph.write([Upsert(PERSON, person_rows("carl"))])
        return {entry.key for entry in self.store.list("tables")} - before


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(str(tmp_path / "graph"), {"fsync": "false"})
    s3: S3Location = request.getfixturevalue("s3")
    return Place(s3.uri, s3.options)


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def emptied(data: bytes) -> bytes:
    return b""


def garbage(data: bytes) -> bytes:
    return b"\x00\xff\xfe garbage \x80" * 10


def deep_nesting(data: bytes) -> bytes:
    return b"[" * 100_000


def not_an_object(data: bytes) -> bytes:
    return b"[1, 2, 3]"


def without_content(data: bytes) -> bytes:
    return b'{"format": 1}'


def of_a_newer_format(data: bytes) -> bytes:
    return sealed(json.loads(data) | {"format": 3, "novelty": True})


def with_an_infinite_number(data: bytes) -> bytes:
    return sealed(json.loads(data) | {"manifest_version": float("inf"), "fenced_at": float("nan")})


def of_another_number(data: bytes) -> bytes:
    return sealed(json.loads(data) | {"manifest_version": 77})


DAMAGE = [truncated, emptied, garbage, deep_nesting, not_an_object, without_content]
MANIFEST_DAMAGE = [*DAMAGE, of_a_newer_format, with_an_infinite_number, of_another_number]


Damage = Callable[[bytes], bytes]


def on_both_stores(damages: Sequence[Damage | None]) -> pytest.MarkDecorator:
    """All of them on a local disk; on S3, where they are decoded by the same code, a few."""
    local = [pytest.param("local", damage, id=f"local-{name_of(damage)}") for damage in damages]
    s3 = [
        pytest.param("s3", damage, id=f"s3-{name_of(damage)}", marks=pytest.mark.s3)
        for damage in damages
        if damage in (None, garbage, of_a_newer_format)
    ]
    return pytest.mark.parametrize(("place", "damage"), [*local, *s3], indirect=["place"])


def name_of(damage: Damage | None) -> str:
    return "missing" if damage is None else damage.__name__.replace("_", " ")


def break_object(store: ObjectStore, key: str, damage: Damage) -> Callable[[], object]:
    """Damage one object; answers how to mend it."""
    stored = store.get(key)
    assert stored is not None
    store.put(key, damage(stored.data))
    return lambda: store.put(key, stored.data)


def kind_of(damage: Damage) -> type[OmnigraphError]:
    return UnsupportedFormat if damage is of_a_newer_format else Damaged


@pytest.mark.parametrize("broken", ["main", "side"])
@on_both_stores(MANIFEST_DAMAGE)
def test_a_damaged_head_is_named_and_harms_no_other_branch(place: Place, damage: Damage, broken: str) -> None:
    manifest = place.open().snapshot(broken).pinned.manifest
    other = "side" if broken == "main" else "main"
    rows = {"main": ["ada", "bob"], "side": ["ada", "eve"]}
    mend = break_object(place.store, manifest_key(manifest.point), damage)
    before = place.everything
    graph = place.open()

    for verb in (
        lambda: graph.snapshot(broken),
        lambda: graph.write([Append(PERSON, person_rows("zoe"))], branch=broken),
        lambda: graph.begin(broken),
        lambda: graph.commits(broken),
        lambda: graph.branches.create("new", broken),
    ):
        with pytest.raises(kind_of(damage)) as raised:
            verb()
        one_sentence(raised.value, f"manifest {manifest.manifest_version} of branch id {manifest.branch_id}")
    assert place.everything == before, "nothing was written"

    assert ids_of(graph.snapshot(other).to_arrow(PERSON)) == rows[other]
    graph.write([Append(PERSON, person_rows("zoe"))], branch=other)
    assert ids_of(place.open().snapshot(other).to_arrow(PERSON)) == sorted([*rows[other], "zoe"])

    mend()
    assert ids_of(place.open().snapshot(broken).to_arrow(PERSON)) == rows[broken]


@pytest.mark.parametrize("damage", [garbage, of_a_newer_format], ids=name_of)
def test_the_command_line_tells_of_a_damaged_head(tmp_path: Path, damage: Damage) -> None:
    place = Place(str(tmp_path / "graph"), {})
    break_object(place.store, place.manifest_key("main"), damage)
    with pytest.raises(kind_of(damage)) as raised:
        place.open().snapshot()

    command_fails_with(raised.value, "snapshot", place.uri)

    assert run_command("snapshot", place.uri).returncode == 1
    assert run_command("snapshot", place.uri, "--branch", "side").returncode == 0
    assert run_command("branch", "list", place.uri).stdout.split() == ["main", "side"]


@on_both_stores(MANIFEST_DAMAGE)
def test_a_successor_that_can_not_be_read_stops_a_writer_that_meets_it(place: Place, damage: Damage) -> None:
    """A release that is newer, or broken, wrote manifest N+1: this one neither skips nor replaces it."""
    graph = place.open()
    head = graph.snapshot().pinned.manifest
    stored = place.store.get(manifest_key(head.point))
    assert stored is not None
    successor = Point(head.branch_id, head.manifest_version + 1)
    place.store.put(manifest_key(successor), damage(stored.data))

    with pytest.raises(kind_of(damage)) as raised:
        graph.write([Append(PERSON, person_rows("zoe"))])

    one_sentence(raised.value, f"manifest {successor.manifest_version} of branch id {head.branch_id}")
    place.store.delete(manifest_key(successor))
    assert ids_of(place.open().snapshot().to_arrow(PERSON)) == ["ada", "bob"]


@on_both_stores([*DAMAGE, of_a_newer_format])
def test_a_damaged_stamp_is_named(place: Place, damage: Damage) -> None:
    open_already = place.open()
    mend = break_object(place.store, STAMP, damage)
    before = place.everything

    for read_only in (False, True):
        with pytest.raises(kind_of(damage)) as raised:
            omnigraph.open(place.uri, place.options, read_only=read_only)
        one_sentence(raised.value, place.uri)
    with pytest.raises(OmnigraphError):
        omnigraph.init(place.uri, people(), place.options)

    assert place.everything == before
    assert ids_of(open_already.snapshot().to_arrow(PERSON)) == ["ada", "bob"]
    mend()
    assert ids_of(place.open().snapshot().to_arrow(PERSON)) == ["ada", "bob"]


def test_a_newer_stamp_says_what_to_do(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "graph"), {})
    break_object(place.store, STAMP, of_a_newer_format)

    with pytest.raises(UnsupportedFormat) as raised:
        place.open()

    assert "upgrade omnigraph" in str(raised.value)
    assert "export with the release that wrote it" in str(raised.value)
    command_fails_with(raised.value, "snapshot", place.uri)


@on_both_stores([None, *DAMAGE, of_a_newer_format])
def test_a_damaged_schema_is_named(place: Place, damage: Damage | None) -> None:
    schema = place.open().snapshot().pinned.manifest.schema
    store = place.store
    stored = store.get(schema_key(schema))
    assert stored is not None
    if damage is None:
        store.delete(schema_key(schema))
    else:
        store.put(schema_key(schema), damage(stored.data))
    before = place.everything
    graph = place.open()

    for verb in (lambda: graph.snapshot(), lambda: graph.write([Append(PERSON, person_rows("zoe"))])):
        with pytest.raises(Damaged if damage is None else kind_of(damage)) as raised:
            verb()
        one_sentence(raised.value, schema)

    assert place.everything == before
    store.put(schema_key(schema), stored.data)
    assert ids_of(place.open().snapshot().to_arrow(PERSON)) == ["ada", "bob"]


def test_a_schema_with_other_content_than_its_name_says_is_damaged(place: Place) -> None:
    schema = place.open().snapshot().pinned.manifest.schema
    break_object(place.store, schema_key(schema), lambda data: data.replace(b"Person", b"Parson"))

    with pytest.raises(Damaged) as raised:
        place.open().snapshot()

    one_sentence(raised.value, schema)


@on_both_stores([garbage, emptied, truncated, of_a_newer_format])
def test_a_damaged_ref_is_named_and_harms_no_other_branch(place: Place, damage: Damage) -> None:
    mend = break_object(place.store, "__refs/side/1.json", damage)
    graph = place.open()

    with pytest.raises(kind_of(damage)) as raised:
        graph.snapshot("side")

    one_sentence(raised.value, "'side'")
    graph.write([Append(PERSON, person_rows("zoe"))])
    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada", "bob", "zoe"]
    mend()
    assert ids_of(graph.snapshot("side").to_arrow(PERSON)) == ["ada", "eve"]


TABLE_FILES = {"the table version": "_versions/", "a data file": "data/"}


@on_both_stores([None, garbage, emptied, truncated])
@pytest.mark.parametrize("what", TABLE_FILES)
def test_a_damaged_table_file_is_reported_by_its_table(place: Place, what: str, damage: Damage | None) -> None:
    new = place.main_alone_reads()
    (key,) = (key for key in new if TABLE_FILES[what] in key)
    graph = place.open()
    stored = graph.snapshot().pinned.manifest.tables[PERSON].stored
    assert stored is not None
    if damage is None:
        place.store.delete(key)
    else:
        break_object(place.store, key, damage)
    omnigraph.storage.table.handles._default_session = None  # Lance keeps files in memory
    before = place.everything

    with pytest.raises(Damaged) as raised:
        place.open().snapshot().to_arrow(PERSON)

    one_sentence(raised.value, f"table {stored.table_id} version")
    assert place.everything == before
    assert ids_of(place.open().snapshot().to_arrow(COMPANY)) == ["acme"]
    assert ids_of(place.open().snapshot("side").to_arrow(PERSON)) == ["ada", "eve"]
    graph.write([Append(PERSON, person_rows("zoe"))], branch="side")
    graph.write([Append(COMPANY, company_rows("zeta"))])
    assert ids_of(place.open().snapshot("side").to_arrow(PERSON)) == ["ada", "eve", "zoe"]
    assert ids_of(place.open().snapshot().to_arrow(COMPANY)) == ["acme", "zeta"]


def test_a_write_to_a_table_whose_version_is_gone_writes_no_commit(place: Place) -> None:
    new = place.main_alone_reads()
    head = place.open().snapshot().commit_id
    (key,) = (key for key in new if "_versions/" in key)
    place.store.delete(key)
    omnigraph.storage.table.handles._default_session = None

    with pytest.raises(Damaged):
        place.open_staging().write([Append(PERSON, person_rows("zoe"))])

    assert place.open().snapshot().commit_id == head


# Bad requests to a good graph


BAD_CALLS: dict[str, tuple[Callable[[Graph], Any], str]] = {
    "unknown type": (lambda g: g.write([Append("node:Ghost", person_rows("x"))]), "'node:Ghost'"),
    "unknown type in a read": (lambda g: g.snapshot().to_arrow("node:Ghost"), "'node:Ghost'"),
    "unknown column": (lambda g: g.write([Append(PERSON, knows_rows(("a", "b")))]), "'src'"),
    "a row without an id": (lambda g: g.write([Append(PERSON, person_rows("x").drop_columns("id"))]), "'id'"),
    "an id twice": (lambda g: g.write([Append(PERSON, person_rows("x", "x"))]), "x"),
    "unknown branch": (lambda g: g.write([Append(PERSON, person_rows("x"))], branch="ghost"), "'ghost'"),
    "impossible branch name": (lambda g: g.branches.create("../up"), "'../up'"),
    "branch that exists": (lambda g: g.branches.create("side"), "'side'"),
    "main created": (lambda g: g.branches.create("main"), "'main'"),
    "main deleted": (lambda g: g.branches.delete("main"), "'main'"),
    "unknown source": (lambda g: g.branches.create("new", "ghost"), "'ghost'"),
    "unknown branch deleted": (lambda g: g.branches.delete("ghost"), "'ghost'"),
    "malformed commit": (lambda g: g.commit("nonsense"), "nonsense"),
    "unknown commit": (lambda g: g.commit("aaaaaaaaaaaaa.7"), "aaaaaaaaaaaaa.7"),
    "unknown time": (lambda g: g.snapshot(at="yesterday"), "'yesterday'"),
    "time before the graph": (lambda g: g.snapshot(at="1999-01-01"), "1999-01-01"),
    "negative limit": (lambda g: g.commits(limit=-1), "-1"),
    "empty txn id": (lambda g: g.write([Append(PERSON, person_rows("x"))], txn_id=""), "txn id"),
    "wrong commit": (
        lambda g: g.write([Append(PERSON, person_rows("x"))], if_commit="aaaaaaaaaaaaa.7"),
        "aaaaaaaaaaaaa.7",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_is_one_clear_error_and_writes_no_commit(tmp_path: Path, case: str) -> None:
    place = Place(str(tmp_path / "graph"), {"fsync": "false"})
    graph = place.open()
    before = place.everything
    call, named = BAD_CALLS[case]

    with pytest.raises(OmnigraphError) as raised:
        call(graph)

    one_sentence(raised.value, named)
    assert place.everything == before


# Opened read-only


READS: list[Callable[[Graph], Any]] = [
    lambda g: g.snapshot().to_arrow(PERSON),
    lambda g: g.snapshot("side").lookup(PERSON, ["ada"]),
    lambda g: g.snapshot(at=g.commits()[-1].id).types,
    lambda g: g.commits("side", None),
    lambda g: g.commit(g.snapshot().commit_id),
    lambda g: g.branches.list(),
]
WRITES: dict[str, Callable[[Graph], Any]] = {
    "write": lambda g: g.write([Append(PERSON, person_rows("x"))]),
    "write of nothing": lambda g: g.write([]),
    "delete": lambda g: g.write([Delete(PERSON, ("ada",))]),
    "begin": lambda g: g.begin(),
    "branch create": lambda g: g.branches.create("new"),
    "branch delete": lambda g: g.branches.delete("side"),
}


def test_reading_a_graph_that_was_opened_read_only_writes_nothing(place: Place) -> None:
    writer = place.open()
    for number in range(40):  # past the number at which a writer leaves a hint
        writer.write([Upsert(PERSON, person_rows("ada", age=number))])
    assert writer.maintenance.settle(30.0)
    before = place.everything
    graph = omnigraph.open(place.uri, place.options, read_only=True)

    for read in READS:
        read(graph)

    assert place.everything == before


@pytest.mark.parametrize("verb", WRITES)
def test_a_graph_that_was_opened_read_only_refuses_every_write(place: Place, verb: str) -> None:
    before = place.everything
    graph = omnigraph.open(place.uri, place.options, read_only=True)

    with pytest.raises(ReadOnly) as raised:
        WRITES[verb](graph)

    one_sentence(raised.value, "read-only")
    assert (raised.value.code, raised.value.http_status) == ("forbidden", 403)
    assert place.everything == before


# No permission


class Limited:
    """A process that can be given less than usual."""

    def __init__(self) -> None:
        program = str(Path(__file__).with_name("limited.py"))
        self._process = subprocess.Popen(
            [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._answer() == "ready"

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended with {self._process.wait()}: {self._process.communicate()[1]}"
        return json.loads(line)

    def call(self, do: str, **order: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def try_to(self, verb: str, uri: Path | str) -> Any:
        return self.call("attempt", verb=verb, uri=str(uri))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def nobody() -> Iterator[Limited]:
    """A process that owns nothing."""
    process = Limited()
    process.call("limit", name="nobody")
    yield process
    process.end()


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    process = Limited()
    yield process
    process.end()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest's own they may not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


def refused(answer: Any, kind: str, code: str) -> None:
    assert answer.get("raised") == kind, answer
    assert answer["code"] == code
    message = answer["error"]
    assert "\n" not in message
    assert not re.search(r"[.!?] +[A-Z]", message), message


VERBS = ["append", "first rows of a type", "upsert", "delete", "branch create"]


def test_a_graph_that_may_not_be_read_is_denied(nobody: Limited, public_folder: Path) -> None:
    root = public_folder / "graph"
    Place(str(root), {})
    before = listing(root)
    for path in (root / STAMP, root):
        path.chmod(0o000)

    for verb in ("read", *VERBS, "init"):
        refused(nobody.try_to(verb, root), "AccessDenied", "forbidden")
    assert nobody.call("command", arguments=["snapshot", str(root)]) == 1

    for path in (root, root / STAMP):
        path.chmod(0o755)
    assert listing(root) == before


def test_a_graph_that_may_only_be_read_is_read_and_denies_writes(nobody: Limited, public_folder: Path) -> None:
    root = public_folder / "graph"
    Place(str(root), {})
    if os.geteuid() != 0:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
    before = listing(root)

    assert nobody.try_to("read", root) == {"answer": ["ada", "bob"]}
    for verb in VERBS:
        refused(nobody.try_to(verb, root), "AccessDenied", "forbidden")
    assert nobody.call("command", arguments=["branch", "create", "new", "--store", str(root)]) == 1

    assert listing(root) == before


def test_a_graph_is_not_made_where_nobody_may_write(nobody: Limited, public_folder: Path) -> None:
    (public_folder / "closed").mkdir(mode=0o555)

    refused(nobody.try_to("init", public_folder / "closed" / "graph"), "AccessDenied", "forbidden")

    assert list((public_folder / "closed").iterdir()) == []


DENIED = Answer(403, error_body("AccessDenied", "Access Denied"))


@pytest.mark.s3
def test_a_bucket_that_may_not_be_read_is_denied(s3_proxied: S3Location, proxy: Proxy) -> None:
    place = Place(s3_proxied.uri, s3_proxied.options)
    before = place.everything
    proxy.on(anything, DENIED, times=None)

    with pytest.raises(AccessDenied) as raised:
        place.open()

    one_sentence(raised.value, s3_proxied.bucket)
    proxy.reset()
    assert place.everything == before


@pytest.mark.s3
@pytest.mark.parametrize(
    ("refused_puts", "staged", "leaves_garbage"),
    [
        (puts(), True, False),
        (puts("__manifest"), True, True),
        (puts("tables"), True, False),
        (puts("__manifest"), False, False),
    ],
    ids=["every put", "the manifest", "the table files", "a small commit"],
)
def test_a_bucket_that_may_only_be_read_is_read_and_denies_writes(
    s3_proxied: S3Location, proxy: Proxy, refused_puts: Matcher, staged: bool, leaves_garbage: bool
) -> None:
    place = Place(s3_proxied.uri, s3_proxied.options)
    graph = place.open_staging() if staged else place.open()
    head, before = graph.snapshot().commit_id, place.everything
    proxy.on(refused_puts, DENIED, times=None)

    assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada", "bob"]
    writes: list[Callable[[], object]] = [
        lambda: graph.write([Append(PERSON, person_rows("zoe"))]),
        lambda: graph.write([Append(KNOWS, knows_rows(("ada", "bob")))]),
        lambda: graph.write([Delete(PERSON, ("ada",))], branch="side"),
    ]
    for write in writes:
        with pytest.raises(AccessDenied) as raised:
            write()
        one_sentence(raised.value, "denied access")

    proxy.reset()
    after = place.everything
    assert {key: after[key] for key in before} == before
    assert leaves_garbage or after == before
    assert {key.split("/")[0] for key in after.keys() - before.keys()} <= {"tables"}
    assert graph.snapshot().commit_id == head
    graph.write([Append(PERSON, person_rows("zoe"))])


# A full disk


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("bytes_max", [0, 400, 1_200])
def test_a_file_that_may_not_grow_is_a_full_disk(limited: Limited, tmp_path: Path, verb: str, bytes_max: int) -> None:
    """A limit on the size of files, which needs no privileges: somewhere on its way each write meets it."""
    root = tmp_path / "graph"
    place = Place(str(root), {"fsync": "false"})
    graph, before = place.open(), place.everything
    head, side = graph.snapshot().commit_id, graph.snapshot("side").commit_id
    limited.call("limit", name="file size", value=bytes_max)

    answer = limited.try_to(verb, root)

    limited.call("limit", name="file size")

    if "answer" not in answer:
        refused(answer, "StorageFull", "unavailable")
        assert graph.snapshot().commit_id == head
        assert limited.try_to("read", root) == {"answer": ["ada", "bob"]}
        after = place.everything
        assert {key: after[key] for key in before} == before
        assert all(key.startswith(("tables/", "__refs/new")) for key in after.keys() - before.keys())
    else:
        assert bytes_max > 400, "the manifest alone is larger"
    assert graph.snapshot("side").commit_id == side
    graph.write([Append(PERSON, person_rows("zoe"))], branch="side")
    graph.write([Append(PERSON, person_rows("zoe"))])
    assert graph.branches.list() in (["main", "side"], ["main", "new", "side"])


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, leave_bytes: int) -> Path:
    """A file that takes all the room but some; graphs that are open may be laying out files at this moment."""
    filler = disk / "filler"
    while True:
        status = os.statvfs(disk)
        try:
            filler.write_bytes(b"\0" * max(0, status.f_bavail * status.f_bsize - leave_bytes))
            return filler
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            filler.unlink()
            leave_bytes += 1024  # how much room is left is an estimate of the system's


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk; the limit on file sizes tests the same")
@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk(limited: Limited, tmp_path: Path, verb: str) -> None:
    """With a little more room each time: a write lands, or is refused and has changed nothing."""
    refusals = 0
    with small_disk(tmp_path / "disk", 2048) as disk:
        place = Place(str(disk / "graph"), {"fsync": "false"})  # so that no file laid out here gives its room back
        graph = place.open()
        for pages in range(0, 40, 2):
            before = place.everything
            head = graph.snapshot().commit_id
            filler = fill(disk, 4096 * pages)
            answer = limited.try_to(verb, place.uri)
            filler.unlink()
            if "answer" in answer:
                break
            refused(answer, "StorageFull", "unavailable")
            refusals += 1
            after = place.everything
            assert graph.snapshot().commit_id == head
            assert {key: after[key] for key in before} == before
            assert ids_of(graph.snapshot().to_arrow(PERSON)) == ["ada", "bob"]
        graph.write([Append(PERSON, person_rows("zoe"))], branch="side")
    assert refusals > 0
    assert "answer" in answer, "in the end there was room"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def listing(root: Path) -> Listing:
    """Every file and directory below a root, with its content."""
    return {
        str(path.relative_to(root)): "directory" if path.is_dir() else digest(path.read_bytes())
        for path in sorted(root.rglob("*"))
    }
