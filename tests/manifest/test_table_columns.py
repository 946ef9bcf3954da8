"""Which tables of a manifest lack a column of its schema, and when a decision not to stage is derived again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omnigraph.manifest.commit.compose import compose_manifest
from omnigraph.manifest.commit.conflicts import Proceed, Replan, decide
from omnigraph.manifest.commit.plan import (
    Adopted,
    ConflictPolicy,
    DataChange,
    Merged,
    Move,
    PublishPlan,
    Reshape,
    StagedTable,
)
from omnigraph.manifest.model.manifest import Manifest, RowCounts, TableKey, TableRef
from omnigraph.manifest.model.table_columns import lacking_property, missing_columns
from omnigraph.schema.catalog import Schema
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.table.handles import TableVersion

from .builders import BRANCH_ID, NOON, manifest, ref

A, B, Z = "node:A", "node:B", "node:Z"
ONE = compile_schema("node A { k: String @key x: I32? } node B { k: String @key }")
WIDER = compile_schema("node A { k: String @key x: I32? y: I32? } node B { k: String @key }", ONE)
DROPPED = compile_schema("node A { k: String @key } node B { k: String @key }", ONE)
AGAIN = compile_schema("node A { k: String @key x: I32? } node B { k: String @key }", DROPPED)
RENAMED = compile_schema(
    'node Z @rename_from("A") { k: String @key w: I32? @rename_from("x") } node B { k: String @key }', ONE
)
SCHEMAS = {schema.hash: schema for schema in (ONE, WIDER, DROPPED, AGAIN, RENAMED)}


class Reads:
    """Schemas, and which of them were read."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str) -> Schema:
        self.names.append(name)
        return SCHEMAS[name]


def table(schema: Schema, version: int = 1, table_id: str = "t1") -> TableRef:
    return replace(ref(version, table_id=table_id), columns=schema.hash)


def base_of(schema: Schema, **tables: TableRef) -> Manifest:
    return manifest(4, {f"node:{name}": one for name, one in tables.items()}, schema=schema.hash)


def missing(base: Manifest, change: DataChange, reads: Reads | None = None) -> dict[TableKey, str]:
    after = compose_manifest(base, PublishPlan("txn", ConflictPolicy.STRICT, change), NOON)
    return missing_columns(base, after, change, reads or Reads())


def staged(base: TableRef, columns: Schema | None) -> StagedTable:
    made = TableVersion("t1", 9)
    return StagedTable(made, 1, RowCounts(updated=1), base.stored, columns=None if columns is None else columns.hash)


def test_a_table_that_the_new_schema_wants_another_column_of_lacks_it() -> None:
    base = base_of(ONE, A=table(ONE), B=table(ONE, table_id="t2"))

    assert missing(base, DataChange("schema_apply", schema=WIDER.hash)) == {A: "y"}


def test_a_table_that_was_reshaped_for_the_new_schema_lacks_nothing() -> None:
    base = base_of(ONE, A=table(ONE))
    change = DataChange("schema_apply", (Reshape(A),), {A: staged(base.tables[A], WIDER)}, schema=WIDER.hash)

    assert missing(base, change) == {}
    assert missing(base, replace(change, staged={A: staged(base.tables[A], ONE)})) == {A: "y"}
    assert missing(base, replace(change, staged={A: staged(base.tables[A], None)})) == {A: "y"}


def test_rows_that_were_never_stored_lack_no_column() -> None:
    base = base_of(ONE, A=TableRef(None, 1, f"{BRANCH_ID}.3"))

    assert missing(base, DataChange("schema_apply", schema=WIDER.hash)) == {}


def test_a_schema_that_drops_or_renames_wants_no_column() -> None:
    base = base_of(ONE, A=table(ONE))

    assert missing(base, DataChange("schema_apply", schema=DROPPED.hash)) == {}
    assert missing(base, DataChange("schema_apply", (Move(Z, A),), schema=RENAMED.hash)) == {}


def test_a_property_that_was_dropped_and_added_again_is_another_column() -> None:
    base = base_of(DROPPED, A=table(ONE))

    assert missing(base, DataChange("schema_apply", schema=AGAIN.hash)) == {A: "x"}


def test_a_table_of_another_type_with_the_same_name_has_none_of_its_columns() -> None:
    other = compile_schema("node B { k: String @key }", ONE)
    again = compile_schema("node A { k: String @key x: I32? } node B { k: String @key }", other)

    assert lacking_property(ONE, again.catalog.by_key[A]) == "k"


def test_an_adopted_table_must_have_the_columns_of_any_writer() -> None:
    base = base_of(WIDER, A=table(WIDER))

    def adopting(schema: Schema) -> DataChange:
        merged = Merged({}, {A: Adopted(table(schema, 7, "t7"))})
        return DataChange("merge", merged_parent=f"{'c' * 13}.3", merged=merged)

    assert missing(base, adopting(WIDER)) == {}
    assert missing(base, adopting(ONE)) == {A: "y"}


def test_an_ordinary_commit_reads_no_schema() -> None:
    base = base_of(WIDER, A=table(WIDER), B=table(ONE, table_id="t2"))
    reads = Reads()

    assert missing(base, DataChange("mutation", (), {A: staged(base.tables[A], WIDER)}), reads) == {}
    assert reads.names == []


def test_a_schema_change_reads_only_the_two_schemas_of_tables_that_it_wants_nothing_of() -> None:
    base = base_of(ONE, B=table(WIDER, table_id="t2"))
    reads = Reads()

    assert missing(base, DataChange("schema_apply", schema=DROPPED.hash), reads) == {}
    assert set(reads.names) == {ONE.hash, DROPPED.hash}


# A decision not to stage


def unstaged(**stored: TableVersion | None) -> DataChange:
    return DataChange("schema_apply", schema=WIDER.hash, unstaged={f"node:{key}": at for key, at in stored.items()})


INLINE = TableRef(None, 1, f"{BRANCH_ID}.3")
FOLDED = replace(table(ONE), changed_at=INLINE.changed_at)


def test_a_fold_of_a_table_that_a_plan_did_not_stage_makes_it_decide_again() -> None:
    base, head = base_of(ONE, A=INLINE), replace(base_of(ONE, A=FOLDED), manifest_version=5)
    plan = PublishPlan("txn", ConflictPolicy.STRICT, unstaged(A=None))

    assert decide(plan, base, head) == Proceed(restage=frozenset({A}))
    assert decide(plan, base, replace(base, manifest_version=5)) == Proceed()


@pytest.mark.parametrize("after", [None, table(ONE, 2), table(ONE, 1, "t9")], ids=["gone", "version", "table"])
def test_whatever_moved_it_the_decision_is_derived_again(after: TableRef | None) -> None:
    base = base_of(ONE, A=table(ONE))
    head = replace(base, manifest_version=5, tables={} if after is None else {A: after})
    plan = PublishPlan("txn", ConflictPolicy.STRICT, unstaged(A=table(ONE).stored))

    assert decide(plan, base, head) == Proceed(restage=frozenset({A}))


def test_the_decision_about_a_renamed_type_is_about_the_table_under_its_old_name() -> None:
    change = DataChange("schema_apply", (Move(Z, A),), schema=RENAMED.hash, unstaged={Z: None})
    base, head = base_of(ONE, A=INLINE), replace(base_of(ONE, A=FOLDED), manifest_version=5)
    plan = PublishPlan("txn", ConflictPolicy.STRICT, change)

    assert decide(plan, base, head) == Proceed(restage=frozenset({Z}))
    assert decide(plan, base, replace(base, manifest_version=5)) == Proceed()


def test_a_merge_that_left_a_table_alone_plans_again_when_it_moved() -> None:
    base, head = base_of(ONE, A=INLINE), replace(base_of(ONE, A=FOLDED), manifest_version=5)
    change = replace(unstaged(A=None), merged_parent=f"{'c' * 13}.3", merged=Merged({}))
    plan = PublishPlan("txn", ConflictPolicy.STRICT, change)

    assert isinstance(decide(plan, base, head), Replan)
    assert decide(plan, base, replace(base, manifest_version=5)) == Proceed()
