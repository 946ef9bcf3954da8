"""What an actor does next: a verb whose parameters come from dice, and from what other actors have done so far.

The notebook knows what the outside world knows: names that were used, commits that were acknowledged, cursors that were
given out. Names come from small pools, so that actors meet.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from simulation import ops
from simulation.ops import EXTRAS, MAIN, Delete, Insert, LoadRow, Statement, Update

Mode: TypeAlias = Literal["append", "merge", "overwrite"]
PEOPLE, PLACES, NOTES = 5, 3, 3
NOTE_IDS = ("m0", "m1", "m2", "held-0", "held-1", "held-2")  # of notes that loads and held writes bring
NEW_PEOPLE = 400  # of loads with job ids: mostly nobody else has such a key
EMAILS = 4
MISUSED = 0.3  # of repeated keys: for another request, or by another actor
TAGS = ("t0", "t1")


@dataclass
class Notebook:
    """Everything that actors may refer to."""

    branches: tuple[str, ...] = (MAIN, "b0", "b1", "b2")
    commits: list[str] = field(default_factory=list)
    repeatable: list[ops.Verb] = field(default_factory=list)  # calls with a txn id, to be made again
    jobs: dict[str, list[ops.Load]] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)  # job → runs that have not returned
    discarded: list[str] = field(default_factory=list)  # jobs
    inserted: list[tuple[str, tuple[str, Any]]] = field(default_factory=list)  # in groups: type, and where it is found
    forks: list[str] = field(default_factory=list)  # branches from within a group
    cursors: dict[str, str] = field(default_factory=dict)
    alive: list[str] = field(default_factory=list)  # side branches that were created, and not deleted as far as known
    tags: list[str] = field(default_factory=list)  # the same of tags
    crashed: list[str] = field(default_factory=list)  # jobs of which a run ended with its process, or without an answer
    moment: str = ""  # now, by the store's clock

    def begun(self, verb: ops.Verb) -> None:
        if isinstance(verb, ops.Load) and verb.job_id is not None:
            self.jobs.setdefault(verb.job_id, []).append(verb)
            self.running[verb.job_id] = self.running.get(verb.job_id, 0) + 1
        elif getattr(verb, "txn_id", None) is not None and verb not in self.repeatable:
            self.repeatable.append(verb)

    def ended(self, verb: ops.Verb, outcome: ops.Outcome) -> None:
        self._note_branches(verb, outcome)
        self._note_tags(verb, outcome)
        self._note_rows(verb, outcome)
        if isinstance(verb, ops.Load) and verb.job_id is not None:
            self.running[verb.job_id] -= 1
            if isinstance(outcome, ops.Unknown):
                self.crashed.append(verb.job_id)
            elif isinstance(outcome, ops.Committed):
                self.crashed = [job for job in self.crashed if job != verb.job_id]
        if isinstance(verb, ops.Recover) and isinstance(outcome, ops.Done):
            self.discarded += [job.removeprefix("load-") for job, what in outcome.jobs if what == "discarded"]
        found: list[Any] = []
        if isinstance(outcome, ops.Committed | ops.ReadResult):
            found = [outcome.commit_id]
        elif isinstance(outcome, ops.Names) and isinstance(verb, ops.ListCommits):
            found = list(reversed(outcome.names))
        elif isinstance(outcome, ops.Page) and isinstance(verb, ops.Poll):
            self.cursors[verb.follower] = outcome.cursor
        self.commits.extend(one for one in found if one is not None and one not in self.commits)

    def broken_off(self, verb: ops.Verb) -> None:
        """Its process has crashed."""
        if isinstance(verb, ops.Load) and verb.job_id is not None:
            self.crashed.append(verb.job_id)

    def _note_tags(self, verb: ops.Verb, outcome: ops.Outcome) -> None:
        if isinstance(verb, ops.CreateTag | ops.DeleteTag) and isinstance(outcome, ops.Done):
            self.tags = [name for name in self.tags if name != verb.name]
            self.tags += [verb.name] if isinstance(verb, ops.CreateTag) else []

    def _note_branches(self, verb: ops.Verb, outcome: ops.Outcome) -> None:
        if isinstance(verb, ops.CreateBranch) and isinstance(outcome, ops.Done):
            self.alive += [] if verb.name in self.alive else [verb.name]
            self.forks += [verb.name] if verb.from_.count(".") == 2 else []
        if isinstance(verb, ops.Load) and verb.from_ is not None and isinstance(outcome, ops.Committed):
            self.alive += [] if verb.branch in self.alive else [verb.branch]
        gone = isinstance(verb, ops.DeleteBranch) and isinstance(outcome, ops.Done)
        name = verb.name if isinstance(verb, ops.DeleteBranch) else getattr(verb, "source", "")
        if (gone or getattr(outcome, "deleted", False)) and name in self.alive:
            self.alive.remove(name)

    def _note_rows(self, verb: ops.Verb, outcome: ops.Outcome) -> None:
        if isinstance(verb, ops.Mutate) and isinstance(outcome, ops.Committed) and outcome.commit_id.count(".") == 2:
            columns = {"Person": "slug", "Place": "name", "Note": "text"}
            self.inserted += [
                (one.type_name, (columns[one.type_name], dict(one.values)[columns[one.type_name]]))
                for one in verb.statements
                if isinstance(one, Insert) and one.type_name in columns
            ]


@dataclass
class Choices:
    """The dice of one operation."""

    dice: random.Random
    notes: Notebook
    thread: str
    main_share: float = 0.6
    newest_share: float = 0.0  # how often the branch that was created last is meant

    def verb(self, kind: str) -> ops.Verb:
        return KINDS[kind](self)

    # Names and states.

    def branch(self) -> str:
        if self.newest_share and self.notes.alive and self.dice.random() < self.newest_share:
            return self.notes.alive[-1]
        if self.dice.random() < self.main_share or (not self.notes.alive and self.dice.random() < 0.8):
            return MAIN
        return self.side_branch()

    def side_branch(self) -> str:
        """Mostly one that exists."""
        known = self.notes.alive
        return self.dice.choice(known if known and self.dice.random() < 0.9 else self.notes.branches[1:])

    def new_branch(self) -> str:
        """Mostly one that does not exist."""
        free = [name for name in self.notes.branches[1:] if name not in self.notes.alive]
        return self.dice.choice(free if free and self.dice.random() < 0.9 else self.notes.branches[1:])

    def commit(self) -> str | None:
        """An acknowledged one: rather new, and rather from within a group."""
        known = self.notes.commits
        if not known:
            return None
        recent = known[-12:]
        grouped = [one for one in recent if one.count(".") == 2]
        if grouped and self.dice.random() < 0.6:
            return self.dice.choice(grouped)
        return self.dice.choice(recent if self.dice.random() < 0.8 else known)

    def if_commit(self) -> str | None:
        """Rather the newest that is known, so that it is right sometimes."""
        known = self.notes.commits
        return None if not known else known[-1] if self.dice.random() < 0.6 else self.dice.choice(known[-6:])

    def txn_id(self, share: float = 0.15) -> str | None:
        return f"txn-{self.dice.getrandbits(32):08x}" if self.dice.random() < share else None

    def tag(self) -> str:
        """Mostly one that exists."""
        known = self.notes.tags
        return self.dice.choice(known if known and self.dice.random() < 0.85 else TAGS)

    def moment(self) -> str | None:
        """Some time until now."""
        if not self.notes.moment:
            return None
        now = datetime.fromisoformat(self.notes.moment)
        return (now - timedelta(seconds=self.dice.choice((0.0, 0.2, 2.0, 20.0, 600.0)))).isoformat()

    def job(self) -> str:
        """One of two that are current, of which the next comes when one has landed: most jobs are started often."""
        return f"j{len(self.notes.commits) // 8 + self.dice.randrange(2)}"

    # Rows.

    def person(self) -> str:
        return f"p{self.dice.randrange(PEOPLE)}"

    def place(self) -> str:
        return f"x{self.dice.randrange(PLACES)}"

    def note(self) -> str:
        return f"n{self.dice.randrange(NOTES)}"

    def number(self) -> int:
        return self.dice.randrange(100)

    def email(self) -> str | None:
        return f"e{self.dice.randrange(EMAILS)}" if self.dice.random() < 0.5 else None

    def person_values(self) -> ops.Values:
        values: list[tuple[str, Any]] = [("slug", self.person())]
        if self.dice.random() < 0.5:
            values.append(("email", self.email()))
        if self.dice.random() < 0.7:
            values.append(("age", self.number()))
        return tuple(values)

    def insert(self) -> Statement:
        kind = self.dice.choice(("Person", "Person", "Person", "Place", "Note", "Knows", "LivesIn", "About"))
        if kind == "Person":
            return Insert("Person", self.person_values())
        if kind == "Place":
            return Insert("Place", (("name", self.place()), ("size", self.number())))
        if kind == "Note":
            return Insert("Note", (("text", self.note()),))
        return self.insert_edge(kind)

    def insert_edge(self, kind: str = "Knows") -> Statement:
        if kind == "LivesIn":
            return Insert("LivesIn", (("from", self.person()), ("to", self.place())))
        if kind == "About":
            ends = (("from", self.dice.choice(NOTE_IDS[:4])), ("to", self.person()))
            return Insert("About", (*ends, ("weight", self.number())))
        return Insert("Knows", (("from", self.person()), ("to", self.person()), ("since", self.number())))

    def any_edge(self) -> Statement:
        return self.insert_edge(self.dice.choice(("Knows", "Knows", "Knows", "LivesIn", "LivesIn", "About")))

    def update(self) -> Statement:
        kind = self.dice.choice(("Person", "Person", "Person", "Place", "Note", "Knows", "About"))
        if kind == "Person":
            values = (("age", self.number()),) if self.dice.random() < 0.6 else (("email", self.email()),)
            where = ("slug", self.person()) if self.dice.random() < 0.8 else ("age", self.number())
            return Update("Person", values, where)
        if kind == "Place":
            return Update("Place", (("size", self.number()),), ("name", self.place()))
        if kind == "Note":
            return Update("Note", (("text", self.note()),), ("text", self.note()))
        if kind == "About":
            return Update("About", (("weight", self.number()),), ("to", self.person()))
        return Update("Knows", (("since", self.number()),), ("from", self.person()))

    def delete(self) -> Statement:
        kind = self.dice.choice(("Person", "Person", "Place", "Note", "Note", "Knows", "LivesIn", "About"))
        where: Mapping[str, tuple[str, Any]] = {
            "Person": ("slug", self.person()),
            "Place": ("name", self.place()),
            "Note": ("text", self.note()) if self.dice.random() < 0.6 else ("id", self.dice.choice(NOTE_IDS[:4])),
            "Knows": ("from", self.person()),
            "LivesIn": ("from", self.person()),
            "About": ("to", self.person()),
        }
        return Delete(kind, where[kind])

    def load_rows(self, fresh: float = 0.0, mode: str = "merge") -> tuple[LoadRow, ...]:
        """People and perhaps other things; `fresh` is how often it is people that nobody else knows."""
        count = self.dice.randint(1, 3)
        if self.dice.random() < fresh:
            people = [f"q{number}" for number in sorted(self.dice.sample(range(NEW_PEOPLE), count))]
        else:
            people = [f"p{number}" for number in sorted(self.dice.sample(range(PEOPLE + 4), count))]
        rows = [LoadRow("Person", (("slug", slug), ("age", self.number()))) for slug in people]
        taken = mode == "append" and self.dice.random() < 0.8  # places have few names: most of them are there
        place = f"y{self.dice.randrange(NEW_PEOPLE)}" if taken else self.place()
        if (lives := self.dice.random() < 0.25) or self.dice.random() < 0.4:
            rows.append(LoadRow("Place", (("name", place), ("size", self.number()))))
        if self.dice.random() < 0.3:
            rows.append(LoadRow("Note", (("text", self.note()),)))
        if mode == "merge" and self.dice.random() < 0.25:
            note = self.dice.choice(NOTE_IDS[:3])
            rows.append(LoadRow("Note", (("id", note), ("text", self.note()))))
            if self.dice.random() < 0.7:
                rows.append(LoadRow("About", (("from", note), ("to", people[0]))))
        if self.dice.random() < 0.3:
            rows.append(LoadRow("Knows", (("from", people[0]), ("to", people[-1]))))
        if lives:
            rows.append(LoadRow("LivesIn", (("from", people[-1]), ("to", place))))
        return tuple(rows)


# The kinds of operations.


def _mutate(*parts: Callable[[Choices], Statement], **fixed: Any) -> Callable[[Choices], ops.Verb]:
    def made(of: Choices) -> ops.Verb:
        return ops.Mutate(tuple(part(of) for part in parts), of.branch(), txn_id=of.txn_id(), **fixed)

    return made


def _several(of: Choices) -> ops.Verb:
    """Constructive and destructive statements do not mix in one mutation."""
    if of.dice.random() < 0.3:
        return ops.Mutate(tuple(of.delete() for _ in range(2)), of.branch())
    parts = [of.insert() if of.dice.random() < 0.6 else of.update() for _ in range(of.dice.randint(2, 3))]
    return ops.Mutate(tuple(parts), of.branch(), txn_id=of.txn_id())


def _any_statement(of: Choices) -> Statement:
    return of.dice.choice((of.insert, of.insert, of.update, of.delete))()


def _upsert(of: Choices) -> ops.Verb:
    return ops.Mutate((Insert("Person", of.person_values()),), of.branch(), txn_id=of.txn_id())


def _strict(of: Choices) -> ops.Verb:
    return ops.Mutate((_any_statement(of),), of.branch(), strict=True, txn_id=of.txn_id())


def _conditional(of: Choices) -> ops.Verb:
    return ops.Mutate((_any_statement(of),), of.branch(), if_commit=of.if_commit())


def _repeat(of: Choices) -> ops.Verb:
    if not of.notes.repeatable:
        return ops.Mutate((of.insert(),), of.branch(), txn_id=of.txn_id(1.0))
    verb = of.dice.choice(of.notes.repeatable[-4:])
    return _misuse(of, verb) if of.dice.random() < MISUSED else verb


def _misuse(of: Choices, verb: Any) -> ops.Verb:
    """The key of another request, or of another actor: it is refused, unless nothing has come of that one."""
    if isinstance(verb, ops.Mutate) and of.dice.random() < 0.5:
        return replace(verb, statements=(of.insert(),))
    other: ops.Verb = replace(verb, asked_by="another" if not verb.asked_by else "")
    return other


def _held(of: Choices) -> ops.Verb:
    row = LoadRow("Note", (("id", f"held-{of.dice.randrange(3)}"), ("text", of.note())))
    if of.dice.random() < 0.3:
        row = LoadRow("Place", (("id", (place := of.place())), ("name", place), ("size", of.number())))
    return ops.WriteHeld((row,), (), "", of.branch())


def _populate(of: Choices) -> ops.Verb:
    """Something to work on: most of the people and places, and some edges."""
    rows = [LoadRow("Person", (("slug", f"p{number}"), ("age", number))) for number in range(PEOPLE)]
    rows += [LoadRow("Place", (("name", f"x{number}"), ("size", number))) for number in range(PLACES)]
    rows += [LoadRow("Note", (("id", id_), ("text", f"n{number}"))) for number, id_ in enumerate(NOTE_IDS[:3])]
    rows += [LoadRow("Knows", (("from", "p0"), ("to", f"p{number}"))) for number in range(1, 3)]
    rows += [LoadRow("LivesIn", (("from", "p1"), ("to", "x0"))), LoadRow("About", (("from", "m0"), ("to", "p2")))]
    return ops.Load(tuple(rows), "merge")


def _load(of: Choices) -> ops.Verb:
    modes: tuple[Mode, ...] = ("append", "merge", "merge", "overwrite")
    return ops.Load(of.load_rows(), of.dice.choice(modes), of.branch(), txn_id=of.txn_id())


def _load_from(of: Choices) -> ops.Verb:
    """A load that makes its branch; sometimes as a job."""
    job_id = f"f{of.dice.getrandbits(20)}" if of.dice.random() < 0.3 else None
    return ops.Load(of.load_rows(), "merge", of.new_branch(), job_id=job_id, from_=MAIN)


def _job(of: Choices) -> ops.Verb:
    """A start of one of few jobs: mostly with the input that it was started with before, gladly after a discard."""
    known = of.notes.discarded
    job_id = known[-1] if known and of.dice.random() < 0.5 else of.job()
    earlier = of.notes.jobs.get(job_id)
    if earlier and of.dice.random() < 0.85:
        return earlier[-1]
    branch = earlier[-1].branch if earlier and of.dice.random() < 0.8 else of.branch()
    modes: tuple[Mode, ...] = ("append", "merge")
    mode = of.dice.choice(modes)
    return ops.Load(of.load_rows(0.9, mode), mode, branch, job_id=job_id)


def _new_job(of: Choices) -> ops.Verb:
    job_id = f"k{of.dice.getrandbits(20)}"
    modes: tuple[Mode, ...] = ("append", "append", "merge", "merge", "overwrite")
    mode = of.dice.choice(modes)
    return ops.Load(of.load_rows(0.9, mode), mode, of.branch(), job_id=job_id)


def _create_branch(of: Choices) -> ops.Verb:
    name = of.new_branch()
    drawn, commit = of.dice.random(), of.commit()
    if drawn < 0.45 and commit is not None:
        return ops.CreateBranch(name, commit)
    if drawn < 0.62 and (of.notes.tags or of.dice.random() < 0.1):
        return ops.CreateBranch(name, f"tag:{of.tag()}")
    return ops.CreateBranch(name, MAIN if drawn < 0.85 else of.side_branch(), txn_id=of.txn_id(0.1))


def _fork_early(of: Choices) -> ops.Verb:
    """A branch from one of the first commits, of which no row is stored as a table yet."""
    known = of.notes.commits
    return ops.CreateBranch(of.new_branch(), of.dice.choice(known[:3]) if known else MAIN)


def _fork_group(of: Choices) -> ops.Verb:
    """A branch from a commit that others of its group follow."""
    grouped = [one for one in of.notes.commits[-16:] if one.count(".") == 2]
    inner = [one for one in grouped if f"{one.rpartition('.')[0]}.{int(one.rpartition('.')[2]) + 1}" in grouped]
    chosen = inner or grouped
    return ops.CreateBranch(of.new_branch(), of.dice.choice(chosen)) if chosen else _create_branch(of)


def _undo(of: Choices) -> ops.Verb:
    """Delete or change what a group has inserted lately."""
    if not of.notes.inserted:
        return ops.Mutate((of.delete(),), of.branch())
    type_name, where = of.dice.choice(of.notes.inserted[-6:])
    change = {"Person": ("age", of.number()), "Place": ("size", of.number()), "Note": ("text", of.note())}[type_name]
    if of.dice.random() < 0.7:
        return ops.Mutate((Delete(type_name, where),), of.branch())
    return ops.Mutate((Update(type_name, (change,), where),), of.branch())


def _merge_fork(of: Choices) -> ops.Verb:
    """A branch from within a group into where it came from, the other way, or into another one."""
    forks = [name for name in of.notes.forks[-4:] if name in of.notes.alive]
    if not forks:
        return _merge(of)
    fork, drawn = of.dice.choice(forks), of.dice.random()
    others = [name for name in of.notes.alive if name != fork]
    if drawn < 0.2 and others:
        return ops.Merge(fork, of.dice.choice(others))
    return ops.Merge(fork) if drawn < 0.75 else ops.Merge(MAIN, fork)


def _merge(of: Choices) -> ops.Verb:
    if not of.notes.alive and of.dice.random() < 0.8:
        return _create_branch(of)
    source, into = of.side_branch(), MAIN
    if of.dice.random() < 0.35:
        source, into = into, source
    if source == into or of.dice.random() < 0.2:
        source, into = of.dice.sample([MAIN, *of.notes.alive] if of.notes.alive else of.notes.branches, 2)
    delete = source != MAIN and of.dice.random() < 0.2
    condition = of.if_commit() if of.dice.random() < 0.05 else None
    return ops.Merge(source, into, delete, of.dice.random() < 0.1, condition, of.txn_id(0.1))


def _create_tag(of: Choices) -> ops.Verb:
    return ops.CreateTag(of.dice.choice(TAGS), of.commit() if of.dice.random() < 0.6 else None, of.branch())


def _apply_schema(of: Choices) -> ops.Verb:
    extras = frozenset(extra for extra in EXTRAS if of.dice.random() < 0.35)
    return ops.ApplySchema(extras, of.branch(), allow_data_loss=of.dice.random() < 0.5)


def _add_property(of: Choices) -> ops.Verb:
    """Never drops one: the properties of a run only grow."""
    known = max(
        (verb.extras for verb in of.notes.repeatable if isinstance(verb, ops.ApplySchema)), default=frozenset(), key=len
    )
    extra = of.dice.choice([one for one in EXTRAS if one.default is None])
    return ops.ApplySchema(known | {extra}, of.branch(), txn_id=of.txn_id(1.0))


def _revert(of: Choices) -> ops.Verb:
    commit = of.commit()
    return _upsert(of) if commit is None else ops.Revert(commit, of.branch())


def _maintain(what: Any) -> Callable[[Choices], ops.Verb]:
    def made(of: Choices) -> ops.Verb:
        names = tuple(sorted(of.dice.sample(sorted(ops.SPECS), 2))) if of.dice.random() < 0.5 else None
        return ops.Maintain(what, of.branch(), None if what == "cleanup" else names, of.dice.choice((1, 1, 2, 4)))

    return made


def _recover(of: Choices) -> ops.Verb:
    running = [job for job, runs in sorted(of.notes.running.items()) if runs > 0]
    if not running and not of.notes.crashed and of.dice.random() < 0.8:
        return _job(of)
    chosen = of.dice.choice(running) if running and of.dice.random() < 0.9 else of.job()
    crashed = [job for job in of.notes.crashed[-3:] if job not in of.notes.discarded]
    if crashed and of.dice.random() < 0.7:
        chosen = of.dice.choice(crashed)
    job, drawn = f"load-{chosen}", of.dice.random()
    if drawn < 0.45:
        return ops.Recover(discard=(job,))
    return ops.Recover(complete=(job,)) if drawn < 0.8 else ops.Recover(everything=True)


def _read(of: Choices) -> ops.Verb:
    drawn = of.dice.random()
    if drawn < 0.1 and (of.notes.tags or of.dice.random() < 0.1):
        return ops.Read(of.branch(), f"tag:{of.tag()}")
    if drawn < 0.3:
        return ops.Read(of.branch(), of.moment())
    return ops.Read(of.branch(), of.commit() if drawn < 0.6 else None)


def _diff(of: Choices) -> ops.Verb:
    a, b = of.commit() or MAIN, of.commit() or MAIN
    return ops.Diff(a, b if of.dice.random() < 0.6 else of.branch())


def _poll(of: Choices) -> ops.Verb:
    follower = f"f{of.dice.randrange(2)}"
    cursor = of.notes.cursors.get(follower)
    limit = of.dice.choice((1, 3, 1000))
    if cursor is None or of.dice.random() < 0.1:
        branch = MAIN if of.dice.random() < 0.6 else of.side_branch()
        starts = ("beginning", "beginning", "now", of.commit() or "now")
        return ops.Poll(follower, None, of.dice.choice(starts), limit, branch)
    return ops.Poll(follower, cursor, None, limit)


KINDS: Mapping[str, Callable[[Choices], ops.Verb]] = {
    "insert": _mutate(Choices.insert),
    "update": _mutate(Choices.update),
    "delete": _mutate(Choices.delete),
    "edge": _mutate(Choices.any_edge),
    "several": _several,
    "upsert": _upsert,
    "strict": _strict,
    "conditional": _conditional,
    "repeat": _repeat,
    "held": _held,
    "populate": _populate,
    "load": _load,
    "load_from": _load_from,
    "job": _job,
    "new_job": _new_job,
    "recover": _recover,
    "create_branch": _create_branch,
    "delete_branch": lambda of: ops.DeleteBranch(of.side_branch()),
    "merge": _merge,
    "fork_early": _fork_early,
    "fork_group": _fork_group,
    "undo": _undo,
    "merge_fork": _merge_fork,
    "create_tag": _create_tag,
    "delete_tag": lambda of: ops.DeleteTag(of.tag()),
    "apply_schema": _apply_schema,
    "add_property": _add_property,
    "revert": _revert,
    "fold": _maintain("fold"),
    "compact": _maintain("compact"),
    "index": _maintain("index"),
    "optimize": _maintain("optimize"),
    "cleanup": _maintain("cleanup"),
    "read": _read,
    "diff": _diff,
    "poll": _poll,
    "list_branches": lambda of: ops.ListNames("branches"),
    "list_tags": lambda of: ops.ListNames("tags"),
    "list_commits": lambda of: ops.ListCommits(of.branch()),
}
