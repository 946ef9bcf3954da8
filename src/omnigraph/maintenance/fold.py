"""Fold: rows that ride in manifests are written into Lance, and indexed there.

A fold takes the whole tail of a table as of its base (`whole-tail`). What small commits add meanwhile stays on top. If
somebody else folded the same table first, that table is done.
"""

from collections.abc import Iterable

from omnigraph.maintenance.commit import MaintenanceResult, MaintenanceRun, Task
from omnigraph.maintenance.policy import GENTLE, folds_due
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.manifest.repository import Repository

ACTOR = "omnigraph:maintenance"


def fold_due(
    repository: Repository, branch: str, fragmented: Iterable[TableKey] = (), *, actor: str | None = ACTOR
) -> MaintenanceResult | None:
    """Fold the tables of a branch that are due for it; None where none is any more.

    They are also compacted and indexed as far as the folds of late ask for it, and so are `restless` tables, which
    many staged writes have added fragments to.
    """
    txn = repository.open_txn(branch)
    others = tuple(Task(key, GENTLE, fold=False) for key in fragmented)

    def due(base: WriteTxn, _tasks: tuple[Task, ...] = ()) -> tuple[Task, ...]:
        folds = folds_due(base.base, repository.settings)
        return (
            *(Task(key, GENTLE) for key in folds),
            *(task for task in others if task.key not in folds),
        )

    tasks = due(txn)
    if not tasks:
        return None
    return MaintenanceRun(repository, tasks, actor, kind="fold", still_due=due).publish(txn)
