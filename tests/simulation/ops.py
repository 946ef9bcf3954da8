"""What the actors of the simulation do, as records that the model can execute: verbs, outcomes, and a run's history.

An actor makes one call of the façade for one verb. Every call has a name that no other call of the run has, and passes
it as `actor=` wherever the façade takes one: that is how a commit in the log is traced back to its call, whatever
became of the answer. The scheduler counts steps; a write to the store carries the step in which it took effect. What
took effect at a step `<= call.start` happened before the call, what did at `start < step <= end` happened within it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

MAIN = "main"
Row: TypeAlias = Mapping[str, Any]  # by property name; an edge also has src and dst, every row has id
Contents: TypeAlias = Mapping[str, Mapping[str, Row]]  # type → id → row
Values: TypeAlias = tuple[tuple[str, Any], ...]


# --- The schema of every run ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Extra:
    """A property that schema changes add to a type or drop from it; with a default it is required."""

    type_name: str
    name: str
    default: int | None = None

    @property
    def text(self) -> str:
        return f"{self.name}: I32?" if self.default is None else f"{self.name}: I32 @default({self.default})"


@dataclass(frozen=True, slots=True)
class TypeSpec:
    """One type of the schema, as the model knows it."""

    name: str
    properties: tuple[tuple[str, str], ...]  # name → type as the schema writes it
    key: str | None = None
    unique: tuple[str, ...] = ()
    ends: tuple[str, str] | None = None  # of an edge
    cardinality: int | None = None  # most edges of this type that may leave one node

    @property
    def table_key(self) -> str:
        return f"{'node' if self.ends is None else 'edge'}:{self.name}"


TYPES = (
    TypeSpec("Person", (("slug", "String"), ("email", "String?"), ("age", "I32?")), key="slug", unique=("email",)),
    TypeSpec("Place", (("name", "String"), ("size", "I32?")), key="name"),
    TypeSpec("Note", (("text", "String?"),)),
    TypeSpec("Knows", (("since", "I32?"),), ends=("Person", "Person")),
    TypeSpec("LivesIn", (), ends=("Person", "Place"), cardinality=1),
    TypeSpec("About", (("weight", "I32?"),), ends=("Note", "Person")),
)
SPECS: Mapping[str, TypeSpec] = {spec.name: spec for spec in TYPES}
EXTRAS = (
    Extra("Person", "a"),
    Extra("Person", "b"),
    Extra("Place", "a"),
    Extra("Knows", "note"),
    Extra("Note", "a"),
    Extra("Person", "rank", 7),
)


def schema_text(extras: frozenset[Extra] = frozenset()) -> str:
    """The schema with some of the extra properties; `init` takes it without any."""
    lines = []
    for spec in TYPES:
        annotations = dict.fromkeys(spec.unique, " @unique") | ({spec.key: " @key"} if spec.key else {})
        body = [f"{name}: {type_}{annotations.get(name, '')}" for name, type_ in spec.properties]
        body += [extra.text for extra in EXTRAS if extra in extras and extra.type_name == spec.name]
        ends = "" if spec.ends is None else f": {spec.ends[0]} -> {spec.ends[1]}"
        card = "" if spec.cardinality is None else f" @card(0..{spec.cardinality})"
        lines.append(f"{'node' if spec.ends is None else 'edge'} {spec.name}{ends}{card} {{ {'  '.join(body)} }}")
    return "\n".join(lines)


# --- Statements of mutations and rows of loads ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Insert:
    """A keyed node that exists is updated; an edge (with `from` and `to`) or a node without a key is a new one."""

    type_name: str
    values: Values


@dataclass(frozen=True, slots=True)
class Update:
    type_name: str
    values: Values
    where: tuple[str, Any]  # column = value; an edge's ends are `from` and `to`, `id` is possible too


@dataclass(frozen=True, slots=True)
class Delete:
    """Takes the edges of deleted nodes along."""

    type_name: str
    where: tuple[str, Any]


Statement: TypeAlias = Insert | Update | Delete


NULLS = "$no_text: String?, $no_number: I32?"  # the language has no null: an optional parameter left out writes it


def mutation_text(statements: tuple[Statement, ...]) -> str:
    """The query; it is run without parameters."""
    return f"query q({NULLS}) {{ {' '.join(map(_statement_text, statements))} }}"


def _statement_text(statement: Statement) -> str:
    if isinstance(statement, Insert):
        return f"insert {statement.type_name} {{ {_assigned(statement)} }}"
    where = f"where {statement.where[0]} = {json.dumps(statement.where[1])}"
    if isinstance(statement, Update):
        return f"update {statement.type_name} set {{ {_assigned(statement)} }} {where}"
    return f"delete {statement.type_name} {where}"


def _assigned(statement: Insert | Update) -> str:
    texts = {name for name, type_ in SPECS[statement.type_name].properties if type_.startswith("String")}

    def literal(name: str, value: Any) -> str:
        if value is None:
            return "$no_text" if name in texts else "$no_number"
        return json.dumps(value)

    return ", ".join(f"{name}: {literal(name, value)}" for name, value in statement.values)


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One entity of a load's input; `values` may name `id`, an edge's name `from` and `to`."""

    type_name: str
    values: Values

    @property
    def entity(self) -> dict[str, Any]:
        """As `Graph.load` takes it."""
        values = dict(self.values)
        if SPECS[self.type_name].ends is None:
            return {"type": self.type_name, "data": values}
        ends = {end: values.pop(end) for end in ("from", "to")}
        return {"edge": self.type_name, **ends, "data": values}


# --- Verbs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mutate:
    statements: tuple[Statement, ...]
    branch: str = MAIN
    strict: bool = False  # on_conflict="fail"
    if_commit: str | None = None
    txn_id: str | None = None
    asked_by: str = ""  # whose key it is


@dataclass(frozen=True, slots=True)
class WriteHeld:
    """`begin` earlier, then `write` of whole rows on that base: strict. `base` is the commit that the base showed."""

    upserts: tuple[LoadRow, ...]  # whole rows with their ids
    deletes: tuple[tuple[str, str], ...]  # type, id
    base: str
    branch: str = MAIN
    if_commit: str | None = None
    txn_id: str | None = None
    asked_by: str = ""  # whose key it is


@dataclass(frozen=True, slots=True)
class Load:
    rows: tuple[LoadRow, ...]
    mode: Literal["append", "merge", "overwrite"] = "append"
    branch: str = MAIN
    job_id: str | None = None
    if_commit: str | None = None
    txn_id: str | None = None
    from_: str | None = None  # the branch is created from this if it does not exist
    on_error: Literal["fail"] = "fail"
    asked_by: str = ""  # whose key it is

    @property
    def key(self) -> str | None:
        """The transaction id that the caller has chosen: of a job it is made from the job's."""
        return self.txn_id if self.job_id is None else f"load-{self.job_id}"


@dataclass(frozen=True, slots=True)
class Recover:
    complete: tuple[str, ...] = ()
    discard: tuple[str, ...] = ()
    everything: bool = False


@dataclass(frozen=True, slots=True)
class CreateBranch:
    name: str
    from_: str = MAIN  # a branch, a commit id or `tag:NAME`
    at: str | None = None
    txn_id: str | None = None
    asked_by: str = ""  # whose key it is


@dataclass(frozen=True, slots=True)
class DeleteBranch:
    name: str
    txn_id: str | None = None
    asked_by: str = ""  # whose key it is


@dataclass(frozen=True, slots=True)
class Merge:
    source: str
    into: str = MAIN
    delete_branch: bool = False
    dry_run: bool = False
    if_commit: str | None = None
    txn_id: str | None = None
    asked_by: str = ""  # whose key it is


@dataclass(frozen=True, slots=True)
class CreateTag:
    name: str
    commit: str | None = None  # None: the newest of `branch`
    branch: str = MAIN
    txn_id: str | None = None
    asked_by: str = ""  # whose key it is


@dataclass(frozen=True, slots=True)
class DeleteTag:
    name: str


@dataclass(frozen=True, slots=True)
class ApplySchema:
    """Make `schema_text(extras)` the branch's schema: adds what it lacks, drops what it has beyond that."""

    extras: frozenset[Extra]
    branch: str = MAIN
    if_commit: str | None = None
    txn_id: str | None = None
    allow_data_loss: bool = False
    asked_by: str = ""  # whose key it is


@dataclass(frozen=True, slots=True)
class Revert:
    commit: str  # an id or a tag
    branch: str = MAIN
    if_commit: str | None = None
    txn_id: str | None = None
    asked_by: str = ""  # whose key it is


@dataclass(frozen=True, slots=True)
class Maintain:
    """Never changes what the graph says."""

    what: Literal["fold", "compact", "index", "optimize", "cleanup"]
    branch: str = MAIN
    types: tuple[str, ...] | None = None
    keep: int = 10  # of a cleanup


@dataclass(frozen=True, slots=True)
class Read:
    """All rows of all types, or of some, at one pinned state.

    `how` says by which part of the façade it is read; for the model it makes no difference.
    """

    branch: str = MAIN
    at: str | None = None  # a commit, a tag, or a time (ISO text)
    types: tuple[str, ...] | None = None
    how: str = "query"


@dataclass(frozen=True, slots=True)
class Diff:
    """`changes a b`."""

    a: str
    b: str
    branch: str = MAIN


@dataclass(frozen=True, slots=True)
class Poll:
    """One page of a feed. `follower` names the reader that carries the cursor from page to page."""

    follower: str
    cursor: str | None = None
    start: str | None = None
    limit: int = 1000
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class ListNames:
    """Names of all branches, or tags with their commits."""

    what: Literal["branches", "tags"]


@dataclass(frozen=True, slots=True)
class ListCommits:
    branch: str = MAIN
    limit: int | None = None


Verb: TypeAlias = (
    Mutate
    | WriteHeld
    | Load
    | Recover
    | CreateBranch
    | DeleteBranch
    | Merge
    | CreateTag
    | DeleteTag
    | ApplySchema
    | Revert
    | Maintain
    | Read
    | Diff
    | Poll
    | ListNames
    | ListCommits
)


# --- Outcomes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pending:
    """The call has not returned yet."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """Its process ended before it returned: what it put may be there, or may yet arrive."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The façade answered with a commit; `touched` as in `PublishedCommit.touched`."""

    commit_id: str
    touched: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)  # of a load: rows taken, by type
    outcome: str = ""  # of a merge: fast_forward or merged
    deleted: bool = False  # of a merge with delete_branch


@dataclass(frozen=True, slots=True)
class NoChange:
    """The façade answered that there was nothing to do: no commit."""

    outcome: str = ""  # of a merge: already_up_to_date
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """An error that says that nothing was written."""

    error: str  # name of its class
    fields: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """`OutcomeUnknown`: it may be there, or yet arrive."""

    txn_id: str
    branch: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """A verb that makes no commit of its own has done what it was asked: branches, tags, maintenance.

    `commits` are the ids that a maintenance run or a recovery reported, `jobs` what recovery did (txn id → outcome:
    completed, discarded, landed, …), `left` the jobs that it left alone, `commit_id` what a tag names.
    """

    commits: tuple[str, ...] = ()
    jobs: tuple[tuple[str, str], ...] = ()
    left: tuple[str, ...] = ()
    commit_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReadResult:
    contents: Contents
    commit_id: str | None = None


@dataclass(frozen=True, slots=True)
class RowChange:
    """One entry of a diff or a feed."""

    operation: str  # insert, update, delete
    type_name: str
    id: str
    before: Row | None
    after: Row | None
    commit_id: str | None = None  # of a feed


@dataclass(frozen=True, slots=True)
class Changes:
    changes: tuple[RowChange, ...]


@dataclass(frozen=True, slots=True)
class Page:
    changes: tuple[RowChange, ...]
    cursor: str
    more: bool


@dataclass(frozen=True, slots=True)
class Names:
    """Branch names, or for tags `(name, commit id)`; of `ListCommits` the ids, newest first."""

    names: tuple[Any, ...]


Outcome: TypeAlias = (
    Pending | Crashed | Committed | NoChange | Refused | Unknown | Done | ReadResult | Changes | Page | Names
)


def refused(error: BaseException) -> Refused | Unknown:
    """The outcome that an error of the façade is; its fields are those that are plain data."""
    fields = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    conflicts = fields.pop("conflicts", None)
    if conflicts is not None:
        fields["conflicts"] = tuple(sorted((one.kind, one.type_name, one.entity_id) for one in conflicts))
    violations = fields.pop("violations", None)
    if violations:
        fields["violations"] = tuple((one.constraint, one.type_name, one.entity_ids) for one in violations)
    if "txn_id" in fields and "number" in fields:
        return Unknown(fields["txn_id"], fields["branch"], fields["number"])
    return Refused(type(error).__name__, fields, str(error))


# --- The history of a run ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the façade."""

    name: str  # unique in the run, and the `actor` of what it commits
    process: str
    thread: str
    verb: Verb
    start: int
    end: int | None = None  # None while it runs, and for ever if it crashed
    outcome: Outcome = Pending()
    seconds: float = 0.0  # how long it took, by a right clock


@dataclass(frozen=True, slots=True)
class StoreWrite:
    """A change of the simulated store when it took effect: the new object, or None for a deletion."""

    step: int
    key: str  # below the graph's root, such as `__manifest/<branch id>/<key>.json`
    body: bytes | None
    call: str = ""  # name of the call that asked for it, if that is known: says which run of a job put an intent


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that struck: in which step, which process (empty: all), and of which kind."""

    step: int
    process: str
    kind: str


@dataclass(slots=True)
class History:
    """Everything that happened: the calls by name in the order of their starts, and the store's writes in order."""

    calls: dict[str, Call] = field(default_factory=dict)
    writes: list[StoreWrite] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    tables: str | None = None  # the directory that holds `<table id>/` as Lance datasets, if any table is stored

    def begin(self, call: Call) -> None:
        assert call.name not in self.calls, call.name
        self.calls[call.name] = call

    def strike(self, step: int, process: str, kind: str) -> None:
        self.strikes.append(Strike(step, process, kind))

    def write(self, step: int, key: str, body: bytes | None, call: str = "") -> None:
        self.writes.append(StoreWrite(step, key, body, call))
