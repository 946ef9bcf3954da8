"""Refusals that other calls or faults demand: of jobs, of a branch that was too busy, of a store that did not serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simulation.faults import CLOCK, ELAPSE, PAUSE, STOP, STORE_CLOCK
from simulation.ops import (
    MAIN,
    Call,
    CreateBranch,
    CreateTag,
    DeleteBranch,
    DeleteTag,
    Load,
    Maintain,
    Recover,
    Refused,
)
from simulation.reader import IntentWrite, Life
from simulation.replay import Replay, target_of

WORKING, RELEASED, DISCARDED, FINISHED = "working", "released", "discarded", "finished"  # states of an intent
CLOSED = (DISCARDED, FINISHED)
DEAD_AFTER_S = 15 * 60.0
OF_CLOCKS = (CLOCK, STORE_CLOCK)
OF_TIME = (*OF_CLOCKS, ELAPSE, STOP, PAUSE)


def branch_of(call: Call) -> str | None:
    """The branch that a call would change; None: any."""
    verb = call.verb
    if isinstance(verb, CreateBranch | DeleteBranch):
        return verb.name
    if isinstance(verb, Recover) or (isinstance(verb, Maintain) and verb.what == "cleanup"):
        return None
    return target_of(verb) or MAIN


class Others:
    """What other calls did to the log and to intents while a call ran."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def end(self, call: Call) -> int:
        return self._replay.view.step if call.end is None else call.end

    def lives(self, call: Call, since: int) -> list[Life]:
        """Of the branch that the call is about: those that were there at some time after a step."""
        name, end = branch_of(call), self.end(call)
        return [
            life
            for life in self._replay.view.lives.values()
            if name in (None, life.name) and life.reserved <= end and (life.ended is None or life.ended > since)
        ]

    def committed(self, call: Call, since: int) -> bool:
        """Whether anybody else put a manifest on the call's branch, or ended it, after some step."""
        ids, end = {life.branch_id for life in self.lives(call, since)}, self.end(call)
        own = {
            (write.step, write.key.split("/")[1]) for write in self._replay.history.writes if write.call == call.name
        }
        for (branch_id, _), document in self._replay.view.manifests.items():
            if branch_id in ids and since < document.step <= end:
                # The thread of a call may put what other threads of its process want.
                authors = {commit.actor for commit in document.commits}
                if (document.step, branch_id) not in own or (authors and call.name not in authors):
                    return True
        return False

    def keys(self, call: Call) -> set[str]:
        """The transactions of the long writes that a call is about: its job, those that it began, those it ends."""
        verb = call.verb
        own = {write.txn_id for write in self._replay.view.intents if write.call == call.name}
        if isinstance(verb, Load) and verb.job_id is not None:
            return own | {str(verb.key)}
        if isinstance(verb, Recover):
            if verb.everything:
                return {write.txn_id for write in self._replay.view.intents}
            return own | {*verb.complete, *verb.discard}
        return own

    def intents(self, call: Call) -> Iterator[tuple[str, IntentWrite | None]]:
        """What the intents of these transactions were at some time within a call; None is none at all."""
        end = self.end(call)
        for key in sorted(self.keys(call)):
            last: IntentWrite | None = None
            within: list[IntentWrite] = []
            for write in self._replay.view.intents:
                if write.txn_id == key and write.step <= call.start:
                    last = write
                elif write.txn_id == key and write.step <= end:
                    within.append(write)
            yield key, last
            for write in within:
                yield key, write

    def changed_intent(self, call: Call) -> bool:
        """Whether another call wrote or removed an intent of these within a call."""
        end, keys = self.end(call), self.keys(call)
        return any(
            write.txn_id in keys and write.call != call.name and call.start < write.step <= end
            for write in self._replay.view.intents
        )

    def starts(self, call: Call) -> list[Call]:
        """Other starts of the same job that began before the call had ended."""
        verb = call.verb
        if not isinstance(verb, Load) or verb.job_id is None:
            return []
        return [
            one
            for one in self._replay.history.calls.values()
            if one.name != call.name
            and isinstance(one.verb, Load)
            and one.verb.key == verb.key
            and one.start <= self.end(call)
        ]


class Jobs:
    """Refusals that have to do with intents: another call must have done what they speak of."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._others = Others(replay)

    def input_differs(self, call: Call, refused: Refused) -> str | None:
        """The job was committed, with other rows."""
        verb, commits = call.verb, self._replay.view.commits
        commit = commits.get(str(refused.fields.get("commit_id")))
        if not isinstance(verb, Load) or commit is None or commit.txn_id != verb.key:
            return f"{refused.fields.get('commit_id')} is no commit of the job"
        author = self._replay.history.calls.get(commit.author or "")
        if author is None or not isinstance(author.verb, Load) or author.verb.rows == verb.rows:
            return f"{commit.id} has loaded the same rows"
        return None if commit.step <= self._others.end(call) else f"{commit.id} came only after the answer"

    def running(self, call: Call, refused: Refused) -> str | None:
        """Another start holds the intent, and was heard of lately: within the call if it was long ago at its end."""
        since = call.start if float(refused.fields.get("age_s", 0.0)) > DEAD_AFTER_S else -1
        held = any(
            write is not None and _state(write) == WORKING and _by_another(write, call) and write.step > since
            for _, write in self._others.intents(call)
        )
        return None if held else "no other start of the job held its intent"

    def closed_by_another(self, call: Call, refused: Refused) -> str | None:
        closed = any(_state(write) in CLOSED and _by_another(write, call) for _, write in self._others.intents(call))
        return None if closed else "nobody else had closed the intent"

    def lost(self, call: Call, refused: Refused) -> str | None:
        """Another call took the intent over, closed or removed it."""
        return None if self._others.changed_intent(call) else "nobody else touched its intent"

    def discarded(self, call: Call, refused: Refused) -> str | None:
        """A token of this start is among the discards in the log, or its intent was closed by another call."""
        end = self._others.end(call)
        tokens = {
            token for write in self._replay.view.intents if write.call == call.name for token in _tokens(write.document)
        }
        for document in self._replay.view.manifests.values():
            if document.step <= end and tokens & {*document.json.get("discards", ())}:
                return None
        return self.closed_by_another(call, refused)

    def explains(self, call: Call, refused: Refused) -> bool:
        """Whether an error that has no class of its own is right because of a job."""
        verb = call.verb
        if not isinstance(verb, Recover) and not (isinstance(verb, Load) and verb.job_id is not None):
            return False
        if refused.error == "ConflictError":
            return self._conflicts(call)
        if refused.error == "BadRequest":
            return self._differs(call) if isinstance(verb, Load) else self._has_dead(call)
        if refused.error == "NotFound":
            gone = any(write is None or _state(write) in ("", FINISHED) for _, write in self._others.intents(call))
            return gone and (isinstance(verb, Recover) or self._others.changed_intent(call))
        return False

    def _conflicts(self, call: Call) -> bool:
        """Somebody else has the intent, or was on the branch since it was put."""
        since = call.start
        for _, write in self._others.intents(call):
            if write is not None and write.document is not None:
                if _by_another(write, call) and (_state(write) == WORKING or isinstance(call.verb, Recover)):
                    return True
                since = min(since, self._first(write))
        return self._others.committed(call, since)

    def _first(self, write: IntentWrite) -> int:
        """When the intent that is the same start's was put."""
        first = (_tokens(write.document) or ("",))[0]
        return min(
            one.step
            for one in self._replay.view.intents
            if one.txn_id == write.txn_id and (_tokens(one.document) or ("",))[0] == first
        )

    def _differs(self, call: Call) -> bool:
        """An earlier start was begun with something else, or on a branch that is another one by now."""
        if any(one.verb != call.verb for one in self._others.starts(call)):
            return True
        ids = {life.branch_id for life in self._others.lives(call, call.start)}
        bases = {
            write.document["base"][0]
            for _, write in self._others.intents(call)
            if write is not None and write.document is not None and "base" in write.document
        }
        return len(bases | ids) > 1 and bool(bases)

    def _has_dead(self, call: Call) -> bool:
        """There is a job that a recovery was to complete."""
        assert isinstance(call.verb, Recover)
        return any(
            key in call.verb.complete and _state(write) in (WORKING, RELEASED)
            for key, write in self._others.intents(call)
        )


class Circumstances:
    """The store did not serve, or the branch was too busy: no state demands it, but something must have happened."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._others = Others(replay)

    def faults(self, call: Call) -> set[str]:
        """What struck the call's process while it ran."""
        end = self._others.end(call)
        return {
            one.kind
            for one in self._replay.history.strikes
            if call.start <= one.step <= end and one.process in ("", call.process)
        }

    def unavailable(self, call: Call, refused: Refused) -> str | None:
        if self.faults(call) - {*OF_TIME}:
            return None
        if self._others.changed_intent(call) or isinstance(call.verb, CreateTag | DeleteTag):
            return None  # it lost every race
        return "no request of its process failed"

    def too_busy(self, call: Call, refused: Refused) -> str | None:
        """Somebody else was faster, perhaps before the call, and the time allowed is over."""
        if call.seconds < float(refused.fields.get("seconds", 0.0)):
            return f"it took no more than {call.seconds:.1f} s"
        return None if self._others.committed(call, 0) else "nobody else wrote to the branch"

    def clock_ahead(self, call: Call, refused: Refused) -> str | None:
        end = self._others.end(call)
        jumps = [one for one in self._replay.history.strikes if one.step <= end and one.kind in OF_TIME]
        return None if jumps else "no clock has jumped"


def _state(write: IntentWrite | None) -> str:
    return "" if write is None or write.document is None else str(write.document.get("state", WORKING))


def _by_another(write: IntentWrite | None, call: Call) -> bool:
    return write is not None and write.call != call.name


def _tokens(document: Mapping[str, Any] | None) -> tuple[str, ...]:
    found = (document or {}).get("tokens") or ()
    owner = (document or {}).get("owner") or {}
    return tuple(found) or ((owner["token"],) if "token" in owner else ())
