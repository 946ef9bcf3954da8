"""`optimize`: all maintenance that is due to the tables of a branch, as one commit; then the adjacency of its edges."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from omnigraph.maintenance.commit import MaintenanceRun, Task
from omnigraph.maintenance.policy import THOROUGH, Effort
from omnigraph.maintenance.report import OptimizeResult, TypeReport
from omnigraph.maintenance.table_maintenance import ChooseRunner
from omnigraph.manifest.commit.stale_base import retry_if_base_swept
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.model.manifest import MAIN, Manifest, TableKey
from omnigraph.manifest.repository import Repository
from omnigraph.schema.definitions import TypeDef
from omnigraph.storage import meter
from omnigraph.threads import gather

EDGE_BYTES, NODE_BYTES = 24, 40  # about what a row takes in memory


def optimize(
    repository: Repository,
    branch: str = MAIN,
    types: Sequence[str] | None = None,
    *,
    actor: str | None = None,
    choose: ChooseRunner | None = None,
    effort: Effort = THOROUGH,
) -> OptimizeResult:
    """Fold, compact and index the tables of these types, or of all, as if they had just been loaded.

    `choose` returns the runner of tasks over a number of rows. The content does not change, and no other write fails.
    """
    from omnigraph.read.export.export import select_types

    repository.require_writable("Optimizing")
    with meter.operation("optimize") as operation:
        txn = repository.open_txn(branch)
        chosen = [definition.table_key for definition in select_types(Snapshot(txn.base, txn.schema), types)]
        tasks = tuple(Task(key, effort) for key in chosen if key in txn.base.tables)
        result = MaintenanceRun(repository, tasks, actor, choose).publish(txn)
        reports = {key: result.reports.get(key, TypeReport(key)) for key in chosen}
        reports = _with_adjacencies(repository, branch, reports)
    commit = None if result.commit is None else replace(result.commit, cost=operation.cost)
    return OptimizeResult(branch, commit, reports, operation.cost)


def _with_adjacencies(
    repository: Repository, branch: str, reports: Mapping[TableKey, TypeReport]
) -> dict[TableKey, TypeReport]:
    """Save adjacencies of the current versions; one that was replaced meanwhile needs none."""
    bases: list[Manifest] = []

    def build() -> dict[TableKey, TypeReport]:
        snapshot = repository.snapshot(branch)
        bases[:] = (snapshot.manifest,)
        known = {definition.table_key for definition in snapshot.catalog.types}
        reached = {key: report for key, report in reports.items() if key in known}
        made = gather([partial(save_adjacency, repository, snapshot, report) for report in reached.values()])
        return {**reports, **dict(zip(reached, made, strict=True))}

    return retry_if_base_swept(repository, build, lambda: bases)


# Saved adjacency is derived state beside the version of an edge table, for processes that have just started. Only
# `optimize` writes it. A query loads it or builds its own; a cleanup keeps it as long as the table version is marked.


def save_adjacency(repository: Repository, snapshot: Snapshot, report: TypeReport) -> TypeReport:
    """Save the adjacency of an edge type, unless it exists; returns the report, updated."""
    definition = snapshot.catalog.type_of(report.table_key)
    ref = snapshot.manifest.tables.get(report.table_key)
    if definition.kind != "edge" or ref is None or ref.stored is None or not ref.rows:
        return report
    from omnigraph.read.graph.adjacency_file import adjacency_key
    from omnigraph.read.tables.read_cache import BYTES_MAX

    if repository.store.head(adjacency_key(ref.stored)) is not None:
        return report
    ends = [snapshot.manifest.tables.get(key) for key in end_keys(definition)]
    if ref.rows * EDGE_BYTES + sum(end.rows * NODE_BYTES for end in ends if end is not None) > BYTES_MAX // 2:
        too_large = f"adjacency: {ref.rows} edges are more than a query holds in memory, it looks them up"
        return replace(report, pending=(*report.pending, too_large))
    _build_and_save(repository, snapshot, definition)
    return replace(report, adjacency=True)


def end_keys(definition: TypeDef) -> tuple[str, str]:
    return f"node:{definition.source}", f"node:{definition.target}"


def _build_and_save(repository: Repository, snapshot: Snapshot, definition: TypeDef) -> None:
    from omnigraph.read.graph.adjacency import build_adjacency
    from omnigraph.read.graph.adjacency_file import save_adjacency
    from omnigraph.read.reader import SnapshotReader
    from omnigraph.read.tables.read_cache import ReadCache
    from omnigraph.read.tables.resident_table import ResidentTable

    reader = SnapshotReader(repository.tables, snapshot, ReadCache())
    keys = (definition.table_key, *end_keys(definition))
    edges, source, target = (ResidentTable(reader.tables, reader.caches, reader.state(key)) for key in keys)
    save_adjacency(repository.store, build_adjacency(edges, source, target), edges, source, target)
