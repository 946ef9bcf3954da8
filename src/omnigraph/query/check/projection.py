"""`return`, `order` and `limit`: columns and their names, grouping, ranks, and the order made total."""

from dataclasses import dataclass, field
from typing import cast

from omnigraph.cancellation import checkpoint
from omnigraph.lexer import Token
from omnigraph.query import ast, ir
from omnigraph.query.ast import start_token
from omnigraph.query.check.expressions import Expressions
from omnigraph.query.check.patterns import small_integer, text_field, text_query
from omnigraph.query.check.scope import CheckContext, Scope, column_of
from omnigraph.query.check.type_rules import (
    assignable,
    domain_of,
    required_constant,
    resolve_property,
)
from omnigraph.query.printer import column_name, summarize
from omnigraph.query.values import BadValue, parse_value
from omnigraph.schema.catalog import Property
from omnigraph.schema.definitions import DEFAULT_METRIC
from omnigraph.schema.types import PropertyType, Scalar, Vector

RRF_K_DEFAULT = 60
RRF_K_MAX = 1_000_000
AGGREGATES: dict[str, ir.AggregateFn] = {"count": "count", "sum": "sum", "avg": "avg", "min": "min", "max": "max"}


@dataclass(frozen=True, slots=True)
class CheckedOutputs:
    """The part of a ReadQuery that comes after its pattern."""

    returns: tuple[ir.Projection, ...]
    grouped: bool
    group_by: tuple[int, ...]
    order: tuple[ir.OrderKey, ...]
    tiebreak: tuple[ir.OrderKey, ...]
    keeps: tuple[ir.Rank, ...]


def check_outputs(context: CheckContext, body: ast.ReadBody, scope: Scope) -> CheckedOutputs:
    return _OutputChecker(context, scope, body).build()


@dataclass(slots=True)
class _OutputChecker:
    context: CheckContext
    scope: Scope
    body: ast.ReadBody
    returns: list[ir.Projection] = field(default_factory=list)
    by_name: dict[str, int] = field(default_factory=dict)
    by_expr: dict[ir.OutputExpr, int] = field(default_factory=dict)
    grouped_vars: set[str] = field(default_factory=set)  # whose ids the query groups by
    nearest_at: Token | None = None

    def build(self) -> CheckedOutputs:
        for i, item in enumerate(self.body.returns):
            projection = self.projection(item)
            self.returns.append(projection)
            self.by_name[projection.name] = i
            self.by_expr.setdefault(projection.expr, i)
        grouped = any(projection.aggregate for projection in self.returns)
        group_by = tuple(i for i, entry in enumerate(self.returns) if grouped and not entry.aggregate)
        if grouped:
            self.reject_grouped_ranks()
            by = (self.returns[i].expr for i in group_by)
            self.grouped_vars = {expr.var for expr in by if isinstance(expr, ir.WholeNode | ir.EntityId)}
        keys = [self.order_key(item, grouped) for item in self.body.order]
        order = tuple(key for key in keys if key is not None)
        if self.nearest_at is not None and self.body.limit is None:
            remedy = "add limit n after order: the nearest n are found"
            raise self.context.error("OG-GQ-510", "nearest needs a limit", remedy, self.nearest_at)
        keeps = tuple(
            cast(ir.Rank, key.expr)
            for item, key in zip(self.body.order, keys, strict=True)
            if key is not None and isinstance(item.expr, ast.FunctionCall) and isinstance(key.expr, ir.Bm25 | ir.Rrf)
        )
        tiebreak = self.group_tiebreak(group_by) if grouped else self.row_tiebreak()
        return CheckedOutputs(tuple(self.returns), grouped, group_by, order, tiebreak, keeps)

    # return

    def projection(self, item: ast.ReturnItem) -> ir.Projection:
        checkpoint()
        expr = self.output(item)
        name = item.alias if item.alias is not None else column_name(item.expr)
        if name in self.by_name:
            message = f"Two columns are named {name}"
            raise self.context.error("OG-GQ-504", message, "name one of them with as", item.at)
        return ir.Projection(name, expr)

    def output(self, item: ast.ReturnItem) -> ir.OutputExpr:
        context, expr = self.context, item.expr
        if item.alias is None and not self.names_itself(expr):
            what = "A literal" if isinstance(expr, ast.LiteralExpr | ast.ListExpr) else "An expression"
            raise context.error("OG-GQ-502", f"{what} has no name as a column", "add as name", start_token(expr))
        match expr:
            case ast.VarRef() if expr.name not in context.params:
                entity = context.variable(self.scope, expr)
                if entity.is_edge:
                    remedy = f"return its properties, such as ${entity.var}.id"
                    raise context.error("OG-GQ-501", f"${entity.var} is an edge, not a value", remedy, expr.at)
                columns = tuple(column_of(prop) for prop in entity.definition.properties)
                return ir.WholeNode(entity.var, entity.definition.table_key, columns)
            case ast.PropRef():
                return resolve_property(context, self.scope, expr)
            case ast.FunctionCall(fn) if fn in AGGREGATES:
                return self.aggregate(expr)
            case ast.FunctionCall(fn) if fn in ast.TEXT_FILTERS:
                remedy = "it is a filter of match; bm25($x.prop, text) gives a score"
                raise context.error("OG-GQ-503", f"{fn} can't be returned", remedy, expr.at)
            case ast.FunctionCall(fn) if fn in ast.RANKS:
                return self.rank(expr)
            case _:
                return Expressions(context, self.scope).value(expr)

    def names_itself(self, expr: ast.Expr) -> bool:
        """Whether a column needs no `as`: a variable, a property, a parameter, now(), an aggregate or a rank."""
        match expr:
            case ast.VarRef() | ast.PropRef():
                return True
            case ast.FunctionCall(fn):
                return fn in (*AGGREGATES, *ast.RANKS, *ast.TEXT_FILTERS, "now")
            case _:
                return False

    def aggregate(self, call: ast.FunctionCall) -> ir.Aggregate:
        context = self.context
        fn = AGGREGATES[call.fn]
        if len(call.args) != 1:
            usage = "write count($x) for rows, count($x.prop) for values" if fn == "count" else f"write {fn}($x.prop)"
            raise context.error("OG-GQ-304", f"{fn} has {len(call.args)} arguments", usage, call.at)
        (arg,) = call.args
        if isinstance(arg, ast.VarRef) and arg.name not in context.params:
            return self.row_count(fn, arg)
        if isinstance(arg, ast.LiteralExpr | ast.ListExpr):
            message = f"{fn} takes a property or an expression over rows, not {summarize(arg)}"
            raise context.error("OG-GQ-511", message, f"write {fn}($x.prop)", start_token(arg))
        value = Expressions(context, self.scope).value(arg)
        return ir.Aggregate(fn, value, self.aggregate_type(fn, value.type, arg))

    def row_count(self, fn: ir.AggregateFn, arg: ast.VarRef) -> ir.Aggregate:
        entity = self.context.variable(self.scope, arg)
        if fn != "count" or entity.is_edge:
            kind = "an edge" if entity.is_edge else "a node"
            remedy = f"write {fn}(${arg.name}.{'id' if fn == 'count' else 'prop'})"
            raise self.context.error("OG-GQ-501", f"${arg.name} is {kind}, not a value", remedy, arg.at)
        return ir.Aggregate("count", None, ir.I64)

    def aggregate_type(self, fn: ir.AggregateFn, kind: PropertyType, arg: ast.Expr) -> PropertyType:
        if fn == "count":
            return ir.I64
        domain = domain_of(kind)
        if domain is None or (fn in ("sum", "avg") and domain != "number"):
            wanted = "numbers" if fn in ("sum", "avg") else "what has an order"
            message = f"{fn} takes {wanted}, but {summarize(arg)} is {kind}"
            raise self.context.error("OG-GQ-511", message, f"aggregate {wanted}, or count", arg.at)
        if fn in ("min", "max"):
            return kind
        if fn == "avg":
            return ir.F64
        return {"I32": ir.I64, "I64": ir.I64, "U32": ir.U64, "U64": ir.U64}.get(cast(Scalar, kind).name, ir.F64)

    # Ranks

    def rank(self, call: ast.FunctionCall) -> ir.Rank:
        if call.fn == "rrf":
            return self.rrf(call)
        return self.nearest(call) if call.fn == "nearest" else self.bm25(call)

    def bm25(self, call: ast.FunctionCall) -> ir.Bm25:
        self.count_arguments(call, 2, 2, "bm25($x.prop, text)")
        return ir.Bm25(text_field(self.context, self.scope, call), text_query(self.context, self.scope, call))

    def nearest(self, call: ast.FunctionCall) -> ir.Nearest:
        context = self.context
        self.count_arguments(call, 2, 2, "nearest($x.vector, q)")
        self.nearest_at = self.nearest_at or call.at
        searched = call.args[0]
        found = resolve_property(context, self.scope, searched) if isinstance(searched, ast.PropRef) else None
        if not isinstance(found, ir.Prop) or not isinstance(found.type, Vector):
            at = searched.at if isinstance(searched, ast.PropRef) else call.at
            raise context.error("OG-GQ-408", "nearest takes a vector", "write nearest($x.vector, q)", at)
        definition = context.catalog.type_of(found.table_key)
        prop = definition.by_name[found.column.name]
        query = self.vector_query(call.args[1], found.type, prop)
        return ir.Nearest(found, query, prop.metric or DEFAULT_METRIC)

    def vector_query(self, expr: ast.Expr, kind: Vector, prop: Property) -> ir.Constant:
        context = self.context
        query = required_constant(context, expr, self.scope, "what nearest looks for")
        if query.type == ir.STRING:
            if prop.embed is None:
                remedy = f'declare {prop.name} with @embed("source"), or give a vector'
                message = f"{prop.name} has no text that it was embedded from"
                raise context.error("OG-GQ-512", message, remedy, expr.at)
            return query
        if not assignable(query.type, kind):
            message = f"{prop.name} is {kind}, it can't be compared with {query.type}"
            raise context.error("OG-GQ-512", message, f"give a list of {kind.dimension} numbers, or a text", expr.at)
        if isinstance(query, ir.ParamRef):
            return ir.ParamRef(query.name, kind, query.param_type)
        assert isinstance(query, ir.Literal)
        try:
            return ir.Literal(parse_value(query.value, kind), kind)
        except BadValue as error:
            raise context.error("OG-GQ-512", error.problem, error.remedy, expr.at) from None

    def rrf(self, call: ast.FunctionCall) -> ir.Rrf:
        context = self.context
        self.count_arguments(call, 2, 3, "rrf(nearest($x.vector, q), bm25($x.prop, text))")
        ranks: list[ir.Nearest | ir.Bm25] = []
        for arg in call.args[:2]:
            if not isinstance(arg, ast.FunctionCall) or arg.fn not in ("nearest", "bm25"):
                message = f"rrf fuses two ranks, {summarize(arg)} is not a rank"
                raise context.error("OG-GQ-513", message, "write nearest(…) or bm25(…)", start_token(arg))
            ranks.append(self.nearest(arg) if arg.fn == "nearest" else self.bm25(arg))
        k: ir.Constant = ir.Literal(RRF_K_DEFAULT, ir.I64)
        if len(call.args) == 3:
            k = small_integer(context, self.scope, call.args[2], "rrf's k", (1, RRF_K_MAX))
        return ir.Rrf((ranks[0], ranks[1]), k)

    def count_arguments(self, call: ast.FunctionCall, least: int, most: int, usage: str) -> None:
        if not least <= len(call.args) <= most:
            message = f"{call.fn} has {len(call.args)} arguments"
            raise self.context.error("OG-GQ-304", message, f"write {usage}", call.at)

    def reject_grouped_ranks(self) -> None:
        for item, projection in zip(self.body.returns, self.returns, strict=True):
            if isinstance(projection.expr, ir.Nearest | ir.Bm25 | ir.Rrf):
                message = "A search function can't be combined with aggregates"
                raise self.context.error("OG-GQ-509", message, "aggregate in another query", start_token(item.expr))

    # order

    def order_key(self, item: ast.OrderItem, grouped: bool) -> ir.OrderKey | None:
        """The key; None for a constant, which has no effect on the order."""
        checkpoint()
        context = self.context
        if isinstance(item.expr, ast.AliasRef):
            named = self.column_named(item.expr)
            expr = self.returns[named].expr
            if isinstance(expr, ir.Literal | ir.ParamRef | ir.Now):
                return None
            return self.plain_key(item, expr, named)
        if isinstance(item.expr, ast.FunctionCall) and item.expr.fn in ast.RANKS:
            return self.rank_key(item, item.expr, grouped)
        expr = self.order_expr(item)
        column = self.by_expr.get(expr)
        if grouped and column is None and not isinstance(expr, ir.Aggregate):
            self.reject_ungrouped(item, expr)
        if not grouped and isinstance(expr, ir.Aggregate):
            message = f"{summarize(item.expr)} aggregates, but nothing in return does"
            raise context.error("OG-GQ-507", message, "return an aggregate too", start_token(item.expr))
        return self.plain_key(item, expr, column)

    def column_named(self, ref: ast.AliasRef) -> int:
        if ref.name in self.by_name:
            return self.by_name[ref.name]
        names = ", ".join(entry.name for entry in self.returns[:12]) + (", …" if len(self.returns) > 12 else "")
        remedy = (
            f"the columns are {names}; a property is written ${ref.name if self.scope.find(ref.name) else 'x'}.prop"
        )
        raise self.context.error("OG-GQ-505", f"return has no column {ref.name}", remedy, ref.at)

    def order_expr(self, item: ast.OrderItem) -> ir.OutputExpr:
        expr = item.expr
        if isinstance(expr, ast.FunctionCall) and expr.fn in AGGREGATES:
            return self.aggregate(expr)
        if isinstance(expr, ast.VarRef) and expr.name not in self.context.params:
            entity = self.context.variable(self.scope, expr)
            remedy = f"order by a property, such as ${entity.var}.id"
            raise self.context.error("OG-GQ-506", f"${entity.var} has no order", remedy, expr.at)
        found = Expressions(self.context, self.scope, self.returned).value(expr)
        if not ir.columns_in(found):
            remedy = "order by a property, an aggregate, a column's name or a search function"
            raise self.context.error("OG-GQ-508", f"{summarize(expr)} is not an order", remedy, start_token(expr))
        return found

    def returned(self, ref: ast.AliasRef) -> ir.Expr:
        """A column of `return` inside an expression of `order`."""
        expr = self.returns[self.column_named(ref)].expr
        if isinstance(expr, ir.WholeNode | ir.Aggregate | ir.Nearest | ir.Bm25 | ir.Rrf):
            remedy = "order by the column itself"
            raise self.context.error("OG-GQ-508", f"{ref.name} can't be part of an expression", remedy, ref.at)
        return expr

    def plain_key(self, item: ast.OrderItem, expr: ir.OutputExpr, column: int | None) -> ir.OrderKey:
        is_rank = isinstance(expr, ir.Nearest | ir.Bm25 | ir.Rrf)
        if isinstance(expr, ir.WholeNode) or (not is_rank and domain_of(expr.type) is None):
            shape = "a whole node" if isinstance(expr, ir.WholeNode) else str(expr.type)
            message = f"{summarize(item.expr)} is {shape}, which has no order"
            raise self.context.error("OG-GQ-506", message, "order by a property that has one", start_token(item.expr))
        descending = item.direction == "desc"
        return ir.OrderKey(expr, descending, not descending, column)

    def rank_key(self, item: ast.OrderItem, call: ast.FunctionCall, grouped: bool) -> ir.OrderKey:
        if grouped:
            message = "A search function can't order groups"
            raise self.context.error("OG-GQ-509", message, "order by a column, or return no aggregate", call.at)
        rank = self.rank(call)
        if item.direction == "desc":
            remedy = f"remove desc: {call.fn} puts the best first"
            raise self.context.error("OG-GQ-514", f"{call.fn} takes no direction", remedy, item.at)
        column = self.by_expr.get(rank)
        return ir.OrderKey(rank, not isinstance(rank, ir.Nearest), False, column)

    def reject_ungrouped(self, item: ast.OrderItem, expr: ir.OutputExpr) -> None:
        """An expression has one value in a group if the query groups by the variables or columns that it reads."""
        if not isinstance(expr, ir.WholeNode | ir.Aggregate | ir.Nearest | ir.Bm25 | ir.Rrf) and all(
            column.var in self.grouped_vars or column in self.by_expr for column in ir.columns_in(expr)
        ):
            return
        message = f"{summarize(item.expr)} has many values in a group"
        raise self.context.error(
            "OG-GQ-507", message, "return it too, or order by an aggregate", start_token(item.expr)
        )

    def row_tiebreak(self) -> tuple[ir.OrderKey, ...]:
        entities = sorted(self.scope.own.values(), key=lambda entity: entity.var)
        ids = [ir.EntityId(entity.var, entity.definition.table_key) for entity in entities]
        return tuple(ir.OrderKey(key, False, True, self.by_expr.get(key)) for key in ids)

    def group_tiebreak(self, group_by: tuple[int, ...]) -> tuple[ir.OrderKey, ...]:
        keys: list[ir.OrderKey] = []
        for i in group_by:
            expr = self.returns[i].expr
            if isinstance(expr, ir.WholeNode):
                keys.append(ir.OrderKey(ir.EntityId(expr.var, expr.table_key), False, True))
            elif not isinstance(expr, ir.Literal | ir.ParamRef | ir.Now | ir.Aggregate | ir.Nearest | ir.Bm25 | ir.Rrf):
                keys.append(ir.OrderKey(expr, False, True, i))
        return tuple(keys)
