"""The plan of a query as it ran: a tree of steps, each with the estimated and the actual number of rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from omnigraph.query.ir import (
    Apply,
    Case,
    Compare,
    EdgeEnd,
    EntityId,
    Expr,
    Filter,
    ListContains,
    Literal,
    Prop,
    TextContains,
    TextSearch,
    TextStartsWith,
    Traverse,
    parts_of,
)

_LITERAL_CHARS_MAX = 40


@dataclass(slots=True)
class ExecutedStep:
    """One step. `estimated` is None where there was no estimate, `rows` None until the step ran."""

    text: str
    estimated: float | None = None
    rows: int | None = None
    nested: "list[ExecutedStep]" = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        own: dict[str, object] = {"step": self.text, "estimated_rows": self.estimated, "rows": self.rows}
        return own | ({"inside": [step.to_json() for step in self.nested]} if self.nested else {})


@dataclass(slots=True)
class QueryPlan:
    """The steps in the order they ran."""

    steps: list[ExecutedStep] = field(default_factory=list)
    with_details: bool = True  # without, the texts of steps may be left out

    def add(self, what: str, estimated: float | None = None) -> ExecutedStep:
        step = ExecutedStep(what, estimated)
        self.steps.append(step)
        return step

    def to_json(self) -> list[dict[str, object]]:
        return [step.to_json() for step in self.steps]

    def __str__(self) -> str:
        """The last step first, its input below it."""
        return "\n".join(_lines(self.steps, 0))


def _lines(steps: list[ExecutedStep], indent: int) -> Iterator[str]:
    for depth, step in enumerate(reversed(steps)):
        expected = "" if step.estimated is None else f"estimated {_format_estimate(step.estimated)}, "
        actual = "not run" if step.rows is None else f"rows {step.rows}"
        yield f"{'  ' * (indent + depth)}{step.text}  ({expected}{actual})"
        if step.nested:
            yield from _lines(step.nested, indent + depth + 2)


def _format_estimate(estimate: float) -> str:
    return f"{estimate:.0f}" if estimate >= 10 else f"{estimate:.2g}"


def describe_traversal(step: Traverse, verb: str, near: str, far: str, on_adjacency: bool) -> str:
    """`Expand edge:Knows p -> f`, with its hop bounds and how it is executed."""
    arrow = "<->" if step.undirected else "->" if near == step.source else "<-"
    hops = "" if step.single_hop else f"{{{step.min_hops},{'' if step.max_hops is None else step.max_hops}}}"
    return f"{verb} {step.edge}{hops} {near} {arrow} {far} by {'adjacency' if on_adjacency else 'lookup'}"


def describe_filters(filters: Sequence[Filter]) -> str:
    return f" where {' and '.join(_describe_filter(condition) for condition in filters)}" if filters else ""


def _describe_filter(condition: Filter) -> str:
    if isinstance(condition, TextSearch):
        return f"{condition.kind}({', '.join(describe_expression(part) for part in parts_of(condition))})"
    return describe_expression(condition)


def describe_expression(expr: Expr) -> str:
    """An expression as text, with short literals."""
    match expr:
        case Literal(value):
            text = f'"{value}"' if isinstance(value, str) else str(value)
            return text if len(text) <= _LITERAL_CHARS_MAX else text[: _LITERAL_CHARS_MAX - 1] + "…"
        case Prop(var, _, column):
            return f"{var}.{column.name}"
        case EntityId(var):
            return f"{var}.id"
        case EdgeEnd(var, _, end):
            return f"{var}.{end}"
        case Compare(op, left, right):
            return f"{describe_expression(left)} {op} {describe_expression(right)}"
        case ListContains(one, other) | TextContains(one, other):
            return f"{describe_expression(one)} contains {describe_expression(other)}"
        case TextStartsWith(text, prefix):
            return f"{describe_expression(text)} starts_with {describe_expression(prefix)}"
        case Apply("and" | "or" as op, args):
            return "(" + f" {op} ".join(describe_expression(arg) for arg in args) + ")"
        case Apply("not", (arg,)):
            return f"not ({describe_expression(arg)})"
        case Apply(fn, args):
            return f"{fn}({', '.join(describe_expression(arg) for arg in args)})"
        case Case(branches, otherwise):
            parts = [f"when {describe_expression(when)} then {describe_expression(then)}" for when, then in branches]
            return f"case {' '.join(parts)} else {describe_expression(otherwise)} end"
        case _:
            return str(expr)
