"""Random schemas one after another, with rows written in between, against a model of plain dicts.

After every step the newest state and every older commit must be exactly what the model remembers of them.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import omnigraph
from omnigraph.errors import ConstraintViolation, SchemaChangeRefused
from omnigraph.graph.graph import Graph

EXAMPLES, EXAMPLES_SOAK = 8, 150
NAMES = ("p", "q", "r", "s")
TYPES = ("A", "B", "C")
DEFAULTS: dict[str, list[Any]] = {
    "I32": [0, 7],
    "I64": [5_000_000_000],
    "String": ["", "x"],
    "F32": [0.5],
    "F64": [0.1],
}
VALUES: dict[str, list[Any]] = {
    "I32": [1, -2],
    "I64": [3, 2**40],
    "String": ["u", "it's"],
    "F32": [0.25, -1.5],
    "F64": [0.3, 1.0],
}
WIDER = {"I32": "I64", "F32": "F64"}


@dataclass(frozen=True)
class Prop:
    name: str
    kind: str
    nullable: bool = True
    default: Any = None
    unique: bool = False
    was: str | None = None

    def text(self) -> str:
        parts = [f"{self.name}: {self.kind}{'?' if self.nullable else ''}"]
        parts += [f"@default({json.dumps(self.default)})"] if self.default is not None else []
        parts += ["@unique"] if self.unique else []
        parts += [f'@rename_from("{self.was}")'] if self.was else []
        return " ".join(parts)


@dataclass(frozen=True)
class Node:
    name: str
    props: tuple[Prop, ...] = ()
    was: str | None = None

    def text(self) -> str:
        renamed = f' @rename_from("{self.was}")' if self.was else ""
        return f"node {self.name}{renamed} {{ k: String @key {' '.join(prop.text() for prop in self.props)} }}"


Rows = dict[str, dict[str, Any]]  # by id


@dataclass
class State:
    """Types by name with their rows; a row has exactly the properties of its type."""

    nodes: dict[str, Node] = field(default_factory=dict)
    rows: dict[str, Rows] = field(default_factory=dict)

    def copy(self) -> State:
        return State(
            dict(self.nodes), {name: {k: dict(row) for k, row in rows.items()} for name, rows in self.rows.items()}
        )

    def settled(self) -> State:
        """Without the renames, which have been carried out."""
        nodes = {
            name: replace(node, was=None, props=tuple(replace(prop, was=None) for prop in node.props))
            for name, node in self.nodes.items()
        }
        return State(nodes, self.rows)


def broken(state: State) -> bool:
    """Whether rows break a rule of their type."""
    for name, node in state.nodes.items():
        for prop in node.props:
            values = [row[prop.name] for row in state.rows[name].values()]
            if not prop.nullable and None in values:
                return True
            given = [value for value in values if value is not None]
            if prop.unique and len(set(given)) != len(given):
                return True
    return False


class SchemasOverTime(RuleBasedStateMachine):
    graph: Graph

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.state = State({"A": Node("A", (Prop("p", "I32"),))}, {"A": {}})
        self.graph = omnigraph.init(f"{self.folder.name}/graph", self.schema(self.state), {"fsync": "false"})
        self.past: dict[str, State] = {}
        self.carried_out: set[tuple[str, str, str]] = set()
        self.number = 0

    def teardown(self) -> None:
        self.folder.cleanup()

    # Rows

    @rule(data=st.data(), count=st.integers(1, 3))
    def insert(self, data: st.DataObject, count: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.state.nodes)))
        node, after, entities = self.state.nodes[name], self.state.copy(), []
        for _ in range(count):
            self.number += 1
            row: dict[str, Any] = {"k": f"k{self.number}"}
            for prop in node.props:
                row[prop.name] = data.draw(st.sampled_from([*VALUES[prop.kind], *([None] if prop.nullable else [])]))
            after.rows[name][row["k"]] = row
            entities.append({"type": name, "data": row})
        self.write(lambda: self.graph.load(entities), after)

    @precondition(lambda self: any(self.state.rows.values()))
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, rows in self.state.rows.items() if rows)))
        props = self.state.nodes[name].props
        if not props:
            return
        entity = data.draw(st.sampled_from(sorted(self.state.rows[name])))
        prop = data.draw(st.sampled_from(props))
        value = data.draw(st.sampled_from(VALUES[prop.kind]))
        after = self.state.copy()
        after.rows[name][entity][prop.name] = value
        load = [{"type": name, "data": {"k": entity, prop.name: value}}]
        self.write(lambda: self.graph.load(load, mode="merge"), after)

    @precondition(lambda self: any(self.state.rows.values()))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, rows in self.state.rows.items() if rows)))
        entity = data.draw(st.sampled_from(sorted(self.state.rows[name])))
        after = self.state.copy()
        del after.rows[name][entity]
        self.write(lambda: self.graph.mutate(f'query q() {{ delete {name} where k = "{entity}" }}'), after)

    # Schemas

    @rule(name=st.sampled_from(TYPES))
    def add_type(self, name: str) -> None:
        if name not in self.state.nodes:
            after = self.state.copy()
            after.nodes[name], after.rows[name] = Node(name), {}
            self.apply(after)

    @precondition(lambda self: len(self.state.nodes) > 1)
    @rule(data=st.data())
    def drop_type(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.state.nodes)))
        after = self.state.copy()
        del after.nodes[name], after.rows[name]
        self.apply(after)

    @rule(data=st.data(), new=st.sampled_from(TYPES))
    def rename_type(self, data: st.DataObject, new: str) -> None:
        old = data.draw(st.sampled_from(sorted(self.state.nodes)))
        if new in self.state.nodes and new != old:  # they swap
            names = {old: new, new: old}
        elif new == old:
            return
        else:
            names = {old: new}
        after = State()
        for name, node in self.state.nodes.items():
            now = names.get(name, name)
            after.nodes[now] = replace(node, name=now, was=name if now != name else None)
            after.rows[now] = self.state.rows[name]
        self.apply(after.copy())

    @rule(data=st.data(), name=st.sampled_from(NAMES), nullable=st.booleans(), unique=st.booleans())
    def add_property(self, data: st.DataObject, name: str, nullable: bool, unique: bool) -> None:
        node = data.draw(st.sampled_from(sorted(self.state.nodes.values(), key=lambda node: node.name)))
        if any(prop.name == name for prop in node.props):
            return
        kind = data.draw(st.sampled_from(sorted(VALUES)))
        default = data.draw(st.sampled_from([None, *DEFAULTS[kind]]))
        prop = Prop(name, kind, nullable, default, unique and kind != "F32")
        after = self.state.copy()
        for row in after.rows[node.name].values():
            row[name] = default
        self.change(after, node, (*node.props, prop))

    @rule(data=st.data(), physical=st.booleans())
    def drop_property(self, data: st.DataObject, physical: bool) -> None:
        node, prop = self.drawn(data)
        if prop is None:
            return
        after = self.state.copy()
        for row in after.rows[node.name].values():
            del row[prop.name]
        self.change(after, node, tuple(one for one in node.props if one is not prop), allow_data_loss=physical)

    @rule(data=st.data(), new=st.sampled_from(NAMES))
    def rename_property(self, data: st.DataObject, new: str) -> None:
        node, prop = self.drawn(data)
        if prop is None or prop.name == new:
            return
        names = {prop.name: new}
        if any(one.name == new for one in node.props):
            names[new] = prop.name
        props = tuple(
            replace(one, name=names.get(one.name, one.name), was=one.name if one.name in names else None)
            for one in node.props
        )
        after = self.state.copy()
        after.rows[node.name] = {
            entity: {names.get(name, name): value for name, value in row.items()}
            for entity, row in after.rows[node.name].items()
        }
        self.change(after, node, props)

    @rule(data=st.data(), unique=st.booleans(), nullable=st.booleans(), widen=st.booleans())
    def change_property(self, data: st.DataObject, unique: bool, nullable: bool, widen: bool) -> None:
        node, prop = self.drawn(data)
        if prop is None:
            return
        kind = WIDER.get(prop.kind, prop.kind) if widen else prop.kind
        default = None if kind != prop.kind else prop.default
        changed = replace(prop, kind=kind, nullable=nullable, unique=unique, default=default)
        self.change(self.state.copy(), node, tuple(changed if one is prop else one for one in node.props))

    # How a step is taken

    def drawn(self, data: st.DataObject) -> tuple[Node, Prop | None]:
        node = data.draw(st.sampled_from(sorted(self.state.nodes.values(), key=lambda node: node.name)))
        return node, data.draw(st.sampled_from(node.props)) if node.props else None

    def change(self, after: State, node: Node, props: tuple[Prop, ...], **options: Any) -> None:
        after.nodes[node.name] = replace(node, props=props)
        self.apply(after, **options)

    def apply(self, after: State, **options: Any) -> None:
        if renames(after) & self.carried_out:
            return  # a circle of names that stands in the text already is not gone round again
        text = self.schema(after)
        plan = self.graph.schema.plan(text)
        assert plan.supported != broken(after), text
        head = self.graph.snapshot().commit_id
        self.write(lambda: self.graph.schema.apply(text, **options), after.settled())
        if self.graph.snapshot().commit_id != head:
            self.carried_out = renames(after)

    def write(self, act: Callable[[], object], after: State) -> None:
        head = self.graph.snapshot().commit_id
        if broken(after):
            with pytest.raises((ConstraintViolation, SchemaChangeRefused)):
                act()
            assert self.graph.snapshot().commit_id == head
            return
        act()
        self.past[head] = self.state
        self.state = after

    def schema(self, state: State) -> str:
        return "\n".join(node.text() for node in state.nodes.values())

    @invariant()
    def the_newest_state_is_as_the_model_has_it(self) -> None:
        if hasattr(self, "state"):
            assert shown(self.graph, None) == told(self.state)

    @invariant()
    def older_commits_are_as_they_were(self) -> None:
        if hasattr(self, "past"):
            for commit, state in list(self.past.items())[-4:]:
                assert shown(self.graph, commit) == told(state)


def renames(state: State) -> set[tuple[str, str, str]]:
    found = {("node", node.name, node.was) for node in state.nodes.values() if node.was}
    return found | {(node.name, p.name, p.was) for node in state.nodes.values() for p in node.props if p.was}


def told(state: State) -> dict[str, Rows]:
    return {name: rows for name, rows in state.rows.items() if rows}


def shown(graph: Graph, at: str | None) -> dict[str, Rows]:
    file = io.BytesIO()
    graph.export(file, at=at)
    found: dict[str, Rows] = {}
    for line in file.getvalue().splitlines():
        entity = json.loads(line)
        data = entity["data"]
        found.setdefault(entity["type"], {})[data.pop("id")] = data
    return found


LENGTH = settings(stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))


def test_schemas_change_over_time_as_the_model_says() -> None:
    run_state_machine_as_test(SchemasOverTime, settings=settings(LENGTH, max_examples=EXAMPLES))


@pytest.mark.soak
def test_many_other_histories_of_schemas_are_as_the_model_says() -> None:
    run_state_machine_as_test(SchemasOverTime, settings=settings(LENGTH, max_examples=EXAMPLES_SOAK))
