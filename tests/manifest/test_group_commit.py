"""Writes of one process to one branch that meet share one put, and each is what it would be alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import omnigraph.write.mutate.mutate as mutate_module
from omnigraph.errors import BranchNotFound, ConstraintViolation, ExpectedVersionMismatch, RetriesExhausted
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.manifest.commit.publish import PublishPolicy
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import Manifest
from omnigraph.manifest.settings import Settings
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.write.commit import Changes
from support.catalogs import COMPANY, PERSON, company_rows, person_rows

from .concurrent_writes import Write, together
from .schedules import Client, World, a_put_of_manifest

GRAPH = """
node Person { name: String @key  email: String? @unique  count: I64? }
node Place { name: String @key }
edge Knows: Person -> Person
edge LivesIn: Person -> Place @card(0..1)
"""


@pytest.fixture
def acquainted(tmp_path: Path) -> tuple[World, Client]:
    """A graph with constraints that writes can break together, and the process that put ada and grace into it."""
    world = World(tmp_path / "graph", compile_schema(GRAPH).catalog)
    client = world.client("writer")
    graph = client.graph
    graph.mutate('query q() { insert Person { name: "ada" } insert Person { name: "grace" } }')
    graph.mutate('query q() { insert Place { name: "London" } insert Place { name: "Arlington" } }')
    return world, client


def test_a_write_that_is_alone_waits_for_nobody_and_makes_one_request(world: World) -> None:
    client = world.client("writer")
    with client.start(lambda: client.insert("ada")) as stepper:
        assert world.told(stepper.run_to_end()) == ["create main/2"]
        commit = stepper.result()

    assert commit.id == f"{world.main_id}.2"
    assert (commit.cost.requests, commit.cost.stages, commit.cost.shared) == (1, 1, False)


def test_those_that_wait_share_one_put_in_the_order_in_which_they_came(world: World) -> None:
    client = world.client("writer")
    names = ["ada", "bob", "cy", "dee"]
    with together(client, *(partial(client.insert, name, actor=f"the {name}") for name in names)) as stepper:
        assert world.told(stepper.run_to_end()) == ["create main/2", "create main/3"]
        commits = stepper.result()

    number = f"{world.main_id}."
    assert [commit.id for commit in commits] == [number + end for end in ("2", "3.0", "3.1", "3.2")]
    assert [commit.commit.parent for commit in commits] == [number + end for end in ("1", "2", "3.0", "3.1")]
    assert [commit.commit.actor for commit in commits] == [f"the {name}" for name in names]
    assert [commit.touched for commit in commits] == [{PERSON: {"inserted": 1}}] * 4
    assert len({commit.commit.txn_id for commit in commits}) == 4
    other = world.client("other")
    assert other.people() == names
    assert other.head().tables[PERSON].rows == 4
    assert [commit.id for commit in other.graph.commits()] == [commit.id for commit in commits[::-1]] + [number + "1"]


def test_the_put_is_on_the_account_of_the_one_that_leads_and_the_others_say_that_they_shared_it(world: World) -> None:
    client = world.client("writer")
    with together(client, *(partial(client.insert, name) for name in ("ada", "bob", "cy"))) as stepper:
        stepper.run_to_end()
        costs = [commit.cost for commit in stepper.result()]

    assert [(cost.requests, cost.shared) for cost in costs] == [(1, False), (1, False), (0, True)]


def test_the_account_is_right_where_the_one_that_leads_is_refused(world: World) -> None:
    client = world.client("writer")
    writes = [partial(client.insert, name) for name in ("ada", "ada", "bob", "cy")]
    with together(client, *writes) as stepper:
        stepper.run_to_end()
        _, refused, *others = stepper.result()

    assert isinstance(refused, ConstraintViolation)
    assert [(commit.cost.requests, commit.cost.shared) for commit in others] == [(0, True), (0, True)]


def test_one_bad_write_fails_alone_because_of_one_before_it_in_the_same_put(world: World) -> None:
    client = world.client("writer")
    writes = [partial(client.insert, name) for name in ("first", "ada", "ada", "bob")]
    with together(client, *writes) as stepper:
        calls = world.told(stepper.run_to_end())
        _, ada, twice, bob = stepper.result()

    assert calls[:2] == ["create main/2", "create main/3"]
    assert isinstance(twice, ConstraintViolation)
    assert "ada" in str(twice)
    assert (ada.id, bob.id) == (f"{world.main_id}.3.0", f"{world.main_id}.3.1")
    assert world.client("other").people() == ["ada", "bob", "first"]


def test_a_planner_that_breaks_down_in_a_group_fails_alone(world: World) -> None:
    client = world.client("writer")
    planned = []

    def planner(txn: WriteTxn) -> Changes:
        planned.append(txn)
        if len(planned) > 1:
            raise ZeroDivisionError("a bug in the planner")
        return Changes((Append(PERSON, person_rows("bob")),), read_rows=frozenset({PERSON}))

    writes: list[Write] = [partial(client.insert, "first"), partial(client.insert, "ada")]
    writes.append(lambda: client.graph.write(planner))
    with together(client, *writes, partial(client.insert, "cy")) as stepper:
        stepper.run_to_end()
        _, ada, broken, cy = stepper.result()

    assert isinstance(broken, ZeroDivisionError)
    assert (ada.id, cy.id) == (f"{world.main_id}.3.0", f"{world.main_id}.3.1")
    assert world.client("other").people() == ["ada", "cy", "first"]


def test_writes_that_change_nothing_any_more_get_none(acquainted: tuple[World, Client]) -> None:
    _world, client = acquainted
    text = "query q($n: String) { update Person set { count: 7 } where name = $n }"
    writes = [partial(client.graph.mutate, text, params={"n": name}) for name in ("grace", "ada", "ada")]
    with together(client, *writes) as stepper:
        stepper.run_to_end()
        first, second, third = stepper.result()

    assert first is not None
    assert second is not None
    assert third is None


def test_increments_that_meet_all_count(acquainted: tuple[World, Client]) -> None:
    world, client = acquainted
    seen: list[int] = []

    def increment() -> Any:
        def planner(txn: WriteTxn) -> Changes:
            row = client.repository.tables.lookup(txn.content("node:Person"), ["ada"]).to_pylist()[0]
            seen.append(row["count"] or 0)
            schema = client.repository.tables.lookup(txn.content("node:Person"), ["ada"]).schema
            import pyarrow as pa

            rows = pa.Table.from_pylist([{**row, "count": (row["count"] or 0) + 1}], schema=schema)
            return Changes((Upsert("node:Person", rows),), read_rows=frozenset({"node:Person"}))

        return client.graph.write(planner)

    with together(client, *[increment] * 12) as stepper:
        assert world.told(stepper.run_to_end()) == ["create main/4", "create main/5"]
        assert all(commit is not None for commit in stepper.result())

    rows = world.client("other").graph.snapshot().lookup("node:Person", ["ada"]).to_pylist()
    assert rows[0]["count"] == 12
    assert set(seen) == set(range(12))


def test_an_edge_to_a_node_that_goes_in_the_same_put_is_refused(acquainted: tuple[World, Client]) -> None:
    _world, client = acquainted
    filler = partial(client.graph.mutate, 'query q() { insert Place { name: "Paris" } }')
    delete = partial(client.graph.mutate, 'query q() { delete Person where name = "grace" }')
    link = partial(client.graph.mutate, 'query q() { insert Knows { from: "ada", to: "grace" } }')
    with together(client, filler, delete, link) as stepper:
        stepper.run_to_end()
        _, deleted, linked = stepper.result()

    assert deleted.touched == {"node:Person": {"deleted": 1}}
    assert isinstance(linked, ConstraintViolation)


def test_a_node_that_goes_takes_an_edge_along_that_came_before_it_in_the_same_put(
    acquainted: tuple[World, Client],
) -> None:
    world, client = acquainted
    filler = partial(client.graph.mutate, 'query q() { insert Place { name: "Paris" } }')
    delete = partial(client.graph.mutate, 'query q() { delete Person where name = "grace" }')
    link = partial(client.graph.mutate, 'query q() { insert Knows { from: "ada", to: "grace" } }')
    with together(client, filler, link, delete) as stepper:
        stepper.run_to_end()
        _, linked, deleted = stepper.result()

    assert linked.manifest_version == deleted.manifest_version
    assert deleted.touched == {"node:Person": {"deleted": 1}, "edge:Knows": {"deleted": 1}}
    snapshot = world.client("other").graph.snapshot()
    assert snapshot.to_arrow("edge:Knows").num_rows == 0


def test_a_unique_value_is_taken_by_the_first_of_a_put(acquainted: tuple[World, Client]) -> None:
    _world, client = acquainted
    filler = partial(client.graph.mutate, 'query q() { insert Place { name: "Paris" } }')
    insert = 'query q($n: String) { insert Person { name: $n, email: "a@example.org" } }'
    writes = [partial(client.graph.mutate, insert, params={"n": name}) for name in ("cy", "dee")]
    with together(client, filler, *writes) as stepper:
        stepper.run_to_end()
        _, first, second = stepper.result()

    assert first is not None
    assert isinstance(second, ConstraintViolation)


def test_a_cardinality_is_counted_over_the_writes_of_a_put(acquainted: tuple[World, Client]) -> None:
    _world, client = acquainted
    filler = partial(client.graph.mutate, 'query q() { insert Place { name: "Paris" } }')
    move = 'query q($p: String) { insert LivesIn { from: "ada", to: $p } }'
    writes = [partial(client.graph.mutate, move, params={"p": place}) for place in ("London", "Arlington")]
    with together(client, filler, *writes) as stepper:
        stepper.run_to_end()
        _, first, second = stepper.result()

    assert first is not None
    assert isinstance(second, ConstraintViolation)


def test_a_held_base_conflicts_with_those_before_it_in_the_put_only_if_they_touched_what_it_touches(
    world: World,
) -> None:
    client = world.client("writer")
    held = client.graph.begin()
    company = [Append(COMPANY, company_rows("acme"))]
    writes: list[Write] = [
        lambda: client.graph.write([Delete(COMPANY, ("none",)), *company]),
        partial(client.insert, "ada"),
        partial(client.insert, "bob", txn=held),
        partial(client.insert, "cy"),
    ]
    with together(client, *writes) as stepper:
        stepper.run_to_end()
        _, ada, refused, cy = stepper.result()

    assert isinstance(refused, ExpectedVersionMismatch)
    assert (refused.table_key, refused.actual) == (PERSON, f"{world.main_id}.3.0")
    assert ada.manifest_version == cy.manifest_version == 3


@pytest.mark.parametrize("refused_first", [False, True])
def test_a_refusal_names_the_commit_as_the_manifest_that_was_put_does_also_if_it_holds_one_commit(
    world: World, refused_first: bool
) -> None:
    client = world.client("writer")
    held = client.graph.begin()
    refused = [partial(client.insert, f"r{number}", txn=held) for number in range(2)]
    company = [Append(COMPANY, company_rows("acme"))]
    writes: list[Write] = [
        lambda: client.graph.write([Delete(COMPANY, ("none",)), *company]),
        *([lambda: client.graph.write([Append(COMPANY, company_rows("other"))], txn=held)] if refused_first else []),
        partial(client.insert, "ada"),
        *refused,
    ]
    with together(client, *writes) as stepper:
        stepper.run_to_end()
        outcomes = stepper.result()

    ada = next(outcome for outcome in outcomes[1:] if not isinstance(outcome, BaseException))
    errors = [outcome for outcome in outcomes if isinstance(outcome, ExpectedVersionMismatch)]
    assert ada.id == f"{world.main_id}.3"
    assert [error.actual for error in errors if error.table_key == PERSON] == [ada.id, ada.id]
    for error in errors:
        assert client.graph.commit(str(error.actual)).id == error.actual
        assert str(error.actual) in str(error)


def test_a_branch_that_is_deleted_meanwhile_is_gone_for_the_whole_group(world: World) -> None:
    client, other = world.client("writer"), world.client("other")
    other.graph.branches.create("side")
    client.graph.snapshot("side")
    first = partial(client.insert, "ada", branch="side")
    with client.start(first) as stepper:
        stepper.run_until(a_put_of_manifest(2))
        other.graph.branches.delete("side")
        stepper.run_to_end()
        with pytest.raises(BranchNotFound):
            stepper.result()


def test_a_group_takes_no_more_commits_and_bytes_than_the_settings_say(tmp_path: Path) -> None:
    world = World(tmp_path / "graph", settings=Settings(group_commits=3))
    client = world.client("writer")
    with together(client, *(partial(client.insert, f"p{n}") for n in range(8))) as stepper:
        stepper.run_to_end()
        ends = [commit.id.removeprefix(f"{world.main_id}.") for commit in stepper.result()]
    assert ends == ["2", "3.0", "3.1", "3.2", "4.0", "4.1", "4.2", "5"]

    size = _size_of_a_commit(world)
    world = World(tmp_path / "narrow", settings=Settings(group_bytes=2 * size))
    client = world.client("writer")
    with together(client, *(partial(client.insert, f"p{n}") for n in range(6))) as stepper:
        stepper.run_to_end()
        ends = [commit.id.removeprefix(f"{world.main_id}.") for commit in stepper.result()]
    assert ends == ["2", "3.0", "3.1", "4.0", "4.1", "5"]


def _size_of_a_commit(world: World) -> int:
    entry = world.client("reader").stored(world.main_id, 2)
    assert isinstance(entry, Manifest)
    return entry.tables[PERSON].tail[-1].size


def test_a_write_that_has_grown_too_large_for_the_manifest_when_planned_again_is_committed_by_itself(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "graph", settings=Settings(inline_rows=3))
    client = world.client("writer")
    client.insert("a1", "a2")
    client.insert("a3")

    def older() -> Any:
        def planner(txn: WriteTxn) -> Changes:
            import pyarrow as pa

            rows = client.repository.tables.scan(txn.content(PERSON))
            ages = pa.array([(age or 0) + 1 for age in rows["age"].to_pylist()], pa.int32())
            rows = rows.set_column(rows.schema.get_field_index("age"), rows.schema.field("age"), ages)
            return Changes((Upsert(PERSON, rows),), read_rows=frozenset({PERSON}))

        return client.graph.write(planner)

    company = [Append(COMPANY, company_rows("acme"))]
    with together(client, lambda: client.graph.write(company), partial(client.insert, "b"), older) as stepper:
        stepper.run_to_end()
        _, b, grown = stepper.result()

    assert grown.manifest_version == b.manifest_version + 1
    assert grown.touched == {PERSON: {"updated": 4}}
    rows = world.client("other").graph.snapshot().to_arrow(PERSON)
    assert rows["age"].to_pylist() == [1] * 4


def test_a_write_whose_time_is_spent_in_line_is_tried_once_and_gives_up_if_that_is_lost(world: World) -> None:
    client, other = world.client("writer", PublishPolicy(time_limit_s=1.0)), world.client("other")
    with together(client, *(partial(client.insert, name) for name in ("ada", "bob"))) as stepper:
        client.clock.sleep(2.0)
        stepper.step()
        other.insert("cy")
        stepper.run_to_end()
        ada, bob = stepper.result()

    assert ada is not None
    assert isinstance(bob, RetriesExhausted)
    assert other.people() == ["ada", "cy"]


def test_two_upserts_of_different_properties_of_one_row_in_a_put_keep_both(acquainted: tuple[World, Client]) -> None:
    world, client = acquainted
    filler = partial(client.graph.mutate, 'query q() { insert Place { name: "Paris" } }')
    count = partial(client.graph.mutate, 'query q() { insert Person { name: "ada", count: 3 } }')
    email = partial(client.graph.mutate, 'query q() { insert Person { name: "ada", email: "a@example.org" } }')
    with together(client, filler, count, email) as stepper:
        stepper.run_to_end()
        assert [commit.manifest_version for commit in stepper.result()] == [4, 5, 5]

    (ada,) = world.client("other").graph.snapshot().lookup("node:Person", ["ada"]).to_pylist()
    assert (ada["count"], ada["email"]) == (3, "a@example.org")


def test_keyed_rows_that_nobody_else_has_written_are_not_planned_again(
    acquainted: tuple[World, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, client = acquainted
    planned: list[object] = []
    changes = mutate_module._MutationRun.changes

    def counted(run: Any, query: Any) -> Any:
        planned.append(query)
        return changes(run, query)

    monkeypatch.setattr(mutate_module._MutationRun, "changes", counted)
    insert = "query q($n: String) { insert Person { name: $n, count: 1 } }"
    names = ("cy", "dee", "eve", "eve", "fay")
    with together(client, *(partial(client.graph.mutate, insert, params={"n": name}) for name in names)) as stepper:
        stepper.run_to_end()
        outcomes = stepper.result()

    assert [outcome and outcome.manifest_version for outcome in outcomes] == [4, 5, 5, None, 5]
    assert len(planned) == len(names) + 1, "the second eve alone"
    assert world.client("other").graph.snapshot().types[0].rows == 6
