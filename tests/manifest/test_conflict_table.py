"""The conflict table of design.md, cell for cell: every row against every stance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.manifest.commit.conflicts import BranchDeleted, Decision, Proceed, Refuse, Replan, decide
from omnigraph.manifest.commit.plan import (
    ConflictPolicy,
    DataChange,
    Delete,
    DeleteBranch,
    Drop,
    PublishPlan,
    RaiseFence,
)
from omnigraph.manifest.model.manifest import Manifest, TableKey, TableRef

from .builders import BRANCH_ID, TOMBSTONE, entry, fence, manifest, plan, ref

WRITTEN, READ, OTHER = "node:Written", "node:Read", "node:Other"
CONSTRUCTIVE, STRICT, MAINTENANCE = ConflictPolicy.CONSTRUCTIVE, ConflictPolicy.STRICT, ConflictPolicy.MAINTENANCE

BASE = manifest(5, {key: ref(table_id=key) for key in (WRITTEN, READ, OTHER)}, fenced_at=2)
NEW = f"{BRANCH_ID}.6"


def after(**more: object) -> Manifest:
    """The head that won: one commit after the base."""
    return replace(BASE, **({"manifest_version": 6, "logical_head": NEW} | more))  # type: ignore[arg-type]


def changed(*keys: TableKey) -> dict[TableKey, TableRef]:
    """These tables with new content."""
    return {**BASE.tables, **{key: ref(2, NEW, table_id=key) for key in keys}}


def rewritten(*keys: TableKey) -> dict[TableKey, TableRef]:
    """These tables with the old content in other files."""
    return {**BASE.tables, **{key: ref(2, table_id=key) for key in keys}}


def tail_of(key: TableKey) -> dict[TableKey, TableRef]:
    """This table with rows of a small commit on top of the same stored version."""
    return {**BASE.tables, key: replace(BASE.tables[key], changed_at=NEW, tail=(entry(6, key),))}


MAINTAINED = {"logical_head": BASE.logical_head}
FENCED = {"fenced_at": 6, "fence": fence(2), **MAINTAINED}
RESTAGE = frozenset({WRITTEN})


class Row(NamedTuple):
    winners: str
    head: Manifest
    constructive: Decision
    strict: Decision
    maintenance: Decision


ROWS = [
    Row(
        "only maintenance, of another table",
        after(tables=rewritten(OTHER), **MAINTAINED),
        Proceed(),
        Proceed(),
        Proceed(),
    ),
    Row(
        "only maintenance, of the table that is written",
        after(tables=rewritten(WRITTEN), **MAINTAINED),
        Proceed(restage=RESTAGE),
        Proceed(restage=RESTAGE),
        Replan("node:Written moved"),
    ),
    Row(
        "only maintenance, of the table that is read",
        after(tables=rewritten(READ), **MAINTAINED),
        Proceed(),
        Proceed(),
        Proceed(),
    ),
    Row("touched no table of the plan", after(tables=changed(OTHER)), Proceed(), Proceed(), Proceed()),
    Row(
        "touched the table that is written",
        after(tables=changed(WRITTEN)),
        Proceed(validate=True, restage=RESTAGE),
        Refuse(WRITTEN, BASE.tables[WRITTEN].changed_at, NEW),
        Replan("node:Written moved"),
    ),
    Row(
        "touched the table that is read",
        after(tables=changed(READ)),
        Proceed(validate=True),
        Refuse(READ, BASE.tables[READ].changed_at, NEW),
        Proceed(),
    ),
    Row(
        "put a tail on the table that is written",
        after(tables=tail_of(WRITTEN)),
        Proceed(validate=True, restage=RESTAGE),  # for nobody told which rows came
        Refuse(WRITTEN, BASE.tables[WRITTEN].changed_at, NEW),
        Proceed(),  # they stay on top of what was maintained
    ),
    Row(
        "dropped the table that is written",
        after(tables={key: BASE.tables[key] for key in (READ, OTHER)}),
        Proceed(validate=True, restage=RESTAGE),
        Refuse(WRITTEN, BASE.tables[WRITTEN].changed_at, None),
        Replan("node:Written moved"),
    ),
    Row(
        "changed the schema",
        after(schema="sha256:two"),
        Replan("the schema changed"),
        Refuse("schema", BASE.logical_head, NEW),
        Replan("the schema changed"),
    ),
    Row(
        "a cleanup's fence",
        after(**FENCED),
        Proceed(restage=RESTAGE, from_scratch=True),
        Proceed(restage=RESTAGE, from_scratch=True),
        Replan("a cleanup passed"),
    ),
    Row(
        "a cleanup's fence under a commit to another table",
        after(fenced_at=6, tables=changed(OTHER)),
        Proceed(restage=RESTAGE, from_scratch=True),
        Proceed(restage=RESTAGE, from_scratch=True),
        Replan("a cleanup passed"),
    ),
    Row(
        "a cleanup's fence under a commit to the table that is written",
        after(fenced_at=6, tables=changed(WRITTEN)),
        Proceed(validate=True, restage=RESTAGE, from_scratch=True),
        Refuse(WRITTEN, BASE.tables[WRITTEN].changed_at, NEW),
        Replan("a cleanup passed"),
    ),
    Row("deleted the branch", after(tombstone=TOMBSTONE, tables={}), BranchDeleted(), BranchDeleted(), BranchDeleted()),
    Row(
        "changed the schema, then deleted the branch",
        after(tombstone=TOMBSTONE, tables={}, schema="sha256:two"),
        BranchDeleted(),
        BranchDeleted(),
        BranchDeleted(),
    ),
]
CELLS = [
    pytest.param(row, stance, getattr(row, stance.value), id=f"{row.winners}, {stance.value}")
    for row in ROWS
    for stance in ConflictPolicy
]


def the_plan(stance: ConflictPolicy) -> PublishPlan:
    return plan(stance, BASE, writes=[WRITTEN], reads=() if stance is MAINTENANCE else [READ])


@pytest.mark.parametrize(("row", "stance", "expected"), CELLS)
def test_the_cell(row: Row, stance: ConflictPolicy, expected: Decision) -> None:
    assert decide(the_plan(stance), BASE, row.head) == expected


INLINE = {  # of those rows that ask more of a small commit than to go on
    "touched the table that is written": Proceed(validate=True, restage=RESTAGE),
    "touched the table that is read": Proceed(validate=True),
    "put a tail on the table that is written": Proceed(validate=True, restage=RESTAGE),
    "dropped the table that is written": Proceed(validate=True, restage=RESTAGE),
    "changed the schema": Replan("the schema changed"),
    "a cleanup's fence under a commit to the table that is written": Proceed(validate=True, restage=RESTAGE),
    "deleted the branch": BranchDeleted(),
    "changed the schema, then deleted the branch": BranchDeleted(),
}


@pytest.mark.parametrize("row", [pytest.param(row, id=row.winners) for row in ROWS])
def test_rows_that_ride_in_the_manifest_are_derived_from_no_version(row: Row) -> None:
    """Neither maintenance nor a fence is anything to them; what they amount to is counted again where content moved."""
    small = plan(CONSTRUCTIVE, BASE, writes=[WRITTEN], reads=[READ], inline=True)
    strict = replace(small, policy=STRICT)

    assert decide(small, BASE, row.head) == INLINE.get(row.winners, Proceed())
    refused = row.strict if isinstance(row.strict, Refuse | BranchDeleted) else Proceed()
    assert decide(strict, BASE, row.head) == refused


def test_a_staged_table_stays_under_small_commits_to_other_rows() -> None:
    """`rebase`: what came on top stays there, unless it touches an id that the plan writes."""
    staged = plan(CONSTRUCTIVE, BASE, writes=[WRITTEN])
    head = after(tables=tail_of(WRITTEN))

    assert decide(staged, BASE, head, came=lambda tail: frozenset({"other"})) == Proceed(validate=True)
    for ids in ({"new"}, {"new", "other"}):
        came = frozenset(ids)
        assert decide(staged, BASE, head, came=lambda tail: came) == Proceed(validate=True, restage=RESTAGE)  # noqa: B023


def test_what_was_folded_must_still_be_the_front_of_the_tail() -> None:
    """`maintenance-rebase`. Without it two folds of pure inserts share no fragment, and every row exists twice."""
    tail = (entry(3, WRITTEN), entry(4, WRITTEN))
    base = replace(BASE, tables={WRITTEN: ref(tail=tail)})
    fold = plan(MAINTENANCE, base, writes=[WRITTEN])

    def head(*entries: int, version: int = 1) -> Manifest:
        return after(tables={WRITTEN: ref(version, NEW, tail=tuple(entry(number, WRITTEN) for number in entries))})

    assert decide(fold, base, head(3, 4)) == decide(fold, base, head(3, 4, 6)) == Proceed()
    for other in (head(), head(4), head(4, 6), head(6), head(3), head(3, 6), head(3, 4, version=2)):
        assert decide(fold, base, other) == Replan("node:Written moved")


@pytest.mark.parametrize("key", [WRITTEN, READ])
def test_a_constructive_plan_that_read_rows_plans_again_where_they_changed(key: TableKey) -> None:
    reader = plan(CONSTRUCTIVE, BASE, writes=[WRITTEN], read_rows=[key])

    assert decide(reader, BASE, after(tables=changed(key))) == Replan(
        f"{key} changed, and rows read there went into the plan"
    )
    assert decide(reader, BASE, after(tables=changed(OTHER))) == Proceed()
    assert isinstance(decide(reader, BASE, after(tables=rewritten(key), **MAINTAINED)), Proceed)


@pytest.mark.parametrize("stance", [CONSTRUCTIVE, STRICT])
def test_an_honoured_intent_keeps_what_was_staged(stance: ConflictPolicy) -> None:
    head = after(**FENCED)

    assert decide(the_plan(stance), BASE, head, intent_honoured=True) == Proceed()
    moved = replace(head, tables=rewritten(WRITTEN))
    assert decide(the_plan(stance), BASE, moved, intent_honoured=True) == Proceed(restage=RESTAGE)


@pytest.mark.parametrize("stance", list(ConflictPolicy))
def test_a_plan_that_staged_nothing_takes_a_fence_for_plain_maintenance(stance: ConflictPolicy) -> None:
    nothing_staged = plan(stance, BASE, writes=[WRITTEN], stages=False)

    assert decide(nothing_staged, BASE, after(**FENCED)) == Proceed()


@pytest.mark.parametrize("effect", [RaiseFence(1), DeleteBranch()], ids=["a fence", "a tombstone"])
def test_a_fence_or_a_tombstone_goes_on_any_living_head(effect: RaiseFence | DeleteBranch) -> None:
    ending = PublishPlan("txn", MAINTENANCE, effect)

    for row in ROWS:
        expected = BranchDeleted() if row.head.tombstone else Proceed()
        assert decide(ending, BASE, row.head) == expected


def test_a_strict_plan_that_relied_on_a_type_without_a_table_is_refused_when_it_gets_one() -> None:
    base = manifest(5)
    head = manifest(6, {READ: ref(1, NEW)})

    assert decide(plan(STRICT, base, reads=[READ]), base, head) == Refuse(READ, None, NEW)
    assert decide(plan(STRICT, base, writes=[READ]), base, head) == Refuse(READ, None, NEW)


def test_a_delete_that_found_no_table_is_derived_again_where_there_is_one_now() -> None:
    base = manifest(5)
    head = manifest(6, {WRITTEN: ref(1, NEW)})
    deleting = PublishPlan("txn", CONSTRUCTIVE, DataChange("mutation", (Delete(WRITTEN, ("x",)),)))

    assert decide(deleting, base, head) == Proceed(validate=True, restage=RESTAGE)
    assert decide(deleting, base, manifest(6)) == Proceed()


def test_a_drop_stages_nothing_and_has_nothing_to_derive_again() -> None:
    dropping = PublishPlan("txn", CONSTRUCTIVE, DataChange("schema", (Drop(WRITTEN),)))

    assert decide(dropping, BASE, after(tables=changed(WRITTEN))) == Proceed(validate=True)


def test_stamps_are_compared_for_equality_and_never_by_number() -> None:
    """After a fast-forward the stamp is another branch's: equal or smaller numbers mean nothing."""
    mine = replace(BASE, tables={WRITTEN: ref(1, "aaaaaaaaaaaaa.5")})
    for adopted in ("bbbbbbbbbbbbb.5", "bbbbbbbbbbbbb.2", "aaaaaaaaaaaaa.4", "aaaaaaaaaaaaa.5.1"):
        head = after(tables={WRITTEN: ref(1, adopted)})
        assert decide(plan(STRICT, mine, writes=[WRITTEN]), mine, head) == Refuse(WRITTEN, "aaaaaaaaaaaaa.5", adopted)


# What holds for all plans and heads

KEYS = [WRITTEN, READ, OTHER]
keys = st.frozensets(st.sampled_from(KEYS))
maybe_refs = st.one_of(
    st.none(),
    st.builds(
        ref,
        st.integers(1, 3),
        st.sampled_from(["aaaaaaaaaaaaa.1", "aaaaaaaaaaaaa.2", "bbbbbbbbbbbbb.1"]),
        st.sampled_from(["t1", "t2"]),
        tail=st.lists(st.integers(2, 4), max_size=2, unique=True).map(
            lambda numbers: tuple(entry(number, WRITTEN) for number in sorted(numbers))
        ),
    ).flatmap(lambda found: st.sampled_from([found, replace(found, stored=None)] if found.tail else [found])),
)
table_maps = st.fixed_dictionaries(dict.fromkeys(KEYS, maybe_refs)).map(
    lambda refs: {key: found for key, found in refs.items() if found is not None}
)
heads = st.builds(
    lambda tables, schema, fenced_at, dead: manifest(
        9, tables, schema=schema, fenced_at=fenced_at, tombstone=TOMBSTONE if dead else None
    ),
    table_maps,
    st.sampled_from(["sha256:one", "sha256:one", "sha256:two"]),
    st.sampled_from([0, 0, 8]),
    st.booleans(),
)
bases = st.builds(lambda tables: manifest(5, tables), table_maps)
Plan = Callable[[Manifest], PublishPlan]
plans: st.SearchStrategy[Plan] = st.builds(
    lambda stance, writes, reads, read_rows, how: (
        lambda base: plan(
            stance,
            base,
            writes=writes,
            reads=reads,
            read_rows=read_rows,
            stages=how == "staged",
            inline=how == "inline" and stance is not MAINTENANCE,
        )
    ),
    st.sampled_from(list(ConflictPolicy)),
    keys,
    keys,
    keys,
    st.sampled_from(["staged", "inline", "neither"]),
)


def stamps(at: Manifest) -> dict[TableKey, str]:
    return {key: found.changed_at for key, found in at.tables.items()}


@given(make=plans, base=bases, head=heads)
def test_only_maintenance_never_refuses_anybody(make: Plan, base: Manifest, head: Manifest) -> None:
    same_content = replace(
        head,
        tables={key: replace(head.tables.get(key, old), changed_at=old.changed_at) for key, old in base.tables.items()},
        schema=base.schema,
        tombstone=None,
    )
    decision = decide(make(base), base, same_content)

    assert isinstance(decision, Proceed | Replan)
    assert isinstance(decision, Proceed) or make(base).policy is MAINTENANCE
    assert not (isinstance(decision, Proceed) and decision.validate), "no content changed, nothing to validate"


@given(make=plans, base=bases, head=heads)
def test_a_dead_branch_takes_nothing_and_only_a_dead_one_is_gone(make: Plan, base: Manifest, head: Manifest) -> None:
    assert (decide(make(base), base, head) == BranchDeleted()) is (head.tombstone is not None)


@given(make=plans, base=bases, head=heads)
def test_only_a_strict_plan_is_refused_and_only_for_what_it_relied_on(
    make: Plan, base: Manifest, head: Manifest
) -> None:
    made = make(base)
    decision = decide(made, base, head)
    living, same_schema = head.tombstone is None, head.schema == base.schema
    moved = {key for key in made.reads | made.writes if stamps(base).get(key) != stamps(head).get(key)}

    assert isinstance(decision, Refuse) is (made.policy is STRICT and living and (not same_schema or bool(moved)))
    if isinstance(decision, Refuse) and same_schema:
        assert decision.table_key in moved
        assert (decision.expected, decision.actual) == (
            stamps(base).get(decision.table_key),
            stamps(head).get(decision.table_key),
        )


@given(make=plans, base=bases, head=heads)
def test_a_plan_that_proceeds_is_composed_of_versions_derived_from_the_head(
    make: Plan, base: Manifest, head: Manifest
) -> None:
    """`rebase`: whatever is not staged again must have been derived from exactly what the head has."""
    made = make(base)
    decision = decide(made, base, head)
    if not isinstance(decision, Proceed):
        return
    for key, staged in made.staged.items():
        stored, tail = (None, ()) if (found := head.tables.get(key)) is None else (found.stored, found.tail)
        same = staged.base == stored and staged.folded == tail[: len(staged.folded)]
        assert same or key in decision.restage
        untold = tail != staged.folded and made.policy is not MAINTENANCE
        assert not untold or key in decision.restage, "rows came on top, and they may be the plan's own"
    for key, small in made.inline.items():
        assert small.changed_at == stamps(head).get(key) or key in decision.restage


@given(make=plans, base=bases, head=heads)
def test_nothing_staged_before_a_fence_survives_it(make: Plan, base: Manifest, head: Manifest) -> None:
    made = make(base)
    decision = decide(made, base, head)
    if head.fenced_at != base.fenced_at and isinstance(decision, Proceed) and made.staged:
        assert decision.from_scratch
        assert decision.restage >= made.staged.keys()


@given(make=plans, base=bases)
def test_losing_to_nothing_new_changes_nothing(make: Plan, base: Manifest) -> None:
    assert decide(make(base), base, base) == Proceed()
