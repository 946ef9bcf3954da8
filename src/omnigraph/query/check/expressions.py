"""Expressions, from AST to typed IR: filters, projections and the `where` of mutations share these rules."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from omnigraph.lexer import Token
from omnigraph.query import ast, ir
from omnigraph.query.ast import start_token
from omnigraph.query.check.scope import CheckContext, Scope
from omnigraph.query.check.type_rules import (
    FLOATS,
    compare,
    constant,
    describe,
    domain_of,
    is_null,
    membership,
    null_error,
    resolve_property,
)
from omnigraph.query.functions import ENTITY_FUNCTIONS, SIGNATURES, Signature
from omnigraph.query.printer import summarize
from omnigraph.query.values import BadValue, parse_value
from omnigraph.schema.regex import pattern_problem
from omnigraph.schema.types import INTEGER_BOUNDS, Enumeration, ListOf, PropertyType, Scalar

_RESULTS = {"String": ir.STRING, "I64": ir.I64, "F64": ir.F64, "Date": Scalar("Date"), "DateTime": ir.DATETIME}
_RESULTS_OF_LISTS: dict[str, PropertyType] = {"[String]": ListOf(ir.STRING)}


@dataclass(slots=True)
class Expressions:
    """Checks expressions in one scope. `names` resolves a bare name; without it there are none."""

    context: CheckContext
    scope: Scope
    names: Callable[[ast.AliasRef], ir.Expr] | None = field(default=None)

    def condition(self, expr: ast.Expr) -> ir.Condition:
        """An expression that must be a Bool."""
        return ir.as_condition(self.boolean(expr, "a condition"))

    def boolean(self, expr: ast.Expr, what: str) -> ir.Expr:
        found = self.value(expr)
        if found.type != ir.BOOL:
            message = f"{describe(found)} is not {what}"
            raise self.context.error("OG-GQ-310", message, "compare it with something", start_token(expr))
        return found

    def value(self, expr: ast.Expr, wanted: PropertyType | None = None) -> ir.Expr:
        """Any expression with one value for a row; `wanted` is the type that `null` has here."""
        context = self.context
        found = None if is_null(expr) else constant(context, expr)
        if found is not None:
            return found
        match expr:
            case ast.LiteralExpr():
                return self.null(expr, wanted)
            case ast.PropRef():
                return resolve_property(context, self.scope, expr)
            case ast.AliasRef() if self.names is not None:
                return self.names(expr)
            case ast.VarRef():
                entity = context.variable(self.scope, expr)
                message = f"${entity.var} is {'an edge' if entity.is_edge else 'a node'}, not a value"
                raise context.error("OG-GQ-306", message, f"use a property or ${entity.var}.id", expr.at)
            case ast.ConnectiveExpr(op, args):
                return ir.Apply(op, tuple(self.boolean(arg, f"a side of {op}") for arg in args), ir.BOOL)
            case ast.UnaryExpr():
                return self.unary(expr)
            case ast.BinaryExpr():
                return self.binary(expr)
            case ast.CaseExpr():
                return self.case(expr, wanted)
            case ast.IndexExpr():
                return self.index(expr)
            case ast.FunctionCall():
                return self.call(expr, wanted)
            case _:
                raise context.error("OG-GQ-305", f"{summarize(expr)} is not a value", "name a property", expr.at)

    def null(self, expr: ast.LiteralExpr, wanted: PropertyType | None) -> ir.Literal:
        if wanted is None:
            raise null_error(self.context, expr)
        return ir.Literal(None, wanted)

    # Operators

    def unary(self, expr: ast.UnaryExpr) -> ir.Expr:
        if expr.op == "not":
            return ir.Apply("not", (self.boolean(expr.arg, "a condition"),), ir.BOOL)
        if expr.op == "-":
            arg = self.value(expr.arg)
            return ir.Apply("negate", (arg,), self.numeric((arg,), "-", expr.at))
        test = ir.Apply("is_null", (self.value(expr.arg),), ir.BOOL)
        return test if expr.op == "is null" else ir.Apply("not", (test,), ir.BOOL)

    def binary(self, expr: ast.BinaryExpr) -> ir.Expr:
        context, op, at = self.context, expr.op, expr.at
        if op in ("=", "!=") and (is_null(expr.left) or is_null(expr.right)):
            remedy = f"write {'is null' if op == '=' else 'is not null'}"
            raise context.error("OG-GQ-116", "A comparison with null is never true", remedy, at)
        left, right = self.value(expr.left), self.value(expr.right)
        if op in ("=", "!=", "<", "<=", ">", ">=", "contains", "starts_with"):
            return compare(context, op, left, right, at)
        if op in ("in", "not in"):
            if not isinstance(right.type, ListOf):
                remedy = "write a list such as [1, 2], a list parameter or a list property behind in"
                raise context.error("OG-GQ-301", f"{describe(right)} is not a list", remedy, at)
            found = membership(context, right, left, at)
            return found if op == "in" else ir.Apply("not", (found,), ir.BOOL)
        if op in ("ends_with", "matches"):
            self.require((left, right), "text", op, at)
            if op == "matches":
                self.check_pattern(right, expr)
            return ir.Apply(op, (left, right), ir.BOOL)
        if op == "||":
            return self.concatenation(left, right, at)
        kind = self.numeric((left, right), op, at)
        return ir.Apply(op, (left, right), ir.F64 if op == "/" else kind)

    def check_pattern(self, pattern: ir.Expr, expr: ast.BinaryExpr) -> None:
        if isinstance(pattern, ir.ParamRef):
            return  # bind checks it
        if not isinstance(pattern, ir.Literal):
            remedy = "write the regular expression as a text or a parameter"
            raise self.context.error("OG-GQ-311", "matches takes one pattern for all rows", remedy, expr.at)
        problem = pattern_problem(cast(str, pattern.value))
        if problem is not None:
            at = start_token(expr.right)
            raise self.context.error("OG-GQ-311", f"The pattern can't be used, {problem}", "correct it", at)

    def concatenation(self, left: ir.Expr, right: ir.Expr, at: Token) -> ir.Expr:
        if isinstance(left.type, ListOf) and isinstance(right.type, ListOf):
            item = self.common((left.type.item, right.type.item), "||", at)
            return ir.Apply("||", (left, right), ListOf(cast(Scalar, item)))
        self.require((left, right), "text", "||", at)
        return ir.Apply("||", (left, right), ir.STRING)

    def numeric(self, args: tuple[ir.Expr, ...], op: str, at: Token) -> PropertyType:
        """The type of arithmetic: I64 of integers, F64 as soon as there is a float."""
        self.require(args, "number", op, at)
        return ir.F64 if any(cast(Scalar, arg.type).name in FLOATS for arg in args) else ir.I64

    def require(self, args: tuple[ir.Expr, ...], what: str, op: str, at: Token) -> None:
        for arg in args:
            if not _is_a(arg.type, what):
                remedy = f"{op} takes {_PLURALS[what]}"
                raise self.context.error("OG-GQ-312", f"{describe(arg)} can't be used with {op}", remedy, at)

    def common(self, kinds: tuple[PropertyType, ...], what: str, at: Token) -> PropertyType:
        """One type for values of several: numbers widen, enums are texts."""
        found = kinds[0]
        for kind in kinds[1:]:
            if kind == found:
                continue
            domain = domain_of(kind)
            if domain is None or domain != domain_of(found):
                message = f"{what} has values of the types {found} and {kind}"
                raise self.context.error("OG-GQ-312", message, "give all the same type", at)
            if domain == "text":
                found = ir.STRING
            else:
                floats = {cast(Scalar, kind).name, cast(Scalar, found).name} & FLOATS
                found = ir.F64 if floats else ir.I64
        return found

    # case, index, functions

    def case(self, expr: ast.CaseExpr, wanted: PropertyType | None) -> ir.Expr:
        conditions = [self.boolean(condition, "a condition of case") for condition, _ in expr.branches]
        values = [value for _, value in expr.branches]
        results = self.alternatives([*values, *([expr.otherwise] if expr.otherwise else [])], "case", expr.at, wanted)
        kind = results[0].type
        otherwise = results[-1] if expr.otherwise else ir.Literal(None, kind)
        return ir.Case(tuple(zip(conditions, results, strict=False)), otherwise, kind)

    def alternatives(
        self, values: list[ast.Expr], what: str, at: Token, wanted: PropertyType | None
    ) -> tuple[ir.Expr, ...]:
        """Values of which one is chosen: all get one type, `null` that of the others."""
        typed = {i: self.value(value, wanted) for i, value in enumerate(values) if not is_null(value)}
        if typed:
            kind = self.common(tuple(entry.type for entry in typed.values()), what, at)
        elif wanted is not None:
            kind = wanted
        else:
            raise self.context.error("OG-GQ-116", f"{what} has no value but null", "give it another value", at)
        return tuple(_widen(typed[i], kind) if i in typed else ir.Literal(None, kind) for i in range(len(values)))

    def index(self, expr: ast.IndexExpr) -> ir.Expr:
        items, index = self.value(expr.items), self.value(expr.index)
        if not isinstance(items.type, ListOf):
            message = f"{describe(items)} is not a list"
            raise self.context.error("OG-GQ-312", message, "only a list has items by index", expr.at)
        self.require((index,), "integer", "[ ]", expr.at)
        return ir.Apply("[]", (items, index), items.type.item)

    def call(self, expr: ast.FunctionCall, wanted: PropertyType | None) -> ir.Expr:
        context = self.context
        if expr.fn in ast.AGGREGATES:
            remedy = "filters and arguments apply to rows, before grouping: aggregate in return or order"
            raise context.error("OG-GQ-307", f"{expr.fn} is not allowed here", remedy, expr.at)
        if expr.fn in ENTITY_FUNCTIONS:
            return self.entity_function(expr)
        signature = SIGNATURES.get(expr.fn)
        if signature is None:
            remedy = "it is a clause of its own" if expr.fn in ast.TEXT_FILTERS else "use it in return or order"
            raise context.error("OG-GQ-305", f"{summarize(expr)} is not a value", remedy, expr.at)
        self.count_arguments(expr, signature)
        if expr.fn == "coalesce":
            args = self.alternatives(list(expr.args), "coalesce", expr.at, wanted)
        else:
            args = tuple(self.value(arg) for arg in expr.args)
            last = len(signature.args) - 1
            for i, arg in enumerate(args):
                self.check_argument(expr, arg, signature.args[min(i, last)], signature)
        kind = self.result(expr, args, signature)
        if signature.result == "common":
            args = tuple(_widen(arg, kind) for arg in args)
        return ir.Apply(expr.fn, args, kind)

    def count_arguments(self, expr: ast.FunctionCall, signature: Signature) -> None:
        least = len(signature.args)
        if len(expr.args) < least or (len(expr.args) > least and not signature.variadic):
            message = f"{expr.fn} has {len(expr.args)} arguments"
            raise self.context.error("OG-GQ-304", message, f"write {signature.usage}", expr.at)

    def check_argument(self, expr: ast.FunctionCall, arg: ir.Expr, wanted: str, signature: Signature) -> None:
        if not any(_is_a(arg.type, word) for word in wanted.split("|")):
            takes = " or ".join(_PLURALS[word] for word in wanted.split("|"))
            message = f"{describe(arg)} can't be an argument of {expr.fn}"
            raise self.context.error("OG-GQ-312", message, f"it takes {takes}: {signature.usage}", expr.at)

    def result(self, expr: ast.FunctionCall, args: tuple[ir.Expr, ...], signature: Signature) -> PropertyType:
        match signature.result:
            case "same":
                return args[0].type
            case "numeric":
                return self.numeric(args, expr.fn, expr.at)
            case "common":
                return self.common(tuple(arg.type for arg in args), expr.fn, expr.at)
            case name:
                return _RESULTS_OF_LISTS.get(name) or _RESULTS[name]

    def entity_function(self, expr: ast.FunctionCall) -> ir.Expr:
        """`id($x)` and `type($x)`."""
        (arg,) = expr.args if len(expr.args) == 1 else (None,)
        if not isinstance(arg, ast.VarRef):
            raise self.context.error("OG-GQ-304", f"{expr.fn} takes a variable", f"write {expr.fn}($x)", expr.at)
        entity = self.context.variable(self.scope, arg)
        if expr.fn == "id":
            return ir.EntityId(entity.var, entity.definition.table_key)
        return ir.Literal(entity.definition.name, ir.STRING)


_PLURALS = {
    "text": "texts",
    "integer": "integers",
    "number": "numbers",
    "time": "a Date or DateTime",
    "datetime": "a DateTime",
    "list": "a list",
    "value": "what has an order",
    "scalar": "a text, number, Bool, Date, DateTime or Blob",
    "any": "any value",
}


def _is_a(kind: PropertyType, word: str) -> bool:
    name = kind.name if isinstance(kind, Scalar) else ""
    match word:
        case "text":
            return domain_of(kind) == "text"
        case "integer":
            return name in INTEGER_BOUNDS
        case "number":
            return domain_of(kind) == "number"
        case "time":
            return name in ("Date", "DateTime")
        case "datetime":
            return name == "DateTime"
        case "list":
            return isinstance(kind, ListOf)
        case "value":
            return domain_of(kind) is not None
        case "scalar":
            return isinstance(kind, Scalar | Enumeration)
        case _:
            return True


def _widen(expr: ir.Expr, kind: PropertyType) -> ir.Expr:
    """The expression with the type that it has in common with others."""
    if expr.type == kind or domain_of(kind) == "text":
        return expr
    if isinstance(expr, ir.Literal):
        return ir.Literal(None if expr.value is None else _widen_number(expr.value, kind), kind)
    return ir.Apply("widen", (expr,), kind)


def _widen_number(value: ir.Value, kind: PropertyType) -> ir.Value:
    """A number in a wider type; an integer that no F64 holds exactly becomes the nearest."""
    try:
        return parse_value(value, kind)
    except BadValue:
        return float(cast(float, value))
