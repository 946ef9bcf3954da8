"""Whether what happened in a run is right.

`Checker.step` after each step is cheap: it takes in the writes since the last time, checks the chains and compares the
contents with the model. `Checker.finish` at the end judges every call, and looks whether what is retained is there.
Where tables are stored, `step` must be called before a cleanup deletes files: what is read too late is not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from simulation.ops import (
    Call,
    Changes,
    Committed,
    CreateBranch,
    CreateTag,
    DeleteBranch,
    DeleteTag,
    Done,
    History,
    Load,
    Merge,
    Names,
    NoChange,
    Page,
    ReadResult,
    Recover,
    Refused,
    Unknown,
)
from simulation.reader import Document, LogCommit, Number, Unreadable
from simulation.reads import Reads
from simulation.refusals import Refusals
from simulation.replay import Replay, Violation, target_of

# A recovery may have completed what a run began that ended so: it lost its job, or left it to be gone on with.
COMPLETED_LATER = frozenset(
    {"JobLost", "JobRunning", "ExpectedVersionMismatch", "ConflictError", "RetriesExhausted", "Unavailable"}
)


FAST_FORWARD, MERGED, UP_TO_DATE = "fast_forward", "merged", "already_up_to_date"


class Checker:
    """Follows one history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.replay = Replay(history)
        self._refusals = Refusals(self.replay)
        self._reads = Reads(self.replay)
        self._swept: dict[Number, str] = {}

    @property
    def violations(self) -> list[Violation]:
        return self.replay.violations

    def step(self) -> list[Violation]:
        """What is wrong with what was written since the last time."""
        return self.replay.advance()

    def finish(self) -> list[Violation]:
        """Everything that was wrong in the whole run."""
        self.replay.advance()
        for check in (self._check_calls, self._check_retained, self._check_bases, self._check_discards):
            try:
                check()
            except (LookupError, ValueError):
                if not self.violations:  # where a chain is broken, what hangs on it can't be judged
                    raise
        return self.violations

    def _check_calls(self) -> None:
        for call in self.history.calls.values():
            self._check_committed(call)
            self._check_outcome(call)
        for call, why in self._reads.check_feeds(self.history):
            self._wrong("feed", call, why)

    def _wrong(self, check: str, call: Call, why: str | None) -> None:
        if why is not None:
            self.replay.report(check, f"{call.name} {call.verb}: {why}", call.end or 0)

    # Calls.

    def _check_committed(self, call: Call) -> None:
        """A call commits at most once, and not at all if it said so."""
        landed = self.replay.landed.get(call.name, [])
        if len(landed) > 1:
            self._wrong("once", call, f"it is committed as {', '.join(commit.id for commit in landed)}")
        if not landed or not isinstance(call.outcome, Refused | NoChange):
            return
        outcome = call.outcome
        if isinstance(outcome, Refused) and outcome.error in COMPLETED_LATER and landed[0].recovered is not None:
            return
        self._wrong("acknowledged", call, f"it is committed as {landed[0].id}, but it answered {outcome}")

    def _check_outcome(self, call: Call) -> None:
        outcome = call.outcome
        if isinstance(outcome, Refused):
            self._wrong("refusal", call, self._refusals.wrong(call, outcome))
            self._wrong("acknowledged", call, self._made_all_the_same(call, outcome.error))
        elif isinstance(outcome, Committed):
            self._wrong("acknowledged", call, self._wrong_commit(call, outcome))
        elif isinstance(outcome, NoChange):
            self._wrong("no-op", call, self._wrong_no_op(call, outcome))
        elif isinstance(outcome, Unknown):
            self._wrong("unknown", call, self._wrong_unknown(call, outcome))
        elif isinstance(outcome, Done):
            self._wrong("done", call, self._wrong_done(call, outcome))
        elif isinstance(outcome, ReadResult):
            self._wrong("read", call, self._reads.wrong_read(call, outcome))
        elif isinstance(outcome, Changes):
            self._wrong("diff", call, self._reads.wrong_diff(call, outcome))
        elif isinstance(outcome, Names):
            self._wrong("list", call, self._reads.wrong_names(call, outcome))
        elif isinstance(outcome, Page) and outcome.changes and outcome.changes[-1].commit_id not in self._commits:
            self._wrong("feed", call, f"it names {outcome.changes[-1].commit_id}, and there is no such commit")

    @property
    def _commits(self) -> dict[str, LogCommit]:
        return self.replay.view.commits

    def _wrong_commit(self, call: Call, outcome: Committed) -> str | None:
        commit = self._commits.get(outcome.commit_id)
        if commit is None:
            return f"{outcome.commit_id} is not in the log"
        if call.end is not None and commit.step > call.end:
            return f"{commit.id} came only after the answer"
        if commit.author != call.name:
            return self._wrong_repetition(call, outcome, commit)
        if commit.step <= call.start:
            return f"{commit.id} was there before the call"
        if {**outcome.touched} != {**commit.touched}:
            return f"it answered {dict(outcome.touched)}, the log says {dict(commit.touched)}"
        if isinstance(call.verb, Merge) and outcome.outcome != self._kind_of_merge(commit.parent, commit.merged_parent):
            return f"it answered {outcome.outcome!r} for {commit.id}"
        if commit.kind == "recovery" and dict(outcome.counts) == self._written(commit):  # completed by another process
            return None
        return self._wrong_counts(call, call, outcome) or self._wrong_deletion(call, outcome.deleted)

    @staticmethod
    def _written(commit: LogCommit) -> dict[str, int]:
        """How many rows of each type a commit changed; a row that was as it is now is not among them."""
        return {key.partition(":")[2]: sum(counts.values()) for key, counts in commit.touched.items()}

    def _kind_of_merge(self, head: str | None, source: str | None) -> str:
        """What a merge of one commit into another has to do."""
        replay = self.replay
        assert head is not None
        assert source is not None
        if replay.ancestors[head] & replay.bits[source]:
            return UP_TO_DATE
        return FAST_FORWARD if replay.ancestors[source] & replay.bits[head] else MERGED

    def _wrong_rehearsal(self, call: Call, outcome: NoChange) -> str | None:
        """A dry run says what a merge would do on some two heads that were there within the call."""
        verb, replay = call.verb, self.replay
        assert isinstance(verb, Merge)
        heads, sources = (replay.candidates(name, call.start, call.end) for name in (verb.into, verb.source))
        possible: set[str] = set()
        for head in heads:
            for source in sources:
                if head is None or source is None:
                    continue
                possible.add(self._kind_of_merge(head, source))
                if replay.states[head].says_the_same(replay.states[source]):
                    possible.add(UP_TO_DATE)
        return None if outcome.outcome in possible else f"it would be one of {sorted(possible)}"

    def _wrong_repetition(self, call: Call, outcome: Committed, commit: LogCommit) -> str | None:
        """A call may answer with the commit of another one under the same key, if that did the same."""
        verb = call.verb
        key = verb.key if isinstance(verb, Load) else getattr(verb, "txn_id", None)
        author = self.history.calls.get(commit.author or "")
        if key is None or key != commit.txn_id or author is None:
            return f"{commit.id} is the work of {commit.author}, under {commit.txn_id}"
        if isinstance(verb, Load) and verb.job_id is not None:
            if not isinstance(author.verb, Load) or author.verb.rows != verb.rows:
                return f"{commit.id} has the rows of {author.name}, whose input was another"
            return None if dict(outcome.counts) == self._written(commit) else self._wrong_counts(call, author, outcome)
        if author.verb != verb:
            return f"{commit.id} was made under its key by {author.name}, for another actor or request"
        return None

    def _wrong_counts(self, call: Call, author: Call, outcome: Committed) -> str | None:
        """A load reports how many rows of each type it took."""
        if not isinstance(call.verb, Load) or not isinstance(author.verb, Load) or not outcome.counts:
            return None
        wanted = Counter(row.type_name for row in author.verb.rows)
        if dict(outcome.counts) != dict(wanted):
            return f"it answered {dict(outcome.counts)}, its input has {dict(wanted)}"
        return None

    def _wrong_deletion(self, call: Call, deleted: bool) -> str | None:
        if deleted and isinstance(call.verb, Merge) and not self._is_dead(call.verb.source, call):
            return f"the branch {call.verb.source!r} was there during the whole call"
        return None

    def _is_dead(self, branch: str, call: Call) -> bool:
        return None in self.replay.candidates(branch, call.start, call.end)

    def _wrong_no_op(self, call: Call, outcome: NoChange) -> str | None:
        verb, replay = call.verb, self.replay
        if isinstance(verb, Merge) and verb.dry_run:
            return self._wrong_rehearsal(call, outcome)
        if isinstance(verb, Merge) and outcome.outcome != UP_TO_DATE:
            return f"nothing was committed, and it answered {outcome.outcome!r}"
        wrong = self._wrong_deletion(call, outcome.deleted)
        if wrong is not None:
            return wrong
        for result in self._refusals.results(call):
            if isinstance(result, tuple) and result[1].says_the_same(replay.states[result[0]]):
                return None
        return f"it would have changed each of {replay.candidates(target_of(verb), call.start, call.end)}"

    def _wrong_unknown(self, call: Call, outcome: Unknown) -> str | None:
        landed = self.replay.landed.get(call.name, [])
        if landed and landed[0].txn_id != outcome.txn_id:
            return f"it is committed under {landed[0].txn_id}, but it named {outcome.txn_id}"
        return None

    def _made_all_the_same(self, call: Call, error: str) -> str | None:
        """A refused call has made no branch and no tag, and ended none."""
        view, end = self.replay.view, self.replay.view.step if call.end is None else call.end
        made = [life for life in view.lives.values() if life.call == call.name and life.created is not None]
        if made and not isinstance(call.verb, Load):  # a load may fail after it has made its branch
            return f"it has made the branch {made[0].branch_id}"
        for (branch_id, number), document in view.manifests.items():
            if document.is_tombstone and number > 1 and document.json["tombstone"]["actor"] == call.name:
                return f"it has ended the branch {branch_id}"
        if error == "Unavailable":  # says of a tag that it may be there, or gone
            return None
        for tag in view.tags:
            # One that a cleanup had overtaken is taken back, unless that fails.
            if tag.actor == call.name and (tag.ended is None or tag.ended > end) and not self._was_troubled(call):
                return f"it has made the tag {tag.name!r}"
            if tag.ended_by == call.name and tag.actor != call.name:
                return f"it has deleted the tag {tag.name!r}"
        return None

    def _was_troubled(self, call: Call) -> bool:
        return bool(self._refusals.circumstances.faults(call))

    def _wrong_done(self, call: Call, outcome: Done) -> str | None:
        verb, view = call.verb, self.replay.view
        missing = [one for one in outcome.commits if one not in self._commits]
        if missing:
            return f"it named {missing[0]}, and there is no such commit"
        if isinstance(verb, CreateBranch):
            return self._wrong_branch(call, verb)
        if isinstance(verb, DeleteBranch) and not self._is_dead(verb.name, call):
            return f"the branch {verb.name!r} was there during the whole call"
        if isinstance(verb, CreateTag):
            return self._wrong_tag(call, verb, outcome)
        if isinstance(verb, DeleteTag):
            end = view.step if call.end is None else call.end
            for tag in view.tags:
                if tag.name == verb.name and tag.created <= call.start and (tag.ended is None or tag.ended > end):
                    return f"the tag {verb.name!r} was there during the whole call"
        return None

    def _wrong_branch(self, call: Call, verb: CreateBranch) -> str | None:
        """The branch was made within the call, from a state that its source had within the call."""
        view, end = self.replay.view, self.replay.view.step if call.end is None else call.end
        lives = [life for life in view.lives.values() if life.name == verb.name and life.created is not None]
        if verb.txn_id is not None and any(life.txn_id == verb.txn_id for life in lives):
            makers = [self.history.calls.get(life.call) for life in lives if life.txn_id == verb.txn_id]
            same = any(maker is None or maker.verb == verb for maker in makers)
            return None if same else "its key made the branch for another actor or request"
        made = [life for life in lives if call.start < (life.created or 0) <= end and life.call in ("", call.name)]
        if not made:
            return "no such branch was made during the call"
        possible = self._reads.states_of(verb.at or verb.from_, verb.from_, call)
        heads = [view.manifests[life.branch_id, 1].logical_head for life in made]
        if not set(heads) & set(possible):
            return f"the branch starts from {heads}, its source was {possible} during the call"
        return None

    def _wrong_tag(self, call: Call, verb: CreateTag, outcome: Done) -> str | None:
        named = outcome.commit_id
        if named is None or named not in self._commits:
            return f"it named {named}, and there is no such commit"
        if verb.commit is None:
            possible = self.replay.candidates(verb.branch, call.start, call.end)
            return None if self.replay.shown[named] in possible else f"{named} was not the head of {verb.branch!r}"
        if self.replay.shown[named] not in self.replay.resolve(verb.commit, call.end, call.start):
            return f"the tag is of {named}, not of {verb.commit}"
        return None

    # What is there at the end.

    def _check_retained(self) -> None:
        """Every state that time travel, tags and branches may show can be read."""
        for point, what in self._retained().items():
            try:
                self.replay.view.require_readable(point)
            except Unreadable as error:
                self.replay.report("retained", f"{what} can't be read: {error}", self.replay.view.step)

    def after_cleanup(self) -> None:
        """The same in the middle of a run: all objects and files are there."""
        if self.violations:
            return
        self.replay.advance()
        view, known = self.replay.view, len(self._swept)
        for point, what in self._retained().items():
            try:
                view.require_readable(point, files_only=True)
            except Unreadable as error:
                self._swept.setdefault(point, f"{what} can't be read after a cleanup: {error}")
        for why in list(self._swept.values())[known:]:
            self.replay.report("retained", why, view.step)

    def _retained(self) -> dict[Number, str]:
        view = self.replay.view
        wanted: dict[Number, str] = {}
        for name, life in view.living().items():
            head = view.heads[life.branch_id]
            for number in range(max(1, view.manifests[life.branch_id, head].json["oldest_retained"]), head + 1):
                wanted[life.branch_id, number] = f"manifest {number} of {name!r}"
        for tag in view.tags:
            if tag.ended is None and tag.commit in self._commits and self._was_tagged_in_time(tag.commit, tag.created):
                branch_id, number, _ = self._commits[tag.commit].position
                wanted[branch_id, number] = f"the tag {tag.name!r}"
        return wanted

    def _was_tagged_in_time(self, commit_id: str, step: int) -> bool:
        """A tag that was put after a cleanup had passed its commit is taken back; a crash may leave it."""
        view = self.replay.view
        branch_id, number, _ = self._commits[commit_id].position
        known = [n for n in range(1, view.heads[branch_id] + 1) if view.manifests[branch_id, n].step <= step]
        newest = view.manifests[branch_id, known[-1]]
        return not newest.is_tombstone and newest.json["oldest_retained"] <= number

    def _check_bases(self) -> None:
        """Cleanup keeps the merge bases of every two living branches, if they were there when both had been made."""
        replay, view = self.replay, self.replay.view
        living = sorted(view.living().values(), key=lambda life: life.branch_id)
        heads = {life.branch_id: view.manifests[life.branch_id, view.heads[life.branch_id]] for life in living}
        for place, one in enumerate(living):
            for other in living[place + 1 :]:
                pair = heads[one.branch_id], heads[other.branch_id]
                since = max(one.created or 0, other.created or 0)
                for base in replay.bases(*(replay.ancestors[head.logical_head] for head in pair)):
                    self._check_base(base, since, pair, f"{one.name!r} and {other.name!r}")

    def _check_base(self, base: str, since: int, pair: tuple[Document, Document], whose: str) -> None:
        view = self.replay.view
        shown = [
            document
            for document in view.manifests.values()
            if not document.is_tombstone and self._shows(document.number, base)
        ]
        sides = [[head] for head in pair]
        if self._refusals.must_keep(base, since, sides) and all(view.current[one.number].is_stub for one in shown):
            self.replay.report("bases", f"cleanup has swept {base}, the merge base of {whose}", view.step)

    def _shows(self, number: tuple[str, int], commit_id: str) -> bool:
        document = self.replay.view.manifests[number]
        return document.logical_head == commit_id or any(one.id == commit_id for one in document.commits)

    # Jobs.

    def _check_discards(self) -> None:
        """What a run of a job staged under a token that was discarded is never committed."""
        view = self.replay.view
        discards = {token for document in view.manifests.values() for token in document.json.get("discards", ())}
        for commit in view.commits.values():
            if commit.is_logical and commit.token in discards:
                self.replay.report("discard", f"{commit.id} was committed under a discarded token", commit.step)
        for call in self.history.calls.values():
            if isinstance(call.verb, Recover) and isinstance(call.outcome, Done):
                for job, outcome in call.outcome.jobs:
                    self._check_job(call, job, outcome)

    def _check_job(self, call: Call, job: str, outcome: str) -> None:
        landed = [commit for commit in self._commits.values() if commit.is_logical and commit.txn_id == job]
        if outcome in ("landed", "completed"):
            if outcome == "landed" and not any(commit.step <= (call.end or 0) for commit in landed):
                self._wrong("discard", call, f"the job {job} has not landed")
            return
        for commit in landed:
            author = self.history.calls.get(commit.author or "")
            if author is not None and self._began_before(author, job, call.start, call.end or 0):
                self._wrong("discard", call, f"{commit.id} was committed by {author.name}, which was discarded")

    def _began_before(self, run: Call, job: str, start: int, end: int) -> bool:
        """Whether a run had put its intent before a discard began, and no other intent since it ended."""
        puts = [
            write
            for write in self.replay.view.intents
            if write.txn_id == job and write.call == run.name and write.document is not None
        ]
        known = {_token(write.document) for write in puts if write.step <= start}
        return bool(known) and not {_token(w.document) for w in puts if w.step > start} - known and run.start < end


def _token(document: Mapping[str, Any] | None) -> str:
    """Which start of a job an intent belongs to."""
    owner = (document or {}).get("owner") or {}
    return str((document or {}).get("token") or owner.get("token"))


def check_run(history: History) -> list[Violation]:
    """Everything that is wrong with a finished run."""
    return Checker(history).finish()
