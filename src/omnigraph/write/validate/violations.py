"""What a write breaks, put together: one error that names the first, and counts the rest."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from omnigraph.errors import IDS_SHOWN_MAX, VIOLATIONS_KEPT_MAX, ConstraintViolation, Violation
from omnigraph.manifest.model.manifest import TableKey

SENTENCES_MAX = 1  # a message is one sentence; the others are in the details


def combine_violations(
    violations: Iterable[Violation], unlisted: tuple[int, int] = (0, 0)
) -> ConstraintViolation | None:
    """One error for all of them; None where there are none. `unlisted` are violations and rows only counted."""
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
    """The error as it is reported: so many violations and ids, and of the others their number."""
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
    """Raise if there is any."""
    error = combine_violations(violations)
    if error is not None:
        raise error


def violations_of(error: ConstraintViolation) -> tuple[Violation, ...]:
    """What an error tells of; one that was raised without them is one by itself."""
    if error.violations:
        return error.violations
    return (Violation(error.constraint, error.type_name, error.property_name, error.entity_ids, error.message, ""),)


def add_places(error: ConstraintViolation, places: Callable[[str, str], str | None]) -> ConstraintViolation:
    """The error with the places of its rows: `places(table_key, id)` says where one stands in what was loaded."""
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
    """One for each constraint and problem, in the order they were found, with all rows that break it."""
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
    """Rows that were to be new are there already; nothing where none is."""
    taken = tuple(sorted(ids))
    what, remedy = "already exists", "use an upsert or another id"
    return [Violation(constraint, table.partition(":")[2], None, taken, what, remedy, table)] if taken else []
