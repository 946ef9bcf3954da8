"""Are the answers of readers right? Each must be a state, or a difference of states, that was there within the call."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import UTC, datetime

from simulation import model
from simulation.model import State
from simulation.ops import (
    MAIN,
    Call,
    Changes,
    Diff,
    History,
    ListCommits,
    ListNames,
    Names,
    Page,
    Poll,
    Read,
    ReadResult,
    Row,
    RowChange,
)
from simulation.replay import Replay


class Reads:
    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    # States.

    def wrong_read(self, call: Call, result: ReadResult) -> str | None:
        """Why the rows that a read returned are wrong."""
        verb = call.verb
        assert isinstance(verb, Read)
        possible = self.states_of(verb.at or verb.branch, verb.branch, call)
        if result.commit_id is not None and result.commit_id not in self._replay.view.commits:
            return f"it names {result.commit_id}, and there is no such commit"
        named = self._replay.shown.get(result.commit_id or "")
        if named is not None:
            if named not in possible:
                return f"it is of {named}, but {verb.at or verb.branch!r} was {possible} during the call"
            possible = [named]
        for commit in possible:
            state = self._replay.states[commit]
            if not state.is_exact or _same_rows(state, result):
                return None
        return f"the rows are those of none of {possible}"

    def states_of(self, reference: str, branch: str, call: Call) -> list[str]:
        """The commits that a reference may mean within a call: a branch, a commit, a tag or a time."""
        heads = [one for one in self._replay.candidates(reference, call.start, call.end) if one is not None]
        if heads and not reference.startswith("tag:"):
            return heads
        found = self._replay.resolve(reference, call.end, call.start)
        return found or self._at_time(reference, branch, call)

    def _at_time(self, reference: str, branch: str, call: Call) -> list[str]:
        try:
            moment = datetime.fromisoformat(reference)
        except ValueError:
            return []
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        found: dict[str, None] = {}
        view = self._replay.view
        for head in self._replay.candidates(branch, call.start, call.end):
            if head is not None:
                line = self._line_of(head)
                old = [one for one in line if datetime.fromisoformat(view.commits[one].authored_at) <= moment]
                found |= dict.fromkeys(old[-1:])
        return list(found)

    def _line_of(self, head: str) -> list[str]:
        line = self._replay.lines[self._replay.view.commits[head].position[0]]
        return line[: line.index(head) + 1]

    def wrong_diff(self, call: Call, result: Changes) -> str | None:
        verb = call.verb
        assert isinstance(verb, Diff)
        olds, news = (self.states_of(one, verb.branch, call) for one in (verb.a, verb.b))
        wrong = ""
        for old in olds:
            for new in news:
                states = self._replay.states[old], self._replay.states[new]
                if not all(state.is_exact for state in states):
                    return None
                schemas = {state.schema for state in states}  # the later one's names count, in either direction
                if any(model.difference(*states, schema) == list(result.changes) for schema in schemas):
                    return None
                wanted = model.difference(*states)
                wrong = f"from {old} to {new} {wanted}, not {list(result.changes)}"
        return f"the changes are {wrong}" if wrong else f"no states are called {verb.a} and {verb.b}"

    # Lists.

    def wrong_names(self, call: Call, result: Names) -> str | None:
        verb, view = call.verb, self._replay.view
        end = view.step if call.end is None else call.end
        if isinstance(verb, ListCommits):
            for head in self._replay.candidates(verb.branch, call.start, call.end):
                if head is not None and tuple(reversed(self._line_of(head)))[: verb.limit] == result.names:
                    return None
            return f"the branch never had the history {result.names} during the call"
        assert isinstance(verb, ListNames)
        if verb.what == "branches":
            spans = [(life.name, life.created, life.ended) for life in view.lives.values()]
            listed = list(result.names)
        else:
            spans = [((tag.name, tag.commit), tag.created, tag.ended) for tag in view.tags]  # type: ignore[misc]
            listed = [tuple(one) for one in result.names]
        sometimes = {
            name
            for name, created, ended in spans
            if created is not None and created <= end and (ended is None or ended > call.start)
        }
        always = {
            name
            for name, created, ended in spans
            if created is not None and created <= call.start and (ended is None or ended > end)
        }
        if len(listed) != len(set(listed)):
            return f"something is listed twice: {listed}"
        if not always <= set(listed) <= sometimes:
            return f"{sorted(listed)} is listed, must be within {sorted(always)} and {sorted(sometimes)}"
        return None

    # Feeds.

    def check_feeds(self, history: History) -> Iterable[tuple[Call, str]]:
        """Every page goes on exactly behind the place that its cursor stands for."""
        cursors: dict[str, set[tuple[str, int]]] = {}  # → branch id and number of changes before it
        streams: dict[str, list[RowChange]] = {}
        polls = [call for call in history.calls.values() if isinstance(call.outcome, Page)]
        for call in sorted(polls, key=lambda one: one.end or 0):
            verb, page = call.verb, call.outcome
            assert isinstance(verb, Poll)
            assert isinstance(page, Page)
            places = cursors.get(verb.cursor) if verb.cursor is not None else self._starts(verb, call, streams)
            if places is None:
                continue
            fitting = {place for place in places if self._fits(place, page, call, streams)}
            if not fitting:
                yield call, f"{len(page.changes)} changes do not go on behind {sorted(places)}: {page.changes[:3]}"
                continue
            behind = {(branch_id, number + len(page.changes)) for branch_id, number in fitting}
            cursors[page.cursor] = cursors.get(page.cursor, behind) & behind or behind

    def _stream(self, branch_id: str, streams: dict[str, list[RowChange]]) -> list[RowChange]:
        """All changes of a branch's line, commit by commit."""
        if branch_id not in streams:
            replay, found = self._replay, []
            line = replay.lines[branch_id]
            for before, after in itertools.pairwise(line):
                for one in model.difference(replay.states[before], replay.states[after]):
                    found.append(RowChange(one.operation, one.type_name, one.id, one.before, one.after, after))
            streams[branch_id] = found
        return streams[branch_id]

    def _offset(self, branch_id: str, commit: str, streams: dict[str, list[RowChange]]) -> int:
        """How many changes there are up to a commit of the line."""
        line = self._replay.lines[branch_id]
        known = set(line[: line.index(commit) + 1])
        return sum(one.commit_id in known for one in self._stream(branch_id, streams))

    def _starts(self, verb: Poll, call: Call, streams: dict[str, list[RowChange]]) -> set[tuple[str, int]]:
        name, replay = verb.branch or MAIN, self._replay
        lives = [life for life in replay.view.lives.values() if life.name == name and life.created is not None]
        found: set[tuple[str, int]] = set()
        for life in lives:
            line = replay.lines[life.branch_id]
            if verb.start == "beginning":
                found.add((life.branch_id, 0))
            elif verb.start in (None, "now"):
                heads = replay.candidates(name, call.start, call.end)
                found |= {(life.branch_id, self._offset(life.branch_id, h, streams)) for h in heads if h in line}
            else:
                commits = replay.resolve(str(verb.start), call.end, call.start)
                found |= {(life.branch_id, self._offset(life.branch_id, c, streams)) for c in commits if c in line}
        return found

    def _fits(self, place: tuple[str, int], page: Page, call: Call, streams: dict[str, list[RowChange]]) -> bool:
        branch_id, number = place
        if not all(self._replay.states[one].is_exact for one in self._replay.lines[branch_id]):
            return True
        stream, count = self._stream(branch_id, streams), len(page.changes)
        if stream[number : number + count] != list(page.changes):
            return False
        if page.more:
            return True
        life = self._replay.view.lives[branch_id]
        known = [
            self._offset(branch_id, head, streams)
            for head in self._replay.candidates(life.name, call.start, call.end)
            if head in self._replay.lines[branch_id]
        ]
        return not known or number + count >= min(known)


def _same_rows(state: State, result: ReadResult) -> bool:
    """Rows by property names, or by the columns that have their values."""
    for name, rows in result.contents.items():
        table = state.table(name)
        if dict(rows) != table:
            columns = state.schema.columns(name)
            named: dict[str, Row] = {i: {columns[p]: value for p, value in row.items()} for i, row in table.items()}
            if dict(rows) != named:
                return False
    return True
