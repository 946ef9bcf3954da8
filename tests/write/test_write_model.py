"""Random mutations against a graph and against a dict: the same rows, the same refusals, the same counts."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnigraph.errors import ConstraintViolation
from write.world import World, make_world

SCHEMA = """
node P { k: String @key  n: I32?  m: I32? @unique  @range(n, 0..3) }
edge E: P -> P @card(0..2) { w: I32? }
edge U: P -> P { @unique(src, dst) }
"""
KEYS = "abcd"
Node = dict[str, Any]


class Refused(Exception):
    pass


@dataclass
class Model:
    """The graph as dicts: nodes by key, edges as lists."""

    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[tuple[str, str, str, int | None]] = field(default_factory=list)  # type, from, to, w

    def copy(self) -> Model:
        return Model({key: dict(node) for key, node in self.nodes.items()}, list(self.edges))

    def apply(self, statements: list[tuple[Any, ...]]) -> Model:
        after = self.copy()
        for statement in statements:
            getattr(after, statement[0])(*statement[1:])
        after.check()
        return after

    def insert(self, key: str, values: dict[str, Any]) -> None:
        self.nodes.setdefault(key, {"n": None, "m": None}).update(values)

    def link(self, kind: str, source: str, target: str, w: int | None) -> None:
        self.edges.append((kind, source, target, w))

    def update(self, values: dict[str, Any], prop: str, wanted: Any) -> None:
        for key, node in self.nodes.items():
            if (key if prop == "k" else node[prop]) == wanted:
                node.update(values)

    def weigh(self, w: int, source: str) -> None:
        self.edges = [(k, s, t, w if k == "E" and s == source else old) for k, s, t, old in self.edges]

    def remove(self, prop: str, wanted: Any) -> None:
        gone = {key for key, node in self.nodes.items() if (key if prop == "k" else node[prop]) == wanted}
        self.nodes = {key: node for key, node in self.nodes.items() if key not in gone}
        self.edges = [edge for edge in self.edges if edge[1] not in gone and edge[2] not in gone]

    def unlink(self, kind: str, end: str, key: str) -> None:
        self.edges = [edge for edge in self.edges if not (edge[0] == kind and edge[1 if end == "from" else 2] == key)]

    def check(self) -> None:
        uniques = [node["m"] for node in self.nodes.values() if node["m"] is not None]
        pairs = [edge[1:3] for edge in self.edges if edge[0] == "U"]
        sources = [edge[1] for edge in self.edges if edge[0] == "E"]
        if (
            any(node["n"] is not None and not 0 <= node["n"] <= 3 for node in self.nodes.values())
            or len(set(uniques)) != len(uniques)
            or len(set(pairs)) != len(pairs)
            or any(sources.count(source) > 2 for source in sources)
            or any(end not in self.nodes for edge in self.edges for end in edge[1:3])
        ):
            raise Refused

    @property
    def state(self) -> Any:
        return sorted((key, node["n"], node["m"]) for key, node in self.nodes.items()), sorted(self.edges, key=repr)


def state(world: World) -> Any:
    nodes = sorted((row["id"], row["n"], row["m"]) for row in world.rows("P"))
    edges = [("E", row["src"], row["dst"], row["w"]) for row in world.rows("E")]
    edges += [("U", row["src"], row["dst"], None) for row in world.rows("U")]
    return nodes, sorted(edges, key=repr)


def text(statement: tuple[Any, ...]) -> str:
    def values(given: dict[str, Any]) -> str:
        return ", ".join(f"{name}: {'null' if value is None else value}" for name, value in given.items())

    def literal(value: Any) -> str:
        return f'"{value}"' if isinstance(value, str) else str(value)

    match statement:
        case ("insert", key, given):
            return f'insert P {{ k: "{key}"{", " if given else ""}{values(given)} }}'
        case ("link", kind, source, target, w):
            more = f", w: {w}" if kind == "E" and w is not None else ""
            return f'insert {kind} {{ from: "{source}", to: "{target}"{more} }}'
        case ("update", given, prop, wanted):
            return f"update P set {{ {values(given)} }} where {prop} = {literal(wanted)}"
        case ("weigh", w, source):
            return f'update E set {{ w: {w} }} where from = "{source}"'
        case ("remove", prop, wanted):
            return f"delete P where {prop} = {literal(wanted)}"
        case ("unlink", kind, end, key):
            return f'delete {kind} where {end} = "{key}"'
    raise AssertionError(statement)


KEY = st.sampled_from(KEYS)
NUMBER = st.integers(0, 4)
GIVEN = st.fixed_dictionaries({}, optional={"n": NUMBER, "m": NUMBER})
SOME = GIVEN.filter(bool)
WHERE = st.tuples(st.just("k"), KEY) | st.tuples(st.sampled_from(["n", "m"]), NUMBER)
WRITES = st.one_of(
    st.tuples(st.just("insert"), KEY, GIVEN),
    st.tuples(st.just("insert"), KEY, GIVEN),
    st.tuples(st.just("link"), st.just("E"), KEY, KEY, st.none() | NUMBER),
    st.tuples(st.just("link"), st.just("U"), KEY, KEY, st.none()),
    st.tuples(st.just("update"), SOME, WHERE).map(lambda one: (one[0], one[1], *one[2])),
    st.tuples(st.just("weigh"), NUMBER, KEY),
)
DELETES = st.one_of(
    WHERE.map(lambda where: ("remove", *where)),
    st.tuples(st.just("unlink"), st.sampled_from("EU"), st.sampled_from(["from", "to"]), KEY),
)
MUTATION = st.lists(WRITES, min_size=1, max_size=4) | st.lists(DELETES, min_size=1, max_size=2)
START: list[tuple[Any, ...]] = [("insert", key, {}) for key in KEYS]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MUTATION, min_size=4, max_size=10))
def test_mutations_do_to_the_graph_what_they_do_to_a_dict(mutations: list[list[tuple[Any, ...]]]) -> None:
    follow(mutations)


@pytest.mark.soak
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MUTATION, min_size=4, max_size=10))
def test_hundreds_of_other_histories_do_too(mutations: list[list[tuple[Any, ...]]]) -> None:
    follow(mutations)


def follow(mutations: list[list[tuple[Any, ...]]]) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        world, model = make_world(folder / "graph", SCHEMA), Model()
        for statements in [START, *mutations]:
            model = step(world, model, statements)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def step(world: World, model: Model, statements: list[tuple[Any, ...]]) -> Model:
    body = "\n".join(text(statement) for statement in statements)
    before = world.head
    try:
        after: Model | None = model.apply(statements)
    except Refused:
        after = None
    try:
        commit = world.mutate(body)
    except ConstraintViolation:
        assert after is None, body
        assert (world.head, state(world)) == (before, model.state)
        return model
    assert after is not None, f"it should have been refused: {body}"
    assert state(world) == after.state, body
    assert (commit is None) == (after.state == model.state), body
    if commit is not None:
        counts = commit.touched.get("node:P", {})
        assert counts.get("inserted", 0) == len(after.nodes.keys() - model.nodes.keys())
        assert counts.get("deleted", 0) == len(model.nodes.keys() - after.nodes.keys())
        both = after.nodes.keys() & model.nodes.keys()
        assert counts.get("updated", 0) == sum(after.nodes[key] != model.nodes[key] for key in both)
    return after
