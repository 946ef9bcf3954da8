"""The plan of a query as it was run: a tree of steps, each with the rows that were expected and those that came."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from omnigraph.query.ir import (
    Compare,
    Contains,
    EdgeEnd,
    EntityId,
    Filter,
    Literal,
    Member,
    Operand,
    Prop,
    StartsWith,
    TextSearch,
    Traverse,
    operands,
)

_SHOWN_MAX = 40


@dataclass(slots=True)
class PlanStep:
    """One step. `estimated` is None where nothing was expected beforehand, `rows` None until it ran."""

    what: str
    estimated: float | None = None
    rows: int | None = None
    inside: "list[PlanStep]" = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        own: dict[str, object] = {"step": self.what, "estimated_rows": self.estimated, "rows": self.rows}
        return own | ({"inside": [step.to_json() for step in self.inside]} if self.inside else {})


@dataclass(slots=True)
class Plan:
    """The steps in the order they ran."""

    steps: list[PlanStep] = field(default_factory=list)
    is_told: bool = True  # where nobody will read it, steps may go without their texts

    def add(self, what: str, estimated: float | None = None) -> PlanStep:
        step = PlanStep(what, estimated)
        self.steps.append(step)
        return step

    def to_json(self) -> list[dict[str, object]]:
        return [step.to_json() for step in self.steps]

    def __str__(self) -> str:
        """The last step first, what it works on below it."""
        return "\n".join(_lines(self.steps, 0))


def _lines(steps: list[PlanStep], indent: int) -> Iterator[str]:
    for depth, step in enumerate(reversed(steps)):
        expected = "" if step.estimated is None else f"estimated {_rounded(step.estimated)}, "
        actual = "not run" if step.rows is None else f"rows {step.rows}"
        yield f"{'  ' * (indent + depth)}{step.what}  ({expected}{actual})"
        if step.inside:
            yield from _lines(step.inside, indent + depth + 2)


def _rounded(estimate: float) -> str:
    return f"{estimate:.0f}" if estimate >= 10 else f"{estimate:.2g}"


def step_text(step: Traverse, verb: str, near: str, far: str, on_adjacency: bool) -> str:
    """`Expand edge:Knows p -> f`, with its bounds and how it is done."""
    arrow = "<->" if step.undirected else "->" if near == step.source else "<-"
    hops = "" if step.single_hop else f"{{{step.min_hops},{'' if step.max_hops is None else step.max_hops}}}"
    return f"{verb} {step.edge}{hops} {near} {arrow} {far} by {'adjacency' if on_adjacency else 'lookup'}"


def filters_text(filters: Sequence[Filter]) -> str:
    return f" where {' and '.join(_filter_text(condition) for condition in filters)}" if filters else ""


def _filter_text(condition: Filter) -> str:
    sides = [_operand_text(side) for side in operands(condition)]
    match condition:
        case Compare(op):
            return f"{sides[0]} {op} {sides[1]}"
        case Member() | Contains():
            return f"{sides[0]} contains {sides[1]}"
        case StartsWith():
            return f"{sides[0]} starts_with {sides[1]}"
        case TextSearch(kind):
            return f"{kind}({', '.join(sides)})"


def _operand_text(side: Operand) -> str:
    match side:
        case Literal(value):
            text = f'"{value}"' if isinstance(value, str) else str(value)
            return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"
        case Prop(var, _, column):
            return f"{var}.{column.name}"
        case EntityId(var):
            return f"{var}.id"
        case EdgeEnd(var, _, end):
            return f"{var}.{end}"
        case _:
            return str(side)
