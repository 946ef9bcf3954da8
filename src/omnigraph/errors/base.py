"""What all errors have in common, and the families that some of them belong to."""

from collections.abc import Mapping
from typing import Any, ClassVar

IDS_NAMED_MAX = 3  # in a sentence

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


_FAMILIES = frozenset({"OmnigraphError", "BadRequest", "NotFound", "ConflictError"})  # they say all by their code


class OmnigraphError(Exception):
    """The base: a sentence, a code, and details as plain data.

    `args` are the fields of the error, so that it survives pickling (Spark, process pools).
    """

    code: ClassVar[str] = "internal"
    fields: ClassVar[tuple[str, ...]] = ()  # fields that a body repeats as data, in the order of the arguments

    @property
    def details(self) -> dict[str, Any]:
        """For a kind that has nothing else to say its name and fields, so that a client raises the same one."""
        name = type(self).__name__
        if name in _FAMILIES or name.startswith("_"):
            return {}
        return {"kind": name} | {field: getattr(self, field) for field in self.fields}

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


class ConflictError(OmnigraphError):
    """Somebody else was first. Nothing was written."""

    code = "conflict"


class Unavailable(OmnigraphError):
    """The store did not serve. Nothing happened; try again later."""

    code = "unavailable"

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"The store did not serve {self.what} ({self.reason}): nothing was changed, try again later."
