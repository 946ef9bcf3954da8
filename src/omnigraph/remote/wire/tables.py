"""Rows that arrive as Arrow or JSON as tables: the result of a query, typed as on the server, and of an analysis."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph.api.models import AnalyzeAnswer
from omnigraph.api.wire_model import Document
from omnigraph.manifest.model.manifest import CommitId
from omnigraph.query.ir import PropertyColumn, WholeNode
from omnigraph.read.explain import QueryPlan
from omnigraph.read.project.output import OutputColumn, ResultTable
from omnigraph.read.result import QueryResult
from omnigraph.schema.types import ListOf, PropertyType, Scalar, Vector

if TYPE_CHECKING:
    from omnigraph.manifest.commit.publish import PublishedCommit
    from omnigraph.pipeline.analytics.analyze import Analysis

BATCH_ROWS = 10_000

_SCALARS = {
    pa.string(): "String",
    pa.bool_(): "Bool",
    pa.int32(): "I32",
    pa.int64(): "I64",
    pa.uint32(): "U32",
    pa.uint64(): "U64",
    pa.float32(): "F32",
    pa.float64(): "F64",
    pa.date32(): "Date",
    pa.timestamp("ms", tz="UTC"): "DateTime",
    pa.large_binary(): "Blob",
}


def query_result(table: pa.Table, commit_id: CommitId, plan: QueryPlan | None) -> QueryResult:
    """A result that has all its rows already."""
    columns = tuple(_output(name, table.column(index)) for index, name in enumerate(table.column_names))
    return QueryResult(ResultTable(table.num_rows, columns), commit_id, BATCH_ROWS, plan)


def _output(name: str, values: Any) -> OutputColumn:
    whole = _node(name, values.type) if pa.types.is_struct(values.type) else None
    fetch: Callable[[slice], Any] = lambda part: _one_array(values[part])  # noqa: E731
    return OutputColumn(name, None if whole else property_type(values.type), values.type, fetch, whole)


def _one_array(values: Any) -> Any:
    """A batch has one array a column."""
    if values.num_chunks == 1:
        return values.chunk(0)
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)


def _node(var: str, kind: Any) -> WholeNode:
    """A whole node: `id`, which every one has, and its properties."""
    inside = [kind.field(index) for index in range(kind.num_fields)]
    columns = [(entry.name, property_type(entry.type)) for entry in inside if entry.name != "id"]
    return WholeNode(var, "", tuple(PropertyColumn("", name, name, known, True) for name, known in columns if known))


def property_type(kind: Any) -> PropertyType | None:
    """The type of a property that Arrow keeps so; an enumeration is text. None for what no property has."""
    if kind in _SCALARS:
        return Scalar(_SCALARS[kind])
    if pa.types.is_fixed_size_list(kind):
        return Vector(kind.list_size)
    if pa.types.is_list(kind) and kind.value_type in _SCALARS:
        return ListOf(Scalar(_SCALARS[kind.value_type]))
    return None


def decode_analysis(document: Document, commit: "PublishedCommit | None") -> "Analysis":
    rows = list(document["rows"])
    table: Any = pa.Table.from_pylist(rows) if rows else _no_rows(document["algorithm"])
    found: Analysis = AnalyzeAnswer.decode(document, table=table, commit=commit)
    return found


def _no_rows(algorithm: str) -> Any:
    from omnigraph.pipeline.analytics.spec import VALUE_NAMES

    value: Any = {"pagerank": pa.float64(), "components": pa.string()}.get(algorithm, pa.int64())
    name = VALUE_NAMES.get(algorithm, "value")  # type: ignore[call-overload]  # a server may know more algorithms
    return pa.schema([("type", pa.string()), ("id", pa.string()), (name, value)]).empty_table()
