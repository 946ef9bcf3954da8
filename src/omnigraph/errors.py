"""Every error a caller may meet: few kinds, each says what to do.

A kind has one `code`; the exit code of the command line and the status of the server follow from
the code by one table each. Anything that is not an `OmnigraphError` is a bug of ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

IDS_NAMED_MAX = 3  # in a sentence
IDS_SHOWN_MAX = 20  # in details
VIOLATIONS_SHOWN_MAX = 20

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

    @property
    def offenders(self) -> tuple[str, ...]:
        return self.rows or self.entity_ids

    @property
    def sentence(self) -> str:
        """What is wrong and what to do, without an end: type, property, ids, remedy."""
        ids = [repr(entity) for entity in self.entity_ids[:IDS_NAMED_MAX]]
        more = len(self.entity_ids) - len(ids)
        named = ", ".join(ids) + (f" and {more} more" if more > 0 else "")
        subject = " ".join(part for part in (self.type_name, named) if part)
        place = f"{self.places[0]}: " if self.places else ""
        return f"{place}{subject} {self.problem}: nothing was written, {self.remedy}"

    @property
    def count(self) -> int:
        """How many rows break it; one that has no id yet counts."""
        return max(1, len(self.offenders))

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
    ) -> None:
        super().__init__(constraint, type_name, entity_ids, message, property_name, violations)
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
            "total": sum(violation.count for violation in self.violations) or len(self.entity_ids),
        }

    def __str__(self) -> str:
        return self.message


class InvalidInput(BadRequest):
    """Lines of a load that can't be read as what they should be: each with its place. Nothing was written."""

    def __init__(self, problems: tuple[tuple[str, str], ...], total: int) -> None:
        super().__init__(problems, total)
        self.problems, self.total = problems, total

    @property
    def details(self) -> dict[str, Any]:
        errors = [{"place": place, "error": problem} for place, problem in self.problems]
        return {"errors": errors, "total": self.total}

    def __str__(self) -> str:
        place, problem = self.problems[0]
        more = f" ({self.total - 1} more bad line{'s' if self.total > 2 else ''})" if self.total > 1 else ""
        return f"{place}: {problem}{more}. Nothing was written."


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
