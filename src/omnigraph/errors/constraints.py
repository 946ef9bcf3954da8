"""Rows that the schema does not allow, each with what is wrong and what to do."""

from dataclasses import dataclass, replace
from typing import Any

from omnigraph.errors.base import IDS_NAMED_MAX, BadRequest, OmnigraphError

IDS_SHOWN_MAX = 20  # in details
VIOLATIONS_SHOWN_MAX = 20
IDS_KEPT_MAX = 100  # of a violation that is reported: a bulk load may break a constraint a million times
VIOLATIONS_KEPT_MAX = 1000


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
    more_ids: int = 0  # entities beyond those that are named here
    more_rows: int = 0  # offenders beyond those that are named here

    @property
    def offenders(self) -> tuple[str, ...]:
        return self.rows or self.entity_ids

    @property
    def sentence(self) -> str:
        """What is wrong and what to do, without an end: type, property, ids, remedy."""
        ids = [repr(entity) for entity in self.entity_ids[:IDS_NAMED_MAX]]
        more = len(self.entity_ids) + self.more_ids - len(ids)
        named = ", ".join(ids) + (f" and {more} more" if more > 0 else "")
        subject = " ".join(part for part in (self.type_name, named) if part)
        place = f"{self.places[0]}: " if self.places else ""
        return f"{place}{subject} {self.problem}: nothing was written, {self.remedy}"

    @property
    def count(self) -> int:
        """How many rows break it; one that has no id yet counts."""
        return max(1, len(self.offenders) + self.more_rows)

    def truncate(self) -> "Violation":
        """With as many ids, rows and places as a report keeps; the others are counted."""
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

    def __str__(self) -> str:
        return self.message


class InvalidInput(BadRequest):
    """Lines of a load that can't be read as what they should be: each with its place. Nothing was written.

    `allowed` is how many of them a quarantine would have taken, if it was that which ended the load.
    """

    def __init__(self, problems: tuple[tuple[str, str], ...], total: int, allowed: int | None = None) -> None:
        super().__init__(problems, total, allowed)
        self.problems, self.total, self.allowed = problems, total, allowed

    @property
    def details(self) -> dict[str, Any]:
        errors = [{"place": place, "error": problem} for place, problem in self.problems]
        return {"errors": errors, "total": self.total} | ({} if self.allowed is None else {"allowed": self.allowed})

    def __str__(self) -> str:
        place, problem = self.problems[0]
        more = f", {self.total - 1} more bad line{'s' if self.total > 2 else ''}" if self.total > 1 else ""
        limit = "" if self.allowed is None else f", max_errors allows {self.allowed}"
        return f"{place}: {problem} (nothing was written{more}{limit})."
