"""The base class of all errors, its families, and the errors of any request: names, permissions, storage, servers."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

IDS_NAMED_MAX = 3  # in a sentence

EXIT_CODES: Mapping[str, int] = {
    "conflict": 3,
    "precondition_failed": 4,
    "constraint_violation": 5,
    "outcome_unknown": 6,
    "key_reused": 7,
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
    "key_reused": 422,
    "too_many_requests": 429,
    "internal": 500,
    "unavailable": 503,
    "outcome_unknown": 504,
}


_FAMILIES = frozenset({"OmnigraphError", "BadRequest", "NotFound", "ConflictError"})  # the code says everything


class OmnigraphError(Exception):
    """The base class: a sentence, a code, and details as plain data.

    `args` are the constructor arguments, so that the error survives pickling (Spark, process pools).
    """

    code: ClassVar[str] = "internal"
    fields: ClassVar[tuple[str, ...]] = ()  # attributes repeated in `details`, in the order of the arguments
    known_by: ClassVar[tuple[str, ...]] = ()  # members of `details` that identify the class instead of `kind`

    @property
    def details(self) -> dict[str, Any]:
        """By default the class name and its `fields`, so that a client raises the same error."""
        name = type(self).__name__
        if name in _FAMILIES or name.startswith("_"):
            return {}
        kind = {} if self.known_by else {"kind": name}
        return kind | {field: getattr(self, field) for field in self.fields}

    @classmethod
    def from_details(cls, message: str, details: Mapping[str, Any], source: str = "") -> Self:
        """The error of a response. A class whose `details` are not its arguments overrides both.

        `source` is the text of the request, from which a class may quote. Raises what is raised where members are
        missing: the caller then takes the message as it is.
        """
        return cls(*(details[field] for field in cls.fields)) if cls.fields else cls(message)

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
    """No object with this name or id exists."""

    code = "not_found"


class ConflictError(OmnigraphError):
    """Another writer was first. Nothing was written."""

    code = "conflict"


class Unavailable(OmnigraphError):
    """The store did not serve a request. Nothing happened; try again later."""

    code = "unavailable"

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"The store did not serve {self.what} ({self.reason}): nothing was changed, try again later."


class InvalidInput(BadRequest):
    """Invalid lines of a load, each with its place. Nothing was written.

    `allowed` is the limit of the quarantine, if exceeding it ended the load.
    """

    known_by = ("errors",)

    def __init__(self, problems: tuple[tuple[str, str], ...], total: int, allowed: int | None = None) -> None:
        super().__init__(problems, total, allowed)
        self.problems, self.total, self.allowed = problems, total, allowed

    @property
    def details(self) -> dict[str, Any]:
        errors = [{"place": place, "error": problem} for place, problem in self.problems]
        return {"errors": errors, "total": self.total} | ({} if self.allowed is None else {"allowed": self.allowed})

    @classmethod
    def from_details(cls, message: str, details: Mapping[str, Any], source: str = "") -> Self:
        problems = tuple((entry["place"], entry["error"]) for entry in details["errors"])
        return cls(problems, details["total"], details.get("allowed"))

    def __str__(self) -> str:
        place, problem = self.problems[0]
        more = f", {self.total - 1} more bad line{'s' if self.total > 2 else ''}" if self.total > 1 else ""
        limit = "" if self.allowed is None else f", max_errors allows {self.allowed}"
        return f"{place}: {problem} (nothing was written{more}{limit})."


class SchemaChangeRefused(BadRequest):
    """A schema can't be migrated to, at all or with the existing rows. Nothing was written.

    `plan` is the whole plan as plain data, `refused` the unsupported steps: what, why, code.
    """

    known_by = ("steps",)

    def __init__(self, plan: Mapping[str, Any], refused: tuple[tuple[str, str, str | None], ...]) -> None:
        super().__init__(plan, refused)
        self.plan, self.refused = plan, refused

    @property
    def details(self) -> dict[str, Any]:
        return {**self.plan, "applied": False}

    @classmethod
    def from_details(cls, message: str, details: Mapping[str, Any], source: str = "") -> Self:
        plan = {name: value for name, value in details.items() if name != "applied"}
        refused = [(_subject(step), step["message"], step["code"]) for step in plan["steps"] if not step["supported"]]
        turned = (cls(plan, tuple(refused[first:] + refused[:first])) for first in range(len(refused)))
        return next(error for error in turned if str(error) == message)  # the message names the first one

    def __str__(self) -> str:
        what, why, code = self.refused[0]
        others = (
            sum(not step["supported"] for step in self.plan["steps"]) - 1
        )  # including those that only existing rows prevent
        more = f" (and {others} more step{'s' if others > 1 else ''})" if others else ""
        return f"The schema can't be applied, {what}: {why} [{code}]{more}. Nothing was changed, see `schema plan`."


def _subject(step: Mapping[str, Any]) -> str:
    name = step["property_name"]
    return str(step["type_name"]) if name is None else f"{step['type_name']}.{name}"


class NotAGraph(NotFound):
    """The store holds no graph. Check the URI, or make one with `init`."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.uri = uri

    def __str__(self) -> str:
        return f"{self.uri} holds no graph: check the URI, or make a graph there with init."


class BranchNotFound(NotFound):
    """No such branch, or it was deleted while the call ran."""

    fields = ("branch",)

    def __init__(self, branch: str) -> None:
        super().__init__(branch)
        self.branch = branch

    def __str__(self) -> str:
        return f"There is no branch {self.branch!r}: see `branch list`, or make it with `branch create`."


class CommitNotFound(NotFound):
    """No such commit is readable: unknown, malformed, or expired by cleanup."""

    fields = ("reference", "reason")

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(reference, reason)
        self.reference, self.reason = reference, reason

    def __str__(self) -> str:
        return f"{self.reference} can't be read: {self.reason}."


class TagNotFound(NotFound):
    """No tag has that name."""

    fields = ("tag",)

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.tag = tag

    def __str__(self) -> str:
        return f"There is no tag {self.tag!r}: see `tag list`, or make it with `tag create`."


class CursorRefused(BadRequest):
    """A cursor of the change feed that does not fit the request. Start again without it."""

    fields = ("reason", "remedy")

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return f"The cursor can't be used because {self.reason}: {self.remedy}."


class CursorExpired(NotFound):
    """The change feed has a gap: cleanup has expired the next commits. Start again from a baseline."""

    fields = (
        "branch",
        "commit",
        "baseline",
    )
    known_by = ("baseline",)

    def __init__(self, branch: str, commit: str, baseline: str | None) -> None:
        super().__init__(branch, commit, baseline)
        self.branch, self.commit, self.baseline = branch, commit, baseline

    def __str__(self) -> str:
        again = (
            f"poll `--start now`, and take an export of {self.branch!r} as the new baseline"
            if self.baseline is None
            else f"take `export --at {self.baseline}` as the new baseline and continue with `--start {self.baseline}`"
        )
        return (
            f"The feed of {self.branch!r} can't continue here, because cleanup has expired the states around commit "
            f"{self.commit}: {again}."
        )


class UnsupportedFormat(BadRequest):
    """Written by a release with another format. Upgrade, or export there and load here."""

    fields = ("what", "found", "supported")

    def __init__(self, what: str, found: object, supported: int) -> None:
        super().__init__(what, found, supported)
        self.what, self.found, self.supported = what, found, supported

    def __str__(self) -> str:
        return (
            f"{self.what} has format {self.found!r}, this release reads formats up to {self.supported}: "
            "upgrade omnigraph, or export with the release that wrote it and load with this one."
        )


class Damaged(OmnigraphError):
    """A stored object can't be read. Nothing was changed."""

    fields: ClassVar[tuple[str, ...]] = ("what", "reason")

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return (
            f"{self.what} is damaged ({self.reason}): nothing was changed, restore it from a backup, "
            "or read an older commit or another branch."
        )


class HeadLost(Damaged):
    """The newest manifests of a branch are missing: an old copy was restored, or they were deleted.

    Nothing was written, because the next commit would reuse the number, and the id, of a lost commit.
    """

    fields = ("branch", "head", "used", "evidence")

    def __init__(self, branch: str, head: int, used: int, evidence: str) -> None:
        super().__init__(f"branch {branch!r}", f"its manifests {head + 1} to {used} are lost")
        self.args = (branch, head, used, evidence)
        self.branch, self.head, self.used, self.evidence = branch, head, used, evidence

    def __str__(self) -> str:
        left = f"its newest manifest is {self.head}" if self.head else "it has no manifest"
        return (
            f"Branch {self.branch!r} has lost its head ({left}, but number {self.used} was used, because "
            f"{self.evidence}): nothing was written, restore its manifests up to {self.used} from a copy or from "
            "earlier versions of the objects, or start a new branch from what is left (`branch create NAME --from "
            "COMMIT`, in a new process), see `verify`."
        )


class ReadOnly(OmnigraphError):
    """The graph was opened with read_only=True."""

    code = "forbidden"
    fields = ("verb",)

    def __init__(self, verb: str) -> None:
        super().__init__(verb)
        self.verb = verb

    def __str__(self) -> str:
        return f"{self.verb} is refused because the graph was opened read-only: open it without read_only to write."


class ClockAhead(OmnigraphError):
    """This process's clock is too far ahead of the store's to timestamp commits. Nothing was written: set the clock."""

    code = "unavailable"
    fields = ("ahead_s", "limit_s")

    def __init__(self, ahead_s: int, limit_s: int) -> None:
        super().__init__(ahead_s, limit_s)
        self.ahead_s, self.limit_s = ahead_s, limit_s

    def __str__(self) -> str:
        return (
            f"This machine's clock is {self.ahead_s} s ahead of the store's, and later commits would inherit its "
            f"timestamps: nothing was written, set the clock, or raise OMNIGRAPH_CLOCK_AHEAD_S above {self.limit_s}."
        )


class AccessDenied(OmnigraphError):
    """The store denied access."""

    code = "forbidden"

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"The store denied access to {self.what} ({self.reason}): check credentials and permissions."


class StorageFull(Unavailable):
    """No space left. Nothing was committed."""

    def __str__(self) -> str:
        return (
            f"No space is left for {self.what} ({self.reason}): nothing was committed, free some space and try again."
        )


class DiscardUnsettled(Unavailable):
    """It is unknown whether the discard of a job has begun, because the store's answer was lost."""

    fields = ("job_id",)

    def __init__(self, job_id: str) -> None:
        OmnigraphError.__init__(self, job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"The store did not answer whether the discard of the job {self.job_id} has begun: the job may be "
            "discarded by now, or may still be running, discard it once more to be sure."
        )


class SparkNotReady(OmnigraphError):
    """Spark can't be used here: it, Java or its master is missing. The message says what to do."""

    code = "unavailable"


class JobFailed(OmnigraphError):
    """A task on Spark failed permanently, with an error of another kind. Nothing was committed."""

    fields = (
        "stage",
        "reason",
    )
    known_by = ("stage",)

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(stage, reason)
        self.stage, self.reason = stage, reason

    def __str__(self) -> str:
        return (
            f"Spark failed in the stage {self.stage!r} ({self.reason}): nothing was committed, "
            "see the executors' logs and run it again."
        )


class Unauthorized(OmnigraphError):
    """The server requires a token, or does not know this one."""

    code = "unauthorized"


class Forbidden(OmnigraphError):
    """The token does not permit this."""

    code = "forbidden"


class TooLarge(OmnigraphError):
    """A request, or its result, exceeds a limit of the server."""

    code = "too_large"
    fields = known_by = ("limit", "unit")

    def __init__(self, message: str, limit: int, unit: str) -> None:
        super().__init__(message, limit, unit)
        self.limit, self.unit = limit, unit

    @classmethod
    def from_details(cls, message: str, details: Mapping[str, Any], source: str = "") -> Self:
        return cls(message, details["limit"], details["unit"])

    def __str__(self) -> str:
        return str(self.args[0])


class TooManyRequests(OmnigraphError):
    """The server is overloaded. Nothing was started."""

    code = "too_many_requests"
    fields = known_by = ("retry_after_s",)

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s

    @classmethod
    def from_details(cls, message: str, details: Mapping[str, Any], source: str = "") -> Self:
        return cls(message, details["retry_after_s"])

    def __str__(self) -> str:
        return str(self.args[0])


class ServerUnreachable(Unavailable):
    """The server did not answer. Nothing was changed."""

    fields = ("what", "reason")

    def __str__(self) -> str:
        return f"The server {self.what} did not answer ({self.reason}): check its address, or try again later."
