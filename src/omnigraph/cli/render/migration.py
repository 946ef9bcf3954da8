"""The steps of a schema change as text: + adds, - drops, ~ changes, ! is not supported."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omnigraph.cli.output import Style, escape_control, pluralize

_SIGNS = {"add": "+", "drop": "-"}


def plan_lines(document: Mapping[str, Any], style: Style) -> Iterable[str]:
    """One line for each step, in aligned columns, then a summary."""
    steps: Sequence[Mapping[str, Any]] = document["steps"]
    if not steps:
        yield "Nothing to change: the schema is already in place."
        return
    rows = [(_sign(step), step["kind"], _subject(step), _change(step)) for step in steps]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for step, row in zip(steps, rows, strict=True):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line = escape_control(f"{cells}  {_message(step)}".rstrip())
        yield line if step["supported"] else style.error(line)
    signs = [_SIGNS.get(step["kind"].partition("_")[0], "~") for step in steps]
    summary = f"{signs.count('+')} to add, {signs.count('~')} to change, {signs.count('-')} to drop"
    unsupported = sum(not step["supported"] for step in steps)
    verdict = f"; {pluralize(unsupported, 'step')} can't be applied (marked !)" if unsupported else ""
    yield style.heading(f"{pluralize(len(steps), 'step')}: {summary}{verdict}.")


def _sign(step: Mapping[str, Any]) -> str:
    return _SIGNS.get(step["kind"].partition("_")[0], "~") if step["supported"] else "!"


def _subject(step: Mapping[str, Any]) -> str:
    name = step["property_name"]
    return str(step["type_name"]) if name is None else f"{step['type_name']}.{name}"


def _change(step: Mapping[str, Any]) -> str:
    before, after = step["before"], step["after"]
    if before is not None and after is not None:
        return f"{before} -> {after}"
    return str(before if after is None else after) if (before, after) != (None, None) else ""


def _message(step: Mapping[str, Any]) -> str:
    rows = f" ({pluralize(step['count'], 'row')})" if step["count"] is not None and step["supported"] else ""
    code = f" [{step['code']}]" if step["code"] else ""
    return f"{step['message']}{rows}{code}"
