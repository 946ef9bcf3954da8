"""Changes of concurrent commits to the tables of a load, and whether the load's verification still holds.

Where small commits arrive all the time, a load that verified itself again for each of them would never be published.
So only the rows that changed are compared with the load: unless a row of the load matches one of them, or refers to one
that was removed, the verification still holds. Otherwise the whole load is verified again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnigraph.manifest.commit.conflicts import is_tail_prefix
from omnigraph.manifest.commit.plan import StagedTable
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey, TableRef
from omnigraph.pipeline.bulk.verification import verification_sql as questions
from omnigraph.pipeline.bulk.verification.sql_engine import KeyColumns, SqlEngine
from omnigraph.pipeline.bulk.verification.verify_rows import StagedRows, aliases
from omnigraph.schema.constraints import Cardinality, Constraints, Endpoint, Unique
from omnigraph.storage.location import Location
from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import make_content
from omnigraph.storage.table.tables import Tables
from omnigraph.storage.table.write.fragments import normalize_zeros
from omnigraph.write.delta import texts

if TYPE_CHECKING:
    import pyarrow as pa

CHANGED_ROWS_MAX = 50_000  # of one table that are compared; if more changed, the whole load is verified again


@dataclass(frozen=True, eq=False)
class TableChanges:
    """The changes of one table between two bases."""

    rows: "pa.Table"  # that were inserted or updated, as they are now
    removed: frozenset[str]
    replaced: bool  # whether stored rows were updated or removed

    @property
    def ids(self) -> frozenset[str]:
        return self.removed.union(texts(self.rows, "id"))


def changes_between_bases(
    tables: Tables, before: WriteTxn, now: WriteTxn, keys: Iterable[TableKey]
) -> dict[TableKey, TableChanges] | None:
    """The changes of these tables between two bases with the same schema; None if they are too many to compare."""
    found: dict[TableKey, TableChanges] = {}
    for key in sorted(keys):
        if before.base.changed_at(key) != now.base.changed_at(key):
            one = _table_changes(tables, before, now, key)
            if one is None:
                return None
            found[key] = one
    return found


def can_publish_on(staged: StagedTable, ref: TableRef | None) -> bool:
    """Whether a staged version can be published here, below the inline rows written since (`whole-tail`, `rebase`)."""
    return staged.base == (None if ref is None else ref.stored) and is_tail_prefix(staged.folded, ref)


def _table_changes(tables: Tables, before: WriteTxn, now: WriteTxn, key: TableKey) -> TableChanges | None:
    from omnigraph.schema.arrow import arrow_schema

    old, new, schema = before.table(key), now.table(key), arrow_schema(now.catalog.type_of(key))
    if new is None:
        return None
    stored, tail = (None, ()) if old is None else (old.stored, old.tail)
    if stored == new.stored and is_tail_prefix(tail, new):  # small commits alone
        _, overlay = tables.resolve(make_content(None, new.tail[len(tail) :]))
        return TableChanges(_rows_of(overlay, schema), overlay.hidden_ids - overlay.ids, bool(overlay.hidden_ids))
    if sum(tables.differing_rows(before.content(key), now.content(key))) > CHANGED_ROWS_MAX:
        return None
    apart = tables.difference(before.content(key), now.content(key), schema)
    gone = frozenset(texts(apart.before, "id")) - frozenset(texts(apart.after, "id"))
    return TableChanges(apart.after, gone, apart.before.num_rows > 0)


def _rows_of(overlay: Overlay, schema: "pa.Schema") -> "pa.Table":
    if overlay.rows is None:
        return schema.empty_table()
    return align_table(overlay.rows, schema, drop_unknown=True)


@dataclass(frozen=True)
class VerifiedLoad:
    """A verified load, which is compared with concurrent changes."""

    engine: SqlEngine
    location: Location
    constraints: Constraints
    tables: Mapping[TableKey, StagedRows]
    unchanged: Callable[[TableKey], "pa.Table | None"]  # rows of a merge that are stored exactly as it has them

    def is_affected_by(self, came: Mapping[TableKey, TableChanges]) -> bool:
        """Whether the verification may no longer hold. True may be a false alarm, False never is one."""
        return any(self._is_table_affected(key, arrival) for key, arrival in came.items())

    def _is_table_affected(self, key: TableKey, arrival: TableChanges) -> bool:
        table = self.tables.get(key)
        if table is not None and any(self._rows_affected(table, arrival)):
            return True
        return self._unchanged_affected(key, arrival) or any(self._edges_orphaned(key, arrival))

    def _rows_affected(self, table: StagedRows, arrival: TableChanges) -> Iterator[bool]:
        if not table.only_fresh_ids:
            yield self._matches(table, ["id"], _ids(arrival.ids), questions.ID_STORED)
        for constraint in self.constraints.of(table.key):
            if isinstance(constraint, Unique):
                columns = [*constraint.columns, "id"]
                sql = questions.values_stored(len(constraint.columns))
                yield self._matches(table, columns, _key_columns(arrival.rows, columns), sql)
            elif isinstance(constraint, Cardinality):
                yield bool(constraint.minimum) and arrival.replaced
                if constraint.maximum is not None:
                    source = constraint.columns[:1]
                    yield self._matches(table, source, _key_columns(arrival.rows, source), questions.VALUE_MATCHED)

    def _unchanged_affected(self, key: TableKey, arrival: TableChanges) -> bool:
        rows = self.unchanged(key)
        return rows is not None and not arrival.ids.isdisjoint(texts(rows, "id"))

    def _edges_orphaned(self, key: TableKey, arrival: TableChanges) -> Iterator[bool]:
        """Whether the load has edges to nodes that were removed."""
        if not arrival.removed:
            return
        gone = _ids(arrival.removed).rename_columns(["k0"])
        for endpoint in self.constraints.referring_to(key):
            edges = self.tables.get(endpoint.table_key)
            if edges is not None and isinstance(endpoint, Endpoint):
                yield self._matches(edges, endpoint.columns, gone, questions.VALUE_MATCHED)

    def _matches(self, table: StagedRows, columns: Sequence[str], others: "pa.Table", sql: str) -> bool:
        if not others.num_rows:
            return False
        rows = KeyColumns(self.location, table.at, aliases(columns), table.fragments)
        return self.engine.rows(sql, {"n": rows, "o": others}).num_rows > 0


def _ids(ids: Iterable[str]) -> "pa.Table":
    import pyarrow as pa

    return pa.table({"id": pa.array(sorted(ids), pa.string())})


def _key_columns(rows: "pa.Table", columns: Sequence[str]) -> "pa.Table":
    import pyarrow as pa

    arrays: dict[str, Any] = {alias: normalize_zeros(rows.column(name)) for name, alias in aliases(columns).items()}
    return pa.table(arrays)
