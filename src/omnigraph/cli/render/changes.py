"""Changes as text or JSON, written while they are found: what `changes` and `commit changes` share."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from omnigraph.api.documents import changes_text
from omnigraph.cli.options import Command, Settings
from omnigraph.cli.output import counted, printable, write_text

if TYPE_CHECKING:
    from omnigraph.api.interface import ChangesLike
    from omnigraph.diff.entity_changes import EntityChange

SIGNS = {"insert": "+", "update": "~", "delete": "-"}
VALUE_LENGTH_MAX = 60

_OPTIONS = (
    click.option(
        "--kind", "kinds", type=click.Choice(["node", "edge"]), multiple=True, callback=lambda _c, _p, v: v or None,
        help="Only these; may be repeated.",
    ),
    click.option(
        "--type", "types", metavar="TYPE", multiple=True, callback=lambda _c, _p, v: v or None,
        help="Only these types; may be repeated.",
    ),
    click.option(
        "--operation", "operations", type=click.Choice(["insert", "update", "delete"]), multiple=True,
        callback=lambda _c, _p, v: v or None, help="Only these; may be repeated.",
    ),
    click.option("--limit", type=click.IntRange(1, 10**9), metavar="N", help="At most so many; says how to go on."),
    click.option("--page", metavar="TOKEN", help="Go on where an answer with --limit ended."),
    click.option("--explain", is_flag=True, help="Also say how the changes were found, and what was read."),
)  # fmt: skip


def change_options(command: Command) -> Command:
    """Add the flags that choose among changes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def write_changes(settings: Settings, found: "ChangesLike", explain: bool) -> None:
    """All changes, piece by piece. What can go wrong at once goes wrong before anything is written."""
    if settings.json:
        for piece in changes_text(found, explain=explain):
            write_text(piece)
        return
    number = 0
    for change in found:
        write_text(change_line(change) + "\n")
        number += 1
    settings.output.note(f"{counted(number, 'change')} from {found.from_commit} to {found.to_commit}")
    if found.schema_changed:
        settings.output.note("The schema changed between the two: changes are told by the names of the later one.")
    if found.next_page is not None:
        settings.output.note(f"There are more: go on with --page {found.next_page}")
    if explain:
        for line in explain_lines(found):
            settings.output.note(line)


def explain_lines(found: "ChangesLike") -> Iterable[str]:
    told = found.explained
    commits = f" from {counted(told.commits, 'commit')}" if told.method == "composed" else ""
    yield f"{told.method}{commits}: {told.reason}"
    for read in told.reads:
        pairs = "; ".join(f"{older or 'nothing'} with {newer or 'nothing'}" for older, newer in read.comparisons)
        yield f"{read.type_name}: compared {pairs}; {counted(read.rows, 'differing row')}"
    yield f"{found.cost.requests} requests, {found.cost.bytes:,} bytes"


def change_line(change: "EntityChange") -> str:
    """`~ Person 'ada': age 36 → 37`."""
    document = change.to_json()
    before, after = document["before"] or {}, document["after"] or {}
    if change.operation == "update":
        details = [f"{name} {_value(before[name])} → {_value(after[name])}" for name in change.changed]
    else:
        details = [f"{name} {_value(value)}" for name, value in _told(after or before)]
    return printable(
        f"{SIGNS[change.operation]} {change.type_name} {change.id!r}: {', '.join(details)}".removesuffix(": ")
    )


def _told(image: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in image.items() if name != "id" and value is not None)


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_LENGTH_MAX else text[:VALUE_LENGTH_MAX] + "…"
