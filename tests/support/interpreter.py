"""The reference: a plain, slow interpreter of the bound read IR over lists of dicts.

It tries every entity for every variable and asks each clause whether it holds. Executors must give the same rows in the
same order with the same values; where this file and language.md disagree, this file is wrong.

A graph is `{table_key: [row, …]}`; a row has `id` (an edge also `src`, `dst`) and its properties by column, with the
values that query/ir lists under *Values* (lists may be lists or tuples, an absent column is null).

Text search is a stand-in: words are runs of letters and digits in lower case, without stemming, and `bm25` scores are
of the usual formula over the whole table. Which rows it finds may be compared where stemming changes nothing; scores
may not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from omnigraph.query import ir
from omnigraph.query.values import round_f32
from support import expressions

Entity: TypeAlias = Mapping[str, Any]
Graph: TypeAlias = Mapping[str, Sequence[Entity]]
Row: TypeAlias = dict[str, Entity]  # variable -> the entity it stands for
Embed: TypeAlias = Callable[[str], Sequence[float]]

I64_RANGE = range(-(2**63), 2**63)
U64_RANGE = range(2**64)


def run(query: ir.ReadQuery, graph: Graph, *, embed: Embed | None = None) -> list[dict[str, Any]]:
    """The result of a bound query: rows in order, each with every column of `return`."""
    assert query.params == (), "bind the query first"
    search = _Search(graph, embed)
    rows = list(matches(query.pattern, {}, graph))
    ranks = _Ranks(rows, search)
    rows = [row for row in rows if all(ranks.value(rank, row) is not None for rank in query.keeps)]
    results = _groups(query, rows) if query.grouped else [_Result([row]) for row in rows]
    for key in reversed((*query.order, *query.tiebreak)):  # sorts are stable: the least significant key first
        results.sort(key=lambda result: _sortable(result.value(key.expr, ranks), key), reverse=key.descending)
    if query.limit is not None:
        results = results[: query.limit]
    return [{entry.name: _plain(result.value(entry.expr, ranks)) for entry in query.returns} for result in results]


# Matching


def matches(pattern: ir.Pattern, outer: Row, graph: Graph) -> Iterator[Row]:
    """Every assignment of the pattern's own variables that, with the outer ones, fulfils all of its clauses."""
    domains = {node.var: graph.get(node.table_key, ()) for node in pattern.nodes}
    for step in pattern.traversals:
        if step.edge_var is not None:
            domains[step.edge_var] = graph.get(step.edge, ())
    clauses: list[_Clause] = [_traversal(step, graph) for step in pattern.traversals]
    clauses += [_filter(condition, graph) for condition in pattern.filters]
    clauses += [_negation(negation, graph) for negation in pattern.negations]
    yield from _assign(list(domains), domains, clauses, dict(outer))


@dataclass(frozen=True)
class _Clause:
    """Something that holds for a row or not; it can be asked once all its variables have a value."""

    variables: frozenset[str]
    holds: Callable[[Row], bool]


def _assign(
    variables: list[str], domains: Mapping[str, Sequence[Entity]], clauses: list[_Clause], row: Row
) -> Iterator[Row]:
    """One variable after the other; a clause is asked as soon as it can be, which only saves time."""
    ready = [clause for clause in clauses if clause.variables <= row.keys()]
    if not all(clause.holds(row) for clause in ready):
        return
    if not variables:
        yield dict(row)
        return
    waiting = [clause for clause in clauses if clause not in ready]
    for entity in domains[variables[0]]:
        yield from _assign(variables[1:], domains, waiting, {**row, variables[0]: entity})


def _traversal(step: ir.Traverse, graph: Graph) -> _Clause:
    if step.edge_var is not None:
        return _Clause(frozenset({step.source, step.target, step.edge_var}), lambda row: _connects(step, row))
    reached: dict[str, set[str]] = {}

    def holds(row: Row) -> bool:
        source = row[step.source]["id"]
        if source not in reached:
            reached[source] = reachable(step, source, graph.get(step.edge, ()))
        return row[step.target]["id"] in reached[source]

    return _Clause(frozenset({step.source, step.target}), holds)


def _connects(step: ir.Traverse, row: Row) -> bool:
    assert step.edge_var is not None
    edge, source, target = row[step.edge_var], row[step.source]["id"], row[step.target]["id"]
    if (edge["src"], edge["dst"]) == (source, target):
        return True
    return step.undirected and (edge["dst"], edge["src"]) == (source, target)


def reachable(step: ir.Traverse, source: str, edges: Sequence[Entity]) -> set[str]:
    """The targets of one source: breadth first, the source counts as visited, a self-loop reports its node."""
    neighbours: dict[str, set[str]] = {}
    for edge in edges:
        neighbours.setdefault(edge["src"], set()).add(edge["dst"])
        if step.undirected:
            neighbours.setdefault(edge["dst"], set()).add(edge["src"])
    found: set[str] = set()
    visited, frontier = {source}, {source}
    hop = 0
    while frontier and (step.max_hops is None or hop < step.max_hops):
        hop += 1
        following: set[str] = set()
        for node in frontier:
            for neighbour in neighbours.get(node, ()):
                loop = neighbour == node
                if (loop or neighbour not in visited) and hop >= step.min_hops:
                    found.add(neighbour)
                if neighbour not in visited:
                    following.add(neighbour)
        visited |= following
        frontier = following
    return found


def _negation(negation: ir.Not, graph: Graph) -> _Clause:
    inner = negation.pattern

    def holds(row: Row) -> bool:
        outer = {var: row[var] for var in inner.outer}
        return next(matches(inner, outer, graph), None) is None

    return _Clause(frozenset(inner.outer), holds)


# Filters


def _filter(condition: ir.Filter, graph: Graph) -> _Clause:
    return _Clause(frozenset(ir.variables_of(condition)), lambda row: holds(condition, row))


def holds(condition: ir.Filter, row: Row) -> bool:
    """Whether a filter is true for a row, neither false nor unknown."""
    if isinstance(condition, ir.TextSearch):
        values = [expressions.value(part, row) for part in ir.parts_of(condition)]
        if any(value is None for value in values):
            return False
        edits = int(values[2]) if condition.kind == "fuzzy" else 0
        return _finds(condition.kind, str(values[0]), str(values[1]), edits)
    return expressions.value(condition, row) is True


# Text search


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _finds(kind: ir.TextSearchKind, text: str, query: str, edits: int) -> bool:
    have, wanted = words(text), words(query)
    if not wanted:
        return False
    if kind == "search":
        return any(word in have for word in wanted)
    if kind == "fuzzy":
        return all(any(_distance(word, other) <= edits for other in have) for word in wanted)
    return any(have[i : i + len(wanted)] == wanted for i in range(len(have)))


def _distance(one: str, other: str) -> int:
    """Levenshtein's: the fewest letters to insert, remove or replace."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        last, row = row, [i]
        for j, against in enumerate(other, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != against)))
    return row[-1]


@dataclass
class _Search:
    """Scores of single entities."""

    graph: Graph
    embed: Embed | None

    def score(self, rank: ir.Nearest | ir.Bm25, entity: Entity) -> float | None:
        value = entity.get(rank.field.column.column)
        if value is None:
            return None
        return self.bm25(rank, str(value)) if isinstance(rank, ir.Bm25) else self.distance(rank, value)

    def distance(self, rank: ir.Nearest, vector: Sequence[float]) -> float | None:
        assert isinstance(rank.query, ir.Literal)
        wanted: Any = rank.query.value
        if rank.query.type == ir.STRING:
            assert self.embed is not None, "this query embeds a text: pass embed"
            wanted = [round_f32(x) for x in self.embed(wanted)]
        if rank.metric == "l2":
            return math.dist(vector, wanted)
        lengths = math.hypot(*vector) * math.hypot(*wanted)
        return None if lengths == 0 else 1 - math.fsum(a * b for a, b in zip(vector, wanted, strict=True)) / lengths

    def bm25(self, rank: ir.Bm25, text: str) -> float | None:
        assert isinstance(rank.query, ir.Literal)
        column = rank.field.column.column
        texts = [words(row[column]) for row in self.graph.get(rank.field.table_key, ()) if row.get(column) is not None]
        average = sum(map(len, texts)) / len(texts)
        have = words(text)
        score = 0.0
        for word in words(str(rank.query.value)):
            frequency, documents = have.count(word), sum(word in other for other in texts)
            rarity = math.log(1 + (len(texts) - documents + 0.5) / (documents + 0.5))
            score += rarity * frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * len(have) / average))
        return score if any(word in have for word in words(str(rank.query.value))) else None


@dataclass
class _Ranks:
    """Ranks over the rows that match: a place depends on all of them."""

    rows: list[Row]
    search: _Search
    places: dict[ir.Rank, dict[str, int]] = field(default_factory=dict)

    def value(self, rank: ir.Rank, row: Row) -> float | None:
        if not isinstance(rank, ir.Rrf):
            return self.search.score(rank, row[rank.field.var])
        assert isinstance(rank.k, ir.Literal)
        assert isinstance(rank.k.value, int)
        found = [self.place(one, row) for one in rank.ranks]
        parts = [1 / (rank.k.value + place) for place in found if place is not None]
        return math.fsum(parts) if parts else None

    def place(self, rank: ir.Nearest | ir.Bm25, row: Row) -> int | None:
        """Counted from 1 over distinct entities, best first, equal scores by id."""
        if rank not in self.places:
            entities = {other[rank.field.var]["id"]: other[rank.field.var] for other in self.rows}
            scores = {id_: self.search.score(rank, entity) for id_, entity in entities.items()}
            sign = 1 if isinstance(rank, ir.Nearest) else -1
            best = sorted((sign * score, id_) for id_, score in scores.items() if score is not None)
            self.places[rank] = {id_: place for place, (_, id_) in enumerate(best, 1)}
        return self.places[rank].get(row[rank.field.var]["id"])


# return


@dataclass
class _Result:
    """A row of the result: one row of the pattern, or those of a group."""

    rows: list[Row]

    def value(self, expr: ir.OutputExpr, ranks: _Ranks) -> Any:
        if isinstance(expr, ir.Aggregate):
            return self.aggregate(expr)
        if isinstance(expr, ir.Literal):
            return expr.value
        if isinstance(expr, ir.Nearest | ir.Bm25 | ir.Rrf):
            return ranks.value(expr, self.first)
        if isinstance(expr, ir.WholeNode):
            entity = self.first[expr.var]
            return {"id": entity["id"]} | {column.name: entity.get(column.column) for column in expr.columns}
        return expressions.value(expr, self.first)

    @cached_property
    def first(self) -> Row:
        return self.rows[0]

    def aggregate(self, aggregate: ir.Aggregate) -> Any:
        if aggregate.arg is None:
            return len(self.rows)
        arg = aggregate.arg
        values = [value for row in self.rows if (value := expressions.value(arg, row)) is not None]
        if aggregate.fn == "count":
            return len(values)
        if not values:
            return None
        match aggregate.fn:
            case "min":
                return min(values)
            case "max":
                return max(values)
            case "sum":
                return _sum(values, aggregate)
            case "avg":
                return (sum(values) if isinstance(values[0], int) else math.fsum(values)) / len(values)


def _sum(values: list[Any], aggregate: ir.Aggregate) -> Any:
    if aggregate.type == ir.F64:
        return math.fsum(values)
    total = sum(values)
    if total not in (I64_RANGE if aggregate.type == ir.I64 else U64_RANGE):
        raise OverflowError(f"the sum {total} does not fit into {aggregate.type}")
    return total


def _groups(query: ir.ReadQuery, rows: list[Row]) -> list[_Result]:
    if not query.group_by:
        return [_Result(rows)]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(_group_value(query.returns[i].expr, row) for i in query.group_by)
        groups.setdefault(key, []).append(row)
    return [_Result(group) for group in groups.values()]


def _group_value(expr: ir.OutputExpr, row: Row) -> Any:
    if isinstance(expr, ir.WholeNode):
        return row[expr.var]["id"]
    if isinstance(expr, ir.Literal):
        return None
    value = expressions.value(expr, row)  # type: ignore[arg-type]
    return tuple(value) if isinstance(value, list) else value


# order


def _sortable(value: Any, key: ir.OrderKey) -> tuple[bool, Any]:
    """Nulls before or after all values. `reverse` turns the first element round too, so it is chosen by direction."""
    if value is None:
        return (key.nulls_first == key.descending, 0)
    return (key.nulls_first != key.descending, tuple(value) if isinstance(value, list) else value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
