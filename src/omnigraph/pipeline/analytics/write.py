"""Values of an analysis written into a property: the new column is staged beside the table's files, published once.

Values belong to rows by id. On another version of the table, for example after a compaction, they are matched again;
if the rows have changed, the analysis is run again (`replan-reads`), unless an older state was named.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from omnigraph.errors import OmnigraphError
from omnigraph.manifest.commit.plan import StagedTable
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import RowCounts
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.analytics.local import LocalResult
from omnigraph.pipeline.analytics.spark import SparkResult, translate_errors
from omnigraph.pipeline.analytics.spec import TargetProperty, cast_values
from omnigraph.pipeline.spark.runner import TaskFailure
from omnigraph.schema.constraints import Constraint
from omnigraph.schema.indexes import declared_indexes
from omnigraph.storage.location import Location
from omnigraph.storage.table.tables import TableVersion
from omnigraph.storage.table.write.column_updates import (
    FRAGMENT,
    ID,
    UpdatedFragment,
    addressed_batches,
    commit_updates,
    fragment_sizes,
    ids_by_fragment,
    update_fragment,
)
from omnigraph.write.validate.row_checks import value_violations
from omnigraph.write.validate.validate import constraints_for
from omnigraph.write.validate.violations import raise_violations

if TYPE_CHECKING:
    import pyarrow as pa

AnalysisResult: TypeAlias = LocalResult | SparkResult


@dataclass(frozen=True, slots=True)
class ColumnWrite:
    """What a task needs to know of the column that it writes."""

    location: Location
    at: TableVersion
    target: TargetProperty
    constraints: tuple[Constraint, ...]

    @property
    def name(self) -> str:
        return self.target.prop.column

    def checked(self, values: "pa.Table") -> "pa.Table":
        """The values as the property has them, if the schema allows them."""
        import pyarrow as pa

        rows = pa.table({ID: values.column(ID), self.name: cast_values(values.column("value"), self.target)})
        raise_violations(value_violations(self.constraints, self.target.definition, rows))
        return rows


def stage(repository: Repository, txn: WriteTxn, target: TargetProperty, answer: AnalysisResult) -> StagedTable | None:
    """A version of the target's table with the answer in it; None for a type without rows.

    Columns are written beside stored rows, so those that ride in manifests are stored first (`whole-tail`).
    """
    from omnigraph.schema.arrow import arrow_schema

    key, tables, location = target.definition.table_key, repository.tables, repository.location
    ref, content = txn.table(key), txn.content(key)
    if ref is None or content is None:
        return None
    at = tables.fold_tail(content, repository.runtime.ids.short_id(), arrow_schema(target.definition)).at
    own = tuple(
        constraint
        for constraint in constraints_for(txn).of(key)
        if constraint.columns == (target.prop.column,) and constraint.table_key == key
    )
    column = ColumnWrite(location, at, target, own)
    updates = _on_spark(column, answer) if isinstance(answer, SparkResult) else list(_here(column, answer))
    changed = sum(update.changed for update in updates)
    made = commit_updates(location, at, updates).at
    if changed:
        indexes = [index for index in declared_indexes(target.definition) if index.column == column.name]
        made = tables.reindex(made, [index.name for index in indexes], indexes) if indexes else made
    files = tables.new_files(ref.stored, made)
    touch = RowCounts(updated=changed)
    return StagedTable(made, ref.rows, touch, ref.stored, ref.tail, columns=txn.base.schema, files=files)


def _here(column: ColumnWrite, answer: LocalResult) -> Iterator[UpdatedFragment]:
    """Fragment by fragment in this process; ids are matched once."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    ids, values = answer.of_type(column.target.definition.name)
    rows = column.checked(pa.table({ID: ids, "value": values}))
    stored = ids_by_fragment(column.location, column.at)
    place: Any = pc.index_in(stored.column(ID), value_set=ids)
    there = place.is_valid()
    places: Any = place.filter(there)
    wanted, owners = rows.take(places), np.asarray(stored.column(FRAGMENT).filter(there))
    order = np.argsort(owners, kind="stable")
    wanted, owners = wanted.take(order), owners[order]
    for fragment in np.unique(owners).tolist():
        first, last = np.searchsorted(owners, [fragment, fragment + 1])
        yield update_fragment(column.location, column.at, fragment, column.name, wanted.slice(first, last - first))


def _on_spark(column: ColumnWrite, answer: SparkResult) -> list[UpdatedFragment]:
    """Each fragment by a task that gets the values of its rows: none passes through the driver."""
    spark = answer.frame.sparkSession
    numbers = list(fragment_sizes(column.location, column.at))
    if not numbers:
        return []
    with translate_errors("write"):
        listed = spark.createDataFrame([(number,) for number in numbers], f"{FRAGMENT} int")
        stored = listed.repartition(len(numbers)).mapInArrow(partial(_read_ids, column), f"id string, {FRAGMENT} int")
        joined = stored.join(answer.of_type(column.target.definition.name), "id")
        written = joined.groupBy(FRAGMENT).applyInArrow(
            _writing(column), "document string, changed long, fields array<int>"
        )
        return [UpdatedFragment(row.document, int(row.changed), tuple(row.fields)) for row in written.collect()]


def _read_ids(column: ColumnWrite, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    for batch in batches:
        for number in batch.column(0).to_pylist():
            assert number is not None
            for rows in addressed_batches(column.location, column.at, [ID], [number]):
                same = pa.array([number] * rows.num_rows, pa.int32())
                yield pa.RecordBatch.from_arrays([rows.column(ID).cast(pa.string()), same], names=[ID, FRAGMENT])


def _writing(column: ColumnWrite) -> Any:
    """A function whose hints are types, not their names: Spark looks at them."""
    import pyarrow as pa

    def write(rows: pa.Table) -> pa.Table:
        return _write_group(column, rows)

    return write


def _write_group(column: ColumnWrite, rows: "pa.Table") -> "pa.Table":
    import pyarrow as pa

    try:
        fragment: Any = rows.column(FRAGMENT)[0].as_py()
        made = update_fragment(column.location, column.at, fragment, column.name, column.checked(rows))
    except OmnigraphError as error:
        raise TaskFailure(error) from None
    kinds: Any = [("document", pa.string()), ("changed", pa.int64()), ("fields", pa.list_(pa.int32()))]
    answered = {"document": made.document, "changed": made.changed, "fields": list(made.fields)}
    return pa.Table.from_pylist([answered], schema=pa.schema(kinds))
