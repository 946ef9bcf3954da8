"""The path of a one-row mutation through the source, from the call to the put, is short and described."""

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pytest

import omnigraph
from omnigraph import Graph

SOURCE = Path(omnigraph.__file__).parent

SCHEMA = """
node Person { slug: String @key  name: String  age: I32? }
"""
ADD = "query add($slug: String, $name: String) { insert Person { slug: $slug, name: $name } }"

FILES_MAX = 34
CALLERS_MAX = 25  # files that call on into another file; the others are where the path ends


@dataclass
class MutationPath:
    """The files whose code ran, those that each calls, and nested functions that ran for another file."""

    calls: dict[str, set[str]] = field(default_factory=dict)
    called_back: list[str] = field(default_factory=list)

    def on_event(self, frame: FrameType, event: str, _: object) -> None:
        name = _file(frame)
        if event != "call" or name is None:
            return
        self.calls.setdefault(name, set())
        caller = next((one for one in map(_file, _outer(frame)) if one is not None), None)
        if caller is None or caller == name:
            return
        self.calls.setdefault(caller, set()).add(name)
        if frame.f_code.co_flags & inspect.CO_NESTED:
            self.called_back.append(f"{name}: {frame.f_code.co_qualname}, by {caller}")

    @property
    def callers(self) -> list[str]:
        return [name for name, others in self.calls.items() if others]

    def __str__(self) -> str:
        return "\n".join(f"{name} -> {', '.join(sorted(others)) or '-'}" for name, others in self.calls.items())


def _file(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else None


def _outer(frame: FrameType) -> Iterator[FrameType]:
    while (outer := frame.f_back) is not None:
        yield outer
        frame = outer


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> MutationPath:
    """From a process of its own, in which no other test has subscribed to anything."""
    command = [sys.executable, __file__, str(tmp_path_factory.mktemp("path") / "g")]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return MutationPath({name: set(others) for name, others in found["calls"].items()}, found["called_back"])


def trace(uri: str) -> MutationPath:
    """The path of the fourth insert of a keyed node: what is read or compiled once is known by then."""
    graph: Graph = omnigraph.init(uri, schema=SCHEMA)
    for slug in ("a", "b", "c"):
        graph.mutate(ADD, "add", {"slug": slug, "name": "x"})
    path = MutationPath()
    sys.setprofile(path.on_event)
    graph.mutate(ADD, "add", {"slug": "d", "name": "x"})
    sys.setprofile(None)
    return path


def test_a_one_row_mutation_runs_code_in_few_files(path: MutationPath) -> None:
    assert len(path.calls) <= FILES_MAX, f"{len(path.calls)} files:\n{path}"


def test_a_one_row_mutation_is_passed_on_between_at_most_25_files(path: MutationPath) -> None:
    assert len(path.callers) <= CALLERS_MAX, f"{len(path.callers)} files call on into another:\n{path}"


def test_a_one_row_mutation_passes_no_closure_to_another_file(path: MutationPath) -> None:
    assert not path.called_back


def test_the_architecture_document_names_every_file_that_passes_a_one_row_mutation_on(path: MutationPath) -> None:
    text = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    section = text.partition("## A one-row mutation")[2].partition("\n## ")[0]
    assert [name for name in path.callers if f"`{name}`" not in section] == []


if __name__ == "__main__":
    traced = trace(sys.argv[1])
    calls = {name: sorted(others) for name, others in traced.calls.items()}
    print(json.dumps({"calls": calls, "called_back": traced.called_back}))
