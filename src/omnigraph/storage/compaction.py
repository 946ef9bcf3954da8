"""Compaction in parts: which fragments become which, each part by itself on any machine, then one detached version.

New fragments have no number before they are committed, so no index can cover them yet: whoever compacts builds segments
over them on the version that this makes (`index_tasks.py`). The rows are the same, their addresses are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omnigraph.storage import staging
from omnigraph.storage.fragments import handles_of
from omnigraph.storage.handles import TableVersion, lance_module
from omnigraph.storage.index_section import segments
from omnigraph.storage.lance_errors import explained
from omnigraph.storage.location import Location

TARGET_ROWS = 1024 * 1024  # of a fragment
DELETED_SHARE_MIN = 0.1  # of a fragment's rows, from which on it is rewritten for them alone


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Some neighbouring fragments that become fewer, as JSON."""

    location: Location = field(repr=False)
    at: TableVersion
    document: str


def plan_compaction(
    location: Location, at: TableVersion, target_rows: int = TARGET_ROWS, deleted_share: float = DELETED_SHARE_MIN
) -> list[CompactionTask]:
    """What there is to do; nothing for a table whose fragments are large and whole."""
    options = {
        "target_rows_per_fragment": target_rows,
        "materialize_deletions": True,
        "materialize_deletions_threshold": deleted_share,
    }
    bare = _without_indexes(location, at)
    with explained(str(at)):
        plan = lance_module("lance.optimize").Compaction.plan(handles_of(location).open(bare), options=options)
        return [CompactionTask(location, bare, task.json()) for task in plan.tasks]


def _without_indexes(location: Location, at: TableVersion) -> TableVersion:
    """The same fragments without any index, to plan on: what two segments cover would never be put together.

    Every large write brings segments of its own, and we build new ones over what is rewritten anyway.
    """
    handles = handles_of(location)
    dataset = handles.open(at)
    with explained(str(at)):
        known = segments(dataset)
    if not known or len(dataset.get_fragments()) < 2:
        return at
    return staging.commit(handles, at, dataset, lance_module().LanceOperation.CreateIndex([], known)).at


def run_compaction(task: CompactionTask) -> str:
    """Write the new fragments of one task. What it answers is a `RewriteResult` as JSON."""
    with explained(str(task.at)):
        known = lance_module("lance.optimize").CompactionTask.from_json(task.document)
        return str(known.execute(handles_of(task.location).open(task.at)).json())


def with_compaction(location: Location, at: TableVersion, results: Sequence[str]) -> TableVersion:
    """A version with what the tasks wrote, of which no index covers the new fragments; `at` if they wrote nothing."""
    if not results:
        return at
    handles = handles_of(location)
    made: list[Any] = [lance_module("lance.optimize").RewriteResult.from_json(result) for result in results]
    operations = lance_module().LanceOperation
    groups = [operations.RewriteGroup(result.original_fragments, result.new_fragments) for result in made]
    operation = operations.Rewrite(groups=groups, rewritten_indices=[])
    before = handles.open(at)
    staged = staging.commit(handles, at, before, operation)
    if staged.rows != before.count_rows():
        raise AssertionError(f"{at} has {before.count_rows()} rows, compacted {staged.rows}")
    return staged.at
