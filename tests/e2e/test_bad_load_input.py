"""Input that can't be loaded: one sentence that names the thing and the remedy, and the graph is what it was.

Each case goes through the command line and through Python, loaded in one process, in bulk, and a few on Spark.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.cli.main import main as command_line
from omnigraph.errors import (
    BadRequest,
    ConstraintViolation,
    InvalidInput,
    JobInputDiffers,
    NotFound,
    OmnigraphError,
    Unavailable,
)
from omnigraph.graph.graph import Graph
from omnigraph.manifest.model.paths import RECOVERY, intent_key
from omnigraph.pipeline.spark.session import SparkSessionHandle
from support.s3 import S3Location

SCHEMA = """
node Person {
    slug: String @key
    name: String
    age:  I32?
    @range(age, 0..150)
}
node Company { name: String @key }
edge Knows: Person -> Person { since: Date? }
"""
LONG = 50_000_000


def person(slug: str, **more: Any) -> str:
    return json.dumps({"type": "Person", "data": {"slug": slug, "name": slug} | more}, ensure_ascii=False) + "\n"


def text_of(*slugs: str) -> bytes:
    return "".join(map(person, slugs)).encode()


def table(folder: Path, filename: str, /, **columns: Any) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), folder / filename)
    return filename


def file(folder: Path, name: str, content: bytes) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return name


def cut_parquet(folder: Path) -> str:
    name = table(folder, "Person.parquet", slug=[f"p{number}" for number in range(1000)], name=["x"] * 1000)
    whole = (folder / name).read_bytes()
    return file(folder, name, whole[: len(whole) // 2])


def half(packed: bytes) -> bytes:
    return packed[: len(packed) // 2]


def with_a_link_to_nowhere(folder: Path) -> str:
    file(folder, "part-1.jsonl", text_of("x"))
    (folder / "part-2.jsonl").symlink_to(folder / "gone.jsonl")
    return "part-*.jsonl"


def with_an_empty_folder(folder: Path) -> str:
    (folder / "empty").mkdir()
    file(folder, "empty/.hidden.jsonl", text_of("x"))
    file(folder, "empty/notes.txt", b"x")
    return "empty"


@dataclass(frozen=True)
class Case:
    """What is loaded, how it is refused, and what the sentence says."""

    make: Callable[[Path], str | list[str]]
    kind: type[OmnigraphError]
    said: tuple[str, ...]
    type_name: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


CASES: dict[str, Case] = {
    "an unknown property": Case(
        lambda at: file(at, "a.jsonl", text_of("x") + person("y", colour="red").encode()),
        InvalidInput,
        ("a.jsonl line 2", "Person has no property 'colour'", "its properties are slug, name, age"),
    ),
    "an unknown column of CSV": Case(
        lambda at: file(at, "Person.csv", b"slug,name,colour\nx,X,red\n"),
        BadRequest,
        ("Person.csv has a column 'colour', which is unknown in Person", "its columns are id, slug, name, age"),
    ),
    "an unknown column of Parquet": Case(
        lambda at: table(at, "Person.parquet", slug=["x"], name=["X"], colour=["red"]),
        BadRequest,
        ("Person.parquet has a column 'colour', which is unknown in Person", "its columns are id, slug, name, age"),
    ),
    "a wrong type": Case(
        lambda at: file(at, "a.jsonl", text_of("x") + person("y", age="old").encode()),
        ConstraintViolation,
        ("a.jsonl line 2", "Person 'y' has a bad age", '"old" is not an integer', "give a number from"),
    ),
    "a wrong type in CSV": Case(
        lambda at: file(at, "Person.csv", b"slug,name,age\nx,X,1\ny,Y,1.5\n"),
        ConstraintViolation,
        ("Person.csv line 3", "Person 'y' has a bad age", '"1.5" is not an integer', "give a number from"),
    ),
    "a wrong type of a column of Parquet": Case(
        lambda at: table(at, "Person.parquet", slug=["x"], name=["X"], age=[1.5]),
        BadRequest,
        ("Person.parquet has double in the column 'age'", "Person.age is I32", "cast the column"),
    ),
    "a file of a list that is missing": Case(
        lambda at: [file(at, "a.jsonl", text_of("x")), "missing.jsonl"],
        BadRequest,
        ("missing.jsonl does not exist", "check the path"),
    ),
    "a glob that matches nothing": Case(
        lambda at: [file(at, "a.jsonl", text_of("x")), "no-*.jsonl"],
        BadRequest,
        ("no-*.jsonl matches no file", "check the pattern"),
    ),
    "a file of a glob that is missing": Case(
        with_a_link_to_nowhere,
        BadRequest,
        ("part-2.jsonl, which ", "part-*.jsonl matches, can't be read", "check the path"),
    ),
    "a scheme that nobody knows": Case(
        lambda at: "ftp://host/a.jsonl",
        BadRequest,
        ("ftp://host/a.jsonl has the unknown scheme 'ftp'", "use a path, file://, s3://, gs:// or az://"),
    ),
    "a gzipped file that is cut off": Case(
        lambda at: file(at, "a.jsonl.gz", half(gzip.compress(text_of(*(f"g{number}" for number in range(3000)))))),
        BadRequest,
        ("a.jsonl.gz is cut off", "give a whole file"),
    ),
    "gzipped CSV that is cut off": Case(
        lambda at: file(
            at, "Company.csv.gz", half(gzip.compress(b"name\n" + b"".join(b"c%d\n" % n for n in range(3000))))
        ),
        BadRequest,
        ("Company.csv.gz is cut off", "give a whole file"),
    ),
    "a file that is not gzipped": Case(
        lambda at: file(at, "a.jsonl.gz", text_of("x")),
        BadRequest,
        ("a.jsonl.gz is not gzipped", "gzip it, or name it without .gz"),
    ),
    "mixed encodings": Case(
        lambda at: file(at, "a.jsonl", text_of("x", "zoë") + person("zoé").encode("latin-1")),
        InvalidInput,
        ("a.jsonl line 3", "the line is not UTF-8", "write it in that encoding"),
    ),
    "mixed encodings of CSV": Case(
        lambda at: file(at, "Company.csv", "name\nzoë\n".encode() + "zoé\n".encode("latin-1")),
        InvalidInput,
        ("Company.csv line 3", "the line is not UTF-8", "write it in that encoding"),
    ),
    "another encoding": Case(
        lambda at: file(at, "Company.csv", "name\nx\n".encode("utf-16")),
        BadRequest,
        ("Company.csv does not begin with a header", "the line is not UTF-8"),
    ),
    "a line of 50 MB": Case(
        lambda at: file(at, "a.jsonl", text_of("x") + person("long", name="x" * LONG).encode() + text_of("y")),
        InvalidInput,
        ("a.jsonl line 2", "the line is longer than 16 MiB", "check that lines end where they should"),
    ),
    "a line of CSV of 50 MB": Case(
        lambda at: file(at, "Company.csv", b"name\nx\n" + b"y" * LONG + b"\nz\n"),
        InvalidInput,
        ("Company.csv line 3", "the line is longer than 16 MiB", "check that lines end where they should"),
    ),
    "an empty directory": Case(
        with_an_empty_folder,
        BadRequest,
        ("empty has no .jsonl", "or .parquet file"),
    ),
    "CSV without a header": Case(
        lambda at: file(at, "people.csv", b"x,X,5\ny,Y,6\n"),
        BadRequest,
        ("people.csv has a column 'x', which is unknown in Person", "the first line must be a header"),
        type_name="Person",
    ),
    "CSV without a line": Case(
        lambda at: file(at, "people.csv", b""),
        BadRequest,
        ("people.csv is empty", "the first line of CSV names the columns"),
        type_name="Person",
    ),
    "edges of CSV without ends": Case(
        lambda at: file(at, "Knows.csv", b"since\n2020-01-31\n"),
        BadRequest,
        ("Knows.csv has no column 'from', but Knows is an edge type", "its columns are id, from, to, since"),
    ),
    "a type that is not there": Case(
        lambda at: file(at, "people.csv", b"slug,name\nx,X\n"),
        BadRequest,
        ("The schema has no type 'Persn'", "its types are Company, Knows, Person"),
        "Persn",
    ),
    "a line of a type that is not there": Case(
        lambda at: file(at, "a.jsonl", b'{"type": "Persn", "data": {"slug": "x"}}\n'),
        InvalidInput,
        ("a.jsonl line 1", "the schema has no type 'Persn'", "see `schema show`"),
    ),
    "CSV whose type nobody says": Case(
        lambda at: file(at, "people.csv", b"slug,name\nx,X\n"),
        BadRequest,
        ("The type of the rows of people.csv is unknown", "give it (--type"),
    ),
    "a type for lines that say theirs": Case(
        lambda at: file(at, "a.jsonl", text_of("x")),
        BadRequest,
        ("every line of a.jsonl names its type", "load it without --type"),
        "Person",
    ),
    "Parquet that is none": Case(
        lambda at: file(at, "Person.parquet", b"slug,name\nx,X\n" * 10),
        BadRequest,
        ("Person.parquet can't be read as Parquet", "give a whole file"),
    ),
    "Parquet that is cut off": Case(
        cut_parquet,
        BadRequest,
        ("Person.parquet can't be read as Parquet", "give a whole file"),
    ),
    "a file of no kind": Case(
        lambda at: file(at, "people.txt", text_of("x")),
        BadRequest,
        ("people.txt is not of a kind that can be loaded", "give .jsonl"),
    ),
    "no JSON": Case(
        lambda at: file(at, "a.jsonl", text_of("x") + b'{"type": "Person",\n'),
        InvalidInput,
        ("a.jsonl line 2", "the line is not JSON", "write one entity a line"),
    ),
    "more misformed rows than allowed": Case(
        lambda at: file(at, "a.jsonl", text_of("x") + b"{\n" + person("y", age=200).encode() + b"[]\n"),
        InvalidInput,
        ("a.jsonl line 2", "the line is not JSON", "2 more bad lines", "max_errors allows 1"),
        options={"on_error": "quarantine", "max_errors": 1},
    ),
    "more rows that break constraints than allowed": Case(
        lambda at: file(at, "a.jsonl", text_of("x") + (person("y", age=200) + person("z", age=-1)).encode()),
        ConstraintViolation,
        ("a.jsonl line 2", "age 200, outside 0..150", "give a value within the range", "max_errors allows 1"),
        options={"on_error": "quarantine", "max_errors": 1},
    ),
}
ON_SPARK = [
    "an unknown property",
    "an unknown column of Parquet",
    "a wrong type in CSV",
    "a file of a glob that is missing",
    "a gzipped file that is cut off",
    "mixed encodings",
    "a line of 50 MB",
    "CSV without a header",
    "Parquet that is cut off",
    "more misformed rows than allowed",
]
WAYS: dict[str, dict[str, Any]] = {
    "local": {"engine": "local"},
    "bulk": {"engine": "local", "job_id": "nightly"},
    "spark": {"engine": "spark"},
}


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    graph.load([json.loads(person("ada"))])
    return graph


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the input lies: loaded from there, as a user does."""
    monkeypatch.delenv("OMNIGRAPH_STORE", raising=False)
    (tmp_path / "input").mkdir()
    monkeypatch.chdir(tmp_path / "input")
    return tmp_path / "input"


@dataclass
class Before:
    """The graph as it was."""

    graph: Graph
    folder: Path

    def __post_init__(self) -> None:
        self._commits = [commit.id for commit in self.graph.commits()]
        self._stored = self._keys()
        self._files = sorted(self.folder.rglob("*"))

    def holds(self) -> None:
        """The same commits; new files are nobody's, and none is kept to go on with; no file of rejected rows."""
        now = omnigraph.open(self.graph.repository.location.uri)
        assert [commit.id for commit in now.commits()] == self._commits
        assert self._stored <= self._keys()
        new = {key.split("/")[0] for key in self._keys() - self._stored}
        assert new <= {"tables"}
        assert sorted(self.folder.rglob("*")) == self._files

    def _keys(self) -> set[str]:
        """But for the store's clock, and for the objects of jobs that have ended, which say nothing else."""
        repository = self.graph.repository
        every = {entry.key for entry in repository.store.list("")}
        ended = {intent_key(seen.intent.txn_id) for seen in repository.intents.list() if seen.ended}
        return {key for key in every - ended if not key.startswith(f"{RECOVERY}/_")}


def one_sentence(message: str, *said: str) -> None:
    for part in said:
        assert part in message, message
    assert "\n" not in message, message
    assert message.endswith("."), message
    assert not re.search(r"[.!?]\)? +[A-Z]", message), f"more than one sentence: {message}"
    assert len(message) < 500, message
    assert "Traceback" not in message


def shown_by_the_command_line(*arguments: str) -> tuple[int, str]:
    """The exit code and the error's line; what follows it are further problems."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = command_line(arguments)
    assert out.getvalue() == ""
    first, *more = err.getvalue().splitlines()
    assert first.startswith("error: "), first
    assert all(line.startswith("  ") for line in more), more
    return code, first.removeprefix("error: ")


def arguments_for(options: dict[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        yield f"--{name.replace('_', '-')}"
        yield str(value)


def refused(graph: Graph, folder: Path, case: Case, way: dict[str, Any]) -> None:
    """The case through Python and the command line: the same error, and nothing changed."""
    made = case.make(folder)
    sources = [made] if isinstance(made, str) else made
    before = Before(graph, folder)
    options = way | case.options

    with pytest.raises(case.kind) as raised:
        graph.load(sources, type=case.type_name, **options)

    assert type(raised.value) is case.kind
    one_sentence(str(raised.value), *case.said)
    before.holds()
    typed = [] if case.type_name is None else ["--type", case.type_name]
    data = [part for source in sources for part in ("--data", source)]
    place = str(graph.repository.location.uri)
    code, line = shown_by_the_command_line("load", *data, *typed, *arguments_for(options), "--store", place)
    assert (code, line) == (raised.value.exit_code, str(raised.value))
    assert code != 0
    before.holds()


@pytest.mark.parametrize("way", ["local", "bulk"])
@pytest.mark.parametrize("what", CASES)
def test_bad_input_is_one_sentence_and_changes_nothing(graph: Graph, folder: Path, what: str, way: str) -> None:
    refused(graph, folder, CASES[what], WAYS[way])


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("what", ON_SPARK)
def test_on_spark_it_is_the_same_sentence(
    graph: Graph, folder: Path, spark_session: SparkSessionHandle, what: str
) -> None:
    assert spark_session.spark is not None  # running: the command finds and leaves it
    refused(graph, folder, CASES[what], WAYS["spark"])


# Stores that can't be read.


@pytest.fixture
def environment(s3: S3Location, monkeypatch: pytest.MonkeyPatch) -> S3Location:
    """The graph is on a local disk: how its input's store is reached, the environment says."""
    monkeypatch.setenv("AWS_ENDPOINT", s3.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", s3.options["aws_region"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.options["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.options["aws_secret_access_key"])
    return s3


@pytest.mark.s3
@pytest.mark.parametrize("way", ["local", "bulk"])
@pytest.mark.parametrize("key", ["a.jsonl", "*.jsonl", "folder/"])
def test_a_bucket_that_does_not_exist(graph: Graph, folder: Path, environment: S3Location, key: str, way: str) -> None:
    said = ("The bucket 'no-such-bucket' does not exist", "check the URI and the endpoint")
    refused(graph, folder, Case(lambda _: f"s3://no-such-bucket/{key}", NotFound, said), WAYS[way])


@pytest.mark.s3
@pytest.mark.parametrize("way", ["local", "bulk"])
@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("a.jsonl", "does not exist: check the URI"),
        ("*.jsonl", "matches no object: check the pattern"),
        ("folder/", "does not exist: check the URI"),
    ],
)
def test_a_bucket_that_has_no_such_file(
    graph: Graph, folder: Path, environment: S3Location, key: str, said: str, way: str
) -> None:
    uri = f"s3://{environment.bucket}/{key}"
    refused(graph, folder, Case(lambda _: uri, BadRequest, (f"{uri} {said}",)), WAYS[way])


@pytest.mark.s3
@pytest.mark.parametrize("way", ["local", "bulk"])
def test_a_store_where_nobody_answers(
    graph: Graph, folder: Path, environment: S3Location, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")
    said = ("The store did not serve a.jsonl", "http://127.0.0.1:9", "try again later")
    refused(graph, folder, Case(lambda _: "s3://bucket/a.jsonl", Unavailable, said), WAYS[way])


# A job id for two inputs.


def test_a_job_that_was_begun_with_another_input_is_refused(
    graph: Graph, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnigraph.pipeline.bulk.load.stage_split", _stopped)
    with pytest.raises(KeyboardInterrupt):
        graph.load(file(folder, "first.jsonl", text_of("x")), **WAYS["bulk"])
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    commits = [commit.id for commit in graph.commits()]
    given = file(folder, "other.jsonl", text_of("y"))

    with pytest.raises(BadRequest) as raised:
        graph.load(given, **WAYS["bulk"])

    one_sentence(str(raised.value), "The job nightly was begun with another input", "take another job id")
    place = str(graph.repository.location.uri)
    told = shown_by_the_command_line("load", "--data", given, *arguments_for(WAYS["bulk"]), "--store", place)
    assert told == (1, str(raised.value))
    assert [commit.id for commit in graph.commits()] == commits
    assert graph.load("first.jsonl", **WAYS["bulk"]).counts == {"Person": 1}  # it can still be gone on with


def _stopped(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_job_that_is_committed_says_so_to_another_input(graph: Graph, folder: Path) -> None:
    graph.load(file(folder, "first.jsonl", text_of("x")), **WAYS["bulk"])
    before = Before(graph, folder)
    other = folder.parent / "other.jsonl"
    other.write_bytes(text_of("y"))

    with pytest.raises(JobInputDiffers) as refused:
        graph.load(str(other), **WAYS["bulk"])

    one_sentence(str(refused.value), "The job nightly was loaded with another input", "nothing was written")
    before.holds()
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = command_line(
            ["load", "--data", str(other), *arguments_for(WAYS["bulk"]), "--store", str(graph.repository.location.uri)]
        )
    assert (code, err.getvalue().strip()) == (refused.value.exit_code, f"error: {refused.value}")
    before.holds()


@pytest.mark.parametrize("job_id", ["", "a b", "../x", "x" * 101])
def test_a_job_id_that_is_none(graph: Graph, folder: Path, job_id: str) -> None:
    way = {"engine": "local", "job_id": job_id}
    case = Case(lambda at: file(at, "a.jsonl", text_of("x")), BadRequest, ("can't be a job id", "letters, digits"))
    refused(graph, folder, case, way)


# No Java.

WITHOUT_JAVA = """
import sys
from pathlib import Path
from omnigraph.cli.main import main
from omnigraph.pipeline.spark import launch as java
java.SYSTEM_HOMES = Path("/nowhere")  # where a system keeps them; this one may have some
sys.prefix = "/nowhere"
sys.exit(main(sys.argv[1:]))
"""


def test_without_java_the_spark_engine_says_what_to_install(graph: Graph, folder: Path) -> None:
    given = file(folder, "a.jsonl", text_of("x"))
    before = Before(graph, folder)
    place = str(graph.repository.location.uri)

    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAVA, "load", "--data", given, "--engine", "spark", "--store", place],
        env=os.environ | {"JAVA_HOME": "/nowhere", "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (run.returncode, run.stdout) == (1, "")
    [line] = run.stderr.splitlines()
    one_sentence(line, "Spark needs Java 17 or newer and no Java was found", "install one", "or use engine local")
    before.holds()
