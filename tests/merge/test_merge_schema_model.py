"""Random writes, schema changes and merges on branches whose schemas are at different steps of one evolution.

The model has rows by the names of the first schema, and knows of each step only what it does to a row: what an older
branch wrote is merged as if its schema had been changed first.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from merge.test_merge_model import Model, Refused, Row, State, combined
from omnigraph.errors import MergeConflicts
from omnigraph.merge.plan import MergeOutcome
from support.merge import Merging, make_merging

# Each step of the schema, and of a row the names that its values have then.
STEPS = (
    "node P { k: String @key  n: I32?  m: I32?  gone: I32? }",
    "node P { k: String @key  n: I32?  m: I32?  gone: I32?  x: String? }",
    'node P { k: String @key  n: I32?  m: I32?  gone: I32?  x: String?  y: String @default("d") }',
    'node P { k: String @key  n: I64?  mm: I32? @rename_from("m")  gone: I32?  x: String?  y: String @default("d") }',
    'node H @rename_from("P") { k: String @key  n: I64?  mm: I32?  x: String?  y: String @default("d") }',
    'node H { k: String @key  n: I64?  mm: I32?  x: String?  y: String @default("d")  gone: I32? }',
)
RENAMED, DROPPED, AGAIN = 3, 4, 5
NAMES = ("main", "b", "c")


def type_name(step: int) -> str:
    return "H" if step >= DROPPED else "P"


def columns(step: int) -> dict[str, str]:
    """The model's name of each property to its name in the schema; a property declared again is another one."""
    found = {"n": "n", "m": "mm" if step >= RENAMED else "m"}
    found |= {"x": "x"} if step >= 1 else {}
    found |= {"y": "y"} if step >= 2 else {}
    return found | ({"gone": "gone"} if step < DROPPED else {"again": "gone"} if step >= AGAIN else {})


def at_step(state: State, step: int) -> State:
    defaults: Row = {**dict.fromkeys(columns(step)), **({"y": "d"} if step >= 2 else {})}
    return {key: {name: row.get(name, default) for name, default in defaults.items()} for key, row in state.items()}


class Evolving(Model):
    """The model with the step that each commit's schema has reached; states are compared at the later step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = {0: 0}

    def step(self, branch: str) -> int:
        return self.steps[self.heads[branch]]

    def put(self, branch: str, state: State, step: int, *parents: int) -> None:
        self.commit(branch, state, *parents)
        self.steps[self.heads[branch]] = step

    def merge_at(self, source: str, into: str) -> tuple[State, int]:
        ours, theirs = self.heads[into], self.heads[source]
        step = max(self.steps[ours], self.steps[theirs])
        known = [at_step(self.states[head], step) for head in (ours, theirs)]
        base, _ = self.base_at(self.ancestors[ours], self.ancestors[theirs])
        merged, disputed = combined(at_step(base, step), *known)
        if disputed:
            raise Refused(disputed)
        return merged, step

    def base_at(self, one: frozenset[int], other: frozenset[int]) -> tuple[State, int]:
        """As `base`, with each pair of ancestors merged at the later step of the two."""
        common = one & other
        first, *others = [n for n in common if not any(n in self.ancestors[newer] - {newer} for newer in common)]
        state, step, known = self.states[first], self.steps[first], self.ancestors[first]
        for number in others:
            below, _ = self.base_at(known, self.ancestors[number])
            step = max(step, self.steps[number])
            below, state, another = (at_step(one, step) for one in (below, state, self.states[number]))
            merged, disputed = combined(below, state, another)
            state = {key: row for key, row in merged.items() if key not in disputed}
            state |= {key: below[key] for key in disputed if key in below}
            known |= self.ancestors[number]
        return state, step


def found(graph: Merging, branch: str, step: int) -> State:
    definition = graph.graph.snapshot(branch).pinned.catalog.by_name[type_name(step)]
    return {
        ("P", row["id"]): {name: row[definition.column(given)] for name, given in columns(step).items()}
        for row in graph.rows(type_name(step), branch)
    }


VALUES: dict[str, Any] = {
    "n": st.integers(0, 2),
    "m": st.integers(0, 1),
    "x": st.sampled_from(["a", "b"]),
    "y": st.sampled_from(["d", "e"]),
    "gone": st.integers(0, 1),
    "again": st.integers(0, 1),
}
BRANCH = st.sampled_from(NAMES)
ENTITY = st.sampled_from("uvwxyz")  # so many that most writes meet nobody else's
STEP = st.one_of(
    st.tuples(st.just("write"), BRANCH, ENTITY, st.fixed_dictionaries({}, optional=VALUES)),
    st.tuples(st.just("write"), BRANCH, ENTITY, st.fixed_dictionaries({"n": st.integers(0, 2)})),
    st.tuples(st.just("delete"), BRANCH, ENTITY, st.none()),
    st.tuples(st.just("evolve"), BRANCH, st.integers(1, 2), st.booleans()),
    st.tuples(st.just("merge"), BRANCH, BRANCH, st.none()),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, min_size=12, max_size=30))
def test_merges_across_schema_changes_do_to_the_graph_what_they_do_to_dicts(steps: list[tuple[Any, ...]]) -> None:
    follow(steps)


@pytest.mark.soak
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, min_size=12, max_size=30))
def test_hundreds_of_other_histories_do_too(steps: list[tuple[Any, ...]]) -> None:
    follow(steps)


def follow(steps: list[tuple[Any, ...]]) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        graph, model = make_merging(folder / "graph", STEPS[0]), Evolving()
        for name in NAMES[1:]:
            graph.fork(name)
            model.heads[name] = model.heads["main"]
        take(graph, model, "evolve", "b", 2, False)
        for step in steps:
            take(graph, model, *step)
        for branch in NAMES:
            assert found(graph, branch, model.step(branch)) == model.state(branch), branch
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take(graph: Merging, model: Evolving, verb: str, branch: str, what: Any, how: Any) -> None:
    head, step, before = model.heads[branch], model.step(branch), model.state(branch)
    if verb == "merge" and branch != what:
        merge(graph, model, branch, what)
    elif verb == "evolve":
        for later in range(step + 1, min(step + what, len(STEPS) - 1) + 1):
            graph.graph.schema.apply(STEPS[later], allow_data_loss=how, branch=branch)
            model.put(branch, at_step(model.state(branch), later), later, model.heads[branch])
    elif verb == "write":
        row = {**at_step({("P", what): {}}, step)["P", what], **before.get(("P", what), {})}
        row |= {name: value for name, value in how.items() if name in columns(step)}
        if row != before.get(("P", what)):
            data = {given: row[name] for name, given in columns(step).items()}
            graph.graph.load([{"type": type_name(step), "data": {"k": what, **data}}], mode="merge", branch=branch)
            model.put(branch, {**before, ("P", what): row}, step, head)
    elif verb == "delete" and ("P", what) in before:
        graph.graph.mutate(f'query q() {{ delete {type_name(step)} where k = "{what}" }}', branch=branch)
        model.put(branch, {key: row for key, row in before.items() if key != ("P", what)}, step, head)


def merge(graph: Merging, model: Evolving, source: str, into: str) -> None:
    try:
        wanted, step = model.merge_at(source, into)
    except Refused:
        wanted, step = {}, -1
    try:
        result = graph.merge(source, into)
    except MergeConflicts:
        assert step == -1, f"{source} into {into} should have been merged"
        return
    if result.outcome is MergeOutcome.UP_TO_DATE:
        there = model.heads[source] in model.ancestors[model.heads[into]]
        assert there or (model.state(source), model.step(source)) == (model.state(into), model.step(into))
        return
    assert step >= 0, f"{source} into {into} should have been refused"
    assert found(graph, into, step) == wanted
    model.put(into, wanted, step, model.heads[into], model.heads[source])
