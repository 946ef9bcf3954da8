"""Compaction in parts: groups of fragments become fewer, each by itself on any machine, then one detached version.

The new fragments are given numbers well above those in use, before anything is committed. So they keep their numbers,
and the index segments over them their meaning, on a version that others have added fragments to meanwhile: a long
compaction that lost its race is carried over, and not done again (`maintenance-rebase`).
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

NUMBERS_MAX = 1 << 32  # of fragments in one line of versions: row addresses have 32 bits for them
BATCH_BYTES = 32 * 1024 * 1024  # as stored
BATCH_ROWS_MIN, BATCH_ROWS_MAX = 1024, 1024 * 1024
NUMBERS_LEFT = 4096  # between the fragments that are there and the new ones: room for what others add meanwhile


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Some fragments that become fewer, as JSON."""

    location: Location = field(repr=False)
    at: TableVersion
    document: str


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """What a task made: fragments as they were, deleted rows included, and those that stand for them."""

    originals: tuple[str, ...]
    made: tuple[str, ...]

    def fits(self, shape: TableLayout) -> bool:
        """Whether it can be put in place there: all originals are unchanged, and nobody took the new numbers."""
        return frozenset(self.originals) <= shape.documents and all(number > shape.highest for number in self.numbers)

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
        form = json.loads(plan.tasks[0].json())  # of any task: its settings are what is wanted of it
        form["options"] |= {"target_rows_per_fragment": target_rows, "max_bytes_per_file": target_bytes}
        known = {int(one.fragment_id): one.metadata.to_json() for one in dataset.get_fragments()}
    return [CompactionTask(location, bare, _document(form, [known[one] for one in group])) for group in groups]


def _document(form: dict[str, Any], fragments: list[dict[str, Any]]) -> str:
    """A task over these fragments, read in batches so large that a column gets few pages.

    A process that looks rows up learns every page once: cut as finely as Lance would, a compacted table would take
    more requests than the same rows loaded in one piece.
    """
    rows = sum(int(one["physical_rows"]) for one in fragments)
    size = sum(int(file["file_size_bytes"] or 0) for one in fragments for file in one["files"])
    fitting = BATCH_BYTES * rows // max(size, 1)
    options = {**form["options"], "batch_size": max(BATCH_ROWS_MIN, min(fitting, BATCH_ROWS_MAX))}
    return json.dumps({**form, "options": options, "task": {"fragments": fragments}})


def _without_indexes(location: Location, at: TableVersion) -> TableVersion:
    """The same fragments without any index, to work on.

    Lance would move a table's head to reserve numbers for fragments that an index covers, and never put together what
    two segments cover. We build new segments over what is rewritten anyway.
    """
    handles = handles_of(location)
    dataset = handles.open(at)
    with translate_errors(str(at)):
        known = segments(dataset)
    if not known:
        return at
    return detached_commit.commit(handles, at, dataset, lance_module().LanceOperation.CreateIndex([], known)).at


def run_compaction(task: CompactionTask) -> str:
    """Write the new fragments of one task. What it answers is a `RewriteResult` as JSON."""
    with translate_errors(str(task.at)):
        known = lance_module("lance.optimize").CompactionTask.from_json(task.document)
        return str(known.execute(handles_of(task.location).open(task.at)).json())


def number_fragments(shape: TableLayout, results: Sequence[str]) -> list[RewrittenGroup]:
    """What the tasks wrote, its fragments with numbers for good."""
    number = shape.highest + (NUMBERS_LEFT if shape.highest < NUMBERS_MAX // 2 else 0)
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
    """A version with what the tasks wrote, of which no index covers the new fragments; `at` if they wrote nothing."""
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
