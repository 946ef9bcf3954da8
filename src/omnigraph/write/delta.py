"""The changes of one write as values: the same for mutations, loads and merges, so that one validator serves all."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from omnigraph.manifest.commit.plan import Append, Delete, Overwrite, TableAction, Upsert
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.schema.ipc_row import EncodedRow
from omnigraph.storage.table.overlay import Overlay

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(eq=False)
class TableDelta:
    """The change of one table: whole row images, removed ids, and the stored rows before.

    `before` are the stored images of rows that are replaced or removed. A write that gives them has read them, and is
    planned again when the table changes. Rows that are not in it are new. No field is set after construction.
    """

    table: TableKey
    given: "pa.Table | Overlay"  # an overlay has rows in the columns of their type
    removed: frozenset[str] = frozenset()
    before: "pa.Table | None" = None
    fresh_ids: bool = False  # all ids of `rows` were minted by this write
    ids_must_be_new: bool = False  # an id that exists already is an error
    replaces_all: bool = False  # these rows replace all stored ones
    removes_edges: bool = False  # the edges of `removed` were read and are removed too: no check has to look for them

    @cached_property
    def ids(self) -> frozenset[str]:
        return self.given.ids if isinstance(self.given, Overlay) else frozenset(texts(self.given, "id"))

    @property
    def rows(self) -> "pa.Table":
        rows = self.given.rows if isinstance(self.given, Overlay) else self.given
        assert rows is not None, "a delta without rows has an empty table"
        return rows

    @property
    def count(self) -> int:
        """The number of rows written."""
        return len(self.given.ids) if isinstance(self.given, Overlay) else self.given.num_rows

    @property
    def single_row(self) -> EncodedRow | None:
        """The only row, if it was encoded from values."""
        return self.given.single_row if isinstance(self.given, Overlay) else None

    def texts(self, column: str) -> list[str]:
        """The values of a column without nulls, such as ids and ends."""
        row = self.single_row
        return texts(self.rows, column) if row is None else [str(row.values[column])]

    @cached_property
    def affected_ids(self) -> frozenset[str]:
        """Ids that this write replaces, inserts or removes."""
        return self.ids | self.removed

    @cached_property
    def ids_before(self) -> frozenset[str]:
        return frozenset(() if self.before is None else texts(self.before, "id"))

    @property
    def is_empty(self) -> bool:
        return not self.replaces_all and not self.removed and not self.count

    def before_by_id(self, columns: Iterable[str]) -> dict[str, tuple[object, ...]]:
        """The stored values of these columns, by id."""
        return {} if self.before is None else values_by_id(self.before, columns)

    def actions(self) -> tuple[TableAction, ...]:
        if self.replaces_all:
            return (Overwrite(self.table, self.rows),)
        found: list[TableAction] = []
        if self.removed:
            known = None if self.before is None else self.ids_before
            gone = None if known is None else known & self.removed
            found.append(Delete(self.table, tuple(sorted(self.removed)), gone))
        if self.count:
            replaced = self.ids & self.ids_before if self.before is not None and self.before.num_rows else None
            if replaced:
                found.append(Upsert(self.table, self.given, replaced))
            else:
                found.append(Append(self.table, self.given, self.fresh_ids))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes of all tables of one write."""

    tables: Mapping[TableKey, TableDelta]

    @staticmethod
    def of(tables: Iterable[TableDelta]) -> "Delta":
        return Delta({table.table: table for table in tables if not table.is_empty})

    def of_table(self, key: TableKey) -> TableDelta | None:
        return self.tables.get(key)

    def affected_ids(self, key: TableKey) -> frozenset[str]:
        delta = self.tables.get(key)
        return frozenset() if delta is None else delta.affected_ids

    def removed(self, key: TableKey) -> frozenset[str]:
        delta = self.tables.get(key)
        return frozenset() if delta is None else delta.removed - delta.ids

    def replaces_all(self, key: TableKey) -> bool:
        delta = self.tables.get(key)
        return delta is not None and delta.replaces_all

    def actions(self) -> tuple[TableAction, ...]:
        return tuple([action for delta in self.tables.values() for action in delta.actions()])


def values_by_id(rows: "pa.Table", columns: Iterable[str]) -> dict[str, tuple[object, ...]]:
    """Each row's values in these columns, as tuples that can be compared and hashed."""
    values = [map(to_hashable, rows.column(name).to_pylist()) for name in columns]
    return dict(zip(texts(rows, "id"), zip(*values, strict=True), strict=True))


def texts(rows: "pa.Table | pa.RecordBatch", column: str) -> list[str]:
    """The values of a column without nulls, such as ids and ends."""
    values: list[Any] = rows.column(column).to_pylist()
    return values


def to_hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
