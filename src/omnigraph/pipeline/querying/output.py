"""The columns of a result that Spark has answered: back in their own types, and the late ones looked up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.pipeline.querying.scan import carried_back
from omnigraph.query.ir import (
    Aggregate,
    Bm25,
    EntityId,
    Literal,
    Nearest,
    Projection,
    Prop,
    ReadQuery,
    Rrf,
    WholeNode,
)
from omnigraph.read.match.filters import column_name, to_array
from omnigraph.read.project.output import OutputColumn
from omnigraph.read.reader import SnapshotReader
from omnigraph.read.tables.arrow_numpy import ArrowArray
from omnigraph.schema.arrow import arrow_type


@dataclass(frozen=True, slots=True)
class Fetched:
    """The rows of a result as they came."""

    rows: pa.Table
    reader: SnapshotReader

    @property
    def count(self) -> int:
        return int(self.rows.num_rows)

    def column(self, name: str, kind: pa.DataType) -> ArrowArray:
        return carried_back(to_array(self.rows.column(name)), kind)

    def looked_up(self, table_key: str, ids: ArrowArray, columns: Sequence[str]) -> dict[str, ArrowArray]:
        """Stored columns of the entities with these ids, in their order."""
        state = self.reader.state(table_key)
        distinct: Any = pc.unique(ids)
        found = self.reader.tables.lookup(
            state.at, distinct.to_pylist(), ["id", *columns], state.overlay, schema=state.schema
        ).combine_chunks()
        places = pc.index_in(ids, value_set=to_array(found.column("id")))
        return {name: to_array(found.column(name)).take(places) for name in columns}


def outputs(query: ReadQuery, fetched: Fetched, names: Mapping[Any, str]) -> tuple[OutputColumn, ...]:
    """The result's columns; `names` says where an expression, or a stored column of a variable, came."""
    return tuple(_output(projection, fetched, names) for projection in query.returns)


def _output(projection: Projection, fetched: Fetched, names: Mapping[Any, str]) -> OutputColumn:
    name, expr = projection.name, projection.expr
    match expr:
        case Literal(value, kind):
            constant: Any = pa.scalar(list(value) if isinstance(value, tuple) else value, arrow_type(kind))
            return _made(name, kind, pa.repeat(constant, fetched.count))
        case Aggregate(type=kind) | Nearest(type=kind) | Bm25(type=kind) | Rrf(type=kind):
            return _made(name, kind, fetched.column(names[expr], arrow_type(kind)))
        case EntityId(type=kind):
            return _made(name, kind, fetched.column(names[expr], arrow_type(kind)))
        case Prop(var, table_key, column):
            stored = column_name(expr)
            return _made(name, column.type, _values(fetched, names, var, table_key, [stored])[stored])
        case WholeNode(var, table_key, columns):
            schema = fetched.reader.state(table_key).schema
            values = _values(fetched, names, var, table_key, [column.column for column in columns])
            fields = [
                pa.field("id", pa.string()),
                *(pa.field(column.name, schema.field(column.column).type) for column in columns),
            ]
            ids = fetched.column(names[EntityId(var, table_key)], pa.string())
            whole = pa.StructArray.from_arrays([ids, *(values[column.column] for column in columns)], fields=fields)
            return OutputColumn(name, None, whole.type, lambda part: whole[part], expr)
        case _:
            raise AssertionError(f"{expr} was not bound")


def _values(
    fetched: Fetched, names: Mapping[Any, str], var: str, table_key: str, columns: Sequence[str]
) -> dict[str, ArrowArray]:
    """Stored columns of a variable: those that came, and those that are looked up only now."""
    schema = fetched.reader.state(table_key).schema
    came = {
        column: fetched.column(names[var, column], schema.field(column).type)
        for column in columns
        if (var, column) in names
    }
    late = [column for column in columns if column not in came]
    if not late:
        return came
    ids = fetched.column(names[EntityId(var, table_key)], pa.string())
    return came | fetched.looked_up(table_key, ids, late)


def _made(name: str, kind: Any, values: ArrowArray) -> OutputColumn:
    return OutputColumn(name, kind, values.type, lambda part: values[part])
