"""Errors as OpenAPI describes them: one shape, and for each status the code and details that come with it."""

from typing import Any, Literal

from omnigraph.api.job_models import ErrorBody
from omnigraph.api.models import MergeConflictEntry
from omnigraph.api.wire_model import WireModel, member


class Problem(WireModel):
    place: str
    error: str


class BadRequestDetails(WireModel):
    """`errors` of what is not of the documented form, `line` and `column` of a text that does not parse."""

    errors: list[Problem] = member(omit_empty=True)
    total: int | None = member(omit_empty=True)
    line: int | None = member(omit_empty=True)
    column: int | None = member(omit_empty=True)


class BadRequestBody(ErrorBody):
    code: Literal["bad_request"]
    details: BadRequestDetails  # type: ignore[assignment]  # what is known of the dict


class UnauthorizedBody(ErrorBody):
    code: Literal["unauthorized"]


class ForbiddenBody(ErrorBody):
    code: Literal["forbidden"]


class NotFoundBody(ErrorBody):
    code: Literal["not_found"]


class ManifestConflict(WireModel):
    table_key: str
    expected: str | None
    actual: str | None


class SchemaConflict(WireModel):
    ours: list[str]
    theirs: list[str]


class ConflictDetails(WireModel):
    """One of these: a race that was lost, the conflicts of a merge, schemas that can't be merged; or a taken name."""

    manifest_conflict: ManifestConflict | None = member(omit_empty=True)
    merge_conflicts: list[MergeConflictEntry] | None = member(omit_empty=True)
    schema_conflict: SchemaConflict | None = member(omit_empty=True)


class ConflictBody(ErrorBody):
    code: Literal["conflict"]
    details: ConflictDetails  # type: ignore[assignment]


class PreconditionDetails(WireModel):
    expected: str
    actual: str


class PreconditionBody(ErrorBody):
    code: Literal["precondition_failed"]
    details: PreconditionDetails  # type: ignore[assignment]


class TooLargeDetails(WireModel):
    limit: int
    unit: str


class TooLargeBody(ErrorBody):
    code: Literal["too_large"]
    details: TooLargeDetails  # type: ignore[assignment]


class ViolationEntry(WireModel):
    constraint: str
    type_name: str
    property: str | None
    entity_ids: list[str]
    count: int
    message: str


class ConstraintDetails(WireModel):
    """Of the first constraint that was violated; `violations` has all that were found."""

    constraint: str
    type_name: str
    property: str | None
    entity_ids: list[str]
    violations: list[ViolationEntry] = member(omit_empty=True)
    total: int | None = member(omit_empty=True)


class ConstraintBody(ErrorBody):
    code: Literal["constraint_violation"]
    details: ConstraintDetails  # type: ignore[assignment]


class KeyReusedDetails(WireModel):
    txn_id: str = member(description="The Idempotency-Key.")


class KeyReusedBody(ErrorBody):
    code: Literal["key_reused"]
    details: KeyReusedDetails  # type: ignore[assignment]


class TooManyRequestsDetails(WireModel):
    retry_after_s: int


class TooManyRequestsBody(ErrorBody):
    code: Literal["too_many_requests"]
    details: TooManyRequestsDetails  # type: ignore[assignment]


class InternalBody(ErrorBody):
    code: Literal["internal"]


class UnavailableDetails(WireModel):
    stopped: str | None = member(
        omit_empty=True, description="Why it was stopped, if it was: a deadline, a client that went away."
    )


class UnavailableBody(ErrorBody):
    code: Literal["unavailable"]
    details: UnavailableDetails  # type: ignore[assignment]


class OutcomeUnknownDetails(WireModel):
    txn_id: str = member(description="The Idempotency-Key to ask again with.")
    branch: str
    number: int


class OutcomeUnknownBody(ErrorBody):
    code: Literal["outcome_unknown"]
    details: OutcomeUnknownDetails  # type: ignore[assignment]


BODIES: dict[int, Any] = {
    400: BadRequestBody,
    401: UnauthorizedBody,
    403: ForbiddenBody,
    404: NotFoundBody,
    405: BadRequestBody,
    409: ConflictBody,
    412: PreconditionBody,
    413: TooLargeBody,
    422: ConstraintBody | KeyReusedBody,
    429: TooManyRequestsBody,
    500: InternalBody,
    503: UnavailableBody,
    504: OutcomeUnknownBody,
}
