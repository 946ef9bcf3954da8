"""Questions of the validator to stored tables: rows by values of a column, through whatever index there is."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from omnigraph.manifest.commit.txn import Snapshot, WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.storage.table.read.point_lookup import VALUES_MAX
from omnigraph.storage.table.read.predicates import sql_in
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["VALUES_MAX", "PrefetchedRows", "rows_having", "sql_in", "stored_at"]


def stored_at(txn: WriteTxn | Snapshot, key: TableKey) -> TableContent | None:
    """What a type's table holds in the transaction's base."""
    return txn.content(key)


def rows_having(
    tables: Tables, at: TableContent, columns: Sequence[str], values: Mapping[str, Collection[object]]
) -> "pa.Table":
    """Rows whose values are among those given, column by column: a few more where there are too many to name."""
    return tables.find_rows(at, columns, values)


class PrefetchedRows:
    """What immutable table versions answered, kept for one write.

    Planning asks together with its own question what validation will ask a moment later. That has to be one scan, not
    two at the same time: the second would wait for the first to learn what is in a new file, a round trip each.
    """

    def __init__(self) -> None:
        self._rows: dict[object, pa.Table] = {}

    def rows_having(
        self, tables: Tables, at: TableContent, columns: Sequence[str], values: Mapping[str, Collection[object]]
    ) -> "pa.Table":
        known = self._rows.get(_question(at, columns, values))
        return known if known is not None else rows_having(tables, at, columns, values)

    def add(
        self, at: TableContent, columns: Sequence[str], values: Mapping[str, Collection[object]], rows: "pa.Table"
    ) -> None:
        """Rows among which are all that have these values."""
        self._rows[_question(at, columns, values)] = rows.select(list(columns))


def _question(at: TableContent, columns: Sequence[str], values: Mapping[str, Collection[object]]) -> object:
    return at, tuple(columns), tuple((name, tuple(some)) for name, some in values.items())
