"""Schema changes concurrent with folds, inline rows and staged writes: interleavings of operations on one type.

Each operation opens (captures a base and plans, up to its first put) and publishes later, on whatever the head then is:
the real code on real graphs. After every commit the type must read as the operations applied one after another, and its
table must have every column of the schema.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.maintenance.commit import MaintenanceRun, Task
from omnigraph.maintenance.policy import GENTLE
from omnigraph.manifest.commit import conflicts, rebase
from omnigraph.manifest.model.table_columns import lacking_property
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.settings import Settings
from omnigraph.runtime import Runtime
from omnigraph.storage.meter import Cost
from omnigraph.storage.objects.object_store import open_store
from support.steps import Call, Gate, SteppedStore, Stepper

KEY = "node:T"
INLINE = Settings(maintenance=0)
STAGED = Settings(inline_rows=0, maintenance=0)
QUICK = {"fsync": "false"}
Rows = dict[str, dict[str, Any]]
Columns = dict[str, int | None]  # properties that come and go, with their defaults


def schema_of(columns: Columns) -> str:
    more = "".join(f" {name}: I32{'?' if given is None else f' @default({given})'}" for name, given in columns.items())
    return f"node T {{ k: String @key n: I32?{more} }}"


@dataclass(frozen=True)
class State:
    """What the type has to say: the model."""

    columns: Columns
    rows: Rows

    def with_row(self, key: str, **values: int) -> State:
        row = {"k": key, "n": None, **self.columns, **values}
        return State(self.columns, {**self.rows, key: row})

    def with_column(self, name: str, default: int | None) -> State:
        rows = {key: {**row, name: default} for key, row in self.rows.items()}
        return State({**self.columns, name: default}, rows)

    def without_column(self, name: str) -> State:
        columns = {one: given for one, given in self.columns.items() if one != name}
        return State(columns, {key: {n: v for n, v in row.items() if n != name} for key, row in self.rows.items()})


@dataclass(frozen=True)
class Op:
    """`expect`: what it makes of a state; None where it must be refused there."""

    name: str
    run: Callable[[Graph], object]
    expect: Callable[[State], State | None]
    settings: Settings = INLINE

    @property
    def changes_schema(self) -> bool:
        return self.name.startswith(("add", "drop", "merge"))

    def __repr__(self) -> str:
        return self.name


def insert(graph: Graph, key: str, number: int, branch: str = "main", more: str = "") -> object:
    return graph.mutate(f'query q() {{ insert T {{ k: "{key}", n: {number}{more} }} }}', branch=branch)


def fold(graph: Graph) -> object:
    run = MaintenanceRun(graph.repository, (Task(KEY, GENTLE),), kind="fold")
    return run.publish(graph.repository.open_txn("main")).commit


def apply(change: Callable[[State], State | None]) -> Callable[[Graph], object]:
    """A whole new schema is what is applied, so it is written by what the client sees."""

    def run(graph: Graph) -> object:
        definition = graph.repository.snapshot("main").catalog.by_key[KEY]
        seen: Any = {prop.name: prop.default for prop in definition.properties[2:]}
        wanted = change(State(seen, {}))
        if wanted is None:
            raise omnigraph.errors.BadRequest("There is nothing to change.")
        return graph.schema.apply(schema_of(wanted.columns)).commit

    return run


def adds(name: str, default: int | None) -> Op:
    def expect(state: State) -> State | None:
        return None if name in state.columns else state.with_column(name, default)

    return Op(f"add {name}{'' if default is None else f' default {default}'}", apply(expect), expect)


def drops(name: str) -> Op:
    def expect(state: State) -> State | None:
        return state.without_column(name) if name in state.columns else None

    return Op(f"drop {name}", apply(expect), expect)


def merges(name: str, default: int | None) -> Op:
    """A branch that was forked from the first state, with a property and a row of its own."""
    branch = f"b{name}"

    def expect(state: State) -> State | None:
        return state.with_column(name, default).with_row(branch, n=5, **{name: 6})

    return Op(f"merge {name}", lambda graph: graph.branches.merge(branch).commit, expect)


OPS = {
    op.name: op
    for op in (
        Op("inline", lambda graph: insert(graph, "c", 3), lambda state: state.with_row("c", n=3)),
        Op("staged", lambda graph: insert(graph, "d", 4), lambda state: state.with_row("d", n=4), STAGED),
        Op("fold", fold, lambda state: state),
        Op("fold again", fold, lambda state: state),
        adds("z", None),
        adds("w", 9),
        drops("z"),
        adds("z", 7),
        merges("m", None),
        merges("p", 8),
    )
}
FIRSTS = tuple(itertools.product(("none", "inline", "stored", "both"), (False, True)))


@dataclass
class Graphs:
    """The first states, each made once and copied for every run."""

    place: Path
    made: dict[tuple[str, bool], State] = field(default_factory=dict)

    def copy(self, rows: str, has_z: bool) -> tuple[Path, State]:
        source = self.place / f"{rows}-{has_z}"
        if (rows, has_z) not in self.made:
            self.made[rows, has_z] = self._make(source, rows, has_z)
        target = self.place / "run"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        return target, self.made[rows, has_z]

    def _make(self, place: Path, rows: str, has_z: bool) -> State:
        state = State({"z": None} if has_z else {}, {})
        graph = omnigraph.init(place, schema_of(state.columns), storage_options=QUICK, settings=INLINE)
        if rows in ("stored", "both"):
            insert(omnigraph.open(place, QUICK, settings=STAGED), "a", 1, more=", z: 1" if has_z else "")
            state = state.with_row("a", n=1, **({"z": 1} if has_z else {}))
        if rows in ("inline", "both"):
            insert(graph, "b", 2, more=", z: 2" if has_z else "")
            state = state.with_row("b", n=2, **({"z": 2} if has_z else {}))
        for name, default in (("m", None), ("p", 8)):
            graph.branches.create(f"b{name}")
            graph.schema.apply(schema_of(state.with_column(name, default).columns), branch=f"b{name}")
            insert(graph, f"b{name}", 5, f"b{name}", f", {name}: 6")
        return state


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    return Graphs(tmp_path_factory.mktemp("columns"))


def puts_a_manifest(call: Call) -> bool:
    return call.method == "create" and "__manifest/" in call.key


class Running:
    """One operation as a client of its own, stopped before its first put."""

    def __init__(self, op: Op, reader: Graph) -> None:
        gate, runtime = Gate(), Runtime()
        store: Any = SteppedStore(open_store(reader.repository.location, runtime), gate)
        repository = Repository(store, reader.repository.stamp, runtime=runtime, settings=op.settings)
        self.op = op
        self._stepper = Stepper(lambda: op.run(Graph(repository, Cost())), gate, op.name)
        while (call := self._stepper.next) is not None and not puts_a_manifest(call):
            self._stepper.step()

    def publish(self) -> bool:
        """Whether it has committed; a refusal is one of our errors, anything else is a bug."""
        with self._stepper:
            self._stepper.run_to_end()
            try:
                return self._stepper.result() is not None
            except OmnigraphError:
                return False


def run(place: Path, state: State, ops: Sequence[Op], schedule: Sequence[int]) -> int:
    """Open or publish one operation after the other, as the schedule says; answers how many have committed."""
    reader = omnigraph.open(place, QUICK, settings=INLINE)
    running: dict[int, Running] = {}
    commits = 0
    for number in schedule:
        if number not in running:
            running[number] = Running(ops[number], reader)
            continue
        op = ops[number]
        if running[number].publish():
            commits += 1
            after = op.expect(state)
            assert after is not None, f"{op} must be refused on {state}"
            state = after
        assert_says(reader, state)
    return commits


def assert_says(graph: Graph, state: State) -> None:
    snapshot = graph.snapshot()
    definition = snapshot.pinned.catalog.by_key[KEY]
    names = {prop.name: prop.column for prop in definition.properties}
    assert set(names) == {"k", "n", *state.columns}
    rows = snapshot.to_arrow(KEY).to_pylist()
    assert {row["k"]: {name: row[column] for name, column in names.items()} for row in rows} == state.rows
    for name, column in names.items():
        nulls = snapshot.to_arrow(KEY, ["id"], f"`{column}` IS NULL")
        assert nulls.num_rows == sum(row[name] is None for row in state.rows.values())
    assert columns_without_storage(graph) == set()
    ref = snapshot.pinned.manifest.tables.get(KEY)
    if ref is not None and ref.stored is not None:
        assert ref.columns is not None
        assert lacking_property(graph.repository.schemas.read(ref.columns), definition) is None


def columns_without_storage(graph: Graph) -> set[str]:
    """The columns of the schema that the stored table lacks; none if there is no stored table."""
    pinned = graph.snapshot().pinned
    ref = pinned.manifest.tables.get(KEY)
    if ref is None or ref.stored is None:
        return set()
    wanted = {prop.column for prop in pinned.catalog.by_key[KEY].properties}
    return wanted - set(graph.repository.tables.open(ref.stored).schema.names)


def pairs() -> Iterator[tuple[Op, Op]]:
    for one, other in itertools.combinations(OPS.values(), 2):
        if one.changes_schema != other.changes_schema or (one.changes_schema and one.name[-1] != other.name[-1]):
            yield one, other


@pytest.mark.parametrize("first", FIRSTS, ids=lambda first: f"{first[0]}{'-z' if first[1] else ''}")
def test_two_operations_that_overlap_read_as_one_after_the_other(graphs: Graphs, first: tuple[str, bool]) -> None:
    for ops in pairs():
        for schedule in ((0, 1, 0, 1), (0, 1, 1, 0)):
            place, state = graphs.copy(*first)
            try:
                run(place, state, ops, schedule)
            except AssertionError as error:
                raise AssertionError(f"{ops} as {schedule} from {first}: {error}") from error


def schedules(count: int) -> Iterator[tuple[tuple[str, bool], list[Op], list[int]]]:
    dice = random.Random(14)
    for _ in range(count):
        ops = dice.sample(list(OPS.values()), dice.choice((3, 4)))
        schedule = [number for number in range(len(ops)) for _ in range(2)]
        dice.shuffle(schedule)
        yield dice.choice(FIRSTS), ops, schedule


@pytest.mark.parametrize("part", range(4))
def test_more_operations_that_overlap_read_as_one_after_the_other(graphs: Graphs, part: int) -> None:
    for first, ops, schedule in itertools.islice(schedules(120), part, None, 4):
        place, state = graphs.copy(*first)
        try:
            run(place, state, ops, schedule)
        except AssertionError as error:
            raise AssertionError(f"{ops} as {schedule} from {first}: {error}") from error


@pytest.mark.parametrize("name", ["add z", "add w default 9", "add z default 7", "merge m", "merge p"])
@pytest.mark.parametrize("rows", ["inline", "stored", "both"])
def test_a_fold_never_refuses_a_schema_change(graphs: Graphs, name: str, rows: str) -> None:
    place, state = graphs.copy(rows, has_z=False)

    assert run(place, state, (OPS[name], OPS["fold"]), (0, 1, 1, 0)) == (2 if rows in ("inline", "both") else 1)


# The two halves of the rule `rebase`: each suffices, and without both the model finds the bug


def check_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rebase, "missing_columns", lambda *_: {})


def keep_decisions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(conflicts, "_undecided", lambda *_: set())


@pytest.mark.parametrize("name", ["add z", "merge m"])
@pytest.mark.parametrize("broken", [check_nothing, keep_decisions])
def test_either_half_of_the_rule_suffices(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[[pytest.MonkeyPatch], None]
) -> None:
    broken(monkeypatch)
    place, state = graphs.copy("inline", has_z=False)

    assert run(place, state, (OPS[name], OPS["fold"]), (0, 1, 1, 0)) == 2


def test_without_both_halves_both_commit_and_the_table_lacks_a_column(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_nothing(monkeypatch)
    keep_decisions(monkeypatch)
    place, _ = graphs.copy("inline", has_z=False)
    reader = omnigraph.open(place, QUICK, settings=INLINE)
    change, folding = Running(OPS["add z"], reader), Running(OPS["fold"], reader)

    assert folding.publish()
    assert columns_without_storage(reader) == set()
    assert change.publish()
    assert columns_without_storage(reader) == {"z"}


def test_a_table_that_would_lack_a_column_whatever_is_derived_is_an_error_and_no_commit(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of defence: the put is not made."""
    place, state = graphs.copy("stored", has_z=False)
    monkeypatch.setattr(rebase, "missing_columns", lambda *_: {KEY: "z"})
    graph = omnigraph.open(place, QUICK, settings=INLINE)

    with pytest.raises(AssertionError, match="would lack a column for z: nothing was written"):
        graph.schema.apply(schema_of({"z": None}))
    assert_says(omnigraph.open(place, QUICK), state)
