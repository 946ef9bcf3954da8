"""One verb, one call of the façade, one outcome: what an actor does with the graph of its process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from omnigraph.gc.cleanup import cleanup
from omnigraph.gc.retention import Retention
from omnigraph.graph.graph import Graph
from omnigraph.maintenance.commit import MaintenanceRun, Task
from omnigraph.maintenance.policy import GENTLE, THOROUGH
from omnigraph.manifest.commit.plan import Delete, TableAction, Upsert
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.request_key import RequestKey, digest_of
from simulation import ops
from simulation.ops import SPECS, TYPES, Outcome

NO_TIME = timedelta(0)
INTENT_TTL = timedelta(hours=12)
SPLIT_BYTES = 300


class Hands:
    """The façade of one process, used by one call. `inputs` is where files for loads are written."""

    def __init__(self, graph: Graph, name: str, inputs: Path, txn: WriteTxn | None = None) -> None:
        self._graph = graph
        self._name = name
        self._inputs = inputs
        self._txn = txn

    def _key(self, verb: Any) -> RequestKey | None:
        """The verb's key, for this very request. Each call has an actor of its own, by which its commits are known:
        so whoever makes the request is a part of its digest instead."""
        if verb.txn_id is None:
            return None
        extras = sorted(map(repr, verb.extras)) if isinstance(verb, ops.ApplySchema) else None
        request = replace(verb, extras=frozenset()) if extras else verb
        return RequestKey(verb.txn_id, self._name, digest_of(repr(request), extras), anyone=True)

    def perform(self, verb: ops.Verb) -> Outcome:
        work: Callable[[Any], Outcome] = getattr(self, f"_{type(verb).__name__.lower()}")
        return work(verb)

    # Writes.

    def _mutate(self, verb: ops.Mutate) -> Outcome:
        return _committed(
            self._graph.mutate(
                ops.mutation_text(verb.statements),
                branch=verb.branch,
                actor=self._name,
                if_commit=verb.if_commit,
                on_conflict="fail" if verb.strict else "retry",
                txn_id=self._key(verb),
            )
        )

    def _writeheld(self, verb: ops.WriteHeld) -> Outcome:
        assert self._txn is not None
        actions: list[TableAction] = []
        for row in verb.upserts:
            definition = self._txn.catalog.by_name[row.type_name]
            values = dict(row.values)
            columns = {"id": [values["id"]]} | {
                column.name: [values.get(column.name)] for column in definition.properties
            }
            actions.append(Upsert(SPECS[row.type_name].table_key, pa.table(columns)))
        for type_name, id_ in verb.deletes:
            actions.append(Delete(SPECS[type_name].table_key, (id_,)))
        return _committed(
            self._graph.write(
                actions,
                branch=verb.branch,
                txn=self._txn,
                actor=self._name,
                if_commit=verb.if_commit,
                txn_id=self._key(verb),
            )
        )

    def _load(self, verb: ops.Load) -> Outcome:
        entities = [row.entity for row in verb.rows]
        source: Any = entities if verb.job_id is None else self._input(verb.job_id, entities)
        result = self._graph.load(
            source,
            mode=verb.mode,
            branch=verb.branch,
            engine="local",
            from_=verb.from_,
            job_id=verb.job_id,
            actor=self._name,
            if_commit=verb.if_commit,
            txn_id=self._key(verb),
        )
        if result.commit is None:
            return ops.NoChange()
        return ops.Committed(result.commit.id, result.commit.touched, dict(result.counts))

    def _input(self, job_id: str, entities: list[dict[str, Any]]) -> str:
        """A file for these entities, the same each time: its name is the job's, its folder says what is in it."""
        text = "".join(f"{json.dumps(entity, sort_keys=True)}\n" for entity in entities)
        folder = self._inputs / hashlib.sha256(text.encode()).hexdigest()[:16]
        path = folder / f"{job_id}.jsonl"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            os.utime(path, ns=(1_700_000_000_000_000_000, 1_700_000_000_000_000_000))
        return str(path)

    def _revert(self, verb: ops.Revert) -> Outcome:
        return _committed(
            self._graph.revert(
                verb.commit, verb.branch, actor=self._name, if_commit=verb.if_commit, txn_id=self._key(verb)
            )
        )

    def _applyschema(self, verb: ops.ApplySchema) -> Outcome:
        applied = self._graph.schema.apply(
            ops.schema_text(verb.extras),
            verb.allow_data_loss,
            verb.branch,
            actor=self._name,
            if_commit=verb.if_commit,
            txn_id=self._key(verb),
        )
        return _committed(applied.commit)

    # Branches and tags.

    def _createbranch(self, verb: ops.CreateBranch) -> Outcome:
        self._graph.branches.create(verb.name, verb.from_, verb.at, actor=self._name, txn_id=self._key(verb))
        return ops.Done()

    def _deletebranch(self, verb: ops.DeleteBranch) -> Outcome:
        self._graph.branches.delete(verb.name, actor=self._name, txn_id=self._key(verb))
        return ops.Done()

    def _merge(self, verb: ops.Merge) -> Outcome:
        result = self._graph.branches.merge(
            verb.source,
            verb.into,
            verb.delete_branch,
            verb.dry_run,
            actor=self._name,
            if_commit=verb.if_commit,
            txn_id=self._key(verb),
            engine="local",
        )
        outcome = str(result.outcome.value)
        if result.commit is None:
            return ops.NoChange(outcome, result.deleted)
        return ops.Committed(result.commit.id, result.commit.touched, outcome=outcome, deleted=result.deleted)

    def _createtag(self, verb: ops.CreateTag) -> Outcome:
        tag = self._graph.tags.create(
            verb.name, verb.commit, branch=verb.branch, actor=self._name, txn_id=self._key(verb)
        )
        return ops.Done(commit_id=tag.commit_id)

    def _deletetag(self, verb: ops.DeleteTag) -> Outcome:
        self._graph.tags.delete(verb.name)
        return ops.Done()

    # Maintenance.

    def _maintain(self, verb: ops.Maintain) -> Outcome:
        if verb.what == "cleanup":
            cleanup(
                self._graph.repository,
                Retention(NO_TIME, verb.keep),
                dry_run=False,
                intent_ttl=INTENT_TTL,
                floor=NO_TIME,
                actor=self._name,
            )
            return ops.Done()
        if verb.what == "optimize":
            commit = self._graph.optimize(verb.branch, verb.types, engine="local", actor=self._name).commit
        else:
            repository = self._graph.repository
            txn = repository.open_txn(verb.branch)
            wanted = {SPECS[name].table_key for name in verb.types or SPECS}
            fold = verb.what == "fold"
            tasks = tuple(
                Task(key, GENTLE if fold else THOROUGH, fold=fold) for key in sorted(txn.base.tables) if key in wanted
            )
            run = MaintenanceRun(repository, tasks, self._name, kind="fold" if fold else "optimize")
            commit = run.publish(txn).commit
        return ops.Done(() if commit is None else (commit.id,))

    def _recover(self, verb: ops.Recover) -> Outcome:
        recovery = self._graph.recover(verb.complete, verb.discard, all=verb.everything)
        return ops.Done(
            tuple(job.commit_id for job in recovery.ended if job.commit_id is not None),
            tuple((job.txn_id, job.outcome) for job in recovery.ended),
            tuple(sorted(recovery.left)),
        )

    # Reads.

    def _read(self, verb: ops.Read) -> Outcome:
        snapshot = self._graph.snapshot(verb.branch, verb.at)
        contents: dict[str, dict[str, ops.Row]] = {}
        for spec in TYPES:
            if verb.types is None or spec.name in verb.types:
                rows = snapshot.to_arrow(spec.table_key).to_pylist()
                contents[spec.name] = {row["id"]: row for row in rows}
                assert len(contents[spec.name]) == len(rows), f"an id of {spec.name} was read twice"
        return ops.ReadResult(contents, snapshot.commit_id)

    def _diff(self, verb: ops.Diff) -> Outcome:
        found = self._graph.changes(verb.a, verb.b, branch=verb.branch)
        return ops.Changes(tuple(_row_change(change, None) for change in found))

    def _poll(self, verb: ops.Poll) -> Outcome:
        page = self._graph.poll_changes(verb.cursor, verb.start, verb.limit, verb.branch)
        return ops.Page(tuple(_row_change(one.change, one.commit.id) for one in page), page.cursor, page.more)

    def _listnames(self, verb: ops.ListNames) -> Outcome:
        if verb.what == "branches":
            return ops.Names(tuple(self._graph.branches.list()))
        return ops.Names(tuple((tag.name, tag.commit_id) for tag in self._graph.tags.list()))

    def _listcommits(self, verb: ops.ListCommits) -> Outcome:
        return ops.Names(tuple(commit.id for commit in self._graph.commits(verb.branch, verb.limit)))


def _committed(commit: PublishedCommit | None) -> Outcome:
    return ops.NoChange() if commit is None else ops.Committed(commit.id, commit.touched)


def _row_change(change: Any, commit_id: str | None) -> ops.RowChange:
    before, after = (None if image is None else dict(image) for image in (change.before, change.after))
    return ops.RowChange(change.operation, change.type_name, change.id, before, after, commit_id)
