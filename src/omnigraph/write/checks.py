"""What must be true of the graph for a write to be allowed, as values.

A check names the tables that it reads, so that a write which relied on it is validated again when
one of them changed: that is what makes write skew impossible, in one process or in ten.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from omnigraph.errors import ConstraintViolation
from omnigraph.manifest.model import TableKey
from omnigraph.manifest.plan import Check
from omnigraph.manifest.txn import WriteTxn
from omnigraph.storage.tables import Tables, TableVersion

IDS_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class IdsAbsent:
    """Rows with these ids are new: an insert never replaces."""

    table: TableKey
    ids: frozenset[str]

    @property
    def reads(self) -> frozenset[TableKey]:
        return frozenset({self.table})

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        taken = tables.exists(_at(txn, self.table), self.ids)
        if taken:
            raise _violation("key", self.table, taken, "already exists", "use an upsert or another id")


@dataclass(frozen=True, slots=True)
class NodesExist:
    """The ends of edges: nodes that must be there."""

    table: TableKey
    ids: frozenset[str]
    edges: TableKey

    @property
    def reads(self) -> frozenset[TableKey]:
        return frozenset({self.table})

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        missing = self.ids - tables.exists(_at(txn, self.table), self.ids)
        if missing:
            remedy = f"insert it before {self.edges.partition(':')[2]} edges to it"
            raise _violation("endpoint", self.table, missing, "does not exist", remedy)


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """Nodes that go away must not be the end of an edge that stays."""

    table: TableKey
    ids: frozenset[str]
    edges: TableKey
    column: str  # "src" or "dst"

    @property
    def reads(self) -> frozenset[TableKey]:
        return frozenset({self.edges})

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        at = _at(txn, self.edges)
        if at is None:
            return
        referenced = tables.matching(at, self.column, self.ids)
        if referenced:
            name = self.edges.partition(":")[2]
            raise _violation("endpoint", self.table, referenced, f"still has {name} edges", "delete them as well")


def run_checks(checks: Iterable[Check], txn: WriteTxn, tables: Tables) -> None:
    for check in checks:
        check.run(txn, tables)


def _at(txn: WriteTxn, key: TableKey) -> TableVersion | None:
    ref = txn.table(key)
    return None if ref is None else TableVersion(ref.table_id, ref.table_version)


def _violation(constraint: str, key: TableKey, ids: Iterable[str], what: str, remedy: str) -> ConstraintViolation:
    every = sorted(ids)
    type_name = key.partition(":")[2]
    named = ", ".join(repr(entity) for entity in every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")
    message = f"{type_name} {named} {what}: nothing was written, {remedy}."
    return ConstraintViolation(constraint, type_name, tuple(every[:IDS_SHOWN_MAX]), message)
