"""`optimize`: everything that is due to the tables of a branch, as one commit; then the adjacency of its edges."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from omnigraph.maintenance.adjacency import save_adjacency
from omnigraph.maintenance.commit import MaintenanceRun, Task
from omnigraph.maintenance.policy import THOROUGH, Effort
from omnigraph.maintenance.report import OptimizeResult, TypeReport
from omnigraph.maintenance.table_maintenance import ChooseRunner
from omnigraph.manifest.commit.stale_base import retry_if_base_swept
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.model.manifest import MAIN, Manifest, TableKey
from omnigraph.manifest.repository import Repository
from omnigraph.storage import meter
from omnigraph.storage.util.parallel import gather


def optimize(
    repository: Repository,
    branch: str = MAIN,
    types: Sequence[str] | None = None,
    *,
    actor: str | None = None,
    choose: ChooseRunner | None = None,
    effort: Effort = THOROUGH,
) -> OptimizeResult:
    """Fold, compact and index the tables of these types, or of all, so that they are as if just loaded.

    `choose` says where tasks over so many rows run. Nothing of the content changes, and nobody's write fails.
    """
    from omnigraph.read.export.export import select_types

    repository.require_writable("Optimizing")
    with meter.operation("optimize") as operation:
        txn = repository.open_txn(branch)
        chosen = [definition.table_key for definition in select_types(Snapshot(txn.base, txn.schema), types)]
        tasks = tuple(Task(key, effort) for key in chosen if key in txn.base.tables)
        landed = MaintenanceRun(repository, tasks, actor, choose).publish(txn)
        reports = {key: landed.reports.get(key, TypeReport(key)) for key in chosen}
        reports = _with_adjacencies(repository, branch, reports)
    commit = None if landed.commit is None else replace(landed.commit, cost=operation.cost)
    return OptimizeResult(branch, commit, reports, operation.cost)


def _with_adjacencies(
    repository: Repository, branch: str, reports: Mapping[TableKey, TypeReport]
) -> dict[TableKey, TypeReport]:
    """Of what is there now: a version that was replaced meanwhile needs none."""
    stood_on: list[Manifest] = []

    def once() -> dict[TableKey, TypeReport]:
        snapshot = repository.snapshot(branch)
        stood_on[:] = (snapshot.manifest,)
        known = {definition.table_key for definition in snapshot.catalog.types}
        reached = {key: report for key, report in reports.items() if key in known}
        made = gather([partial(save_adjacency, repository, snapshot, report) for report in reached.values()])
        return {**reports, **dict(zip(reached, made, strict=True))}

    return retry_if_base_swept(repository, once, stood_on)
