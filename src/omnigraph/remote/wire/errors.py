"""From an error body back to the error: the class that the embedded graph would have raised, with its fields.

A body says its code, and its details say the rest: by their shape where `surface.md` documents one, otherwise by the
`kind` they name. What can be built again from its fields, and says the same sentence then, is that very error. A
server may say less than the error knew (it hides where its store is); then the class is the same, and the sentence and
the details are the server's.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from omnigraph import errors
from omnigraph.errors import MergeConflict, OmnigraphError, Violation

Details = Mapping[str, Any]
Build = Callable[[str, Details], Iterator[OmnigraphError]]

_AND_MORE = re.compile(r" and (\d+) more\Z")
ELSEWHERE = {  # kinds that live with what raises them
    "LanguageError": "omnigraph.lexer",
    "Stopped": "omnigraph.cancellation",
    "BadValue": "omnigraph.query.values",
    "ParameterError": "omnigraph.query.bind",
    "InvalidCatalog": "omnigraph.schema.consistency",
    "TooLargeForProcess": "omnigraph.write.load.input.load_input",
    "NoRoom": "omnigraph.read.graph.csr",
    "ProviderUnavailable": "omnigraph.read.search.embedding",
    "Overtaken": "omnigraph.gc.mark",
}
FAMILIES: Mapping[str, type[OmnigraphError]] = {
    "bad_request": errors.BadRequest,
    "unauthorized": errors.Unauthorized,
    "forbidden": errors.Forbidden,
    "not_found": errors.NotFound,
    "conflict": errors.ConflictError,
    "precondition_failed": errors.PreconditionFailed,
    "too_large": errors.TooLarge,
    "constraint_violation": errors.ConstraintViolation,
    "too_many_requests": errors.TooManyRequests,
    "unavailable": errors.Unavailable,
    "outcome_unknown": errors.OutcomeUnknown,
}


def error_from(body: Mapping[str, Any], text: str = "") -> OmnigraphError:
    """The error of a body; `text` is the source that was sent, if the error may quote a line of it."""
    sentence, code = str(body.get("error", "")), str(body.get("code", "internal"))
    given = body.get("details")
    details: dict[str, Any] = given if isinstance(given, dict) else {}
    kind = _kind(code, details)
    for candidate in _candidates(kind, sentence, details, text):
        if (str(candidate), candidate.code, candidate.details) == (sentence, code, details):
            return candidate
    return _as_told(kind if kind.code == code else FAMILIES.get(code, OmnigraphError), sentence, code, details)


def _candidates(kind: type[OmnigraphError], sentence: str, details: Details, text: str) -> "Iterator[OmnigraphError]":
    build = _BUILDERS.get(kind.__name__)
    with suppress(KeyError, TypeError, ValueError, IndexError, AttributeError):
        if kind.__name__ == "LanguageError":
            yield _language_error(sentence, details, text)
        elif build is not None:
            yield from build(sentence, details)
        elif kind.fields:
            yield kind(*(details[field] for field in kind.fields))
        else:
            yield kind(sentence)


def _kind(code: str, details: Details) -> type[OmnigraphError]:
    named = details.get("kind")
    if isinstance(named, str):
        found = _class_named(named)
        if found is not None:
            return found
    for key, codes, name in _SHAPES:
        if code == codes and key in details:
            return _class_named(name) or OmnigraphError
    return FAMILIES.get(code, OmnigraphError)


_SHAPES = (
    ("language_code", "bad_request", "LanguageError"),
    ("errors", "bad_request", "InvalidInput"),
    ("steps", "bad_request", "SchemaChangeRefused"),
    ("baseline", "not_found", "CursorExpired"),
    ("stopped", "unavailable", "Stopped"),
    ("stage", "internal", "JobFailed"),
    ("manifest_conflict", "conflict", "ExpectedVersionMismatch"),
    ("merge_conflicts", "conflict", "MergeConflicts"),
    ("schema_conflict", "conflict", "SchemasDiverged"),
    ("attempts", "conflict", "RetriesExhausted"),
    ("age_s", "conflict", "JobRunning"),
    ("job_id", "conflict", "JobLost"),
)


def _class_named(name: str) -> type[OmnigraphError] | None:
    if name.startswith("_"):
        return None
    found = getattr(import_module(ELSEWHERE[name]) if name in ELSEWHERE else errors, name, None)
    return found if isinstance(found, type) and issubclass(found, OmnigraphError) else None


# Kinds with a shape of their own


def _language_error(sentence: str, details: Details, text: str) -> OmnigraphError:
    from omnigraph.lexer import LanguageError
    from omnigraph.query.bind import ParameterError

    code, expected = details["language_code"], details["expected"]
    if "parameter" in details:
        problem = sentence.removeprefix(f"${details['parameter']}: ").removesuffix(f": {expected}. [{code}]")
        return ParameterError(code, details["parameter"], problem, expected)
    line, column = details["line"], details["column"]
    message = sentence.removeprefix(f"{details['source']}:{line}:{column}: ").removesuffix(f": {expected}. [{code}]")
    lines = text.split("\n")
    whole = lines[line - 1].rstrip("\r") if 0 < line <= len(lines) else ""
    shown = details["excerpt"].split("\n")[0].partition(" | ")[2]
    source_line = whole if shown and shown in whole else shown
    return LanguageError(code, message, expected, details["source"], line, column, source_line)


def _constraint_violation(sentence: str, details: Details) -> Iterator[OmnigraphError]:
    found = tuple(_violation(entry) for entry in details["violations"])
    unlisted = details["total"] - sum(entry.count for entry in found)
    more = (1, unlisted) if found and unlisted > 0 else (0, 0)
    ids = tuple(details["entity_ids"])
    yield errors.ConstraintViolation(
        details["constraint"], details["type_name"], ids, sentence, details["property"], found, more
    )


def _violation(entry: Details) -> Violation:
    ids = tuple(entry["entity_ids"])
    unnamed = _AND_MORE.search(entry["message"].partition(f" {entry['problem']}: ")[0])
    named = min(len(ids), errors.IDS_NAMED_MAX)
    return Violation(
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


def _conflicts(details: Details) -> tuple[MergeConflict, ...]:
    return tuple(
        MergeConflict(each["entity_kind"], each["type_name"], each["entity_id"], each["kind"], each["message"])
        for each in details["merge_conflicts"]
    )


def _schema_refused(_: str, details: Details) -> Iterator[OmnigraphError]:
    plan = {name: value for name, value in details.items() if name != "applied"}
    refused = [(_subject(step), step["message"], step["code"]) for step in plan["steps"] if not step["supported"]]
    for first in range(len(refused)):  # which of them the sentence speaks of, the sentence decides
        yield errors.SchemaChangeRefused(plan, tuple(refused[first:] + refused[:first]))


def _subject(step: Details) -> str:
    name = step["property_name"]
    return str(step["type_name"]) if name is None else f"{step['type_name']}.{name}"


def _stopped(sentence: str, details: Details) -> Iterator[OmnigraphError]:
    from omnigraph.cancellation import Stopped

    start = f"It was stopped because {details['stopped']}: nothing was written, "
    yield Stopped(details["stopped"], sentence.removeprefix(start).removesuffix("."))


def _fields(make: Callable[..., OmnigraphError], *names: str) -> Build:
    def build(_: str, details: Details) -> Iterator[OmnigraphError]:
        yield make(*(details[name] for name in names))

    return build


def _inside(make: Callable[..., OmnigraphError], key: str, *names: str) -> Build:
    def build(_: str, details: Details) -> Iterator[OmnigraphError]:
        yield make(*(_frozen(details[key][name]) for name in names))

    return build


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _merge(make: Callable[..., OmnigraphError]) -> Build:
    def build(_: str, details: Details) -> Iterator[OmnigraphError]:
        yield make(details["source"], details["target"], _conflicts(details))

    return build


def _invalid_input(_: str, details: Details) -> Iterator[OmnigraphError]:
    problems = tuple((entry["place"], entry["error"]) for entry in details["errors"])
    yield errors.InvalidInput(problems, details["total"], details.get("allowed"))


_BUILDERS: Mapping[str, Build] = {
    "ConstraintViolation": _constraint_violation,
    "InvalidInput": _invalid_input,
    "SchemaChangeRefused": _schema_refused,
    "Stopped": _stopped,
    "MergeConflicts": _merge(errors.MergeConflicts),
    "RevertConflicts": _merge(errors.RevertConflicts),
    "PreconditionFailed": _fields(errors.PreconditionFailed, "expected", "actual"),
    "ExpectedVersionMismatch": _inside(
        errors.ExpectedVersionMismatch, "manifest_conflict", "table_key", "expected", "actual"
    ),
    "SchemasDiverged": _inside(errors.SchemasDiverged, "schema_conflict", "ours", "theirs"),
    "RetriesExhausted": _fields(errors.RetriesExhausted, "branch", "attempts", "seconds"),
    "JobRunning": _fields(errors.JobRunning, "job_id", "host", "pid", "age_s"),
    "JobLost": _fields(errors.JobLost, "job_id"),
    "JobFailed": _fields(errors.JobFailed, "stage", "reason"),
    "CursorExpired": _fields(errors.CursorExpired, "branch", "commit", "baseline"),
    "OutcomeUnknown": _fields(errors.OutcomeUnknown, "txn_id", "branch", "number"),
    "AnswerLost": _fields(errors.AnswerLost, "txn_id", "branch", "reason"),
}


# What can't be built again: the class is right, the words are the server's


class _AsTold:
    """Before a class of errors: says what the server said."""

    sentence: str
    given: dict[str, Any]
    said_code: str

    @property
    def details(self) -> dict[str, Any]:
        return self.given

    def __str__(self) -> str:
        return self.sentence

    def __reduce__(self) -> tuple[Any, ...]:
        return error_from, ({"error": self.sentence, "code": self.said_code, "details": self.given},)


@cache
def _told_class(kind: Any, code: str) -> type[OmnigraphError]:
    return type(kind.__name__, (_AsTold, kind), {"code": code, "__module__": kind.__module__, "__doc__": kind.__doc__})


def _as_told(kind: type[OmnigraphError], sentence: str, code: str, details: dict[str, Any]) -> OmnigraphError:
    known: Any = kind  # mypy takes a class of exceptions for nothing to hash
    cls = _told_class(known, code if code in errors.HTTP_STATUS else "internal")
    error: Any = cls.__new__(cls, sentence)
    error.args = (sentence,)
    error.sentence, error.given, error.said_code = sentence, details, code
    for name, value in details.items():
        if name.isidentifier() and not hasattr(cls, name):
            setattr(error, name, value)
    if kind is errors.ConstraintViolation:
        error.message, error.violations, error.unlisted = sentence, (), (0, 0)
        error.property_name = details.get("property")
    if issubclass(kind, errors.MergeConflicts):
        with suppress(KeyError, TypeError):
            error.conflicts = _conflicts(details)
    assert isinstance(error, OmnigraphError)
    return error


def renamed(error: OmnigraphError, rename: Callable[[str], str]) -> OmnigraphError:
    """The same error with other names for the places in what was sent: the caller knows files, the server lines."""
    if isinstance(error, _AsTold):
        return error
    if isinstance(error, errors.InvalidInput):
        problems = tuple((rename(place), problem) for place, problem in error.problems)
        return errors.InvalidInput(problems, error.total, error.allowed)
    if isinstance(error, errors.ConstraintViolation) and error.violations:
        found = tuple(
            _placed(violation, [rename(place) for place in violation.places]) for violation in error.violations
        )
        message, first = error.message, error.violations[0]
        if first.places:
            message = message.replace(first.places[0], found[0].places[0], 1)
        ids, name = error.entity_ids, error.property_name
        return errors.ConstraintViolation(error.constraint, error.type_name, ids, message, name, found, error.unlisted)
    return error


def _placed(violation: Violation, places: Sequence[str]) -> Violation:
    from dataclasses import replace

    return replace(violation, places=tuple(places))
