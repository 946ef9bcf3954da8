"""Preconditions of a write on the graph, as values.

A check names the tables that it reads. A write that relied on it is validated again when one of them has changed,
which rules out write skew between any number of processes. The checks here look up ids; those for constraints on other
columns are in `graph_checks.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from omnigraph.errors import ConstraintViolation, Violation
from omnigraph.manifest.commit.plan import Check
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.storage.table.tables import Tables
from omnigraph.threads import gather
from omnigraph.write.validate.violations import already_exists, raise_violations, violations_of


@dataclass(frozen=True, slots=True)
class KnownViolations:
    """Violations that were found without reading a table: they are the same on every base."""

    violations: tuple[Violation, ...]

    @property
    def reads(self) -> frozenset[TableKey]:
        return frozenset()

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        raise_violations(self.violations)


@dataclass(frozen=True, slots=True)
class IdsAbsent:
    """No row has one of these ids: an insert never replaces."""

    table: TableKey
    ids: frozenset[str]
    constraint: str = "key"

    @property
    def reads(self) -> frozenset[TableKey]:
        return frozenset({self.table})

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        taken = tables.exists(txn.content(self.table), self.ids)
        raise_violations(already_exists(self.table, taken, self.constraint))


@dataclass(frozen=True, slots=True)
class NodesExist:
    """Nodes with these ids exist: they are the ends of edges."""

    table: TableKey
    ids: frozenset[str]
    edges: TableKey

    @property
    def reads(self) -> frozenset[TableKey]:
        return frozenset({self.table})

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        missing = self.ids - tables.exists(txn.content(self.table), self.ids)
        remedy = f"insert it before {self.edges.partition(':')[2]} edges to it"
        raise_violations(_violation("endpoint", self.table, missing, "does not exist", remedy))


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """No edge has one of these nodes as an end: they are to be removed."""

    table: TableKey
    ids: frozenset[str]
    edges: TableKey
    column: str  # "src" or "dst"

    @property
    def reads(self) -> frozenset[TableKey]:
        return frozenset({self.edges})

    def run(self, txn: WriteTxn, tables: Tables) -> None:
        at = txn.content(self.edges)
        referenced = tables.present_values(at, self.column, self.ids) if at is not None else ()
        what = f"still has {self.edges.partition(':')[2]} edges"
        raise_violations(_violation("endpoint", self.table, referenced, what, "delete them as well"))


def run_checks(checks: Sequence[Check], txn: WriteTxn, tables: Tables) -> None:
    """Run all checks in parallel; raises one error with all violations."""
    found = gather([partial(_violations, check, txn, tables) for check in checks])
    raise_violations(violation for violations in found for violation in violations)


def _violations(check: Check, txn: WriteTxn, tables: Tables) -> tuple[Violation, ...]:
    try:
        check.run(txn, tables)
    except ConstraintViolation as error:
        return violations_of(error)
    return ()


def _violation(constraint: str, key: TableKey, ids: Iterable[str], what: str, remedy: str) -> list[Violation]:
    every = tuple(sorted(ids))
    return [Violation(constraint, key.partition(":")[2], None, every, what, remedy, key)] if every else []
