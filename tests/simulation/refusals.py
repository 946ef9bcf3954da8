"""Is a refusal right? Only if some state that was there within the call demands it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from simulation import model
from simulation.jobs import Circumstances, Jobs
from simulation.model import Refusal, State
from simulation.ops import (
    ApplySchema,
    Call,
    CreateBranch,
    CreateTag,
    Diff,
    Load,
    Maintain,
    Merge,
    Mutate,
    NoChange,
    Poll,
    Read,
    Recover,
    Refused,
    Revert,
    WriteHeld,
)
from simulation.reader import Document
from simulation.replay import WRITES, Replay, target_of

Rule: TypeAlias = Callable[[Call, Refused], "str | None"]  # why a refusal is wrong

BASE_GONE = frozenset({"NothingInCommon", "MergeBaseExpired", "MergeBaseGone", "ConflictError"})
ROW_CONFLICTS = frozenset({"DivergentInsert", "DivergentUpdate", "DeleteVsUpdate", "OrphanEdge"})


def _made_branch(call: Call) -> str | None:
    """The branch that a call makes, or would."""
    if isinstance(call.verb, CreateBranch):
        return call.verb.name
    return call.verb.branch if isinstance(call.verb, Load) and call.verb.from_ is not None else None


class Refusals:
    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._jobs = Jobs(replay)
        self.circumstances = Circumstances(replay)
        self._rules: Mapping[str, Rule] = {
            "PreconditionFailed": self._precondition,
            "ExpectedVersionMismatch": self._version,
            "BranchNotFound": self._branch_missing,
            "AlreadyExists": self._exists,
            "TagNotFound": self._tag_missing,
            "CommitNotFound": self._commit_missing,
            "CursorExpired": self._cursor,
            "CursorRefused": self._cursor,
            "Unavailable": self.circumstances.unavailable,
            "RetriesExhausted": self.circumstances.too_busy,
            "ClockAhead": self.circumstances.clock_ahead,
            "Damaged": self._damaged,
            "KeyReused": self._key_reused,
            "JobInputDiffers": self._jobs.input_differs,
            "JobRunning": self._jobs.running,
            "JobEnding": self._jobs.closed_by_another,
            "JobLost": self._jobs.lost,
            "JobDiscarded": self._jobs.discarded,
        }

    def wrong(self, call: Call, refused: Refused) -> str | None:
        """Why a refusal is wrong; None if it is right."""
        rule = self._rules.get(refused.error)
        if rule is not None:
            return rule(call, refused)
        if self._jobs.explains(call, refused):
            return None
        if refused.error in ("ConflictError", "Overtaken") and (
            isinstance(call.verb, CreateBranch | Maintain) or _made_branch(call) is not None
        ):
            return self._met_another(call, refused)
        if isinstance(call.verb, Merge) and refused.error in BASE_GONE:
            return self._base_gone(call.verb, call)
        if isinstance(call.verb, Poll | Diff | Read) and refused.error == "BadRequest":
            return None if self._names_foreign_commit(call) else f"no reason for {refused.message}"
        if isinstance(call.verb, Recover):
            return self._recovered_refused(call, call.verb, refused, self._model_disagrees)
        if isinstance(call.verb, (*WRITES, Merge, Revert)):
            return self._model_disagrees(call, refused)
        return f"unexpected {refused.error}: {refused.message}"

    def _key_reused(self, call: Call, refused: Refused) -> str | None:
        """Another request has used the key by then, and something may have come of it."""
        end = self._replay.view.step if call.end is None else call.end
        for other in self._replay.history.calls.values():
            same_key = getattr(other.verb, "txn_id", None) == refused.fields.get("txn_id")
            if (
                same_key
                and other.verb != call.verb
                and other.start <= end
                and not isinstance(other.outcome, NoChange | Refused)
            ):
                return None
        return f"nobody has used the key {refused.fields.get('txn_id')} for another request"

    # What the model says about a write.

    def _model_disagrees(self, call: Call, refused: Refused) -> str | None:
        reasons: list[str] = []
        if refused.error == "BadRequest" and self._names_columns(call):
            return None
        for refusal in self.attempts(call):
            if refusal is None:
                reasons.append("it can be done")
            elif refused.error not in refusal.errors:
                reasons.append(f"it must be refused as {sorted(refusal.errors)}: {refusal.why}")
            elif not _same_conflicts(refusal, refused):
                reasons.append(f"the conflicts are {sorted(refusal.conflicts)}")
            else:
                return None
        return f"{refused.error} ({refused.message}), but {'; '.join(dict.fromkeys(reasons)) or 'there is no state'}"

    def _names_columns(self, call: Call) -> bool:
        """A held write gives rows by columns, and a property that was declared again has a column of another name."""
        if not isinstance(call.verb, WriteHeld):
            return False
        heads = self._replay.candidates(call.verb.branch, call.start, call.end)
        schemas = [self._replay.states[head].schema for head in heads if head is not None]
        return any(extra.name != column for schema in schemas for extra, column in schema.extras)

    def _recovered_refused(self, call: Call, verb: Recover, refused: Refused, rule: Rule) -> str | None:
        """What a recovery completes may be refused as the load itself may."""
        why = f"unexpected {refused.error}: {refused.message}"
        for run in self._replay.history.calls.values():
            if not isinstance(run.verb, Load) or run.verb.job_id is None:
                continue
            if verb.everything or run.verb.key in verb.complete:
                wrong = rule(replace(run, start=call.start, end=call.end), refused)
                if wrong is None:
                    return None
                why = wrong
        return why

    def attempts(self, call: Call) -> Iterator[Refusal | None]:
        """What becomes of a write on each state that was there within the call."""
        for result in self.results(call):
            yield result if isinstance(result, Refusal) else None

    def results(self, call: Call) -> Iterator[Refusal | tuple[str, State]]:
        """The same, with the commit that it would be made on and the state that it would lead to."""
        replay, verb = self._replay, call.verb
        heads = replay.candidates(target_of(verb), call.start, call.end)
        if isinstance(verb, Load) and verb.from_ is not None and None in heads:  # it would be made from there
            heads += replay.candidates(verb.from_, call.start, call.end)
        for head in dict.fromkeys(heads):
            for run in [] if head is None else self._ways(call, head):
                try:
                    yield head or "", run()
                except Refusal as refusal:
                    yield refusal

    def _ways(self, call: Call, head: str) -> list[Callable[[], State]]:
        verb, replay = call.verb, self._replay
        before = replay.states[head]
        if isinstance(verb, Merge):
            sources = [one for one in replay.candidates(verb.source, call.start, call.end) if one is not None]
            return [lambda one=one: self.merged(head, one) for one in sources]  # type: ignore[misc]
        if isinstance(verb, Revert):
            found = replay.resolve(verb.commit, call.end, call.start)
            if verb.commit in replay.view.commits and not replay.view.commits[verb.commit].is_logical:
                return [lambda: replay.undo(verb.commit, before, head)]
            return [lambda one=one: replay.undo(one, before, head) for one in found]  # type: ignore[misc]
        return [lambda: model.execute(before, verb)]

    def merged(self, head: str, source: str) -> State:
        replay = self._replay
        ours, theirs = replay.states[head], replay.states[source]
        if replay.ancestors[head] & replay.bits[source]:
            return ours
        return model.merge(replay.base_of(head, source), ours, theirs)

    # Errors with rules of their own.

    def _precondition(self, call: Call, refused: Refused) -> str | None:
        expected, actual = refused.fields.get("expected"), refused.fields.get("actual")
        verb = call.verb
        if expected != getattr(verb, "if_commit", None):
            return f"the call did not expect {expected}"
        if actual == expected or actual not in self._replay.candidates(target_of(verb), call.start, call.end):
            return f"the branch was not at {actual} during the call"
        return None

    def _version(self, call: Call, refused: Refused) -> str | None:
        verb, commits = call.verb, self._replay.view.commits
        if isinstance(verb, Recover):
            return self._recovered_refused(call, verb, refused, self._version)
        strict = isinstance(verb, WriteHeld | ApplySchema | Merge) or (isinstance(verb, Mutate) and verb.strict)
        if not strict and not (isinstance(verb, Load) and verb.mode == "overwrite"):
            return "the write was not strict"
        for name in ("expected", "actual"):
            named = refused.fields.get(name)
            if named is not None and named not in commits:
                return f"{name} names {named}, and there is no such commit"
        if refused.fields.get("expected") == refused.fields.get("actual"):
            return "both versions are the same"
        since = call.start
        if isinstance(verb, WriteHeld) and verb.base in commits:
            since = min(since, commits[verb.base].step)
        if len(self._replay.candidates(target_of(verb), since, call.end)) < 2:
            return "nothing was committed since"
        return None

    def _branch_missing(self, call: Call, refused: Refused) -> str | None:
        name = str(refused.fields.get("branch"))
        if None in self._replay.candidates(name, call.start, call.end):
            return None
        return f"the branch {name!r} was there during the whole call"

    def _exists(self, call: Call, refused: Refused) -> str | None:
        verb, view = call.verb, self._replay.view
        if isinstance(verb, CreateTag):
            tags = [tag for tag in view.tags if tag.name == verb.name and tag.actor != call.name]
            if any(_overlaps(tag.created, tag.ended, call) for tag in tags) or self._lives(verb.name, call):
                return None
            return f"nobody else had a tag {verb.name!r} during the call"
        if isinstance(verb, CreateBranch):
            return None if self._lives(verb.name, call) else f"nobody else had a branch {verb.name!r} during the call"
        if isinstance(verb, Load) and verb.from_ is not None:
            return None if self._lives(verb.branch, call) else f"nobody else had a branch {verb.branch!r}"
        return f"unexpected {refused.message}"

    def _lives(self, name: str, call: Call) -> bool:
        """Whether a branch of that name that somebody else has made was there within a call."""
        return any(
            life.created is not None and life.call != call.name and _overlaps(life.created, life.ended, call)
            for life in self._replay.view.lives.values()
            if life.name == name
        )

    def _tag_missing(self, call: Call, refused: Refused) -> str | None:
        name = str(refused.fields.get("tag"))
        whole = [
            tag
            for tag in self._replay.view.tags
            if tag.name == name and tag.created <= call.start and (tag.ended is None or tag.ended > (call.end or 0))
        ]
        return f"the tag {name!r} was there during the whole call" if whole else None

    def _commit_missing(self, call: Call, refused: Refused) -> str | None:
        """Right if the commit is not known, was expired, or its branch was deleted."""
        reference = str(refused.fields.get("reference"))
        commit = self._replay.view.commits.get(reference)
        if commit is None or (call.end is not None and commit.step > call.start):
            return None
        return f"{reference} could be read during the whole call" if self.is_retained(reference, call) else None

    def is_retained(self, commit_id: str, call: Call) -> bool:
        """Whether a state, and the one before it, could be read at the end of a call: nothing comes back later."""
        view = self._replay.view
        branch_id, number, _ = view.commits[commit_id].position
        life, end = view.lives[branch_id], view.step if call.end is None else call.end
        if not life.is_alive(end):
            return False
        oldest = self._oldest_retained(branch_id, end)
        return number - 1 >= oldest or number == oldest == 1

    def _damaged(self, call: Call, refused: Refused) -> str | None:
        """Right only for a reader that outlived the retention of what it reads: a cleanup passed during the call."""
        verb, view = call.verb, self._replay.view
        end = view.step if call.end is None else call.end
        cleaned = any("fence" in one.json and call.start < one.step <= end for one in view.manifests.values())
        if not isinstance(verb, Read | Diff | Poll) or not cleaned:
            return f"unexpected {refused.error}: {refused.message}"
        if isinstance(verb, Poll):
            return None
        named = [verb.a, verb.b] if isinstance(verb, Diff) else [verb.at or verb.branch]
        read = {
            commit
            for name in named
            for commit in (
                *self._replay.resolve(name, end, call.start),
                *self._replay.candidates(name, call.start, end),
            )
            if commit is not None
        }
        if read and all(self.is_retained(commit, call) for commit in read):  # none: it named a time
            return f"what it read could be read during the whole call: {refused.message}"
        return None

    def _cursor(self, call: Call, refused: Refused) -> str | None:
        """A cleanup passed on the branch or below it, or the branch is another one by now."""
        verb, view = call.verb, self._replay.view
        if not isinstance(verb, Poll):
            return f"unexpected {refused.error}"
        if refused.error == "CursorRefused":
            names = {life.name for life in view.lives.values() if life.ended is not None}
            return None if names else "no branch was ever deleted"
        cleaned = any(
            document.json.get("oldest_retained", 1) > 1 and document.step <= (call.end or view.step)
            for document in view.manifests.values()
        )
        return None if cleaned else "no cleanup has expired anything"

    def _met_another(self, call: Call, refused: Refused) -> str | None:
        """A cleanup that passed, or somebody who wanted the same name."""
        view, end = self._replay.view, self._replay.view.step if call.end is None else call.end
        for document in view.manifests.values():
            authors = {commit.actor for commit in document.commits}
            since = 0 if isinstance(call.verb, Maintain) else call.start
            if "fence" in document.json and call.name not in authors and since < document.step <= end:
                return None
        for life in view.lives.values():
            if life.name != _made_branch(call):
                continue
            # Of its own life: that somebody else ended it, unfinished as it was.
            times = (life.ended,) if life.call == call.name else (life.reserved, life.created, life.ended)
            if any(step is not None and call.start < step <= end for step in times):
                return None
        return f"nobody was in the way: {refused.message}"

    def _base_gone(self, verb: Merge, call: Call) -> str | None:
        replay, lives = self._replay, self._replay.view.lives
        for head in replay.candidates(verb.into, call.start, call.end):
            for source in replay.candidates(verb.source, call.start, call.end):
                if head is not None and source is not None:
                    since = max(
                        life.created
                        for life in lives.values()
                        if life.name in (verb.into, verb.source)
                        and life.created is not None
                        and _overlaps(life.created, life.ended, call)
                    )
                    sides = self._showing(verb.into, head), self._showing(verb.source, source)
                    bases = replay.bases(replay.ancestors[head], replay.ancestors[source])
                    if any(not self.must_keep(base, since, sides) for base in bases):
                        return None
        return "the merge base of the two branches must be there"

    def _showing(self, branch: str, commit_id: str) -> list[Document]:
        """The manifests of a branch while this commit was its head."""
        view = self._replay.view
        found = [
            document
            for (branch_id, _), document in view.manifests.items()
            if not document.is_tombstone and document.logical_head == commit_id and view.lives[branch_id].name == branch
        ]
        return found or [view.manifests[view.commits[commit_id].position[:2]]]

    def must_keep(self, base: str, since: int, sides: Sequence[Sequence[Document]]) -> bool:
        """Whether a merge base of two branches could be read when the later one was made.

        What counts is the newest manifest with its state that both branches descend from: a fork has the state of the
        commit that it was forked from too, but for those that do not come from the fork it is no merge base.
        """
        view = self._replay.view
        if view.commits[base].step > since:
            return True
        common = [
            document
            for document in view.manifests.values()
            if not document.is_tombstone
            and document.logical_head == base
            and all(any(_descends(one, document) for one in side) for side in sides)
        ]
        if not common:
            return False
        newest = max(common, key=lambda document: document.step)
        branch_id, number = newest.number
        if newest.step > since or any(
            view.commits[tag.commit].position[:2] == newest.number
            and tag.created <= since
            and (tag.ended is None or tag.ended > since)
            for tag in view.tags
            if tag.commit in view.commits
        ):
            return True
        return view.lives[branch_id].is_alive(since) and number >= self._oldest_retained(branch_id, since)

    def _oldest_retained(self, branch_id: str, step: int) -> int:
        view = self._replay.view
        newest = view.heads[branch_id]
        while view.manifests[branch_id, newest].step > step:
            newest -= 1
        return int(view.manifests[branch_id, newest].json["oldest_retained"])

    def _names_foreign_commit(self, call: Call) -> bool:
        """Whether a commit that a read names is not on the line of its branch: what was merged into it is not."""
        verb, replay = call.verb, self._replay
        if isinstance(verb, Poll) and verb.start is not None:
            heads = replay.candidates(verb.branch or "main", call.start, call.end)
            found = replay.resolve(verb.start, call.end, call.start)
            return any(head is None or one not in replay.line_to(head) for head in heads for one in found)
        return False


def _same_conflicts(refusal: Refusal, refused: Refused) -> bool:
    """The rows in dispute must be named exactly; what the merged graph breaks depends on how far it was judged."""
    if "conflicts" not in refused.fields:
        return True
    named = {tuple(one) for one in refused.fields["conflicts"]}
    wanted = {one for one in refusal.conflicts if one[0] in ROW_CONFLICTS - {"OrphanEdge"}}
    return {one for one in named if one[0] in ROW_CONFLICTS - {"OrphanEdge"}} == wanted


def _descends(document: Document, other: Document) -> bool:
    """Whether a manifest is another one, or has all its commits among its ancestors."""
    (branch_id, number), (other_id, other_number) = document.number, other.number
    if branch_id == other_id:
        return number >= other_number
    reached, count = document.ancestry.get(other_id, (0, None))
    return other_number < reached or (other_number == reached and (count is None or count >= len(other.commits)))


def _overlaps(created: int, ended: int | None, call: Call) -> bool:
    return (call.end is None or created <= call.end) and (ended is None or ended > call.start)
