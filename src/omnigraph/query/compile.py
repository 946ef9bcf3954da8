"""Compile query text to IR, cached, and bind its parameters.

Parsing would take most of the time of a point lookup. The cache key is the text, the schema's hash and the query's
name. The result depends on nothing else, so entries never become stale. The number of entries and the size of their
texts are bounded.

Binding substitutes type-checked parameter values and drops what an absent optional parameter disables. A bound query
has no parameter and no `now()`.
"""

import datetime as dt
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Self, TypeVar, cast

from omnigraph.caches import LruCache
from omnigraph.errors import BadRequest, NotFound
from omnigraph.fork_safety import renew_after_fork
from omnigraph.lexer import is_large, turn_of
from omnigraph.query import ast, ir
from omnigraph.query.check.checker import check
from omnigraph.query.check.patterns import FUZZY_EDITS_MAX
from omnigraph.query.check.projection import RRF_K_MAX
from omnigraph.query.check.scope import suggestion
from omnigraph.query.parser import parse
from omnigraph.query.values import BadValue, parse_value, round_f32, to_instant
from omnigraph.schema.catalog import Catalog
from omnigraph.schema.identity import canonical_text, id_from_texts
from omnigraph.schema.regex import pattern_problem
from omnigraph.schema.types import Enumeration, ListOf, Scalar

_NONE: frozenset[str] = frozenset()
_STORED = (ir.Prop, ir.EntityId)
_BOUND = (ir.Prop, ir.EntityId, ir.EdgeEnd, ir.Literal)
AnyQuery = TypeVar("AnyQuery", ir.ReadQuery, ir.MutationQuery)
_F32 = (Scalar("F32"), ListOf(Scalar("F32")))


class ParameterError(BadRequest):
    """The value of a parameter is invalid: which one, the problem, and what to pass instead."""

    known_by = ("language_code", "parameter")

    def __init__(self, language_code: str, parameter: str, problem: str, remedy: str) -> None:
        super().__init__(language_code, parameter, problem, remedy)
        self.language_code, self.parameter = language_code, parameter
        self.problem, self.remedy = problem, remedy

    @property
    def details(self) -> dict[str, Any]:
        return {"language_code": self.language_code, "parameter": self.parameter, "expected": self.remedy}

    @classmethod
    def from_details(cls, message: str, details: Mapping[str, Any], source: str = "") -> Self:
        code, parameter, remedy = details["language_code"], details["parameter"], details["expected"]
        problem = message.removeprefix(f"${parameter}: ").removesuffix(f": {remedy}. [{code}]")
        return cls(code, parameter, problem, remedy)

    def __str__(self) -> str:
        return f"${self.parameter}: {self.problem}: {self.remedy}. [{self.language_code}]"


def bind(query: AnyQuery, values: Mapping[str, object], *, now: dt.datetime) -> AnyQuery:
    """The query with values for its parameters, given as in load data, and one instant for every `now()`.

    Raises ParameterError for a missing, unknown or ill-typed parameter, and for null where a value is required.
    """
    values_by_name = bind_values(query.params, values)
    if not query.params and not query.uses_now:
        return query
    binder = _Binder(values_by_name, to_instant(now) if query.uses_now else now)
    if isinstance(query, ir.MutationQuery):
        statements = tuple([binder.statement(statement) for statement in query.statements])
        return ir.MutationQuery(query.name, (), statements, False, query.description)
    returns = tuple(binder.projection(entry) for entry in query.returns)
    return ir.ReadQuery(
        query.name,
        (),
        binder.pattern(query.pattern),
        returns,
        query.grouped,
        query.group_by,
        tuple(binder.key(key) for key in query.order),
        tuple(binder.key(key) for key in query.tiebreak),
        query.limit,
        tuple(binder.rank(rank) for rank in query.keeps),
        False,
        query.description,
    )


def bind_values(params: tuple[ir.Param, ...], values: Mapping[str, object]) -> dict[str, ir.Value]:
    """The typed value of every declared parameter; None for an optional one that is absent or null."""
    if not isinstance(values, dict) and not isinstance(values, Mapping):  # the first check is faster
        raise BadRequest('Parameters are passed by name: {"name": value, …}.')
    values_by_name: dict[str, ir.Value] = {}
    for param in params:
        value = values.get(param.name)
        if value is None:
            if not param.optional:
                problem = "it is null, but required" if param.name in values else "it is missing, but required"
                remedy = f"give a value of the type {param.type}, or declare ${param.name}: {param.type}?"
                raise ParameterError("OG-GQ-701", param.name, problem, remedy)
            values_by_name[param.name] = None
            continue
        try:
            values_by_name[param.name] = parse_value(value, param.type)
        except BadValue as error:
            raise ParameterError("OG-GQ-702", param.name, error.problem, f"{error.remedy} ({param.type})") from None
    if not values_by_name.keys() >= set(values):
        unknown = next(name for name in values if name not in values_by_name)
        remedy = suggestion(str(unknown), [param.name for param in params], "parameters")
        raise ParameterError("OG-GQ-703", str(unknown), "the query declares no such parameter", remedy)
    return values_by_name


class _Binder:
    def __init__(self, values_by_name: dict[str, ir.Value], now: dt.datetime) -> None:
        self.values_by_name, self.now = values_by_name, now
        self.names = frozenset(values_by_name)

    # Patterns

    def pattern(self, pattern: ir.Pattern) -> ir.Pattern:
        filters = tuple([part for entry in pattern.filters for part in self.filter(entry)])
        negations: list[ir.Not] = []
        for negation in pattern.negations:
            inner = self.pattern(negation.pattern)
            if not inner.empty:
                negations.append(ir.Not(inner))
        parts = (pattern.nodes, pattern.traversals, filters, tuple(negations))
        return ir.Pattern(*parts, ir.free_variables(*parts) if pattern.outer else ())

    def filter(self, condition: ir.Filter) -> tuple[ir.Filter, ...]:
        """The condition without parameters, as filters that all must hold; none where an absent parameter drops it."""
        if isinstance(condition, ir.TextSearch):
            found = self.text_search(condition.kind, condition.field, condition.query, condition.edits)
            return () if found is None else (found,)
        try:
            bound = self.condition(condition)
        except _AbsentParameterError:
            return ()
        return ir.conjuncts(bound) if isinstance(bound, ir.Apply) else (bound,)

    def condition(self, condition: ir.Condition) -> ir.Condition:
        """The condition without parameters. An absent one is null if the condition says what that means, with
        `coalesce` or `is null`; otherwise it raises _AbsentParameterError.
        """
        if not isinstance(condition, ir.Apply):
            return ir.as_condition(self.expr(condition, _NONE))
        return ir.as_condition(self.expr(condition, frozenset(_tested_for_null(condition))))

    def expr(self, expr: ir.Expr, nullable: frozenset[str]) -> ir.Expr:
        """The expression without parameters; those in `nullable` may be null."""
        if isinstance(expr, _BOUND):
            return expr
        match expr:
            case ir.ParamRef():
                return self.bind_parameter(expr, nullable)
            case ir.Now():
                return ir.Literal(self.now, ir.DATETIME)
            case ir.Compare(op, left, right, domain):
                return ir.Compare(op, self.expr(left, nullable), self.expr(right, nullable), domain)
            case ir.ListContains(items, item, domain):
                return ir.ListContains(self.expr(items, nullable), self.expr(item, nullable), domain)
            case ir.TextContains(text, part):
                return ir.TextContains(self.expr(text, nullable), self.expr(part, nullable))
            case ir.TextStartsWith(text, prefix):
                return ir.TextStartsWith(self.expr(text, nullable), self.expr(prefix, nullable))
            case ir.Case(branches, otherwise, kind):
                bound = tuple((self.expr(when, nullable), self.expr(then, nullable)) for when, then in branches)
                return ir.Case(bound, self.expr(otherwise, nullable), kind)
            case ir.Apply(fn, args, kind):
                values = tuple(self.expr(arg, nullable) for arg in args)
                if fn == "matches":
                    self.check_pattern(args[1], values[1])
                return ir.Apply(fn, values, kind)

    def bind_parameter(self, ref: ir.ParamRef, nullable: frozenset[str]) -> ir.Literal:
        """The value of a parameter. A number that is compared with an F32 is rounded to F32."""
        value = self.values_by_name[ref.name]
        if value is None:
            if ref.name not in nullable:
                raise _AbsentParameterError(ref.name)
            return ir.Literal(None, ref.type)
        if ref.type == ref.param_type:
            return ir.Literal(value, ref.type)
        if ref.type in _F32:
            if isinstance(value, tuple):
                return ir.Literal(tuple(round_f32(cast(float, item)) for item in value), ref.type)
            return ir.Literal(round_f32(cast(float, value)), ref.type)
        return self.node_id(ref)

    def check_pattern(self, given: ir.Expr, bound: ir.Expr) -> None:
        if isinstance(given, ir.ParamRef) and isinstance(bound, ir.Literal) and bound.value is not None:
            problem = pattern_problem(cast(str, bound.value))
            if problem is not None:
                remedy = "give another regular expression"
                raise ParameterError("OG-GQ-702", given.name, f"the pattern can't be used, {problem}", remedy)

    def text_search(
        self, kind: ir.TextSearchKind, searched: ir.Prop, query: ir.Constant, edits: ir.Constant | None
    ) -> ir.TextSearch | None:
        words = self.to_literal(query)
        letters = None if edits is None else self.to_literal(edits)
        if words.value is None or (letters is not None and letters.value is None):
            return None
        if letters is not None:
            self.check_bounds(edits, letters, 0, FUZZY_EDITS_MAX)
        return ir.TextSearch(kind, searched, words, letters)

    def to_literal(self, constant: ir.Constant) -> ir.Literal:
        """A constant as a literal, which may be null."""
        if isinstance(constant, ir.Literal):
            return constant
        if isinstance(constant, ir.Now):
            return ir.Literal(self.now, ir.DATETIME)
        return ir.Literal(self.values_by_name[constant.name], constant.type)

    def check_bounds(self, constant: ir.Constant | None, bound: ir.Literal, low: int, high: int) -> None:
        if isinstance(constant, ir.ParamRef) and not low <= cast(int, bound.value) <= high:
            remedy = f"give a number from {low} to {high}"
            raise ParameterError("OG-GQ-702", constant.name, f"{bound.value} is out of range", remedy)

    # return and order

    def projection(self, entry: ir.Projection) -> ir.Projection:
        if isinstance(entry.expr, _STORED):
            return entry
        expr = self.output(entry.expr)
        return entry if expr is entry.expr else ir.Projection(entry.name, expr)

    def output(self, expr: ir.OutputExpr) -> ir.OutputExpr:
        if isinstance(expr, ir.WholeNode):
            return expr
        if isinstance(expr, ir.Nearest | ir.Bm25 | ir.Rrf):
            return self.rank(expr)
        if isinstance(expr, ir.Aggregate):
            return expr if expr.arg is None else ir.Aggregate(expr.fn, self.expr(expr.arg, self.names), expr.type)
        return self.expr(expr, self.names)

    def key(self, key: ir.OrderKey) -> ir.OrderKey:
        if isinstance(key.expr, _STORED):
            return key
        expr = self.output(key.expr)
        assert not isinstance(expr, ir.WholeNode)
        return key if expr is key.expr else ir.OrderKey(expr, key.descending, key.nulls_first, key.column)

    def rank(self, rank: ir.Rank) -> ir.Rank:
        if isinstance(rank, ir.Rrf):
            one, other = rank.ranks
            k = self.require_value(rank.k, "rrf")
            self.check_bounds(rank.k, k, 1, RRF_K_MAX)
            return ir.Rrf((self.simple_rank(one), self.simple_rank(other)), k)
        return self.simple_rank(rank)

    def simple_rank(self, rank: ir.Nearest | ir.Bm25) -> ir.Nearest | ir.Bm25:
        if isinstance(rank, ir.Bm25):
            return ir.Bm25(rank.field, self.require_value(rank.query, "bm25"))
        query = self.require_value(rank.query, "nearest")
        if isinstance(rank.query, ir.ParamRef) and rank.query.param_type != rank.query.type:
            query = self.convert(rank.query)
        return ir.Nearest(rank.field, query, rank.metric)

    def require_value(self, constant: ir.Constant, fn: str) -> ir.Literal:
        found = self.to_literal(constant)
        if found.value is None and isinstance(constant, ir.ParamRef):
            raise ParameterError("OG-GQ-704", constant.name, f"it is null, but {fn} needs a value", "give one")
        return found

    # Mutations

    def statement(self, statement: ir.Statement) -> ir.Statement:
        match statement:
            case ir.InsertRow(table_key, assignments, source, target):
                start, end = source and self.end(source), target and self.end(target)
                return ir.InsertRow(table_key, self.assignments(assignments), start, end)
            case ir.UpdateRows(table_key, assignments, where):
                return ir.UpdateRows(table_key, self.assignments(assignments), self.where(where))
            case ir.DeleteRows(table_key, where):
                return ir.DeleteRows(table_key, self.where(where))

    def assignments(self, assignments: tuple[ir.Assign, ...]) -> tuple[ir.Assign, ...]:
        return tuple(
            [
                entry if isinstance(entry.value, ir.Literal) else ir.Assign(entry.column, self.convert(entry.value))
                for entry in assignments
            ]
        )

    def convert(self, constant: ir.Constant) -> ir.Literal:
        """A constant converted to the type it is assigned to: checked, rounded, or null."""
        if not isinstance(constant, ir.ParamRef) or constant.type == constant.param_type:
            return self.to_literal(constant)
        value = self.values_by_name[constant.name]
        if value is None or isinstance(constant.type, Enumeration) or isinstance(constant.param_type, Enumeration):
            return ir.Literal(value, constant.type)
        try:
            return ir.Literal(parse_value(value, constant.type), constant.type)
        except BadValue as error:
            raise ParameterError("OG-GQ-702", constant.name, error.problem, error.remedy) from None

    def end(self, constant: ir.Constant) -> ir.Literal:
        found = self.node_id(constant)
        if found.value is None and isinstance(constant, ir.ParamRef):
            raise ParameterError(
                "OG-GQ-705", constant.name, "it is null, but an edge needs both ends", "give a node's id"
            )
        return found

    def node_id(self, constant: ir.Constant) -> ir.Literal:
        """A node's id as text, from the id itself or from the key."""
        found = self.to_literal(constant)
        if not isinstance(constant, ir.ParamRef) or found.value is None:
            return found
        if isinstance(found.value, tuple):
            return ir.Literal(id_from_texts(cast(tuple[str, ...], found.value)), ir.STRING)
        return ir.Literal(canonical_text(found.value, constant.param_type), ir.STRING)

    def where(self, condition: ir.Condition) -> ir.Condition:
        try:
            return self.condition(condition)
        except _AbsentParameterError as absent:
            remedy = "give a value: without one every row would be selected"
            raise ParameterError("OG-GQ-706", absent.name, "it is null, but a where needs a value", remedy) from None


class _AbsentParameterError(Exception):
    """An optional parameter has no value, and the condition does not say what that means. Never leaves this module."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _tested_for_null(expr: ir.Expr) -> Iterator[str]:
    """The parameters inside `coalesce(…)` and before `is [not] null`."""
    if isinstance(expr, ir.Apply) and expr.fn in ("coalesce", "is_null"):
        yield from (leaf.name for leaf in ir.leaves(expr) if isinstance(leaf, ir.ParamRef))
        return
    for part in ir.parts_of(expr):
        yield from _tested_for_null(part)


ENTRIES_MAX = 1_000
TEXT_CHARS_MAX = 500_000  # with their objects, which every full garbage collection goes through


@dataclass(frozen=True, slots=True)
class CompiledQuery:
    """A query that was checked against one schema; `declaration` is its syntax tree."""

    query: ir.Query
    declaration: ast.QueryDecl

    @property
    def name(self) -> str:
        return self.query.name

    @property
    def params(self) -> tuple[ir.Param, ...]:
        return self.query.params

    def read(self) -> ir.ReadQuery:
        """The query as a read; refuses a mutation."""
        if isinstance(self.query, ir.ReadQuery):
            return self.query
        raise BadRequest(f"{self.name} writes: run it with mutate.")

    def mutation(self) -> ir.MutationQuery:
        """The query as a mutation; refuses a read."""
        if isinstance(self.query, ir.MutationQuery):
            return self.query
        raise BadRequest(f"{self.name} only reads: run it with query.")

    def bind_read(self, values: Mapping[str, object], *, now: dt.datetime) -> ir.ReadQuery:
        return bind(self.read(), values, now=now)

    def bind_mutation(self, values: Mapping[str, object], *, now: dt.datetime) -> ir.MutationQuery:
        return bind(self.mutation(), values, now=now)


def choose_query(file: ast.QueryFile, name: str | None) -> ast.QueryDecl:
    """The query of that name; the name may be omitted where there is only one query."""
    if name is None:
        if len(file.queries) == 1 and not file.broken:
            return file.queries[0]
        names = [query.name for query in file.queries] + [broken.name for broken in file.broken]
        if file.broken and len(set(names)) == 1:
            raise file.broken[0].error
        count = len(names)
        raise BadRequest(f"{file.source_name} holds {count} queries: name one of {_names(file)}.")
    for broken in file.broken:
        if broken.name == name:
            raise broken.error
    for query in file.queries:
        if query.name == name:
            return query
    raise NotFound(f"{file.source_name} has no query {name}: it has {_names(file)}.")


def _names(file: ast.QueryFile) -> str:
    names = [query.name for query in file.queries] + [broken.name for broken in file.broken]
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


class CompileCache:
    """An LRU cache of compiled queries, except large ones. Safe for threads; two may compile the same text at once."""

    def __init__(self, entries_max: int = ENTRIES_MAX, text_chars_max: int = TEXT_CHARS_MAX) -> None:
        self._entries_max, self._text_chars_max = entries_max, text_chars_max
        renew_after_fork(self, CompileCache._renew)

    def _renew(self) -> None:
        self._entries: LruCache[tuple[str, str | None, Hashable], tuple[CompiledQuery, Catalog]]
        self._entries = LruCache(self._entries_max, self._text_chars_max)
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def compile(
        self,
        text: str,
        catalog: Catalog,
        name: str | None = None,
        *,
        schema_hash: str | None = None,
        source_name: str = "query",
    ) -> CompiledQuery:
        # Without a hash the key is the catalog's `id()`; the entry keeps the catalog alive, so it can't be reused.
        key = (text, name, id(catalog) if schema_hash is None else schema_hash)
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                return found[0]
        with turn_of(text):
            file = parse(text, source_name)
            declaration = choose_query(file, name)
            compiled = CompiledQuery(check(declaration, file, catalog), declaration)
        if not is_large(text):
            with self._lock:
                self._entries.put(key, (compiled, catalog), len(text))
        return compiled


_SHARED = CompileCache()


def compile_queries(
    text: str,
    catalog: Catalog,
    name: str | None = None,
    *,
    schema_hash: str | None = None,
    source_name: str = "query",
) -> CompiledQuery:
    """The query `name` of a text, checked against a catalog; what is wrong with others of the text does not matter.

    With `schema_hash`, the hash of the catalog's schema, catalogs that were read separately share the result.
    """
    return _SHARED.compile(text, catalog, name, schema_hash=schema_hash, source_name=source_name)
