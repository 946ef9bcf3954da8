"""Errors of writes: conflicts with other writers, unknown outcomes, and rows that violate the schema."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from omnigraph.errors.base import IDS_NAMED_MAX, ConflictError, OmnigraphError

IDS_SHOWN_MAX = 20  # in details
VIOLATIONS_SHOWN_MAX = 20
IDS_KEPT_MAX = 100  # per violation in a report: a bulk load may break a constraint a million times
VIOLATIONS_KEPT_MAX = 1000
_AND_MORE = re.compile(r" and (\d+) more\Z")


class AlreadyExists(ConflictError):
    """The name is taken."""

    fields = ("what", "remedy")

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.what} already exists: {self.remedy}."


class ExpectedVersionMismatch(ConflictError):
    """A strict write lost the race. Nothing was written: read again and rerun it."""

    known_by = ("manifest_conflict",)

    def __init__(self, table_key: str, expected: str | None, actual: str | None) -> None:
        super().__init__(table_key, expected, actual)
        self.table_key, self.expected, self.actual = table_key, expected, actual

    @property
    def details(self) -> dict[str, Any]:
        conflict = {"table_key": self.table_key, "expected": self.expected, "actual": self.actual}
        return {"manifest_conflict": conflict}

    @classmethod
    def from_details(cls, message: str, details: Mapping[str, Any], source: str = "") -> Self:
        return cls(**details["manifest_conflict"])

    def with_final_ids(self, names: Mapping[str, str]) -> "ExpectedVersionMismatch":
        """The same error with final commit ids, known once the batch was committed."""
        actual = None if self.actual is None else names.get(self.actual, self.actual)
        final = ExpectedVersionMismatch(self.table_key, self.expected, actual)
        return final.with_traceback(self.__traceback__)

    def __str__(self) -> str:
        name = self.table_key.partition(":")[2] or f"the {self.table_key}"
        expected = "unchanged since it had no rows" if self.expected is None else f"last changed by {self.expected}"
        actual = "dropped" if self.actual is None else f"changed by {self.actual}"
        return (
            f"This write expected {name} {expected}, but it was {actual} meanwhile: "
            "nothing was written, read the graph again and rerun the write."
        )


class SchemasDiverged(ConflictError):
    """Both sides of a merge changed the schema, and neither schema contains the other. Nothing was written."""

    known_by = ("schema_conflict",)

    def __init__(self, ours: tuple[str, ...], theirs: tuple[str, ...]) -> None:
        super().__init__(ours, theirs)
        self.ours, self.theirs = ours, theirs

    @property
    def details(self) -> dict[str, Any]:
        return {"schema_conflict": {"ours": list(self.ours), "theirs": list(self.theirs)}}

    @classmethod
    def from_details(cls, message: str, details: Mapping[str, Any], source: str = "") -> Self:
        return cls(*(tuple(details["schema_conflict"][side]) for side in ("ours", "theirs")))

    def __str__(self) -> str:
        ours, theirs = (", ".join(changes[:IDS_NAMED_MAX]) for changes in (self.ours, self.theirs))
        return (
            f"The schemas can't be merged, because this branch {ours}, the other one {theirs}, and neither schema "
            "contains the other: nothing was written, run `schema apply` on one branch with a schema that has both, "
            "and merge again."
        )


class MergeBaseExpired(ConflictError):
    """Cleanup has expired the merge base of two branches: no older state may replace it."""

    fields = ("base",)

    def __init__(self, base: str | None) -> None:
        super().__init__(base)
        self.base = base

    def __str__(self) -> str:
        reason = (
            "The two branches have no state in common"
            if self.base is None
            else f"Cleanup has expired {self.base}, the state from which the two branches diverged"
        )
        return (
            f"{reason}: nothing was merged, export the changes of one branch (`changes between`) and load them into "
            "the other."
        )


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """A conflict between the two sides of a merge, or a constraint that only the merged graph would violate.

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
    """The two sides of a merge conflict. Nothing was written: change one of them, and merge again."""

    known_by: ClassVar[tuple[str, ...]] = ("merge_conflicts",)

    def __init__(self, source: str, target: str, conflicts: tuple[MergeConflict, ...]) -> None:
        super().__init__(source, target, conflicts)
        self.source, self.target, self.conflicts = source, target, conflicts

    @property
    def details(self) -> dict[str, Any]:
        conflicts = [conflict.to_json() for conflict in self.conflicts]
        return {"merge_conflicts": conflicts, "source": self.source, "target": self.target}

    @classmethod
    def from_details(cls, message: str, details: Mapping[str, Any], source: str = "") -> Self:
        conflicts = tuple(MergeConflict(**conflict) for conflict in details["merge_conflicts"])
        return cls(details["source"], details["target"], conflicts)

    def __str__(self) -> str:
        first, more = self.conflicts[0], len(self.conflicts) - 1
        others = f", and there are {more} more conflicts" if more > 1 else ", and one more conflict" if more else ""
        return (
            f"{self.source!r} can't be merged into {self.target!r} because {first.message} ({first.kind}){others}: "
            "nothing was written, change one of the branches and merge again."
        )


class RevertConflicts(MergeConflicts):
    """Later commits changed the same rows. Nothing was written: revert those first, or change the rows by hand."""

    known_by = ()

    @property
    def details(self) -> dict[str, Any]:
        return {"kind": "RevertConflicts"} | super().details

    def __str__(self) -> str:
        first, more = self.conflicts[0], len(self.conflicts) - 1
        others = f", and there are {more} more conflicts" if more > 1 else ", and one more conflict" if more else ""
        return (
            f"{self.source} can't be reverted on {self.target!r} because {first.message} ({first.kind}){others}: "
            "nothing was written, revert the later commits first, or change it by hand."
        )


class RetriesExhausted(ConflictError):
    """The branch was too busy for the time allowed. Nothing was written."""

    fields = (
        "branch",
        "attempts",
        "seconds",
    )
    known_by = ("attempts",)

    def __init__(self, branch: str, attempts: int, seconds: float) -> None:
        super().__init__(branch, attempts, seconds)
        self.branch, self.attempts, self.seconds = branch, attempts, seconds

    def __str__(self) -> str:
        return (
            f"Gave up on branch {self.branch!r} after {self.attempts} lost races in {self.seconds:.0f} s: "
            "nothing was written, try again when there are fewer writers, or allow more time."
        )


class JobRunning(ConflictError):
    """Another process is running the job with this id."""

    fields = (
        "job_id",
        "host",
        "pid",
        "age_s",
    )
    known_by = (
        "job_id",
        "age_s",
    )

    def __init__(self, job_id: str, host: str, pid: int, age_s: float) -> None:
        super().__init__(job_id, host, pid, age_s)
        self.job_id, self.host, self.pid, self.age_s = job_id, host, pid, age_s

    def __str__(self) -> str:
        return (
            f"The job {self.job_id} is being run by process {self.pid} on {self.host}, with a heartbeat "
            f"{self.age_s:.0f} s ago: wait for it, or end it there and try again (15 minutes after its last heartbeat "
            "it counts as dead)."
        )


class JobEnding(ConflictError):
    """The job with this id is being discarded: it can be started again afterwards."""

    fields = ("job_id",)

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"The job {self.job_id} is being discarded by another process: try again in a moment."


class JobDiscarded(ConflictError):
    """This run of a job was discarded before it was committed. Nothing was written."""

    fields = ("job_id",)

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"The job {self.job_id} was discarded while this run of it sent no heartbeat: nothing was written, "
            "start it again to load its input."
        )


class JobInputDiffers(ConflictError):
    """The job with this id was committed with another input. This run wrote nothing."""

    fields = ("job_id", "commit_id", "loaded", "given")

    def __init__(self, job_id: str, commit_id: str, loaded: str, given: str) -> None:
        super().__init__(job_id, commit_id, loaded, given)
        self.job_id, self.commit_id, self.loaded, self.given = job_id, commit_id, loaded, given

    def __str__(self) -> str:
        return (
            f"The job {self.job_id} was loaded with another input by commit {self.commit_id} ({self.loaded}; now "
            f"given: {self.given}): nothing was written, load this input under another job id."
        )


class JobLost(ConflictError):
    """Another process has taken over this job, or ended it."""

    fields = ("job_id",)
    known_by = ("job_id",)

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"The job {self.job_id} was taken over or ended by another process while this one sent no heartbeat: "
            "this one has stopped and written nothing, see what became of the job with `commit list`, or run it again "
            "with its job id."
        )


class PreconditionFailed(OmnigraphError):
    """`if_commit` does not name the branch's newest commit. Nothing was written."""

    code = "precondition_failed"

    fields = (
        "expected",
        "actual",
    )
    known_by = ("expected",)

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(expected, actual)
        self.expected, self.actual = expected, actual

    def __str__(self) -> str:
        return f"The branch is at {self.actual}, not at {self.expected}: nothing was written, read it again."


class KeyReused(OmnigraphError):
    """The idempotency key belongs to another actor or another request. Nothing was written."""

    code = "key_reused"
    fields = ("txn_id",)
    known_by = ("txn_id",)

    def __init__(self, txn_id: str) -> None:
        super().__init__(str(txn_id))
        self.txn_id = str(txn_id)

    def __str__(self) -> str:
        return (
            f"The idempotency key {self.txn_id!r} was used for another request, or by another actor: nothing was "
            "written, take a new key for each request."
        )


class OutcomeUnknown(OmnigraphError):
    """The answer to the commit's put was lost: it may have been applied. Repeat it with the same txn_id."""

    code = "outcome_unknown"

    fields = (
        "txn_id",
        "branch",
        "number",
    )
    known_by: ClassVar[tuple[str, ...]] = ("txn_id",)

    def __init__(self, txn_id: str, branch: str, number: int) -> None:
        super().__init__(txn_id, branch, number)
        self.txn_id, self.branch, self.number = txn_id, branch, number

    def __str__(self) -> str:
        return (
            f"The answer to manifest {self.number} of branch {self.branch!r} was lost, so it may have been committed: "
            f"check whether it is there, or run a write again with txn id {self.txn_id}, which applies it at most once."
        )


class AnswerLost(OutcomeUnknown):
    """A server's answer to a write was lost: it may have been applied."""

    fields = ("txn_id", "branch", "reason")
    known_by = ()

    def __init__(self, txn_id: str, branch: str, reason: str) -> None:
        super().__init__(txn_id, branch, 0)
        self.args = (txn_id, branch, reason)
        self.reason = reason

    @property
    def details(self) -> dict[str, Any]:
        known = {"txn_id": self.txn_id, "branch": self.branch, "number": self.number}
        return known | {"kind": "AnswerLost", "reason": self.reason}

    def __str__(self) -> str:
        return (
            f"The server's answer was lost ({self.reason}), so the write on branch {self.branch!r} "
            "may have been committed: "
            f"check whether it is there, or run it again with txn id {self.txn_id}, which applies it at most once."
        )


@dataclass(frozen=True, slots=True)
class Violation:
    """One constraint that a write breaks, with all rows that break it.

    `entity_ids` are the ids that a message names: for an edge without its node, the missing node. `rows` are the ids of
    the rows of `table_key` that would have to change for the write to pass, if those are others.
    """

    constraint: str
    type_name: str
    property_name: str | None
    entity_ids: tuple[str, ...]
    problem: str  # follows the type name and the ids
    remedy: str
    table_key: str = ""
    rows: tuple[str, ...] = ()
    places: tuple[str, ...] = ()  # of the rows in the loaded files
    more_ids: int = 0  # not listed here
    more_rows: int = 0  # not listed here

    @property
    def offenders(self) -> tuple[str, ...]:
        return self.rows or self.entity_ids

    @property
    def sentence(self) -> str:
        """The problem and the remedy, without a final period."""
        ids = [repr(entity) for entity in self.entity_ids[:IDS_NAMED_MAX]]
        more = len(self.entity_ids) + self.more_ids - len(ids)
        named = ", ".join(ids) + (f" and {more} more" if more > 0 else "")
        subject = " ".join(part for part in (self.type_name, named) if part)
        place = f"{self.places[0]}: " if self.places else ""
        return f"{place}{subject} {self.problem}: nothing was written, {self.remedy}"

    @property
    def count(self) -> int:
        """How many rows violate it; a row without an id counts."""
        return max(1, len(self.offenders) + self.more_rows)

    def truncate(self) -> "Violation":
        """Limit ids, rows and places to what a report keeps; the others are counted."""
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
            "problem": self.problem,
            "remedy": self.remedy,
        }
        return shown | ({"places": list(self.places[:IDS_SHOWN_MAX])} if self.places else {})

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """What `to_json` shows; the rows it leaves out are counted as far as its message and count tell."""
        ids = tuple(entry["entity_ids"])
        unnamed = _AND_MORE.search(entry["message"].partition(f" {entry['problem']}: ")[0])
        named = min(len(ids), IDS_NAMED_MAX)
        return cls(
            entry["constraint"],
            entry["type_name"],
            entry["property"],
            ids,
            entry["problem"],
            entry["remedy"],
            places=tuple(entry.get("places", ())),
            more_ids=0 if unnamed is None else max(0, int(unnamed[1]) + named - len(ids)),
            more_rows=max(0, entry["count"] - max(1, len(ids))),
        )


class ConstraintViolation(OmnigraphError):
    """The write would make the graph invalid. Nothing was written.

    The attributes describe the first violated constraint, `violations` all of them.
    """

    code = "constraint_violation"
    known_by = ("constraint",)

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

    @classmethod
    def from_details(cls, message: str, details: Mapping[str, Any], source: str = "") -> Self:
        found = tuple(Violation.from_json(entry) for entry in details["violations"])
        unlisted = details["total"] - sum(entry.count for entry in found)
        more = (1, unlisted) if found and unlisted > 0 else (0, 0)
        ids = tuple(details["entity_ids"])
        return cls(details["constraint"], details["type_name"], ids, message, details["property"], found, more)

    def __str__(self) -> str:
        return self.message
