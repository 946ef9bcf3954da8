"""Random branches, writes and merges against a graph and against dicts: the same rows, the same refusals.

The model knows nothing of tables, vectors or fragments. A commit is a number with its parents and a whole state; common
ancestors are intersections of sets; a merge walks all rows, and judges the whole graph that comes out.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnigraph.errors import MergeConflicts
from omnigraph.merge.plan import MergeOutcome
from support.merge import Merging, make_merging

SCHEMA = """
node P { k: String @key  n: I32?  m: I32?  u: I32? @unique }
node Q { k: String @key  n: I32? }
edge E: P -> P @card(0..2) { w: I32? }
edge F: P -> Q
"""
Row = dict[str, Any]
State = dict[tuple[str, str], Row]  # (type, id) → values
ENDS = {"E": ("P", "P"), "F": ("P", "Q")}
COLUMNS = {"P": ("n", "m", "u"), "Q": ("n",), "E": ("src", "dst", "w"), "F": ("src", "dst")}


class Refused(Exception):
    pass


@dataclass
class Model:
    """Commits by number; a branch is the number of its newest."""

    states: list[State] = field(default_factory=lambda: [{}])
    ancestors: list[frozenset[int]] = field(default_factory=lambda: [frozenset({0})])
    heads: dict[str, int] = field(default_factory=lambda: {"main": 0})

    def state(self, branch: str) -> State:
        return self.states[self.heads[branch]]

    def commit(self, branch: str, state: State, *parents: int) -> None:
        number = len(self.states)
        self.states.append(state)
        self.ancestors.append(frozenset({number}).union(*(self.ancestors[parent] for parent in parents)))
        self.heads[branch] = number

    def merge(self, source: str, into: str) -> State:
        ours, theirs = self.heads[into], self.heads[source]
        base = self.base(self.ancestors[ours], self.ancestors[theirs])
        merged, disputed = combined(base, self.states[ours], self.states[theirs])
        if disputed:
            raise Refused(disputed)
        check(merged)
        return merged

    def base(self, one: frozenset[int], other: frozenset[int]) -> State:
        """The newest common ancestors, merged into one state; what they dispute is as it was."""
        common = one & other
        newest = [number for number in common if not any(number in self.ancestors[n] - {n} for n in common)]
        state, known = self.states[newest[0]], self.ancestors[newest[0]]
        for number in newest[1:]:
            below = self.base(known, self.ancestors[number])
            merged, disputed = combined(below, state, self.states[number])
            for key in disputed:
                merged.pop(key, None)
                if key in below:
                    merged[key] = below[key]
            state, known = merged, known | self.ancestors[number]
        return state


def combined(base: State, ours: State, theirs: State) -> tuple[State, list[tuple[str, str]]]:
    merged: State = {}
    disputed = []
    for key in {*base, *ours, *theirs}:
        was, mine, other = base.get(key), ours.get(key), theirs.get(key)
        row = mine
        if mine == other or other == was:
            pass
        elif mine == was:
            row = other
        elif was is None or mine is None or other is None:
            disputed.append(key)
        else:
            row = {name: other[name] if mine[name] == was[name] else mine[name] for name in was}
            if any(mine[n] != was[n] and other[n] != was[n] and mine[n] != other[n] for n in was):
                disputed.append(key)
        if row is not None:
            merged[key] = row
    return merged, disputed


def check(state: State) -> None:
    edges = [(kind, row) for (kind, _), row in state.items() if kind in ENDS]
    values = [row["u"] for (kind, _), row in state.items() if kind == "P" and row["u"] is not None]
    sources = [row["src"] for kind, row in edges if kind == "E"]
    if (
        any(node not in state for kind, row in edges for node in ends(kind, row))
        or len(set(values)) != len(values)
        or any(sources.count(source) > 2 for source in sources)
    ):
        raise Refused("constraint")


def changed(state: State, change: tuple[Any, ...]) -> State:
    """A node or edge as it is from now on; a node that goes takes its edges along."""
    kind, entity, values = change
    after = {key: dict(row) for key, row in state.items()}
    if values is not None:
        blank = dict.fromkeys(COLUMNS[kind])
        after[kind, entity] = {**blank, **after.get((kind, entity), {}), **values}
        return after
    after.pop((kind, entity), None)
    return {key: row for key, row in after.items() if (kind, entity) not in ends(key[0], row)}


def ends(kind: str, row: Row) -> list[tuple[str, str]]:
    """The nodes that a row needs: those of an edge."""
    return [(ENDS[kind][0], row["src"]), (ENDS[kind][1], row["dst"])] if kind in ENDS else []


def write(graph: Merging, branch: str, before: State, after: State) -> None:
    types: dict[str, dict[str, Row | None]] = {}
    for kind, entity in {*before, *after}:
        if before.get((kind, entity)) != after.get((kind, entity)):
            types.setdefault(kind, {})[entity] = after.get((kind, entity))
    graph.change(branch, **types)


def found(graph: Merging, branch: str) -> State:
    return {
        (kind, row["id"]): {name: row[name] for name in COLUMNS[kind]}
        for kind in COLUMNS
        for row in graph.rows(kind, branch)
    }


NAMES = ("main", "b", "c", "d")  # enough for branches to be merged crosswise
BRANCH = st.sampled_from(NAMES)
NODE = st.sampled_from("xyz")
NUMBER = st.integers(0, 2)
CHANGE = st.one_of(
    st.tuples(st.just("P"), NODE, st.fixed_dictionaries({}, optional={"n": NUMBER, "m": NUMBER, "u": NUMBER})),
    st.tuples(st.just("P"), NODE, st.none()),
    st.tuples(st.just("Q"), NODE, st.fixed_dictionaries({"n": NUMBER})),
    st.tuples(st.just("Q"), NODE, st.none()),
    st.tuples(st.just("E"), st.sampled_from("efg"), st.fixed_dictionaries({"src": NODE, "dst": NODE, "w": NUMBER})),
    st.tuples(st.just("F"), st.sampled_from("fg"), st.fixed_dictionaries({"src": NODE, "dst": NODE})),
    st.tuples(st.sampled_from("EF"), st.sampled_from("efg"), st.none()),
)
STEP = st.one_of(
    st.tuples(st.just("write"), BRANCH, CHANGE),
    st.tuples(st.just("write"), BRANCH, CHANGE),
    st.tuples(st.just("merge"), BRANCH, BRANCH),
    st.tuples(st.just("cross"), BRANCH, BRANCH),
)
START: State = {("P", "x"): {"n": 0, "m": 0, "u": None}, ("P", "y"): {"n": 0, "m": 0, "u": None}, ("Q", "x"): {"n": 0}}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, min_size=6, max_size=24))
def test_branches_and_merges_do_to_the_graph_what_they_do_to_dicts(steps: list[tuple[Any, ...]]) -> None:
    follow(steps)


@pytest.mark.soak
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, min_size=6, max_size=24))
def test_hundreds_of_other_histories_do_too(steps: list[tuple[Any, ...]]) -> None:
    follow(steps)


def follow(steps: list[tuple[Any, ...]]) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        graph, model = make_merging(folder / "graph", SCHEMA), Model()
        write(graph, "main", {}, START)
        model.commit("main", START, 0)
        for name in NAMES[1:]:
            graph.fork(name)
            model.heads[name] = model.heads["main"]
        for step in steps:
            take(graph, model, *step)
        for branch in model.heads:
            assert found(graph, branch) == model.state(branch), branch
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take(graph: Merging, model: Model, verb: str, branch: str, what: Any) -> None:
    if verb == "write":
        before = model.state(branch)
        after = changed(before, what)
        try:
            check(after)
        except Refused:
            return  # rows are written as they are here: what a mutation would refuse is not tried
        if after != before:
            write(graph, branch, before, after)
            model.commit(branch, after, model.heads[branch])
    elif branch != what and verb == "merge":
        merge(graph, model, branch, what)
    elif branch != what:
        cross(graph, model, branch, what)


def cross(graph: Merging, model: Model, one: str, other: str) -> None:
    """Each is merged into the other as it was before: from now on they have two newest common ancestors."""
    before = [(f"{name}-{len(model.heads)}", name) for name in (one, other)]
    for copy, name in before:
        graph.fork(copy, name)
        model.heads[copy] = model.heads[name]
    for (copy, _), name in zip(before, (other, one), strict=True):
        merge(graph, model, copy, name)


def merge(graph: Merging, model: Model, source: str, into: str) -> None:
    before = found(graph, into)
    try:
        wanted: State | None = model.merge(source, into)
    except Refused:
        wanted = None
    try:
        result = graph.merge(source, into)
    except MergeConflicts:
        assert wanted is None, f"{source} into {into} should have been merged"
        assert found(graph, into) == before
        return
    if result.outcome is MergeOutcome.UP_TO_DATE:
        there = model.heads[source] in model.ancestors[model.heads[into]]
        assert there or model.state(source) == model.state(into)
        return
    assert wanted is not None, f"{source} into {into} should have been refused"
    assert found(graph, into) == wanted
    model.commit(into, wanted, model.heads[into], model.heads[source])
