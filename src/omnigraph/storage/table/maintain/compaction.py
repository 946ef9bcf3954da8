"""Distributed compaction: tasks rewrite groups of fragments on any machine, then one detached commit.

New fragments get ids well above those in use before anything is committed. So they keep their ids, and index segments
over them stay valid, on a version to which other writers have added fragments meanwhile: a long compaction that lost
its race is rebased, not repeated (`maintenance-rebase`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omnigraph.storage.location import Location
from omnigraph.storage.table.handles import TableVersion, handles_of, lance_module
from omnigraph.storage.table.index.metadata import segments
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.maintain.layout import TableLayout, fragment_document
from omnigraph.storage.table.write import detached_commit

NUMBERS_MAX = 1 << 32  # fragment ids have 32 bits in a row address
BATCH_BYTES = 32 * 1024 * 1024  # as stored
BATCH_ROWS_MIN, BATCH_ROWS_MAX = 1024, 1024 * 1024
NUMBERS_LEFT = 4096  # ids left free for fragments that other writers add meanwhile


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Some fragments to be compacted, as JSON."""

    location: Location = field(repr=False)
    at: TableVersion
    document: str


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """The result of a task: the original fragments, and those that replace them."""

    originals: tuple[str, ...]
    made: tuple[str, ...]

    def fits(self, layout: TableLayout) -> bool:
        """Whether it applies to that version: all originals are unchanged, and the new ids are free."""
        return frozenset(self.originals) <= layout.documents and all(number > layout.highest for number in self.numbers)

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(int(json.loads(one)["id"]) for one in self.made)

    @property
    def highest(self) -> int:
        return max(self.numbers, default=-1)


def plan_compaction(
    location: Location, at: TableVersion, groups: Sequence[Sequence[int]], target_rows: int, target_bytes: int
) -> list[CompactionTask]:
    """A task for each group of fragments."""
    if not groups:
        return []
    bare = _without_indexes(location, at)
    options = {"target_rows_per_fragment": 1 << 40, "materialize_deletions_threshold": 0.0}
    with translate_errors(str(at)):
        dataset = handles_of(location).open(bare)
        plan = lance_module("lance.optimize").Compaction.plan(dataset, options=options)
        form = json.loads(plan.tasks[0].json())  # any task will do: only its settings are used
        form["options"] |= {"target_rows_per_fragment": target_rows, "max_bytes_per_file": target_bytes}
        known = {int(one.fragment_id): one.metadata.to_json() for one in dataset.get_fragments()}
    return [CompactionTask(location, bare, _document(form, [known[one] for one in group])) for group in groups]


def _document(form: dict[str, Any], fragments: list[dict[str, Any]]) -> str:
    """A task over these fragments, with batches so large that each column gets few pages.

    A process that looks up rows reads the metadata of every page once: with Lance's default batches, a compacted table
    would need more requests than the same rows loaded in one piece.
    """
    rows = sum(int(one["physical_rows"]) for one in fragments)
    size = sum(int(file["file_size_bytes"] or 0) for one in fragments for file in one["files"])
    fitting = BATCH_BYTES * rows // max(size, 1)
    options = {**form["options"], "batch_size": max(BATCH_ROWS_MIN, min(fitting, BATCH_ROWS_MAX))}
    return json.dumps({**form, "options": options, "task": {"fragments": fragments}})


def _without_indexes(location: Location, at: TableVersion) -> TableVersion:
    """The same fragments without any index, as the base of the tasks.

    Otherwise Lance would move the table's head to reserve ids for indexed fragments, and would never merge fragments of
    two segments. New segments over the rewritten fragments are built anyway.
    """
    handles = handles_of(location)
    dataset = handles.open(at)
    with translate_errors(str(at)):
        known = segments(dataset)
    if not known:
        return at
    return detached_commit.commit(handles, at, dataset, lance_module().LanceOperation.CreateIndex([], known)).at


def run_compaction(task: CompactionTask) -> str:
    """Write the new fragments of one task; returns a `RewriteResult` as JSON."""
    with translate_errors(str(task.at)):
        known = lance_module("lance.optimize").CompactionTask.from_json(task.document)
        return str(known.execute(handles_of(task.location).open(task.at)).json())


def number_fragments(layout: TableLayout, results: Sequence[str]) -> list[RewrittenGroup]:
    """The results of the tasks, with the final ids of the new fragments."""
    number = layout.highest + (NUMBERS_LEFT if layout.highest < NUMBERS_MAX // 2 else 0)
    rewritten = []
    for result in results:
        known: Any = lance_module("lance.optimize").RewriteResult.from_json(result)
        made = []
        for fragment in known.new_fragments:
            number += 1
            made.append(fragment_document(replace(fragment, id=number)))
        rewritten.append(RewrittenGroup(tuple(fragment_document(one) for one in known.original_fragments), tuple(made)))
    return rewritten


def commit_compaction(location: Location, at: TableVersion, rewritten: Sequence[RewrittenGroup]) -> TableVersion:
    """Commit the results as a version; no index covers the new fragments. `at` itself if there are none."""
    if not rewritten:
        return at
    handles = handles_of(location)
    operations = lance_module().LanceOperation
    groups = [operations.RewriteGroup(_metadata(one.originals), _metadata(one.made)) for one in rewritten]
    operation = operations.Rewrite(groups=groups, rewritten_indices=[])
    before = handles.open(at)
    staged = detached_commit.commit(handles, at, before, operation)
    if staged.rows != before.count_rows():
        raise AssertionError(f"{at} has {before.count_rows()} rows, compacted {staged.rows}")
    numbers = frozenset[int]().union(*(one.numbers for one in rewritten))
    if not numbers <= {int(fragment.fragment_id) for fragment in handles.open(staged.at).get_fragments()}:
        raise AssertionError(f"{at}: the fragments of a compaction were given other numbers")
    return staged.at


def _metadata(documents: Sequence[str]) -> list[Any]:
    from_json = lance_module("lance.fragment").FragmentMetadata.from_json
    return [from_json(one) for one in documents]
