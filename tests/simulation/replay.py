"""The log of a run, replayed by the model manifest by manifest, and compared with what the reader finds.

States are known by the ids of logical commits: maintenance changes nothing, and a fork shows the commit that it was
forked from. The manifests of all branches are replayed in the order in which they were put.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from simulation import model
from simulation.model import Refusal, State
from simulation.ops import (
    MAIN,
    SPECS,
    ApplySchema,
    Call,
    History,
    Load,
    Merge,
    Mutate,
    Revert,
    Verb,
    WriteHeld,
)
from simulation.reader import Document, LogCommit, Number, Schema, Unreadable, View

WRITES = (Mutate, WriteHeld, Load, ApplySchema)
IDEMPOTENCY_WINDOW_S = 24 * 3600.0  # a key that is older may be used again


def target_of(verb: Verb) -> str:
    """The branch that a verb is about; of a merge the one that gets the commit."""
    return verb.into if isinstance(verb, Merge) else getattr(verb, "branch", None) or MAIN


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not happen."""

    check: str
    message: str
    step: int = 0

    def __str__(self) -> str:
        return f"[{self.check}] {self.message}"


class Replay:
    """Follows the writes of a history; `advance` takes those that came since."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.view = View(history.tables)
        self.violations: list[Violation] = []
        self.states: dict[str, State] = {}  # by logical commit
        self.shown: dict[str, str] = {}  # any commit, maintenance too → the logical commit whose state it has
        self.ancestors: dict[str, int] = {}  # bits of logical commits
        self.logical: list[str] = []  # by bit
        self.bits: dict[str, int] = {}
        self.of_branch: dict[str, list[LogCommit]] = {}  # logical commits by branch id
        self.lines: dict[str, list[str]] = {}  # branch id → logical commits through its forks, oldest first
        self.timeline: dict[str, list[tuple[int, str | None]]] = {}  # branch name → its newest commit since a step
        self.landed: dict[str, list[LogCommit]] = {}  # logical commits by the call whose work they are
        self._taken = 0
        self._problems = 0
        self._unread: list[tuple[Document, str]] = []  # what could not be read of what was just taken in

    def report(self, check: str, message: str, step: int = 0) -> None:
        self.violations.append(Violation(check, message, step))

    def advance(self) -> list[Violation]:
        """Take in the writes since the last time; what is wrong with them."""
        before = len(self.violations)
        self.view.tables = self.history.tables
        writes = self.history.writes
        while self._taken < len(writes):
            document = self.view.apply(writes[self._taken])
            self._taken += 1
            if document is not None:
                try:
                    self._replay(document)
                except (KeyError, ValueError) as error:
                    self.report("chain", f"manifest {document.number} names what is not known: {error}", document.step)
        for document, why in self._unread:
            if self._is_retained(document.number):  # by now: the tables are those of now
                self.report("readable", why, document.step)
        self._unread.clear()
        for problem in self.view.problems[self._problems :]:
            self.report("chain", problem, self.view.step)
        self._problems = len(self.view.problems)
        return self.violations[before:]

    # One manifest.

    def _replay(self, document: Document) -> None:
        branch_id, number = document.number
        life = self.view.lives[branch_id]
        times = self.timeline.setdefault(life.name, [])
        if document.is_tombstone:
            self._check_tombstone(document)
            if number > 1:
                times.append((document.step, None))
            return
        if number == 1 and life.fork is not None:
            head = self._fork(document)
        else:
            head = "" if number == 1 else self.view.manifests[branch_id, number - 1].logical_head
        if number == 1:
            self.lines[branch_id] = self.line_to(head)
        times.append((document.step, head or None))
        for commit in document.commits:
            if commit.is_logical:
                self._commit(document, commit, head)
                head = commit.id
                times.append((document.step, head))
            self.shown[commit.id] = head
        if times and not head:
            times.pop(0)
        if document.logical_head != head:
            self.report("chain", f"manifest {document.number} has the head {document.logical_head}, not {head}")
        if not document.commits or not document.commits[-1].is_logical:
            self._compare(document, None, self.states[head], f"manifest {document.number}")
        self._check_ancestry(document, head)

    def _fork(self, document: Document) -> str:
        """The commit that a new branch starts from."""
        head = document.logical_head
        source = self.view.manifests[self.view.lives[document.number[0]].fork or ("", 0)]
        if head != source.logical_head and head not in [commit.id for commit in source.commits]:
            self.report("fork", f"{document.number} starts from {head}, which its fork point does not show")
        return head

    def line_to(self, head: str) -> list[str]:
        """The logical commits from the first one of its branch, or of what that was forked from, to this one."""
        if not head:
            return []
        line = self.lines[self.view.commits[head].position[0]]
        return line[: line.index(head) + 1]

    def _commit(self, document: Document, commit: LogCommit, head: str) -> None:
        branch_id = document.number[0]
        if commit.parent != (head or None):
            self.report("chain", f"{commit.id} has the parent {commit.parent}, the branch was at {head}", commit.step)
        self._check_txn(commit)
        bit = 1 << len(self.logical)
        self.bits[commit.id] = bit
        merged = 0 if commit.merged_parent is None else self.ancestors[commit.merged_parent]
        self.ancestors[commit.id] = bit | merged | (self.ancestors[head] if head else 0)
        self.logical.append(commit.id)
        self.of_branch.setdefault(branch_id, []).append(commit)
        self.lines[branch_id].append(commit.id)
        if commit.author is not None:
            self.landed.setdefault(commit.author, []).append(commit)
        last = commit is document.commits[-1]
        expected = self._expected(commit, head, self.view.lives[branch_id].name)
        what = f"{commit.id} ({commit.kind} by {commit.author})"
        self.states[commit.id] = self._compare(document, None if last else commit.position[2], expected, what, head)
        if commit.kind not in ("merge", "init"):
            self._check_counts(commit, head)

    def _check_txn(self, commit: LogCommit) -> None:
        """No transaction is on a branch twice within the window, and no job at all: its id is known there for ever."""
        jobs = {
            call.verb.key
            for call in self.history.calls.values()
            if isinstance(call.verb, Load) and call.verb.job_id is not None
        }
        for other_id in self.logical:
            other = self.view.commits[other_id]
            if other.txn_id != commit.txn_id:
                continue
            if other.position[0] != commit.position[0]:
                continue
            if commit.txn_id in jobs or _seconds(other, commit) < IDEMPOTENCY_WINDOW_S:
                self.report("once", f"{commit.txn_id} is committed twice, as {other.id} and {commit.id}", commit.step)

    def _compare(
        self, document: Document, commits: int | None, expected: State | None, what: str, head: str = ""
    ) -> State:
        """The state that was found; reported where it is not the expected one."""
        known = self.states[head].rows if head else {}
        try:
            schema = self.view.schema_of(document.number)
            found = self.view.contents(document.number, commits)
        except Unreadable as error:
            self._unread.append((document, f"{what}: {error}"))
            if expected is not None:
                return expected
            return self.states[head] if head else State(Schema())
        state = State(schema, found)
        if expected is None:
            return state
        expected = model.bind_fresh(expected, known, found)
        if not expected.says_the_same(state):
            self.report("contents", f"{what}: {describe(expected, state)}", document.step)
        return state

    def _is_retained(self, number: Number) -> bool:
        """Whether the newest manifest of a living branch says so; others may have been swept by now."""
        life = self.view.lives[number[0]]
        head = self.view.manifests[number[0], self.view.heads[number[0]]]
        return life.ended is None and number[1] >= head.json.get("oldest_retained", 0)

    def _check_counts(self, commit: LogCommit, head: str) -> None:
        before, after = self.states[head], self.states[commit.id]
        for name in {*before.rows, *after.rows}:
            touched = commit.touched.get(SPECS[name].table_key, {})
            net = touched.get("inserted", 0) - touched.get("deleted", 0)
            if net != len(after.table(name)) - len(before.table(name)):
                self.report("counts", f"{commit.id} says {dict(touched)} of {name}, which is not so", commit.step)

    # What the model says.

    def _expected(self, commit: LogCommit, head: str, branch: str) -> State | None:
        """The state that a commit must lead to; None where nobody can say."""
        if commit.kind == "init":
            return None
        call = self.history.calls.get(commit.author or "")
        if call is None:
            self.report("author", f"{commit.id} was made by {commit.author!r}, and there is no such call", commit.step)
            return None
        if not self._is_exact(commit, head):
            return None
        try:
            return self._executed(call, commit, head, branch)
        except Refusal as refusal:
            self.report("refusal", f"{commit.id} by {call.name} must be refused: {refusal.why}", commit.step)
            return None

    def _is_exact(self, commit: LogCommit, head: str) -> bool:
        """Whether all ids of the states that a commit rests on are known; while every manifest is read, they are."""
        used = [head]
        if commit.merged_parent is not None:
            used += [commit.merged_parent]
            used += self.bases(self.ancestors[head], self.ancestors[commit.merged_parent])
        return all(self.states[one].is_exact for one in used)

    def _executed(self, call: Call, commit: LogCommit, head: str, branch: str) -> State:
        verb, before = call.verb, self.states[head]
        if target_of(verb) != branch:
            self.report("author", f"{commit.id} is on {branch!r}, where {call.name} did not write", commit.step)
        if_commit = getattr(verb, "if_commit", None)
        if if_commit not in (None, head):
            self.report("if_commit", f"{commit.id} was committed on {head} though {call.name} wanted {if_commit}")
        if isinstance(verb, Merge):
            return self._merged(call, commit, head, before)
        if commit.merged_parent is not None:
            self.report("chain", f"{commit.id} is no merge and has the merged parent {commit.merged_parent}")
        if isinstance(verb, Revert):
            return self._reverted(verb, commit, before)
        if isinstance(verb, WRITES):
            return model.execute(before, verb)
        raise Refusal((), f"a {type(verb).__name__} makes no logical commit")

    def _merged(self, call: Call, commit: LogCommit, head: str, before: State) -> State:
        merged = commit.merged_parent
        assert isinstance(call.verb, Merge)
        if merged is None:
            raise Refusal((), "a merge without a merged parent")
        if merged not in self.candidates(call.verb.source, call.start, commit.step):
            self.report("merge", f"{commit.id} merged {merged}, where {call.verb.source!r} was not during the call")
        if self.ancestors[head] & self.bits[merged]:
            self.report("merged-twice", f"{commit.id} merges {merged} into a branch that has it already", commit.step)
            return before
        return model.merge(self.base_of(head, merged), before, self.states[merged])

    def _reverted(self, verb: Revert, commit: LogCommit, before: State) -> State:
        refusal: Refusal | None = None
        for target in self.resolve(verb.commit, commit.step):
            try:
                return self.undo(target, before, commit.parent or "")
            except Refusal as error:
                refusal = error
        raise refusal or Refusal((), f"{verb.commit} names no commit")

    def undo(self, target: str, before: State, head: str) -> State:
        """A state without what one commit did."""
        parent = self.view.commits[target].parent
        if parent is None or not self.view.commits[target].is_logical:
            raise Refusal(model.INVALID, f"{target} can't be undone")
        if not self.ancestors[head] & self.bits[target]:
            raise Refusal(model.INVALID, f"{target} is not in the history")
        if self.schema_name(parent) != self.schema_name(target):  # a merge may do no more than number properties anew
            raise Refusal(model.INVALID, f"{target} changed the schema")
        return model.revert(self.states[parent], self.states[target], before)

    def schema_name(self, commit: str) -> str:
        branch_id, number, _ = self.view.commits[commit].position
        return str(self.view.manifests[branch_id, number].json["schema"])

    # Histories.

    def bases(self, one: int, other: int) -> list[str]:
        """The newest common ancestors of two sets of commits."""
        common, found = one & other, []
        while common:
            newest = self.logical[common.bit_length() - 1]
            found.append(newest)
            common &= ~self.ancestors[newest]
        return sorted(found, key=lambda id_: self.view.commits[id_].position)

    def base_of(self, one: str, other: str) -> State:
        return self._united(self.ancestors[one], self.ancestors[other])

    def _united(self, one: int, other: int) -> State:
        first, *others = self.bases(one, other)
        state, known = self.states[first], self.ancestors[first]
        for another in others:
            below = self._united(known, self.ancestors[another])
            state, known = model.virtual_base(below, state, self.states[another]), known | self.ancestors[another]
        return state

    def candidates(self, branch: str, start: int, end: int | None) -> list[str | None]:
        """Where a branch was at some time within a call; None where it did not exist."""
        found: list[str | None] = [None]
        for step, head in self.timeline.get(branch, ()):
            if step <= start:
                found = [head]
            elif end is None or step <= end:
                found.append(head)
        return list(dict.fromkeys(found))

    def resolve(self, reference: str, end: int | None, start: int = -1) -> list[str]:
        """The logical commits that a commit id or a tag may have meant at some time."""
        if reference in self.shown:
            return [self.shown[reference]]
        name = reference.removeprefix("tag:")
        return [
            self.shown[tag.commit]
            for tag in self.view.tags
            if tag.name == name
            and tag.commit in self.shown
            and (end is None or tag.created <= end)
            and (tag.ended is None or tag.ended > start)
        ]

    def _check_ancestry(self, document: Document, head: str) -> None:
        """The vector has exactly the ancestors; what deleted branches had may be dropped from it."""
        mask = self.ancestors[head]
        vector = document.ancestry
        for branch_id, (number, _) in vector.items():
            if number > self.view.heads.get(branch_id, 0):
                self.report("ancestry", f"{document.number} names {(branch_id, number)}, which does not exist")
        for branch_id, commits in self.of_branch.items():
            number, count = vector.get(branch_id, (0, None))
            may_lack = branch_id not in vector and self.view.lives[branch_id].ended is not None
            for commit in commits:
                _, own, place = commit.position
                named = own < number or (own == number and (count is None or place <= count))
                is_ancestor = bool(mask & self.bits[commit.id])
                if named and not is_ancestor:
                    self.report("ancestry", f"{document.number} names {commit.id} as an ancestor", document.step)
                elif is_ancestor and not named and not may_lack:
                    self.report("ancestry", f"{document.number} lacks its ancestor {commit.id}", document.step)

    def _check_tombstone(self, document: Document) -> None:
        """Rule `delete-merged`: a merge ends its source at what it merged, or after maintenance."""
        branch_id, number = document.number
        call = self.history.calls.get(document.json["tombstone"]["actor"] or "")
        if number == 1 or call is None or not isinstance(call.verb, Merge):
            return
        head = self.view.manifests[branch_id, number - 1].logical_head
        heads = self.candidates(call.verb.into, call.start, document.step)
        if not any(one is not None and self.ancestors[one] & self.bits[head] for one in heads):
            same = any(one is not None and self.states[one].says_the_same(self.states[head]) for one in heads)
            if not same:
                self.report("delete-merged", f"{call.name} deleted {document.number} though {head} is not merged")


def describe(expected: State, found: State) -> str:
    """How two states differ, in short."""
    if expected.extras != found.extras:
        return f"the schema should have {_names(expected)}, has {_names(found)}"
    lines = []
    for name in sorted({*expected.rows, *found.rows}):
        want, have = expected.table(name), found.table(name)
        for id_ in sorted({*want, *have}):
            if want.get(id_) != have.get(id_):
                lines.append(f"{name} {id_!r} should be {want.get(id_)}, is {have.get(id_)}")
    return "; ".join(lines[:6])


def _names(state: State) -> list[str]:
    return sorted(f"{extra.type_name}.{extra.name}" for extra in state.extras)


def _seconds(one: LogCommit, other: LogCommit) -> float:
    times = [datetime.fromisoformat(commit.authored_at) for commit in (one, other)]
    return abs((times[1] - times[0]).total_seconds())
