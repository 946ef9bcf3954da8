"""Errors as OpenAPI describes them: one shape, and for each status the code and details that come with it."""

from typing import Any, Literal

from pydantic import Field

from omnigraph.server.models.response_models import Answer, MergeConflictEntry


class ErrorBody(Answer):
    """Every error has this form. `details` depend on the code."""

    error: str = Field(description="One sentence that names the thing and the remedy.")
    code: Literal[
        "bad_request",
        "unauthorized",
        "forbidden",
        "not_found",
        "conflict",
        "precondition_failed",
        "too_large",
        "constraint_violation",
        "too_many_requests",
        "internal",
        "unavailable",
        "outcome_unknown",
    ]
    details: dict[str, Any]


class Problem(Answer):
    place: str
    error: str


class BadRequestDetails(Answer):
    """`errors` of what is not of the documented form, `line` and `column` of a text that does not parse."""

    errors: list[Problem] = Field(default_factory=list)
    total: int | None = None
    line: int | None = None
    column: int | None = None


class BadRequestBody(ErrorBody):
    code: Literal["bad_request"]
    details: BadRequestDetails  # type: ignore[assignment]  # what is known of the dict


class UnauthorizedBody(ErrorBody):
    code: Literal["unauthorized"]


class ForbiddenBody(ErrorBody):
    code: Literal["forbidden"]


class NotFoundBody(ErrorBody):
    code: Literal["not_found"]


class ManifestConflict(Answer):
    table_key: str
    expected: str | None
    actual: str | None


class SchemaConflict(Answer):
    ours: list[str]
    theirs: list[str]


class ConflictDetails(Answer):
    """One of these: a race that was lost, the conflicts of a merge, schemas that can't be merged; or a taken name."""

    manifest_conflict: ManifestConflict | None = None
    merge_conflicts: list[MergeConflictEntry] | None = None
    schema_conflict: SchemaConflict | None = None


class ConflictBody(ErrorBody):
    code: Literal["conflict"]
    details: ConflictDetails  # type: ignore[assignment]


class PreconditionDetails(Answer):
    expected: str
    actual: str


class PreconditionBody(ErrorBody):
    code: Literal["precondition_failed"]
    details: PreconditionDetails  # type: ignore[assignment]


class TooLargeDetails(Answer):
    limit: int
    unit: str


class TooLargeBody(ErrorBody):
    code: Literal["too_large"]
    details: TooLargeDetails  # type: ignore[assignment]


class ViolationEntry(Answer):
    constraint: str
    type_name: str
    property: str | None
    entity_ids: list[str]
    count: int
    message: str


class ConstraintDetails(Answer):
    """Of the first constraint that was violated; `violations` has all that were found."""

    constraint: str
    type_name: str
    property: str | None
    entity_ids: list[str]
    violations: list[ViolationEntry] = Field(default_factory=list)
    total: int | None = None


class ConstraintBody(ErrorBody):
    code: Literal["constraint_violation"]
    details: ConstraintDetails  # type: ignore[assignment]


class TooManyRequestsDetails(Answer):
    retry_after_s: int


class TooManyRequestsBody(ErrorBody):
    code: Literal["too_many_requests"]
    details: TooManyRequestsDetails  # type: ignore[assignment]


class InternalBody(ErrorBody):
    code: Literal["internal"]


class UnavailableDetails(Answer):
    stopped: str | None = Field(None, description="Why it was stopped, if it was: a deadline, a client that went away.")


class UnavailableBody(ErrorBody):
    code: Literal["unavailable"]
    details: UnavailableDetails  # type: ignore[assignment]


class OutcomeUnknownDetails(Answer):
    txn_id: str = Field(description="The Idempotency-Key to ask again with.")
    branch: str
    number: int


class OutcomeUnknownBody(ErrorBody):
    code: Literal["outcome_unknown"]
    details: OutcomeUnknownDetails  # type: ignore[assignment]


BODIES: dict[int, type[ErrorBody]] = {
    400: BadRequestBody,
    401: UnauthorizedBody,
    403: ForbiddenBody,
    404: NotFoundBody,
    405: BadRequestBody,
    409: ConflictBody,
    412: PreconditionBody,
    413: TooLargeBody,
    422: ConstraintBody,
    429: TooManyRequestsBody,
    500: InternalBody,
    503: UnavailableBody,
    504: OutcomeUnknownBody,
}
