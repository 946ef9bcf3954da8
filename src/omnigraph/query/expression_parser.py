"""The expressions and types of `.gq`: the part of the grammar that clauses and statements are made of."""

import datetime as dt

from omnigraph.lexer import Token, Tokens
from omnigraph.query.ast import (
    AGGREGATES,
    OPERATORS,
    RANKS,
    TEXT_FILTERS,
    Expr,
    FunctionCall,
    ListExpr,
    LiteralExpr,
    Operator,
    PropertyValue,
    PropRef,
    VarRef,
)
from omnigraph.query.values import BadValue, parse_date, parse_datetime
from omnigraph.schema.types import (
    ENUM_VALUE,
    SCALARS,
    TYPES_EXPECTED,
    VECTOR_DIMENSION_MAX,
    Enumeration,
    ListOf,
    PropertyType,
    Scalar,
    Vector,
)

CALL_DEPTH_MAX = 4
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1

FUNCTIONS = ("now", "date", "datetime", *AGGREGATES, *RANKS, *TEXT_FILTERS)
OPERATOR_TEXTS = frozenset(OPERATORS)


class ExpressionParser(Tokens):
    """Parses types, values, operators and expressions."""

    def type(self) -> PropertyType:
        start = self.peek()
        if self.accept("["):
            item = self.peek()
            if item.kind != "name" or item.text not in SCALARS:
                raise self.unexpected(f"a list's scalar: one of {', '.join(SCALARS)}")
            self.take()
            self.expect("]")
            return ListOf(Scalar(item.text))
        if start.kind != "name":
            raise self.unexpected(f"a type: {TYPES_EXPECTED}")
        self.take()
        if start.text in SCALARS:
            return Scalar(start.text)
        if start.text == "Vector" and self.accept("("):
            size = self.expect_kind("integer", "the number of dimensions")
            if not 1 <= size.value <= VECTOR_DIMENSION_MAX:
                limits = f"write 1 to {VECTOR_DIMENSION_MAX:,}"
                raise self.error("OG-GQ-105", f"A vector can't have {size} dimensions", limits, size)
            self.expect(")")
            return Vector(size.value)
        if start.text == "enum" and self.accept("("):
            return self.enumeration(start)
        raise self.error("OG-GQ-105", f"{start} is not a parameter type", f"use {TYPES_EXPECTED}", start)

    def enumeration(self, start: Token) -> Enumeration:
        values: dict[str, None] = {}
        while True:
            value, first = "", self.peek()
            end = first.offset
            while self.peek().text not in (",", ")") and self.peek().offset == end:
                token = self.take()
                value, end = value + token.text, token.offset + len(token.text)
            if not ENUM_VALUE.match(value):
                raise self.unexpected("a value of letters, digits, _ and -", first)
            if value in values:
                raise self.error("OG-GQ-105", f"The enum lists {value} twice", "remove one", first)
            values[value] = None
            if not self.accept(","):
                self.expect(")", ", or )")
                return Enumeration(tuple(values))

    def variable(self) -> VarRef:
        token = self.expect_kind("variable", "a variable, such as $p or $_")
        return VarRef(token.value, token)

    def operator(self) -> tuple[Operator, Token]:
        token = self.peek()
        if token.text not in OPERATOR_TEXTS or token.kind not in ("name", "symbol"):
            raise self.unexpected("an operator: " + " ".join(OPERATORS))
        self.take()
        follows = self.peek()
        if follows.kind == "symbol" and follows.offset == token.offset + len(token.text):
            if follows.text == "=":
                raise self.error(
                    "OG-GQ-112", f"{token}= is not an operator", "write one of " + " ".join(OPERATORS), token
                )
            if token.text == "<" and follows.text == ">":
                raise self.error("OG-GQ-112", "<> is not an operator", "write != for unequal", token)
        op: Operator = token.text
        return op, token

    def expr(self, depth: int) -> Expr:
        token = self.peek()
        if token.kind == "variable":
            var = self.variable()
            if not self.accept("."):
                return var
            prop = self.expect_kind("name", f"a property of {var.at}")
            return PropRef(var, prop.text, prop)
        if token.text == "[" and token.kind == "symbol":
            return self.list()
        if token.kind == "name" and self.peek(1).text == "(" and token.text not in ("date", "datetime"):
            if token.text not in FUNCTIONS:
                known = f"use one of {', '.join(FUNCTIONS)}"
                raise self.error("OG-GQ-113", f"{token} is not a function", known, token)
            return self.call(depth)
        return self.literal()

    def call(self, depth: int) -> FunctionCall:
        name = self.take()
        if depth >= CALL_DEPTH_MAX:
            raise self.error("OG-GQ-110", f"More than {CALL_DEPTH_MAX} functions are nested", "nest less", name)
        self.expect("(")
        args: list[Expr] = []
        while not self.at(")"):
            args.append(self.expr(depth + 1))
            if not self.accept(","):
                break
        self.expect(")", ", or )")
        return FunctionCall(name.text, tuple(args), name)

    def list(self) -> ListExpr:
        start = self.take()
        items: list[LiteralExpr] = []
        while not self.at("]"):
            if self.peek().text == "[":
                raise self.error("OG-GQ-114", "A list can't hold lists", "write the items in one list", self.peek())
            items.append(self.literal())
            if not self.accept(","):
                break
        self.expect("]", ", or ]")
        return ListExpr(tuple(items), start)

    def literal(self) -> LiteralExpr:
        token = self.take()
        if token.kind == "string":
            return LiteralExpr("string", token.value, token)
        if token.kind == "integer":
            if not INTEGER_MIN <= token.value <= INTEGER_MAX:
                limits = f"write a number from {INTEGER_MIN} to {INTEGER_MAX}"
                raise self.error("OG-GQ-115", f"{token} does not fit into 64 bits", limits, token)
            return LiteralExpr("integer", token.value, token)
        if token.kind == "float":
            return LiteralExpr("float", token.value, token)
        if token.kind == "name":
            if token.text in ("true", "false"):
                return LiteralExpr("bool", token.text == "true", token)
            if token.text in ("date", "datetime") and self.at("("):
                return self.time(token)
            if token.text == "null":
                remedy = "a comparison with null never matches; an optional parameter that is left out writes null"
                raise self.error("OG-GQ-116", "There is no null literal", remedy, token)
            remedy = f'"{token}" is a text, ${token} a parameter or variable'
            raise self.unexpected(f"a value: {remedy}", token)
        raise self.unexpected("a value: a literal, $parameter, $x.property or now()", token)

    def time(self, name: Token) -> LiteralExpr:
        self.take()
        text = self.expect_kind(
            "string", 'a text, such as "2026-01-31"' + ("T12:00:00Z" if name.text != "date" else "")
        )
        self.expect(")")
        try:
            if name.text == "date":
                day: dt.date = parse_date(text.value)
                return LiteralExpr("date", day, name)
            return LiteralExpr("datetime", parse_datetime(text.value), name)
        except BadValue as error:
            raise self.error("OG-GQ-117", error.problem, error.remedy, text) from None

    def values(self, what: str) -> tuple[PropertyValue, ...]:
        self.expect("{", f"{{ and the values of {what}")
        found: list[PropertyValue] = []
        while not self.at("}"):
            prop = self.expect_kind("name", "a property's name or }")
            self.expect(":", f": and a value after {prop}")
            found.append(PropertyValue(prop.text, self.expr(0), prop))
            self.accept(",")
        self.take()
        return tuple(found)
