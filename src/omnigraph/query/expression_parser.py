"""The expressions and types of `.gq`: the part of the grammar that clauses and statements are made of.

From loosest to tightest: `or`, `and`, `not`, comparisons (which don't chain), `||`, `+ -`, `* / %`, unary `-`, index.
Words are operators only by their position. Outside of `( )` and `[ ]` a `-` with white space before it and none after
begins a new item or clause; everywhere else it is binary. `[` is an index only if it follows its list immediately.
"""

import datetime as dt
import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from omnigraph.lexer import Span, Token, Tokens
from omnigraph.query.ast import (
    COMPARISONS,
    AliasRef,
    Arithmetic,
    BinaryExpr,
    CaseExpr,
    Comparison,
    Connective,
    ConnectiveExpr,
    Expr,
    FunctionCall,
    IndexExpr,
    ListExpr,
    LiteralExpr,
    PropertyValue,
    PropRef,
    UnaryExpr,
    VarRef,
    children,
    start_token,
)
from omnigraph.query.functions import FUNCTION_NAMES
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

BRACKETS_MAX = 50  # nested calls, parentheses and prefix operators
DEPTH_MAX = 150  # of the tree of one expression: a sum of 150 terms; `and` and `or` count once, however long they are
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1

_COMPARISON_TEXTS = frozenset(COMPARISONS)
WORD_OPERATORS = frozenset({"and", "or", "not", "is", *(op for op in COMPARISONS if op.isidentifier())})
_SUMS: frozenset[str] = frozenset({"+", "-"})
_PRODUCTS: frozenset[str] = frozenset({"*", "/", "%"})


class ExpressionParser(Tokens):
    """Parses types, values and expressions."""

    def __init__(self, source: str, source_name: str, span: Span | None = None) -> None:
        super().__init__(source, source_name, span)
        self.inside_brackets = False  # of ( ) or [ ]: there a `-` is never the start of something new
        self.bare_names = False  # whether a bare name is a value: in `order`, and in a mutation's `where`
        self.nesting = 0

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

    def expr(self) -> Expr:
        """A whole expression."""
        found = self.disjunction()
        if self.nesting == 0:
            self.check_depth(found)
        return found

    def check_depth(self, whole: Expr) -> None:
        """Whatever follows the parser may recurse."""
        level, depth = [whole], 0
        while level:
            depth += 1
            if depth > DEPTH_MAX:
                message = f"The expression is more than {DEPTH_MAX} operators deep"
                raise self.error("OG-GQ-110", message, "split it, or use a list with in", start_token(whole))
            level = [part for expr in level for part in children(expr)]

    def disjunction(self) -> Expr:
        return self.connected("or", self.conjunction)

    def conjunction(self) -> Expr:
        return self.connected("and", self.negation_or_comparison)

    def connected(self, op: Connective, part: Callable[[], Expr]) -> Expr:
        first = part()
        if not self.at_word(op):
            return first
        at, args = self.peek(), [first]
        while self.at_word(op):
            self.take()
            args.append(part())
        return ConnectiveExpr(op, tuple(args), at)

    def negation_or_comparison(self) -> Expr:
        if self.at_word("not") and self.peek(1).text != "{":
            at = self.take()
            with self.nested(at):
                return UnaryExpr("not", self.negation_or_comparison(), at)
        return self.comparison()

    def comparison(self) -> Expr:
        left = self.concatenation()
        found = self.compared(left)
        if found is not left and (self.comparison_operator() is not None or self.at_word("is")):
            message, remedy = f"{self.peek()} follows a comparison", "comparisons don't chain: connect them with and"
            raise self.error("OG-GQ-120", message, remedy, self.peek())
        return found

    def compared(self, left: Expr) -> Expr:
        token = self.peek()
        op = self.comparison_operator()
        if op is not None:
            self.take()
            if op == "not in":
                self.take()
            self.reject_foreign_operator(token)
            return BinaryExpr(op, left, self.concatenation(), token)
        if self.at_word("is"):
            self.take()
            negated = self.accept("not") is not None
            self.expect("null", "null: write is null or is not null")
            return UnaryExpr("is not null" if negated else "is null", left, token)
        return left

    def comparison_operator(self) -> Comparison | None:
        """The comparison that comes next; a word before a `:` is the name of a property."""
        token = self.peek()
        if token.kind not in ("name", "symbol"):
            return None
        if token.text == "not" and token.kind == "name":
            return "not in" if self.peek(1).text == "in" and self.peek(2).text != ":" else None
        if token.text not in _COMPARISON_TEXTS or (token.kind == "name" and self.peek(1).text == ":"):
            return None
        op: Comparison = token.text
        return op

    def reject_foreign_operator(self, token: Token) -> None:
        follows = self.peek()
        if follows.kind != "symbol" or follows.offset != token.offset + len(token.text):
            return
        if follows.text == "=":
            remedy = "write one of " + " ".join(COMPARISONS)
            raise self.error("OG-GQ-112", f"{token}= is not an operator", remedy, token)
        if token.text == "<" and follows.text == ">":
            raise self.error("OG-GQ-112", "<> is not an operator", "write != for unequal", token)

    def concatenation(self) -> Expr:
        found = self.sum()
        while self.peek().text == "||" and self.peek().kind == "symbol":
            at = self.take()
            found = BinaryExpr("||", found, self.sum(), at)
        return found

    def sum(self) -> Expr:
        found = self.product()
        while (op := self.sum_operator()) is not None:
            found = BinaryExpr(op[0], found, self.product(), op[1])
        return found

    def sum_operator(self) -> tuple[Arithmetic, Token] | None:
        """Take `+` or a binary `-`. The lexer reads `-5` as one number: where it is binary, the 5 remains."""
        token = self.peek()
        if token.kind == "symbol" and token.text in _SUMS:
            if token.text == "-" and self.starts_something(self.peek(1).offset == token.offset + 1):
                return None
            self.take()
            return cast(Arithmetic, token.text), token
        if token.kind in ("integer", "float") and token.text[0] == "-" and not self.starts_something(True):
            self.replace(token._replace(text=token.text[1:], value=-token.value, offset=token.offset + 1))
            return "-", token
        return None

    def starts_something(self, adjacent_after: bool) -> bool:
        """Whether the `-` that comes next begins a new item or clause."""
        return not self.inside_brackets and adjacent_after and not self.follows_immediately()

    def product(self) -> Expr:
        found = self.signed()
        while self.peek().kind == "symbol" and self.peek().text in _PRODUCTS:
            at = self.take()
            found = BinaryExpr(cast(Arithmetic, at.text), found, self.signed(), at)
        return found

    def signed(self) -> Expr:
        token = self.peek()
        if token.kind == "symbol" and token.text == "-":
            self.take()
            with self.nested(token):
                return UnaryExpr("-", self.signed(), token)
        return self.indexed()

    def indexed(self) -> Expr:
        found = self.primary()
        while self.peek().text == "[" and self.peek().kind == "symbol" and self.follows_immediately():
            at = self.take()
            with self.nested(at, brackets=True):
                found = IndexExpr(found, self.expr(), at)
                self.expect("]")
        return found

    def primary(self) -> Expr:
        token, follows = self.peek(), self.peek(1)
        if token.kind == "variable":
            var = self.variable()
            if not self.accept("."):
                return var
            prop = self.expect_kind("name", f"a property of {var.at}")
            return PropRef(var, prop.text, prop)
        if token.kind == "symbol":
            if token.text == "[":
                return self.list()
            if token.text == "(":
                return self.parenthesised()
        if token.kind == "name":
            if token.text == "case" and follows.text == "when":
                return self.case()
            if follows.text == "(" and (self.adjacent(token, follows) or token.text in FUNCTION_NAMES):
                return self.call()
            if self.bare_names and token.text not in ("true", "false", "null"):
                return AliasRef(self.take().text, token)
        return self.literal()

    def parenthesised(self) -> Expr:
        start = self.take()
        with self.nested(start, brackets=True):
            found = self.expr()
            self.expect(")", "an operator or )")
        return found

    def case(self) -> CaseExpr:
        start = self.take()
        branches: list[tuple[Expr, Expr]] = []
        with self.nested(start):
            while self.accept("when"):
                condition = self.expr()
                self.expect("then", "then and a value")
                branches.append((condition, self.expr()))
            otherwise = self.expr() if self.accept("else") else None
            self.expect("end", "when, else or end")
        return CaseExpr(tuple(branches), otherwise, start)

    def call(self) -> Expr:
        name = self.take()
        if name.text in ("date", "datetime") and self.peek(1).kind == "string" and self.peek(2).text == ")":
            return self.time(name)
        if name.text not in FUNCTION_NAMES:
            close = difflib.get_close_matches(name.text, FUNCTION_NAMES, 1)
            known = f"did you mean {close[0]}" if close else f"use one of {', '.join(FUNCTION_NAMES)}"
            raise self.error("OG-GQ-113", f"{name} is not a function", known, name)
        self.expect("(")
        args: list[Expr] = []
        with self.nested(name, brackets=True):
            while not self.at(")"):
                args.append(self.expr())
                if not self.accept(","):
                    break
            self.expect(")", ", or )")
        return FunctionCall(name.text, tuple(args), name)

    @contextmanager
    def nested(self, at: Token, *, brackets: bool = False) -> Iterator[None]:
        if self.nesting >= BRACKETS_MAX:
            raise self.error("OG-GQ-110", f"More than {BRACKETS_MAX} expressions are nested", "nest less", at)
        before = self.inside_brackets
        self.inside_brackets |= brackets
        self.nesting += 1
        try:
            yield
        finally:
            self.nesting -= 1
            self.inside_brackets = before

    def at_word(self, word: str) -> bool:
        """Whether the operator `word` comes next; before a `:` it is the name of a property."""
        return self.at(word) and self.peek(1).text != ":"

    def follows_immediately(self) -> bool:
        """Whether no white space is before the next token."""
        return self.adjacent(self.previous(), self.peek())

    @staticmethod
    def adjacent(token: Token, follows: Token) -> bool:
        return token.offset + len(token.text) == follows.offset

    def list(self) -> ListExpr:
        start = self.take()
        items: list[LiteralExpr] = []
        while not self.at("]"):
            start_of_item = self.peek()
            item = self.primary()
            if not isinstance(item, LiteralExpr):
                message = "A list can't hold lists" if isinstance(item, ListExpr) else "A list holds literals only"
                remedy = "write the items in one list, or pass the list as a parameter"
                raise self.error("OG-GQ-114", message, remedy, start_of_item)
            items.append(item)
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
            if token.text == "null":
                return LiteralExpr("null", None, token)
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
            found.append(PropertyValue(prop.text, self.expr(), prop))
            self.accept(",")
        self.take()
        return tuple(found)
