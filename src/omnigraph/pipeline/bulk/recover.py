"""Completes a load whose process is gone: everything was staged, so it can be committed without its input.

It is one more start of the same load, with a token of its own, under the same transaction id and from the first base
of its intent on; it honours fences, handles conflicts and detects an earlier commit or discard as the writer would.
Only its input is not read again: if what was staged can't be used any more, completing is refused.
"""

from dataclasses import replace

from omnigraph.errors import BadRequest, ConflictError, Damaged
from omnigraph.gc.recovery import ACTOR, KIND, Completer
from omnigraph.manifest.commit.plan import DataChange, PublishPlan
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.intent.intent_store import OwnedIntent, StoredIntent
from omnigraph.manifest.model.manifest import Recovered
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.bulk.load import BulkLoad
from omnigraph.pipeline.bulk.plan import StagedPass
from omnigraph.pipeline.bulk.resume import LoadDetails, read_staged_base
from omnigraph.pipeline.bulk.staged_marker import StagedLoad, is_complete, read_staged_load
from omnigraph.storage.util.runner import LocalRunner


def can_complete(repository: Repository, seen: StoredIntent) -> bool:
    try:
        details = LoadDetails.from_json(seen.intent.details, f"the intent of {seen.intent.txn_id}")
    except Damaged:
        return False
    return is_complete(repository.store, seen.intent, details.staged_on)


def complete(repository: Repository, held: OwnedIntent, whose: Recovered) -> PublishedCommit | None:
    """Commit a load that another process staged; None if it changes nothing."""
    details = LoadDetails.from_json(held.intent.details, f"the intent of {held.txn_id}")
    staged = read_staged_load(repository.store, held.intent, details.staged_on)
    if staged is None:
        raise BadRequest(f"The job {held.txn_id} had not staged everything: start it again, or discard it.")
    return _StagedLoad(repository, held, details, staged, whose).commit()


class _StagedLoad(BulkLoad):
    def __init__(
        self, repository: Repository, held: OwnedIntent, details: LoadDetails, staged: StagedLoad, whose: Recovered
    ) -> None:
        super().__init__(repository, LocalRunner(), replace(staged.options, actor=ACTOR, txn_id=held.txn_id))
        self._intent, self._details = held, details
        self._splits = list(staged.splits)
        self._whose = whose
        self._input = staged.input

    def commit(self) -> PublishedCommit | None:
        assert self._intent is not None
        base = self._base()
        return self._find_earlier_commit(base, self._intent) or self._publish(base, self._intent)

    def plan(self, txn: WriteTxn) -> PublishPlan:
        plan = super().plan(txn)
        assert isinstance(plan.change, DataChange)
        return replace(plan, change=replace(plan.change, kind=KIND), recovered=self._whose)

    def _stage(self, txn: WriteTxn) -> StagedPass:
        assert self._details is not None
        if self._pass is None and (earlier := read_staged_base(self.repository, self._details)) is not None:
            self._pass = self._begin_pass(earlier)
        staged = self._pass
        if staged is None or len(staged.results) < len(self._splits) or not self._is_usable_on(staged, txn):
            assert self._intent is not None
            raise ConflictError(
                f"What the job {self._intent.txn_id} staged can't be used any more, because the graph has changed "
                "since or a cleanup has passed: start it again with the same job id, or discard it."
            )
        return staged


COMPLETER = Completer(can_complete, complete)
