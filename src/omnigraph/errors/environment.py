"""What there would have to be for a request to be carried out: rights, room, a store that answers."""

from typing import Any, ClassVar

from omnigraph.errors.base import BadRequest, OmnigraphError, Unavailable


class UnsupportedFormat(BadRequest):
    """Written by a release that speaks another format. Upgrade, or export there and load here."""

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
    """Something stored can't be read back. Nothing was changed."""

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
    """The newest manifests of a branch are gone from the store: an old copy was restored, or they were deleted.

    Nothing was written, because the next commit would have the number, and the id, of a commit that was lost.
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
    """This process's clock is too far ahead of the store's to stamp commits. Nothing was written: set the clock."""

    code = "unavailable"
    fields = ("ahead_s", "limit_s")

    def __init__(self, ahead_s: int, limit_s: int) -> None:
        super().__init__(ahead_s, limit_s)
        self.ahead_s, self.limit_s = ahead_s, limit_s

    def __str__(self) -> str:
        return (
            f"This machine's clock is {self.ahead_s} s ahead of the store's, and later commits could not be stamped "
            f"earlier: nothing was written, set the clock, or raise OMNIGRAPH_CLOCK_AHEAD_S above {self.limit_s}."
        )


class AccessDenied(OmnigraphError):
    """The store refused: no permission."""

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
    """No answer tells whether the discard of a long write has begun."""

    fields = ("job_id",)

    def __init__(self, job_id: str) -> None:
        OmnigraphError.__init__(self, job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"The store did not answer whether the discard of the job {self.job_id} has begun: the job may be given up "
            "by now, or may still go on, discard it once more to be sure."
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


class Unauthorized(OmnigraphError):
    """A server knows no such token, or wants one."""

    code = "unauthorized"


class Forbidden(OmnigraphError):
    """A server knows the token, and it does not allow this."""

    code = "forbidden"


class TooLarge(OmnigraphError):
    """What was sent to a server, or asked of it, is beyond one of its limits."""

    code = "too_large"


class TooManyRequests(OmnigraphError):
    """A server has enough to do. Nothing was begun."""

    code = "too_many_requests"


class ServerUnreachable(Unavailable):
    """A server did not answer. Nothing was changed, or nothing that was to change."""

    fields = ("what", "reason")

    def __str__(self) -> str:
        return f"The server {self.what} did not answer ({self.reason}): check its address, or try again later."
