"""Patterns: node variables, traversals, filters and negations."""

from collections.abc import Iterator
from dataclasses import dataclass

from omnigraph.query.ir.expressions import Filter, is_hidden, variables_of


@dataclass(frozen=True, slots=True)
class NodeVar:
    """A node variable of a pattern and the one table it ranges over."""

    var: str
    table_key: str

    @property
    def hidden(self) -> bool:
        return is_hidden(self.var)


@dataclass(frozen=True, slots=True)
class Traverse:
    """Edges of one type from `source` to `target`; the two may be one variable (then only self-loops fit, see below).

    - `edge_var` set: one row for each edge, `min_hops == max_hops == 1`. Undirected, an edge fits in both directions, a
      self-loop once.
    - Not set, one hop: each ordered pair (source, target) that some edge connects, once, however many edges do.
    - Hop bounds: breadth first from `source`. A node is expanded once, at its first visit; the source counts as
      visited, so no cycle reports it. At hop h the neighbours of what was first visited at hop h-1 are looked at: an
      unvisited one is reported if `min_hops <= h <= max_hops`; a self-loop of an expanded node reports that node at
      hop h, if it was not reported yet. `max_hops` None is unbounded. Each (source, target) once.
    - An edge whose ends differ in type has only hop 1: the checker caps `max_hops` at 1, and `min_hops > max_hops`
      means that nothing matches.
    - Nodes on the way need not be bound to anything; filters on `source` and `target` do not apply to them.
    """

    edge: str  # table key
    source: str
    target: str
    source_key: str  # table keys of the ends
    target_key: str
    min_hops: int = 1
    max_hops: int | None = 1
    undirected: bool = False
    edge_var: str | None = None

    @property
    def single_hop(self) -> bool:
        return self.min_hops == 1 and self.max_hops == 1

    @property
    def never(self) -> bool:
        return self.max_hops is not None and self.min_hops > self.max_hops


@dataclass(frozen=True, slots=True)
class Pattern:
    """A conjunction. `nodes` are the pattern's own variables, each once; edge variables are in `traversals`.

    `outer` names the variables of enclosing patterns that this one, or a `Not` inside it, uses: empty at the top. A
    property match is a filter like any other. A filter may have no variable at all (two constants).
    """

    nodes: tuple[NodeVar, ...]
    traversals: tuple[Traverse, ...] = ()
    filters: tuple[Filter, ...] = ()
    negations: tuple["Not", ...] = ()
    outer: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.nodes or self.traversals or self.filters or self.negations)

    @property
    def variables(self) -> tuple[str, ...]:
        """The pattern's own variables: nodes, then edges."""
        edges = tuple(step.edge_var for step in self.traversals if step.edge_var is not None)
        return tuple(node.var for node in self.nodes) + edges


@dataclass(frozen=True, slots=True)
class Not:
    """Holds for a row if `pattern`, with the row's values for `pattern.outer`, has no match."""

    pattern: Pattern


def free_variables(
    nodes: tuple[NodeVar, ...],
    traversals: tuple[Traverse, ...],
    filters: tuple[Filter, ...],
    negations: tuple["Not", ...],
) -> tuple[str, ...]:
    """The outer variables (`Pattern.outer`) of a pattern with these parts, in order of occurrence."""
    own = {node.var for node in nodes} | {step.edge_var for step in traversals}
    used: list[str] = []
    for step in traversals:
        used += (step.source, step.target)
    for condition in filters:
        used += variables_of(condition)
    for negation in negations:
        used += negation.pattern.outer
    return tuple(dict.fromkeys(var for var in used if var not in own))


def patterns_of(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern and every pattern inside its negations, outside first."""
    yield pattern
    for negation in pattern.negations:
        yield from patterns_of(negation.pattern)
