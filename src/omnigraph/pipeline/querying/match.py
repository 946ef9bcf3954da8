"""A pattern as joins: start where fewest rows are expected, follow the traversal that makes fewest, filter at once.

The order is that of the in-process engine, from the same estimates. A row has a column with the id of each variable,
named or not, and next to it the properties that the query uses. Columns have numbers for names, because a schema's
names may differ in case only.

`Traverse` defines what a traversal reports. In terms of distance: from `s`, a vertex `t` at distance `d` is reported if
`min <= d <= max` and it is not `s`; a self-loop of `t` is taken one hop later, so it reports `t` at `d = min - 1` too.
This holds from either end, so the search starts at the end that is bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from omnigraph.pipeline.querying.expressions import filter_expression
from omnigraph.pipeline.querying.scan import ColumnSpec, FilterResult, Frames, HeldFrames, StoredColumn
from omnigraph.query import ir
from omnigraph.query.ir import (
    EntityId,
    Filter,
    Not,
    Pattern,
    Prop,
    TextSearch,
    Traverse,
    columns_in,
    variables_of,
)
from omnigraph.read.explain import QueryPlan, describe_filters, describe_traversal
from omnigraph.read.match.estimate import estimate_degree, estimate_rows, key_as_id, selectivity
from omnigraph.read.match.filters import column_name, evaluate_filter
from omnigraph.read.search import ranking, search

_FROM, _VIA, _TO = "s", "u", "w"


@dataclass(frozen=True, slots=True)
class VariableColumns:
    """A variable of a row: the columns of its id, and of what is wanted of it."""

    table_key: str
    id: str
    columns: Mapping[ColumnSpec, str]

    @property
    def all(self) -> list[str]:
        return [self.id, *self.columns.values()]


@dataclass
class QueryContext:
    """What all patterns of one query share."""

    frames: Frames
    plan: QueryPlan
    held: HeldFrames = field(default_factory=HeldFrames)
    variables: int = 0

    def bound(self, table_key: str, wanted: Sequence[ColumnSpec]) -> VariableColumns:
        """Columns for a new variable."""
        number, self.variables = self.variables, self.variables + 1
        columns = {one: f"v{number}c{place}" for place, one in enumerate(wanted)}
        return VariableColumns(table_key, f"v{number}", columns)


Uses = dict[str, dict[ColumnSpec, None]]  # what is wanted of each variable, in a stable order


def columns_used(pattern: Pattern) -> Uses:
    """What the filters of a pattern, and those inside its negations, want of the variables they have in common.

    A filter over one variable of the pattern itself is decided where that is read, and wants nothing.
    """
    own = set(pattern.variables)
    found: Uses = {}
    for condition in pattern.filters:
        variables = variables_of(condition)
        if len(variables) == 1:
            if variables[0] not in own:
                found.setdefault(variables[0], {})[FilterResult(condition)] = None
            continue
        for column in columns_in(condition):
            if isinstance(column, Prop):
                found.setdefault(column.var, {})[StoredColumn(column_name(column))] = None
    for negation in pattern.negations:
        inner = columns_used(negation.pattern)
        for var in negation.pattern.outer:
            found.setdefault(var, {}).update(inner.get(var, {}))
    return found


def match_pattern(
    context: QueryContext,
    pattern: Pattern,
    uses: Uses,
    outer: Mapping[str, VariableColumns] | None = None,
    seeds: DataFrame | None = None,
    exists: bool = False,
) -> tuple[DataFrame, dict[str, VariableColumns]]:
    """The rows of a pattern and its variables. With `exists`, equal rows may come more than once."""
    match = _PatternJoins(context, pattern, uses, dict(outer or {}), exists)
    return match.run(seeds), match.bound


class _PatternJoins:
    def __init__(
        self, context: QueryContext, pattern: Pattern, uses: Uses, outer: dict[str, VariableColumns], exists: bool
    ) -> None:
        self.context = context
        self.frames = context.frames
        self.reader = context.frames.reader
        self.exists = exists
        self.uses = uses
        self.bound = outer
        self.tables = {var: bound.table_key for var, bound in outer.items()}
        self.tables |= {node.var: node.table_key for node in pattern.nodes}
        self.tables |= {step.edge_var: step.edge for step in pattern.traversals if step.edge_var is not None}
        self.unbound = [node.var for node in pattern.nodes]
        self.steps = list(pattern.traversals)
        self.filters: dict[str, list[Filter]] = {}  # over one variable
        self.waiting: list[Filter | Not] = list(pattern.negations)  # for variables
        self.possible = True
        self.expected = 1.0
        for condition in pattern.filters:
            self._assign_filter(condition, set(outer))
        for var, filters in self.filters.items():
            self.filters[var] = key_as_id(var, self.reader.state(self.tables[var]).definition, filters)

    def _assign_filter(self, condition: Filter, outer: set[str]) -> None:
        variables = variables_of(condition)
        if not variables:
            self.possible &= bool(evaluate_filter(condition, ranking.no_column, 1)[0])
        elif len(variables) == 1 and variables[0] not in outer:
            self.filters.setdefault(variables[0], []).append(condition)
        else:
            self.waiting.append(condition)

    def run(self, rows: DataFrame | None) -> DataFrame:
        if rows is None and not self.unbound:
            rows = self.frames.spark.range(1).select(sf.lit(1).alias("one"))
        if rows is not None:
            rows = self._follow_traversals(self._apply_waiting(rows))
        while self.unbound or rows is None:
            var = min(
                self.unbound, key=lambda one: estimate_rows(self.reader, self.tables[one], self.filters.get(one, []))
            )
            self.unbound.remove(var)
            self.expected *= estimate_rows(self.reader, self.tables[var], self.filters.get(var, []))
            part = self._frame(var, "Scan")
            rows = part if rows is None else rows.crossJoin(part)
            rows = self._follow_traversals(self._apply_waiting(rows))
        return rows if self.possible else rows.limit(0)

    # One variable

    def _frame(self, var: str, verb: str | None = None) -> DataFrame:
        """The rows of a node variable's table that pass its filters."""
        bound = self.bound[var] = self.context.bound(self.tables[var], list(self.uses.get(var, {})))
        filters = self.filters.get(var, [])
        if verb is not None:
            expected = estimate_rows(self.reader, bound.table_key, filters)
            self.context.plan.add(f"{verb} {bound.table_key} {var}{describe_filters(filters)}", expected)
        return self._searched(var, self._read(bound, filters))

    def _read(self, bound: VariableColumns, filters: Sequence[Filter]) -> DataFrame:
        plain = [condition for condition in filters if not isinstance(condition, TextSearch)]
        readable = [(one, name) for one, name in bound.columns.items() if not _is_search(one)]
        return self._with_searches(
            bound, self.frames.of(bound.table_key, [(StoredColumn("id"), bound.id), *readable], plain)
        )

    def _searched(self, var: str, frame: DataFrame) -> DataFrame:
        """Of these rows those that the text searches among the filters find; the driver asks the index."""
        for condition in self.filters.get(var, []):
            if isinstance(condition, TextSearch):
                frame = frame.join(self._found(condition, self.bound[var].id), on=self.bound[var].id, how="left_semi")
        return frame

    def _with_searches(self, bound: VariableColumns, frame: DataFrame) -> DataFrame:
        """With a column for each text search that is asked later."""
        for one, name in bound.columns.items():
            if isinstance(one, FilterResult) and isinstance(one.condition, TextSearch):
                found = self._found(one.condition, bound.id).withColumn(name, sf.lit(True))
                frame = frame.join(found, on=bound.id, how="left").fillna(False, subset=[name])
        return frame

    def _found(self, condition: TextSearch, name: str) -> DataFrame:
        state = self.reader.state(condition.field.table_key)
        return self.frames.ids(name, search.text_matches(self.reader, condition, state))

    # Traversals

    def _follow_traversals(self, rows: DataFrame) -> DataFrame:
        while True:
            ready = [step for step in self.steps if step.source in self.bound or step.target in self.bound]
            if not ready:
                return rows
            step = min(ready, key=self._cost)
            self.steps.remove(step)
            rows = self._apply_waiting(self._join_traversal(rows, step))

    def _cost(self, step: Traverse) -> float:
        if step.source in self.bound and step.target in self.bound:
            return -1.0
        backward = step.source not in self.bound
        far = step.source if backward else step.target
        cost = estimate_degree(self.reader, step, backward)
        for condition in self.filters.get(far, []):
            cost *= selectivity(condition, self.reader.state(self.tables[far]).rows)
        return cost

    def _join_traversal(self, rows: DataFrame, step: Traverse) -> DataFrame:
        backward = step.source not in self.bound
        near, far = (step.target, step.source) if backward else (step.source, step.target)
        closes = far in self.bound
        frame = None if closes else self._far(far)
        self._add_plan_step(step, near, far, closes)
        near_id, far_id = self.bound[near].id, self.bound[far].id
        if step.never:
            rows = rows.join(arcs(self.frames, step, near_id, far_id, backward).limit(0), on=near_id)
        elif step.edge_var is not None:
            rows = rows.join(self._edges(step, near_id, far_id, backward), on=_ends(near_id, far_id, closes))
        elif step.single_hop:
            rows = self._join_single_hop(rows, step, (near_id, far_id), backward, closes)
        else:
            rows = self.context.held.keep(rows)
            starts = rows.select(near_id).distinct()
            pairs = reachable_pairs(
                self.frames, self.context.held, step, starts, near_id, _other(near_id, far_id), backward
            )
            rows = rows.join(_close_loops(pairs, near_id, far_id), on=_ends(near_id, far_id, closes))
        self.expected *= max(estimate_degree(self.reader, step, backward), 0.01) if not closes else 0.1
        return rows if frame is None else rows.join(frame, on=far_id)

    def _far(self, far: str) -> DataFrame | None:
        """What a variable that a traversal binds is joined with; None where an edge's word is enough."""
        self.unbound.remove(far)
        if not self.filters.get(far) and not self.uses.get(far):
            self.bound[far] = self.context.bound(self.tables[far], [])
            return None
        return self._frame(far)

    def _join_single_hop(
        self, rows: DataFrame, step: Traverse, ends: tuple[str, str], backward: bool, closes: bool
    ) -> DataFrame:
        """Each pair once: before the join, or after it where few rows are expected."""
        near, far = ends
        pairs = _close_loops(arcs(self.frames, step, near, _other(near, far), backward), near, far)
        edges = self.reader.state(step.edge)
        once = not step.undirected and ("src", "dst") in edges.definition.rules.unique
        if once or self.exists:
            return rows.join(pairs, on=_ends(near, far, closes))
        if closes or self.expected * estimate_degree(self.reader, step, backward) > edges.rows:
            return rows.join(pairs.distinct(), on=_ends(near, far, closes))
        held = set(rows.columns)
        ids = [bound.id for bound in self.bound.values() if bound.id in held]
        return rows.join(pairs, on=near).dropDuplicates([*ids, far])

    def _edges(self, step: Traverse, near: str, far: str, backward: bool) -> DataFrame:
        """One row an edge, with its own id and properties; undirected, an edge fits both ways, a self-loop once."""
        assert step.edge_var is not None
        var = step.edge_var
        bound = self.bound[var] = self.context.bound(step.edge, list(self.uses.get(var, {})))
        other = _other(near, far)
        ends = [(StoredColumn("dst" if backward else "src"), near), (StoredColumn("src" if backward else "dst"), other)]
        plain = [condition for condition in self.filters.get(var, []) if not isinstance(condition, TextSearch)]
        readable = [(one, name) for one, name in bound.columns.items() if not _is_search(one)]
        edges = self.frames.of(step.edge, [(StoredColumn("id"), bound.id), *ends, *readable], plain)
        edges = self._searched(var, self._with_searches(bound, edges))
        if step.undirected:
            turned = {near: sf.col(other), other: sf.col(near)}
            names = edges.columns
            back = edges.where(sf.col(near) != sf.col(other))
            edges = edges.unionAll(back.select(*(turned.get(name, sf.col(name)).alias(name) for name in names)))
        return _close_loops(edges, near, far)

    def _add_plan_step(self, step: Traverse, near: str, far: str, closes: bool) -> None:
        verb = "Close" if closes else "Join"
        text = describe_traversal(step, verb, near, far, on_adjacency=False).removesuffix(" by lookup")
        self.context.plan.add(text + describe_filters(self.filters.get(far, [])))

    # What waits for variables

    def _apply_waiting(self, rows: DataFrame) -> DataFrame:
        for clause in list(self.waiting):
            needed = clause.pattern.outer if isinstance(clause, Not) else variables_of(clause)
            if any(var not in self.bound for var in needed):
                continue
            self.waiting.remove(clause)
            rows = self._without(rows, clause) if isinstance(clause, Not) else rows.where(self._condition(clause))
        return rows

    def _condition(self, condition: Filter) -> Column:
        variables = variables_of(condition)
        if len(variables) == 1:
            return sf.col(self.bound[variables[0]].columns[FilterResult(condition)])
        return filter_expression(condition, self._column)

    def _column(self, leaf: ir.Column) -> Column:
        assert isinstance(leaf, Prop | EntityId)
        bound = self.bound[leaf.var]
        return sf.col(bound.id if isinstance(leaf, EntityId) else bound.columns[StoredColumn(column_name(leaf))])

    def _without(self, rows: DataFrame, negation: Not) -> DataFrame:
        """The rows for which the inner pattern has no match: it is matched once for each distinct outer row."""
        inner = negation.pattern
        rows = self.context.held.keep(rows)
        outer = {var: self.bound[var] for var in inner.outer}
        ids = [bound.id for bound in outer.values()]
        self.context.plan.add(f"Not, for {', '.join(inner.outer) or 'all rows'}")
        if not ids:
            found, _ = match_pattern(self.context, inner, columns_used(inner), exists=True)
            return rows.join(found.select(sf.lit(1).alias("any")).limit(1), on=sf.lit(True), how="left_anti")
        names = list(dict.fromkeys(name for bound in outer.values() for name in bound.all))
        seeds = rows.select(*names).dropDuplicates(ids)
        found, _ = match_pattern(self.context, inner, columns_used(inner), outer, seeds, exists=True)
        return rows.join(found.select(*ids).distinct(), on=ids, how="left_anti")


def _is_search(wanted: ColumnSpec) -> bool:
    return isinstance(wanted, FilterResult) and isinstance(wanted.condition, TextSearch)


def _other(near: str, far: str) -> str:
    """Another name for the far end, where the two are one variable."""
    return far if far != near else f"{far}_far"


def _close_loops(pairs: DataFrame, near: str, far: str) -> DataFrame:
    """Where both ends are one variable, only what leads back to itself fits."""
    if near != far:
        return pairs
    other = _other(near, far)
    return pairs.where(sf.col(near) == sf.col(other)).drop(other)


def _ends(near: str, far: str, closes: bool) -> list[str]:
    return [near, far] if closes and near != far else [near]


def arcs(frames: Frames, step: Traverse, near: str, far: str, backward: bool) -> DataFrame:
    """The edges as (near, far), parallel ones too; undirected ones both ways."""
    columns = [(StoredColumn("dst" if backward else "src"), near), (StoredColumn("src" if backward else "dst"), far)]
    one_way = frames.of(step.edge, columns)
    if not step.undirected:
        return one_way
    return one_way.unionAll(one_way.select(sf.col(far).alias(near), sf.col(near).alias(far)))


def reachable_pairs(
    frames: Frames, held: HeldFrames, step: Traverse, starts: DataFrame, near: str, far: str, backward: bool
) -> DataFrame:
    """The pairs (near, far) that the traversal reports, each once; `starts` has the near ends, each once.

    One round a hop: the vertices first reached in it are those next to the last round's that no round has had. Each
    round's result is kept, or a round would repeat all before it.
    """
    hops = held.keep(arcs(frames, step, _VIA, _TO, backward))
    loops = hops.where(sf.col(_VIA) == sf.col(_TO)).select(sf.col(_TO)).distinct()
    frontier = starts.select(sf.col(near).alias(_FROM), sf.col(near).alias(_TO))
    rounds: list[DataFrame] = [frontier]
    found: list[DataFrame] = []
    while True:
        distance = len(rounds) - 1
        if distance == step.min_hops - 1:
            looping = loops if not backward else loops.withColumnRenamed(_TO, _FROM)
            found.append(frontier.join(looping, on=_FROM if backward else _TO, how="left_semi").select(_FROM, _TO))
        if distance >= step.min_hops:
            found.append(frontier.select(_FROM, _TO))
        is_last = distance + 1 == step.max_hops
        if distance == step.max_hops or (distance > 0 and not is_last and frontier.isEmpty()):
            break
        onward = frontier.withColumnRenamed(_TO, _VIA).join(hops, on=_VIA).select(_FROM, _TO).distinct()
        frontier = onward.join(_union(rounds), on=[_FROM, _TO], how="left_anti")
        rounds.append(frontier if is_last else held.checkpoint(frontier))
        frontier = rounds[-1]
    pairs = _union(found or [frontier])  # none: it is empty by now
    return pairs.select(sf.col(_FROM).alias(near), sf.col(_TO).alias(far))


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionAll(other), frames)
