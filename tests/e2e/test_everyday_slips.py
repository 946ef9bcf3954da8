"""What a user does by mistake, or as nobody thought of: answered in one sentence, and nothing half done."""

import io
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import BadRequest, ConstraintViolation, OmnigraphError, PreconditionFailed
from omnigraph.graph.graph import Graph

SCHEMA = "node A { k: String @key  v: I32? }  edge R: A -> A"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "graph", SCHEMA)


def exported(graph: Graph) -> bytes:
    out = io.BytesIO()
    graph.export(out)
    return out.getvalue()


def test_a_key_may_be_the_empty_text_and_comes_back_from_an_export(graph: Graph, tmp_path: Path) -> None:
    nodes: list[dict[str, Any]] = [{"type": "A", "data": {"k": ""}}, {"type": "A", "data": {"k": "a"}}]
    graph.load([*nodes, {"edge": "R", "from": "", "to": "a"}])
    (tmp_path / "all.jsonl").write_bytes(exported(graph))

    again = omnigraph.init(tmp_path / "again", SCHEMA)
    again.load(tmp_path / "all.jsonl")

    assert exported(again) == exported(graph)


@pytest.mark.parametrize("line", ['{"type":"A","data":{"k":"b","k":"c"}}', '{"type":"A","type":"A","data":{"k":"b"}}'])
def test_a_name_given_twice_in_one_line_is_refused(graph: Graph, tmp_path: Path, line: str) -> None:
    (tmp_path / "twice.jsonl").write_text(line)

    with pytest.raises(OmnigraphError, match="given twice"):
        graph.load(tmp_path / "twice.jsonl")

    assert exported(graph) == b""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"edge":"R","from":"a","to":1}', "'to' is not text"),
        ('{"edge":"R","from":"a"}', "has no 'to'"),
        ('{"type":"A","data":{"k":"b","v":' + "1" * 5000 + "}}", "5000 digits"),
        ("[" * 100_000, "nests too deeply"),
    ],
)
def test_a_bad_line_is_reported_in_the_users_words(graph: Graph, tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "bad.jsonl").write_text(line)

    with pytest.raises(OmnigraphError, match=said):
        graph.load(tmp_path / "bad.jsonl")


def test_a_file_that_is_not_gzipped_says_so(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl.gz").write_text("no")

    with pytest.raises(BadRequest, match="is not gzipped"):
        graph.load(tmp_path / "plain.jsonl.gz")


def test_a_load_that_would_fail_on_the_fork_point_makes_no_branch(graph: Graph) -> None:
    row = [{"type": "A", "data": {"k": "a"}}]
    graph.load(row)

    with pytest.raises(ConstraintViolation):
        graph.load(row, branch="new", from_="main")
    with pytest.raises(PreconditionFailed):
        graph.load(row, mode="merge", branch="new", from_="main", if_commit="aaaaaaaaaaaaa.1")

    assert graph.branches.list() == ["main"]


@pytest.mark.parametrize("dest", [".", "/", ""])
def test_an_export_needs_the_name_of_a_file(graph: Graph, dest: str) -> None:
    with pytest.raises(BadRequest, match="not a file to write to"):
        graph.export(dest)


def test_no_parameters_may_be_none(graph: Graph) -> None:
    assert graph.query("query q() { match { $a: A } return { $a.k } }", params=None).rows == []


def test_a_query_that_is_no_text_is_refused(graph: Graph) -> None:
    with pytest.raises(BadRequest, match="A query is text"):
        graph.query(None)  # type: ignore[arg-type]
    with pytest.raises(BadRequest):
        graph.load(None)  # type: ignore[arg-type]
