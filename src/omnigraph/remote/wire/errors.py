"""From an error body back to the error: the class that the embedded graph would have raised, with its fields.

The class is named by `kind` in the details, or known by the members that they have (`OmnigraphError.known_by`), and
makes the error itself (`from_details`). It is used if it has the same message and details then. A server may say less
than the error knew, for it hides where its store is: then the class is the same, and the message and the details are
the server's.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeGuard

from omnigraph import errors
from omnigraph.errors import MergeConflict, OmnigraphError, Violation

FAMILIES: Mapping[str, type[OmnigraphError]] = {
    "bad_request": errors.BadRequest,
    "unauthorized": errors.Unauthorized,
    "forbidden": errors.Forbidden,
    "not_found": errors.NotFound,
    "conflict": errors.ConflictError,
    "precondition_failed": errors.PreconditionFailed,
    "too_large": errors.TooLarge,
    "constraint_violation": errors.ConstraintViolation,
    "key_reused": errors.KeyReused,
    "too_many_requests": errors.TooManyRequests,
    "unavailable": errors.Unavailable,
    "outcome_unknown": errors.OutcomeUnknown,
}


def error_from(body: Mapping[str, Any], source: str = "") -> OmnigraphError:
    """The error of a body; `source` is the text of the request, if the error may quote a line of it."""
    message, code = str(body.get("error", "")), str(body.get("code", "internal"))
    given = body.get("details")
    details: dict[str, Any] = given if isinstance(given, dict) else {}
    kind = _kind(code, details)
    with suppress(KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration):
        error = kind.from_details(message, details, source)
        if (str(error), error.code, error.details) == (message, code, details):
            return error
    return _as_sent(kind if kind.code == code else FAMILIES.get(code, OmnigraphError), message, code, details)


def _kind(code: str, details: Mapping[str, Any]) -> type[OmnigraphError]:
    """By name, or by the members that only this class has among those of its code."""
    import omnigraph

    name = details.get("kind")
    named = getattr(omnigraph, name) if name in omnigraph.__all__ else None
    if _is_error(named):
        return named
    known = [kind for kind in vars(omnigraph).values() if _is_error(kind) and kind.code == code and kind.known_by]
    fitting = [kind for kind in known if details.keys() >= set(kind.known_by)]
    return max(fitting, key=lambda kind: len(kind.known_by), default=FAMILIES.get(code, OmnigraphError))


def _is_error(value: object) -> TypeGuard[type[OmnigraphError]]:
    return isinstance(value, type) and issubclass(value, OmnigraphError)


# Where the server says less than the error knew: the class with the server's message and details


class _AsSent:
    """Mixed into a class of errors: its message, code and details are those that the server sent."""

    sentence: str
    given: dict[str, Any]
    sent_code: str

    @property
    def details(self) -> dict[str, Any]:
        return self.given

    def __str__(self) -> str:
        return self.sentence

    def __reduce__(self) -> tuple[Any, ...]:
        return error_from, ({"error": self.sentence, "code": self.sent_code, "details": self.given},)


@cache
def _class_as_sent(kind: Any, code: str) -> type[OmnigraphError]:
    return type(kind.__name__, (_AsSent, kind), {"code": code, "__module__": kind.__module__, "__doc__": kind.__doc__})


def _as_sent(kind: type[OmnigraphError], sentence: str, code: str, details: dict[str, Any]) -> OmnigraphError:
    known: Any = kind  # mypy takes a class of exceptions for nothing to hash
    cls = _class_as_sent(known, code if code in errors.HTTP_STATUS else "internal")
    error: Any = cls.__new__(cls, sentence)
    error.args = (sentence,)
    error.sentence, error.given, error.sent_code = sentence, details, code
    for name, value in details.items():
        if name.isidentifier() and not hasattr(cls, name):
            setattr(error, name, value)
    if kind is errors.ConstraintViolation:
        error.message, error.violations, error.unlisted = sentence, (), (0, 0)
        error.property_name = details.get("property")
    if issubclass(kind, errors.MergeConflicts):
        with suppress(KeyError, TypeError):
            error.conflicts = tuple(MergeConflict(**conflict) for conflict in details["merge_conflicts"])
    assert isinstance(error, OmnigraphError)
    return error


def with_places(error: OmnigraphError, rename: Callable[[str], str]) -> OmnigraphError:
    """The same error with other names for the places in what was sent: the caller knows files, the server lines."""
    if isinstance(error, _AsSent):
        return error
    if isinstance(error, errors.InvalidInput):
        problems = tuple((rename(place), problem) for place, problem in error.problems)
        return errors.InvalidInput(problems, error.total, error.allowed)
    if isinstance(error, errors.ConstraintViolation) and error.violations:
        found = tuple(
            _with_violation_places(violation, [rename(place) for place in violation.places])
            for violation in error.violations
        )
        message, first = error.message, error.violations[0]
        if first.places:
            message = message.replace(first.places[0], found[0].places[0], 1)
        ids, name = error.entity_ids, error.property_name
        return errors.ConstraintViolation(error.constraint, error.type_name, ids, message, name, found, error.unlisted)
    return error


def _with_violation_places(violation: Violation, places: Sequence[str]) -> Violation:
    from dataclasses import replace

    return replace(violation, places=tuple(places))
