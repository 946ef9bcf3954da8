"""Match a pattern: start where the fewest rows are expected, follow the cheapest traversal, filter early.

The order is decided step by step, from the actual rows so far and the manifest's counts. Variables that are not needed
are only counted, and inside `not` not even that.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from omnigraph.cancellation import checkpoint
from omnigraph.query.ir import Filter, NodeVar, Not, Pattern, TextSearch, Traverse, variables_of
from omnigraph.read.explain import ExecutedStep, QueryPlan, describe_filters, describe_traversal
from omnigraph.read.graph.csr import MANY_ROWS, Expanded
from omnigraph.read.match.bindings import ONE_ROW, Bindings, distinct_rows, filter_mask, join
from omnigraph.read.match.estimate import estimate_degree, estimate_rows, key_as_id, selectivity
from omnigraph.read.match.expand import expand, step_csr
from omnigraph.read.match.filters import evaluate_filter
from omnigraph.read.search import ranking
from omnigraph.read.tables.arrow_numpy import BoolArray, NumArray
from omnigraph.read.tables.large_arrays import chunks, count_each, count_up, fill, full, take, true_positions
from omnigraph.read.tables.table_access import TableAccess

_SEED = "#seed"  # the position of an outer row, carried through the match of a negation


def match_pattern(
    access: TableAccess,
    pattern: Pattern,
    keep: Collection[str],
    plan: QueryPlan,
    outer: Mapping[str, str] | None = None,
    seeds: Bindings = ONE_ROW,
    exists: bool = False,
) -> Bindings:
    """All rows of a pattern, with the columns in `keep`.

    `outer` has the table keys of the outer variables and `seeds` their rows. With `exists`, of the rows that agree in
    `keep` one is enough.
    """
    return _PatternMatch(access, pattern, frozenset(keep), plan, dict(outer or {}), exists).run(seeds)


class _PatternMatch:
    def __init__(
        self,
        access: TableAccess,
        pattern: Pattern,
        keep: frozenset[str],
        plan: QueryPlan,
        outer: dict[str, str],
        exists: bool,
    ) -> None:
        self.access = access
        self.reader = access.reader
        self.keep = keep
        self.plan = plan
        self.exists = exists
        self.tables = outer | {node.var: node.table_key for node in pattern.nodes}
        self.tables |= {step.edge_var: step.edge for step in pattern.traversals if step.edge_var is not None}
        self.unbound = [node.var for node in pattern.nodes]
        self.steps = list(pattern.traversals)
        self.filters: dict[str, list[Filter]] = {}  # over one variable, by variable
        self.others: list[Filter] = []  # over several
        self.negations = list(pattern.negations)
        self.possible = True
        for condition in pattern.filters:
            self._classify(condition)
        for var in self.unbound:
            if var in self.filters:
                self.filters[var] = key_as_id(var, self.reader.state(self.tables[var]).definition, self.filters[var])

    def run(self, rows: Bindings) -> Bindings:
        if not self.possible:
            return Bindings(0, {var: np.zeros(0, np.int64) for var in self.tables if var in self.keep})
        for var in rows.columns:
            if var in self.filters:
                rows = rows.filter(self._filter_mask(var, rows.columns[var]))
        rows = self._follow_traversals(self._apply_filters(rows))
        while self.unbound:
            checkpoint()
            part = self._follow_traversals(self._apply_filters(self._scan_smallest()))
            rows = self._apply_filters(self._join(rows, part))
        return rows.keep(self.keep)

    def _classify(self, condition: Filter) -> None:
        variables = variables_of(condition)
        if not variables:
            self.possible &= bool(evaluate_filter(condition, ranking.no_column, 1)[0])
        elif len(variables) == 1:
            self.filters.setdefault(variables[0], []).append(condition)
        else:
            self.others.append(condition)

    def _where(self, filters: list[Filter]) -> str:
        return describe_filters(filters) if self.plan.with_details else ""

    # Starting

    def _scan_smallest(self) -> Bindings:
        """Scan the variable with the fewest expected rows."""
        expected = {
            var: estimate_rows(self.reader, self.tables[var], self.filters.get(var, [])) for var in self.unbound
        }
        var = min(expected, key=lambda candidate: expected[candidate])
        filters = self.filters.get(var, [])
        step = self.plan.add(f"Scan {self.tables[var]} {var}{self._where(filters)}", expected[var])
        self.unbound.remove(var)
        row_numbers = self._select(var)
        step.rows = len(row_numbers)
        return Bindings(len(row_numbers), {var: row_numbers})

    def _select(self, var: str) -> NumArray:
        table = self.access.table(self.tables[var])
        filters = self.filters.get(var, [])
        texts = [condition for condition in filters if isinstance(condition, TextSearch)]
        plain = [condition for condition in filters if not isinstance(condition, TextSearch)]
        if texts:
            row_numbers = ranking.text_numbers(self.reader, table, texts[0])
            return np.sort(row_numbers[self._filter_mask(var, row_numbers)])
        return table.select(plain) if plain else table.all_rows()

    def _filter_mask(self, var: str, row_numbers: NumArray) -> BoolArray:
        table = self.access.table(self.tables[var])
        filters = self.filters.get(var, [])
        plain = [condition for condition in filters if not isinstance(condition, TextSearch)]
        mask = table.filter_mask(plain, row_numbers) if plain else full(len(row_numbers), True, np.bool_)
        for condition in filters:
            if isinstance(condition, TextSearch):
                found = ranking.text_numbers(self.reader, table, condition)
                mask &= fill(len(row_numbers), np.bool_, partial(_is_in, row_numbers, found))
        return mask

    # Following traversals

    def _follow_traversals(self, rows: Bindings) -> Bindings:
        while self.steps:
            checkpoint()
            candidates = [(self._expected_rows(step, rows), position) for position, step in enumerate(self.steps)]
            expected, position = min(candidates, default=(np.inf, 0))
            if expected == np.inf:
                return rows
            traverse = self.steps.pop(position)
            closes = traverse.source in rows.columns and traverse.target in rows.columns
            step = self.plan.add("", rows.count * 0.1 if closes else expected)
            rows = self._close_cycle(traverse, rows, step) if closes else self._expand(traverse, rows, step)
            step.rows = rows.count
            rows = self._apply_filters(rows)
        return rows

    def _expected_rows(self, step: Traverse, rows: Bindings) -> float:
        """The expected rows of a traversal: a step that closes a cycle goes first, an unconnected one never."""
        forward, backward = step.source in rows.columns, step.target in rows.columns
        if forward and backward:
            return -1.0
        if not forward and not backward:
            return np.inf
        far = step.target if forward else step.source
        expected = rows.count * estimate_degree(self.reader, step, backward)
        for condition in self.filters.get(far, []):
            expected *= selectivity(condition, self.reader.state(self.tables[far]).rows)
        return expected

    def _expand(self, step: Traverse, rows: Bindings, shown: ExecutedStep) -> Bindings:
        backward = step.source not in rows.columns
        near, far = (step.target, step.source) if backward else (step.source, step.target)
        self.unbound.remove(far)
        counted = not self._is_needed(far) and not (step.edge_var is not None and self._is_needed(step.edge_var))
        if self.plan.with_details:
            verb = "Count" if counted else "Expand"
            shown.text = describe_traversal(step, verb, near, far, self.access.adjacency(step) is not None)
            shown.text += describe_filters(self.filters.get(far, []))
        if counted and (degrees := self._degrees(step, rows.columns[near], backward)) is not None:
            return self._multiply(rows, degrees)
        passing = self._expand_filtered(step, rows.columns[near], far, backward)
        positions, reached, edges = passing or expand(self.access, step, rows.columns[near], backward)
        mask = None if passing else self._far_mask(step, far, reached, edges)
        if mask is not None:
            kept = true_positions(mask)
            positions, reached = take(positions, kept), take(reached, kept)
            edges = None if edges is None else take(edges, kept)
        if counted:
            return self._multiply(rows, count_each(positions, rows.count))
        return self._bind(rows.keep(self._needed_columns(rows)).take(positions), step, {far: reached}, edges)

    def _expand_filtered(self, step: Traverse, row_numbers: NumArray, far: str, backward: bool) -> Expanded | None:
        """The expansion filtered once for each vertex; None where few rows share a vertex."""
        if far not in self.filters or len(row_numbers) < MANY_ROWS or not step.single_hop or step.edge_var is not None:
            return None
        adjacency = None if step.never else self.access.adjacency(step)
        if adjacency is None:
            return None
        csr = step_csr(adjacency, step, backward)
        distinct = csr.distinct_if_repeated(row_numbers)
        if distinct is None:
            return None
        positions = np.zeros(csr.vertices, np.int64)
        positions[distinct] = np.arange(len(distinct))
        return csr.restrict(distinct, lambda reached: self._filter_mask(far, reached)).expand(
            take(positions, row_numbers)
        )

    def _degrees(self, step: Traverse, row_numbers: NumArray, backward: bool) -> NumArray | None:
        """The degrees of a traversal from the adjacency alone; None where that takes an expansion."""
        adjacency = self.access.adjacency(step)
        if adjacency is None or not step.single_hop or (step.edge_var is not None and step.undirected):
            return None
        if step.edge_var is not None and step.edge_var in self.filters:
            return None
        csr = step_csr(adjacency, step, backward)
        far = step.source if backward else step.target
        if far not in self.filters:
            return csr.degrees(row_numbers) if step.edge_var is not None else csr.degrees_once(row_numbers)
        table = self.access.resident_table(self.tables[far])
        if table is None or 2 * csr.total_degree(row_numbers) < len(csr.targets):
            return None
        csr = csr if step.edge_var is not None else csr.without_parallels()
        everything = table.all_rows()
        passing = np.zeros(table.total, np.bool_)
        passing[everything] = self._filter_mask(far, everything)
        return take(csr.count_passing(passing), row_numbers)

    def _far_mask(self, step: Traverse, far: str, reached: NumArray, edges: NumArray | None) -> BoolArray | None:
        mask = self._filter_mask(far, reached) if far in self.filters else None
        if step.edge_var is not None and step.edge_var in self.filters:
            assert edges is not None
            own = self._filter_mask(step.edge_var, edges)
            mask = own if mask is None else mask & own
        return mask

    def _close_cycle(self, step: Traverse, rows: Bindings, shown: ExecutedStep) -> Bindings:
        """A traversal between two variables that are both bound."""
        sources, targets = rows.columns[step.source], rows.columns[step.target]
        adjacency = self.access.adjacency(step)
        shown.text = describe_traversal(step, "Check", step.source, step.target, adjacency is not None)
        if step.edge_var is None and step.single_hop and adjacency is not None:
            return rows.filter(step_csr(adjacency, step, backward=False).connects(sources, targets))
        positions, reached, edges = expand(self.access, step, sources, backward=False)
        mask = fill(len(reached), np.bool_, lambda part: reached[part] == targets[positions[part]])
        if step.edge_var is not None and step.edge_var in self.filters:
            assert edges is not None
            mask &= self._filter_mask(step.edge_var, edges)
        if step.edge_var is None or not self._is_needed(step.edge_var):
            return self._multiply(rows, count_each(take(positions, true_positions(mask)), rows.count))
        kept = true_positions(mask)
        return self._bind(rows.take(take(positions, kept)), step, {}, None if edges is None else take(edges, kept))

    def _bind(self, rows: Bindings, step: Traverse, more: dict[str, NumArray], edges: NumArray | None) -> Bindings:
        if step.edge_var is not None and edges is not None and self._is_needed(step.edge_var):
            more = {**more, step.edge_var: edges}
        return rows.with_columns(more)

    def _multiply(self, rows: Bindings, counts: NumArray) -> Bindings:
        rows = rows.keep(self._needed_columns(rows))
        return rows.filter(counts > 0) if self.exists else rows.multiply(counts)

    def _is_needed(self, var: str) -> bool:
        """Whether the variable's values are still needed."""
        return (
            var in self.keep
            or any(var in (step.source, step.target) for step in self.steps)
            or any(var in variables_of(condition) for condition in self.others)
            or any(var in negation.pattern.outer for negation in self.negations)
        )

    def _needed_columns(self, rows: Bindings) -> list[str]:
        return [var for var in rows.columns if self._is_needed(var)]

    # Filters over several variables, negations, unconnected parts

    def _apply_filters(self, rows: Bindings) -> Bindings:
        """Apply every filter and negation whose variables are bound."""
        if not self.others and not self.negations:
            return rows
        for condition in [f for f in self.others if all(var in rows.columns for var in variables_of(f))]:
            self.others.remove(condition)
            step = self.plan.add(f"Filter{self._where([condition])}")
            rows = rows.filter(filter_mask(self.access, condition, rows))
            step.rows = rows.count
        for negation in [n for n in self.negations if all(var in rows.columns for var in n.pattern.outer)]:
            self.negations.remove(negation)
            step = self.plan.add("Not")
            rows = rows.filter(~self._has_match(negation, rows, step))
            step.rows = rows.count
        return rows

    def _join(self, rows: Bindings, part: Bindings) -> Bindings:
        conditions = [
            f for f in self.others if all(var in rows.columns or var in part.columns for var in variables_of(f))
        ]
        if rows is ONE_ROW:
            return part
        if not conditions and not self._needed_columns(part):
            times = part.count if part.weight is None else int(part.weight.sum())
            return self._multiply(rows, full(rows.count, times, np.int64))
        for condition in conditions:
            self.others.remove(condition)
        step = self.plan.add(f"Join{self._where(conditions)}", float(rows.count) * part.count)
        result = join(self.access, rows, part, conditions)
        step.rows = result.count
        return result

    def _has_match(self, negation: Not, rows: Bindings, step: ExecutedStep) -> BoolArray:
        """The rows for which the inner pattern matches, evaluated once for each combination of outer values."""
        inner, inside = negation.pattern, QueryPlan(step.nested, self.plan.with_details)
        outer = {var: self.tables[var] for var in inner.outer}
        if len(outer) == 1:
            (var,) = outer
            found = self._match_inside_out(inner, var, rows.columns[var], inside)
            if found is not None:
                return found
        seeds, positions = distinct_rows(rows, list(outer))
        seeds = seeds.with_columns({_SEED: count_up(seeds.count)})
        matched = match_pattern(self.access, inner, [_SEED], inside, outer, seeds, exists=True)
        has = full(seeds.count, False, np.bool_)
        for part in chunks(matched.count):
            has[matched.columns[_SEED][part]] = True
        return has if positions is None else take(has, positions)

    def _match_inside_out(self, inner: Pattern, var: str, row_numbers: NumArray, inside: QueryPlan) -> BoolArray | None:
        """The same, matching the inner pattern alone where it has far fewer rows than there are outer ones."""
        own: dict[str, list[Any]] = {node.var: [] for node in inner.nodes}
        for condition in inner.filters:
            for mentioned in variables_of(condition):
                if len(variables_of(condition)) == 1 and mentioned in own:
                    own[mentioned].append(condition)
        expected = min(
            (estimate_rows(self.reader, node.table_key, own[node.var]) for node in inner.nodes), default=float("inf")
        )
        connected = any(var in (step.source, step.target) for step in inner.traversals)
        if not connected or expected * 10 > len(row_numbers):
            return None
        whole = replace(inner, nodes=(*inner.nodes, NodeVar(var, self.tables[var])), outer=())
        found = match_pattern(self.access, whole, [var], inside, exists=True).columns[var]
        marks = np.zeros(max(self.access.table(self.tables[var]).total, 1), np.bool_)
        marks[found] = True
        return take(marks, row_numbers)


def _is_in(row_numbers: NumArray, found: NumArray, part: slice) -> BoolArray:
    return np.isin(row_numbers[part], found)
