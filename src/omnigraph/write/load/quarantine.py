"""Rows that a load rejected, with the reasons, in a file whose lines can be corrected and loaded again."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omnigraph.errors import BadRequest, ConstraintViolation, InvalidInput, Violation
from omnigraph.write.load.input.chunks import MalformedRecord
from omnigraph.write.load.input.load_input import InputPlace
from omnigraph.write.validate.violations import combine_violations, truncate_violations

PROBLEMS_SHOWN_MAX = 20


class Quarantine:
    """Rejected places of the input with one or more reasons each."""

    def __init__(self) -> None:
        self._reasons: dict[InputPlace, list[str]] = {}
        self._malformed: list[tuple[InputPlace, str]] = []
        self._violations: list[Violation] = []

    def __len__(self) -> int:
        return len(self._reasons)

    def add_malformed(self, problems: Iterable[tuple[InputPlace, str]]) -> None:
        for place, problem in problems:
            self._malformed.append((place, problem))
            self._reasons.setdefault(place, []).append(problem)

    def add_violations(self, refusals: Iterable[tuple[InputPlace, Violation]]) -> None:
        # Grouped, because one violation may have as many places as there are rows.
        groups: dict[int, tuple[Violation, str, list[str]]] = {}
        for place, violation in refusals:
            _, text, places = groups.setdefault(id(violation), (violation, rejection_reason(violation), []))
            places.append(str(place))
            self._reasons.setdefault(place, []).append(text)
        self._violations += [replace(violation, places=tuple(places)) for violation, _, places in groups.values()]

    def error(self) -> InvalidInput | ConstraintViolation:
        """One error for all rejected rows: InvalidInput if lines are malformed, else ConstraintViolation."""
        if self._malformed:
            listed = [(str(place), problem) for place, reasons in self._in_order() for problem in reasons[:1]]
            return InvalidInput(tuple(listed[:PROBLEMS_SHOWN_MAX]), len(self._reasons))
        error = combine_violations(self._violations)
        assert error is not None, "nothing was rejected"
        return truncate_violations(error)

    def write(self, path: Path, raw: Iterable[tuple[InputPlace, Any]]) -> None:
        """Write one JSON object a line: the place, the reasons, and the original."""
        try:
            with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
                for place, original in raw:
                    if place in self._reasons:
                        entry = {"place": str(place), "reasons": self._reasons[place]} | original_to_json(original)
                        file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        except OSError as error:
            raise BadRequest(
                f"The rejected rows can't be written to {path} ({error.strerror}): nothing was loaded, "
                "name another file for them."
            ) from error

    def _in_order(self) -> Sequence[tuple[InputPlace, list[str]]]:
        return sorted(self._reasons.items(), key=lambda entry: (entry[0].source, entry[0].number))


def max_errors_exceeded(
    error: InvalidInput | ConstraintViolation, rejected: int, allowed: int
) -> InvalidInput | ConstraintViolation:
    """The error of a load that rejects more rows than `max_errors` allows."""
    if isinstance(error, InvalidInput):
        return InvalidInput(error.problems, error.total, allowed)
    message = f"{error.message.removesuffix('.')} ({rejected} rows are rejected, max_errors allows {allowed})."
    fields = (error.property_name, error.violations, error.unlisted)
    return ConstraintViolation(error.constraint, error.type_name, error.entity_ids, message, *fields)


def rejection_reason(violation: Violation) -> str:
    """Why one row was rejected, without "nothing was written", which a quarantine makes untrue."""
    return f"{violation.type_name} {violation.problem} ({violation.constraint}): {violation.remedy}"


def default_quarantine_path(paths: Sequence[Path], token: str) -> Path:
    """A file beside the first input file, or else in the working directory.

    Its suffix is not one of a load's input files, so that loading the same directory again does not load it.
    """
    if not paths:
        return Path(f"rejected-{token}.json")
    first = paths[0]
    stem = first.name.removesuffix(".gz").removesuffix(first.suffix if first.suffix != ".gz" else ".jsonl")
    folder = first.parent if os.access(first.parent, os.W_OK) else Path()
    return folder / f"{stem}.rejected-{token}.json"


def original_to_json(raw: Any) -> dict[str, Any]:
    """A line or an entity as the quarantine file has it."""
    if isinstance(raw, MalformedRecord):
        raw = raw.raw
    if isinstance(raw, bytes):
        return {"line": raw.decode("utf-8", "backslashreplace").rstrip("\r\n")}
    return {} if raw is None else {"entity": json.loads(json.dumps(raw, default=str))}
