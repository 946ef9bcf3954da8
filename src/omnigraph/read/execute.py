"""Run a bound read query: match its pattern on row numbers, project the result, fetch its columns last."""

from collections.abc import Iterator

from omnigraph.fair_share import fair_share
from omnigraph.memory_budget import budget_scope, current_budget, query_budget
from omnigraph.query.ir import Pattern, ReadQuery, WholeNode, columns_in, patterns_of
from omnigraph.read.explain import QueryPlan
from omnigraph.read.match.filters import column_name
from omnigraph.read.match.match import match_pattern
from omnigraph.read.project.output import expression_columns, output_variables, project
from omnigraph.read.reader import SnapshotReader
from omnigraph.read.result import QueryResult
from omnigraph.read.tables.resident_table import NeedsResidentTables
from omnigraph.read.tables.table_access import TableAccess


def run_query(reader: SnapshotReader, query: ReadQuery, *, explain: bool = False) -> QueryResult:
    """The result of a bound query at the reader's snapshot.

    A query starts with the tables that are in memory and reads the others row by row. Where that becomes too much it
    starts again with more tables in memory; the work lost is small, or it would have restarted earlier.
    """
    budget = current_budget() or query_budget(reader.options.memory_bytes)
    traversals = [step for pattern in patterns_of(query.pattern) for step in pattern.traversals]
    resident: frozenset[str] = frozenset()
    while True:
        access = TableAccess(reader, lambda key: _columns(query, key), traversals, resident)
        try:
            with fair_share(), budget_scope(budget):
                return _run(access, query, explain)
        except NeedsResidentTables as needed:
            resident |= needed.table_keys


def _run(access: TableAccess, query: ReadQuery, explain: bool) -> QueryResult:
    plan = QueryPlan(with_details=explain)
    rows = match_pattern(access, query.pattern, output_variables(query), plan)
    result = project(access, query, rows, plan)
    options = access.reader.options
    shown = plan if explain else None
    return QueryResult(result, access.reader.commit_id, options.batch_rows, shown, current_budget())


def _columns(query: ReadQuery, table_key: str) -> set[str]:
    """The columns of a table that a query reads."""
    return {name for key, name in _columns_read(query) if key == table_key}


def _columns_read(query: ReadQuery) -> Iterator[tuple[str, str]]:
    exprs = [
        *(projection.expr for projection in query.returns),
        *(key.expr for key in (*query.order, *query.tiebreak)),
        *query.keeps,
    ]
    for expr in exprs:
        if isinstance(expr, WholeNode):
            yield from ((expr.table_key, column.column) for column in expr.columns)
            continue
        for column in expression_columns(expr):
            yield column.table_key, column_name(column)
    for pattern in patterns_of(query.pattern):
        yield from _filter_columns(pattern)


def _filter_columns(pattern: Pattern) -> Iterator[tuple[str, str]]:
    for condition in pattern.filters:
        for column in columns_in(condition):
            yield column.table_key, column_name(column)
