"""Questions of the validator to stored tables: rows by values of a column, through whatever index there is."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from omnigraph.manifest.model import TableKey
from omnigraph.manifest.txn import Snapshot, WriteTxn
from omnigraph.storage.parallel import gather
from omnigraph.storage.tables import Tables, TableVersion

if TYPE_CHECKING:
    import pyarrow as pa

VALUES_MAX = 10_000  # in one filter; above it one filter after another is faster
LOWEST = -(2**63)  # as a plain number Lance's SQL would read it as a float
ROWS_A_VALUE_MAX = 10  # of a table that is looked through as a whole for that many values
OTHER_VALUES_MAX = 1_000  # of the further columns of a filter: they only narrow it down


def stored_at(txn: WriteTxn | Snapshot, key: TableKey) -> TableVersion | None:
    """The version of a type's table in the transaction's base."""
    ref = txn.table(key)
    return None if ref is None else TableVersion(ref.table_id, ref.table_version)


def rows_having(
    tables: Tables, at: TableVersion, columns: Sequence[str], values: Mapping[str, Collection[object]]
) -> "pa.Table":
    """Rows whose values are among those given, column by column: a few more where there are too many to name."""
    import pyarrow as pa

    widest = max(values, key=lambda name: len(values[name]))
    every = list(values[widest])
    if len(every) > VALUES_MAX and tables.count(at) <= len(every) * ROWS_A_VALUE_MAX:
        return _looked_through(tables, at, columns, widest, every)
    others = [isin(name, some) for name, some in values.items() if name != widest and len(some) <= OTHER_VALUES_MAX]
    filters = [
        " AND ".join([isin(widest, every[start : start + VALUES_MAX]), *others])
        for start in range(0, len(every), VALUES_MAX)
    ]
    return pa.concat_tables(gather([partial(tables.scan, at, columns, one) for one in filters]))


def _looked_through(
    tables: Tables, at: TableVersion, columns: Sequence[str], column: str, values: Sequence[object]
) -> "pa.Table":
    """One pass over the table: less work than naming a good part of its values in filters."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted: pa.Array[Any] | None = None
    found = []
    for batch in tables.batches(at, columns):
        table = pa.table(batch)
        if wanted is None:
            zeros = [-0.0, 0.0] if 0.0 in values and pa.types.is_floating(table.column(column).type) else []
            wanted = pa.array([*values, *zeros], table.column(column).type)
        found.append(table.filter(pc.is_in(table.column(column), value_set=wanted)))
    return pa.concat_tables(found) if found else tables.scan(at, columns, "false")


class Answers:
    """What immutable table versions answered, kept for one write.

    Planning asks together with its own question what validation will ask a moment later. That has to be one scan, not
    two at the same time: the second would wait for the first to learn what is in a new file, a round trip each.
    """

    def __init__(self) -> None:
        self._rows: dict[object, pa.Table] = {}

    def rows_having(
        self, tables: Tables, at: TableVersion, columns: Sequence[str], values: Mapping[str, Collection[object]]
    ) -> "pa.Table":
        known = self._rows.get(_question(at, columns, values))
        return known if known is not None else rows_having(tables, at, columns, values)

    def keep(
        self, at: TableVersion, columns: Sequence[str], values: Mapping[str, Collection[object]], rows: "pa.Table"
    ) -> None:
        """Rows among which are all that have these values."""
        self._rows[_question(at, columns, values)] = rows.select(list(columns))


def _question(at: TableVersion, columns: Sequence[str], values: Mapping[str, Collection[object]]) -> object:
    return at, tuple(columns), tuple((name, tuple(some)) for name, some in values.items())


def isin(column: str, values: Iterable[object]) -> str:
    """A predicate for rows that have one of these values in the column."""
    return f"`{column}` IN ({', '.join(dict.fromkeys(text for value in values for text in sql_literals(value)))})"


def sql_literals(value: object) -> tuple[str, ...]:
    """The texts of a value: an index tells the two zeros apart, a unique value does not."""
    if isinstance(value, float) and value == 0:
        return "0.0", "-0.0"
    return (sql_literal(value),)


def sql_literal(value: object) -> str:
    """A value as Lance's filters write it; a quote is the only special character in a text."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            doubled = value.replace("'", "''")
            return f"'{doubled}'"
        case int() if value == LOWEST:
            return f"CAST('{value}' AS BIGINT)"
        case int() | float():
            return repr(value)
        case datetime():
            return f"timestamp '{value.isoformat(timespec='milliseconds')}'"
        case date():
            return f"date '{value.isoformat()}'"
        case bytes():
            return f"X'{value.hex()}'"
    raise TypeError(f"{type(value).__name__} has no place in a filter")
