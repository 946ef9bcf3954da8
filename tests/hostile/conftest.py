"""The target of the attacks: see siege.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import omnigraph
from hostile.siege import ROLES, Target
from support.server import QUICK, ServerProcess, token

SCHEMA = """\
node Person { slug: String @key  name: String?  age: I32?  text: String? }
edge Knows: Person -> Person { since: Date? }
"""
PEOPLE = 10_000
FRIENDS = 3


@pytest.fixture(scope="session")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph on which a query may take its time. Attacks don't change its main branch."""
    folder = tmp_path_factory.mktemp("hostile") / "graph"
    people = [
        {"type": "Person", "data": {"slug": f"p{n}", "name": f"Name {n}", "age": n % 90, "text": f"text {n} " * 8}}
        for n in range(PEOPLE)
    ]
    edges = [
        {"edge": "Knows", "from": f"p{n}", "to": f"p{(n * 7919 + step * 31) % PEOPLE}", "data": {}}
        for n in range(PEOPLE)
        for step in range(1, FRIENDS + 1)
    ]
    omnigraph.init(folder, SCHEMA, QUICK).load(people + edges)
    return folder


@contextmanager
def target_of(store: Path, folder: Path, *arguments: str, before: str = "", **env: str) -> Iterator[Target]:
    """A server for a graph, with these arguments of `omnigraph serve`, and variables of its environment.

    `before` is Python that runs in the process first. It has to end by SIGTERM, in time.
    """
    file = folder / "tokens.json"
    tokens = {role: token(file, role, *grants) for role, grants in ROLES.items()}
    spool = folder / "spool"
    spool.mkdir()
    command = ("--store", str(store), "--tokens", str(file), "--no-spark", "--grace", "5", *arguments)
    with ServerProcess(*command, env={"TMPDIR": str(spool), **env}, before=before) as process:
        assert process.url, process.log
        target = Target(process, tokens, store)
        yield target
        target.end()


@pytest.fixture
def target(large_store: Path, tmp_path: Path) -> Iterator[Target]:
    with target_of(large_store, tmp_path) as found:
        yield found
