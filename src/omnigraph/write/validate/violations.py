"""Violations combined into one error, which names the first and counts the others."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from omnigraph.errors import IDS_SHOWN_MAX, VIOLATIONS_KEPT_MAX, ConstraintViolation, Violation
from omnigraph.manifest.model.manifest import TableKey

SENTENCES_MAX = 1  # in a message; the others are in the details


def combine_violations(
    violations: Iterable[Violation], unlisted: tuple[int, int] = (0, 0)
) -> ConstraintViolation | None:
    """One error for all violations, None if there are none. `unlisted` are counts of violations and rows."""
    merged = _merge_violations(violations)
    if not merged:
        return None
    first = merged[0]
    others = len(merged) + unlisted[0] - SENTENCES_MAX
    counts = ", ".join(f"{one.constraint}: {one.count}" for one in merged[1:4])
    more = f" (and {others} more broken: {counts}{', …' if others > 3 else ''})" if others > 0 else ""
    return ConstraintViolation(
        first.constraint,
        first.type_name,
        first.entity_ids[:IDS_SHOWN_MAX],
        f"{first.sentence}{more}.",
        first.property_name,
        merged,
        unlisted,
    )


def truncate_violations(error: ConstraintViolation) -> ConstraintViolation:
    """The error with a limited number of violations and ids, and counts of the others."""
    every = violations_of(error)
    listed, more = every[:VIOLATIONS_KEPT_MAX], every[VIOLATIONS_KEPT_MAX:]
    unlisted = (error.unlisted[0] + len(more), error.unlisted[1] + sum(violation.count for violation in more))
    return ConstraintViolation(
        error.constraint,
        error.type_name,
        error.entity_ids,
        error.message,
        error.property_name,
        tuple(violation.truncate() for violation in listed),
        unlisted,
    )


def raise_violations(violations: Iterable[Violation]) -> None:
    """Raise ConstraintViolation if there are any."""
    error = combine_violations(violations)
    if error is not None:
        raise error


def violations_of(error: ConstraintViolation) -> tuple[Violation, ...]:
    """The violations of an error; an error without any is itself one."""
    if error.violations:
        return error.violations
    return (Violation(error.constraint, error.type_name, error.property_name, error.entity_ids, error.message, ""),)


def add_places(error: ConstraintViolation, places: Callable[[str, str], str | None]) -> ConstraintViolation:
    """The error with the places of its rows in the input of a load, which `places(table_key, id)` finds."""
    every = violations_of(error)
    if all(violation.places for violation in every):
        return truncate_violations(error)
    found = []
    for violation in every:
        if violation.places:
            found.append(violation)
            continue
        where = [place for row in violation.offenders if (place := places(violation.table_key, row)) is not None]
        found.append(replace(violation, places=tuple(where)))
    return truncate_violations(combine_violations(found) or error)


def _merge_violations(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """One violation for each constraint and problem, in the order found, with all its rows."""
    groups: dict[tuple[str, str, str], list[Violation]] = {}
    for violation in violations:
        groups.setdefault((violation.constraint, violation.problem, violation.table_key), []).append(violation)
    return tuple(_merge_group(group) for group in groups.values())


def _merge_group(group: Sequence[Violation]) -> Violation:
    if len(group) == 1:
        return group[0]
    ids = dict.fromkeys(entity for one in group for entity in one.entity_ids)
    rows = dict.fromkeys(row for one in group for row in one.offenders)
    places = tuple(place for one in group for place in one.places)
    more_ids = sum(one.more_ids for one in group)
    more_rows = sum(one.count for one in group) - len(rows)  # lines may share an id, or have none
    return replace(
        group[0], entity_ids=tuple(ids), rows=tuple(rows), places=places, more_ids=more_ids, more_rows=more_rows
    )


def already_exists(table: TableKey, ids: Iterable[str], constraint: str = "key") -> list[Violation]:
    """The violation of inserting ids that are taken; empty if there are none."""
    taken = tuple(sorted(ids))
    what, remedy = "already exists", "use an upsert or another id"
    return [Violation(constraint, table.partition(":")[2], None, taken, what, remedy, table)] if taken else []
