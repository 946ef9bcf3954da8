"""Every error a caller may meet: few kinds, each says what to do.

A kind has one `code`; the exit code of the command line and the status of the server follow from
the code by one table each. Anything that is not an `OmnigraphError` is a bug of ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

IDS_NAMED_MAX = 3  # in a sentence
IDS_SHOWN_MAX = 20  # in details
VIOLATIONS_SHOWN_MAX = 20
IDS_KEPT_MAX = 100  # of a violation that is reported: a bulk load may break a constraint a million times
VIOLATIONS_KEPT_MAX = 1000

EXIT_CODES: Mapping[str, int] = {
    "conflict": 3,
    "precondition_failed": 4,
    "constraint_violation": 5,
    "outcome_unknown": 6,
}  # every other code: 1

HTTP_STATUS: Mapping[str, int] = {
    "bad_request": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "precondition_failed": 412,
    "too_large": 413,
    "constraint_violation": 422,
    "too_many_requests": 429,
    "internal": 500,
    "unavailable": 503,
    "outcome_unknown": 504,
}


class OmnigraphError(Exception):
    """The base: a sentence, a code, and details as plain data.

    `args` are the fields of the error, so that it survives pickling (Spark, process pools).
    """

    code: ClassVar[str] = "internal"

    @property
    def details(self) -> dict[str, Any]:
        return {}

    @property
    def exit_code(self) -> int:
        return EXIT_CODES.get(self.code, 1)

    @property
    def http_status(self) -> int:
        return HTTP_STATUS[self.code]

    def to_json(self) -> dict[str, Any]:
        return {"error": str(self), "code": self.code, "details": self.details}


class BadRequest(OmnigraphError):
    """The input can't be used as it is. Correct it."""

    code = "bad_request"


class SchemaChangeRefused(BadRequest):
    """A schema can't be reached from the accepted one, or not with the rows that are there. Nothing was written.

    `plan` is the whole plan as plain data, `refused` the steps that can't be: what, why, code.
    """

    def __init__(self, plan: Mapping[str, Any], refused: tuple[tuple[str, str, str | None], ...]) -> None:
        super().__init__(plan, refused)
        self.plan, self.refused = plan, refused

    @property
    def details(self) -> dict[str, Any]:
        return {**self.plan, "applied": False}

    def __str__(self) -> str:
        what, why, code = self.refused[0]
        others = sum(not step["supported"] for step in self.plan["steps"]) - 1  # with those that single rows hinder
        more = f" (and {others} more step{'s' if others > 1 else ''})" if others else ""
        return f"The schema can't be applied, {what}: {why} [{code}]{more}. Nothing was changed, see `schema plan`."


class NotFound(OmnigraphError):
    """What was named does not exist."""

    code = "not_found"


class NotAGraph(NotFound):
    """The store holds no graph. Check the URI, or make one with `init`."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.uri = uri

    def __str__(self) -> str:
        return f"{self.uri} holds no graph: check the URI, or make a graph there with init."


class BranchNotFound(NotFound):
    """No such branch, or it was deleted while the call ran."""

    def __init__(self, branch: str) -> None:
        super().__init__(branch)
        self.branch = branch

    def __str__(self) -> str:
        return f"There is no branch {self.branch!r}: see `branch list`, or make it with `branch create`."


class CommitNotFound(NotFound):
    """No such commit is readable: unknown, malformed, or expired by cleanup."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(reference, reason)
        self.reference, self.reason = reference, reason

    def __str__(self) -> str:
        return f"{self.reference} can't be read: {self.reason}."


class TagNotFound(NotFound):
    """No commit has that name."""

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.tag = tag

    def __str__(self) -> str:
        return f"There is no tag {self.tag!r}: see `tag list`, or make it with `tag create`."


class CursorRefused(BadRequest):
    """A cursor of the change feed that does not belong to what is asked. Begin again."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return f"The cursor can't be used because {self.reason}: {self.remedy}."


class CursorExpired(NotFound):
    """The change feed has a gap: cleanup has expired what comes next. Begin again from a baseline."""

    def __init__(self, branch: str, commit: str, baseline: str | None) -> None:
        super().__init__(branch, commit, baseline)
        self.branch, self.commit, self.baseline = branch, commit, baseline

    @property
    def details(self) -> dict[str, Any]:
        return {"branch": self.branch, "commit": self.commit, "baseline": self.baseline}

    def __str__(self) -> str:
        again = (
            f"poll `--start now`, and take an export of {self.branch!r} as the new baseline"
            if self.baseline is None
            else f"take `export --at {self.baseline}` as the new baseline and go on with `--start {self.baseline}`"
        )
        return (
            f"The feed of {self.branch!r} can't go on here, because cleanup has expired the states around commit "
            f"{self.commit}: {again}."
        )


class UnsupportedFormat(BadRequest):
    """Written by a release that speaks another format. Upgrade, or export there and load here."""

    def __init__(self, what: str, found: object, supported: int) -> None:
        super().__init__(what, found, supported)
        self.what, self.found, self.supported = what, found, supported

    def __str__(self) -> str:
        return (
            f"{self.what} has format {self.found!r}, this release reads format {self.supported} only: "
            "upgrade omnigraph, or export with the release that wrote it and load with this one."
        )


class Damaged(OmnigraphError):
    """Something stored can't be read back. Nothing was changed."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return (
            f"{self.what} is damaged ({self.reason}): nothing was changed, restore it from a backup, "
            "or read an older commit or another branch."
        )


class ReadOnly(OmnigraphError):
    """The graph was opened with read_only=True."""

    code = "forbidden"

    def __init__(self, verb: str) -> None:
        super().__init__(verb)
        self.verb = verb

    def __str__(self) -> str:
        return f"{self.verb} is refused because the graph was opened read-only: open it without read_only to write."


class AccessDenied(OmnigraphError):
    """The store refused: no permission."""

    code = "forbidden"

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"The store denied access to {self.what} ({self.reason}): check credentials and permissions."


class Unavailable(OmnigraphError):
    """The store did not serve. Nothing happened; try again later."""

    code = "unavailable"

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"The store did not serve {self.what} ({self.reason}): nothing was changed, try again later."


class StorageFull(Unavailable):
    """No space left. Nothing was committed."""

    def __str__(self) -> str:
        return (
            f"No space is left for {self.what} ({self.reason}): nothing was committed, free some space and try again."
        )


class SparkNotReady(OmnigraphError):
    """Spark can't be used here: it, Java or its master is missing. The message says what to do."""

    code = "unavailable"


class JobFailed(OmnigraphError):
    """A task on Spark failed for good, for a reason that is not one of these errors. Nothing was committed."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(stage, reason)
        self.stage, self.reason = stage, reason

    @property
    def details(self) -> dict[str, Any]:
        return {"stage": self.stage, "reason": self.reason}

    def __str__(self) -> str:
        return (
            f"Spark failed in the stage {self.stage!r} ({self.reason}): nothing was committed, "
            "see the executors' logs and run it again."
        )


class ConflictError(OmnigraphError):
    """Somebody else was first. Nothing was written."""

    code = "conflict"


class AlreadyExists(ConflictError):
    """The name is taken."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.what} already exists: {self.remedy}."


class ExpectedVersionMismatch(ConflictError):
    """A strict write lost the race. Nothing was written: read again and rerun it."""

    def __init__(self, table_key: str, expected: str | None, actual: str | None) -> None:
        super().__init__(table_key, expected, actual)
        self.table_key, self.expected, self.actual = table_key, expected, actual

    @property
    def details(self) -> dict[str, Any]:
        conflict = {"table_key": self.table_key, "expected": self.expected, "actual": self.actual}
        return {"manifest_conflict": conflict}

    def __str__(self) -> str:
        name = self.table_key.partition(":")[2] or f"the {self.table_key}"
        expected = "unchanged since it had no rows" if self.expected is None else f"last changed by {self.expected}"
        actual = "dropped" if self.actual is None else f"changed by {self.actual}"
        return (
            f"This write expected {name} {expected}, but it was {actual} meanwhile: "
            "nothing was written, read the graph again and rerun the write."
        )


class SchemasDiverged(ConflictError):
    """Both sides of a merge changed the schema, and neither says all that the other says. Nothing was written."""

    def __init__(self, ours: tuple[str, ...], theirs: tuple[str, ...]) -> None:
        super().__init__(ours, theirs)
        self.ours, self.theirs = ours, theirs

    @property
    def details(self) -> dict[str, Any]:
        return {"schema_conflict": {"ours": list(self.ours), "theirs": list(self.theirs)}}

    def __str__(self) -> str:
        ours, theirs = (", ".join(changes[:IDS_NAMED_MAX]) for changes in (self.ours, self.theirs))
        return (
            f"The schemas can't be merged, because this branch {ours}, the other one {theirs}, and neither schema "
            "contains the other: nothing was written, run `schema apply` on one branch with a schema that has both, "
            "and merge again."
        )


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """One thing on which the two sides of a merge disagree, or which only the merged graph would break.

    `kind` is one of DivergentInsert, DivergentUpdate, DeleteVsUpdate, OrphanEdge, UniqueViolation,
    CardinalityViolation and ValueConstraintViolation.
    """

    entity_kind: str  # "node" or "edge"
    type_name: str
    entity_id: str
    kind: str
    message: str

    def to_json(self) -> dict[str, Any]:
        return {
            "entity_kind": self.entity_kind,
            "type_name": self.type_name,
            "entity_id": self.entity_id,
            "kind": self.kind,
            "message": self.message,
        }


class MergeConflicts(ConflictError):
    """The two sides of a merge can't both be right. Nothing was written: change one of them, and merge again."""

    def __init__(self, source: str, target: str, conflicts: tuple[MergeConflict, ...]) -> None:
        super().__init__(source, target, conflicts)
        self.source, self.target, self.conflicts = source, target, conflicts

    @property
    def details(self) -> dict[str, Any]:
        return {"merge_conflicts": [conflict.to_json() for conflict in self.conflicts]}

    def __str__(self) -> str:
        first, more = self.conflicts[0], len(self.conflicts) - 1
        others = f", and there are {more} more conflicts" if more > 1 else ", and one more conflict" if more else ""
        return (
            f"{self.source!r} can't be merged into {self.target!r} because {first.message} ({first.kind}){others}: "
            "nothing was written, change one of the branches and merge again."
        )


class RevertConflicts(MergeConflicts):
    """Later commits changed what is to be undone. Nothing was written: undo them first, or change it by hand."""

    def __str__(self) -> str:
        first, more = self.conflicts[0], len(self.conflicts) - 1
        others = f", and there are {more} more conflicts" if more > 1 else ", and one more conflict" if more else ""
        return (
            f"{self.source} can't be reverted on {self.target!r} because {first.message} ({first.kind}){others}: "
            "nothing was written, revert the later commits first, or change it by hand."
        )


class RetriesExhausted(ConflictError):
    """The branch was too busy for the time allowed. Nothing was written."""

    def __init__(self, branch: str, attempts: int, seconds: float) -> None:
        super().__init__(branch, attempts, seconds)
        self.branch, self.attempts, self.seconds = branch, attempts, seconds

    @property
    def details(self) -> dict[str, Any]:
        return {"branch": self.branch, "attempts": self.attempts, "seconds": self.seconds}

    def __str__(self) -> str:
        return (
            f"Gave up on branch {self.branch!r} after {self.attempts} lost races in {self.seconds:.0f} s: "
            "nothing was written, try again when fewer writers are at work or allow more time."
        )


class JobRunning(ConflictError):
    """Another process works on the long write of this id."""

    def __init__(self, job_id: str, host: str, pid: int, age_s: float) -> None:
        super().__init__(job_id, host, pid, age_s)
        self.job_id, self.host, self.pid, self.age_s = job_id, host, pid, age_s

    @property
    def details(self) -> dict[str, Any]:
        return {"job_id": self.job_id, "host": self.host, "pid": self.pid, "age_s": self.age_s}

    def __str__(self) -> str:
        return (
            f"The job {self.job_id} is being run by process {self.pid} on {self.host}, which said so {self.age_s:.0f} "
            "s ago: wait for it, or end it there and try again (15 minutes after its last sign of life it is dead)."
        )


class JobLost(ConflictError):
    """Another process has taken over this long write, or ended it."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    @property
    def details(self) -> dict[str, Any]:
        return {"job_id": self.job_id}

    def __str__(self) -> str:
        return (
            f"The job {self.job_id} was taken over or ended by another process while this one gave no sign of life: "
            "this one has stopped, see what became of the job with `commit list`, or run it again with its job id."
        )


class PreconditionFailed(OmnigraphError):
    """`if_commit` does not name the branch's newest commit. Nothing was written."""

    code = "precondition_failed"

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(expected, actual)
        self.expected, self.actual = expected, actual

    @property
    def details(self) -> dict[str, Any]:
        return {"expected": self.expected, "actual": self.actual}

    def __str__(self) -> str:
        return f"The branch is at {self.actual}, not at {self.expected}: nothing was written, read it again."


@dataclass(frozen=True, slots=True)
class Violation:
    """One constraint that a write breaks, with all rows that break it.

    `entity_ids` are what a message names: an edge without its node names the node that is missing. `rows` are the
    rows of `table_key` that would have to change for the write to pass, where those are others.
    """

    constraint: str
    type_name: str
    property_name: str | None
    entity_ids: tuple[str, ...]
    problem: str  # goes on after the name of the type and the ids
    remedy: str
    table_key: str = ""
    rows: tuple[str, ...] = ()
    places: tuple[str, ...] = ()  # where the rows stand in what was loaded
    more_ids: int = 0  # entities beyond those that are named here
    more_rows: int = 0  # offenders beyond those that are named here

    @property
    def offenders(self) -> tuple[str, ...]:
        return self.rows or self.entity_ids

    @property
    def sentence(self) -> str:
        """What is wrong and what to do, without an end: type, property, ids, remedy."""
        ids = [repr(entity) for entity in self.entity_ids[:IDS_NAMED_MAX]]
        more = len(self.entity_ids) + self.more_ids - len(ids)
        named = ", ".join(ids) + (f" and {more} more" if more > 0 else "")
        subject = " ".join(part for part in (self.type_name, named) if part)
        place = f"{self.places[0]}: " if self.places else ""
        return f"{place}{subject} {self.problem}: nothing was written, {self.remedy}"

    @property
    def count(self) -> int:
        """How many rows break it; one that has no id yet counts."""
        return max(1, len(self.offenders) + self.more_rows)

    def kept(self) -> "Violation":
        """With as many ids, rows and places as a report keeps; the others are counted."""
        ids, rows = self.entity_ids[:IDS_KEPT_MAX], self.rows[:IDS_KEPT_MAX]
        more_ids = self.more_ids + len(self.entity_ids) - len(ids)
        more_rows = self.more_rows + len(self.offenders) - len(rows or ids)
        places = self.places[:IDS_KEPT_MAX]
        return replace(self, entity_ids=ids, rows=rows, places=places, more_ids=more_ids, more_rows=more_rows)

    def to_json(self) -> dict[str, Any]:
        shown = {
            "constraint": self.constraint,
            "type_name": self.type_name,
            "property": self.property_name,
            "entity_ids": list(self.entity_ids[:IDS_SHOWN_MAX]),
            "count": self.count,
            "message": f"{self.sentence}.",
        }
        return shown | ({"places": list(self.places[:IDS_SHOWN_MAX])} if self.places else {})


class ConstraintViolation(OmnigraphError):
    """The write would make the graph invalid. Nothing was written.

    The fields tell of the first constraint that was broken, `violations` of all that were found.
    """

    code = "constraint_violation"

    def __init__(
        self,
        constraint: str,
        type_name: str,
        entity_ids: tuple[str, ...],
        message: str,
        property_name: str | None = None,
        violations: tuple[Violation, ...] = (),
        unlisted: tuple[int, int] = (0, 0),  # further violations, and the rows of them all
    ) -> None:
        super().__init__(constraint, type_name, entity_ids, message, property_name, violations, unlisted)
        self.unlisted = unlisted
        self.constraint, self.type_name, self.entity_ids = constraint, type_name, entity_ids
        self.message, self.property_name, self.violations = message, property_name, violations

    @property
    def details(self) -> dict[str, Any]:
        return {
            "constraint": self.constraint,
            "type_name": self.type_name,
            "property": self.property_name,
            "entity_ids": list(self.entity_ids),
            "violations": [violation.to_json() for violation in self.violations[:VIOLATIONS_SHOWN_MAX]],
            "total": sum(violation.count for violation in self.violations) + self.unlisted[1] or len(self.entity_ids),
        }

    def __str__(self) -> str:
        return self.message


class InvalidInput(BadRequest):
    """Lines of a load that can't be read as what they should be: each with its place. Nothing was written.

    `allowed` is how many of them a quarantine would have taken, if it was that which ended the load.
    """

    def __init__(self, problems: tuple[tuple[str, str], ...], total: int, allowed: int | None = None) -> None:
        super().__init__(problems, total, allowed)
        self.problems, self.total, self.allowed = problems, total, allowed

    @property
    def details(self) -> dict[str, Any]:
        errors = [{"place": place, "error": problem} for place, problem in self.problems]
        return {"errors": errors, "total": self.total}

    def __str__(self) -> str:
        place, problem = self.problems[0]
        more = f", {self.total - 1} more bad line{'s' if self.total > 2 else ''}" if self.total > 1 else ""
        limit = "" if self.allowed is None else f", max_errors allows {self.allowed}"
        return f"{place}: {problem} (nothing was written{more}{limit})."


class OutcomeUnknown(OmnigraphError):
    """The answer to the deciding put was lost: the commit may have landed. Ask with the same txn_id."""

    code = "outcome_unknown"

    def __init__(self, txn_id: str, branch: str, number: int) -> None:
        super().__init__(txn_id, branch, number)
        self.txn_id, self.branch, self.number = txn_id, branch, number

    @property
    def details(self) -> dict[str, Any]:
        return {"txn_id": self.txn_id, "branch": self.branch, "number": self.number}

    def __str__(self) -> str:
        return (
            f"The answer to manifest {self.number} of branch {self.branch!r} was lost, so it may have landed: "
            f"look whether it is there, or run a write again with txn id {self.txn_id}, which applies it at most once."
        )
