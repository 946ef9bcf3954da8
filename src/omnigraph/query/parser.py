"""Text to AST: recursive descent, one function for each rule of the grammar, no lookup of names.

No word is reserved: the meaning of a name depends on its position. A clause that starts with `$a name $b`,
`$a $w:` or `$a <name>` is a traversal if `$a` is not a parameter, whatever the name; every other clause that is not a
binding or `not { … }` is a boolean expression. Commas between items are optional: an item extends as far as it can.

    file       = query+ | read | statement+
    query      = "query" NAME "(" [param ("," param)*] ")" annotation* "{" (read | statement+) "}"
    param      = $NAME ":" type ["?"]
    read       = "match" "{" clause+ "}" "return" "{" (item [","])+ "}" ["order" "{" (key [","])+ "}"] ["limit" INT]
    clause     = $v ":" TYPE [values] | $a [$w ":"] (edge | "<" edge ">") [hops] $b | expr | "not" "{" clause+ "}"
    hops       = "{" INT "," [INT] "}"
    item       = expr ["as" NAME]            key = expr ["asc" | "desc"]
    statement  = "insert" TYPE values | "update" TYPE "set" values "where" expr | "delete" TYPE "where" expr
    values     = "{" [NAME ":" expr ([","] NAME ":" expr)*] "}"
    expr       = see expression_parser.py
"""

import re

from omnigraph.cancellation import checkpoint
from omnigraph.lexer import LanguageError, Span, Token
from omnigraph.query.ast import (
    COMPARISONS,
    AliasRef,
    Binding,
    BrokenQuery,
    Clause,
    DeleteStatement,
    Expr,
    FilterClause,
    Hops,
    InsertStatement,
    MutationBody,
    MutationStatement,
    NotClause,
    OrderDirection,
    OrderItem,
    ParamDecl,
    QueryAnnotation,
    QueryDecl,
    QueryFile,
    ReadBody,
    ReturnItem,
    Traversal,
    UpdateStatement,
    VarRef,
)
from omnigraph.query.expression_parser import INTEGER_MAX, WORD_OPERATORS, ExpressionParser

NOT_DEPTH_MAX = 16
HOPS_MAX = 2**31 - 1

BARE_NAME = "query"  # of a query that is a body alone
TOO_LONG = "OG-LX-101"
_QUERY_LINE = re.compile(r"^query[ \t]+(?P<name>[A-Za-z_][A-Za-z0-9_]*)[ \t]*\(", re.MULTILINE)
READ_PARTS = ("match", "return", "order", "limit")
STATEMENTS = ("insert", "update", "delete")
_CONNECTIVES = {
    "and": "all clauses have to hold anyway, remove it",
    "or": "connect two conditions, such as $x.age > 3 or $x.age is null",
    "where": "write the condition as a clause of match, such as $x.age > 3",
}


def parse(source: str, source_name: str = "query") -> QueryFile:
    """The queries of a text, those that don't parse among its `broken`. Raises LanguageError if none parses."""
    try:
        return _QueryParser(source, source_name).file()
    except LanguageError as error:
        spans = _query_spans(source)
        if len(spans) < 2 or error.language_code == TOO_LONG:
            raise
        return _parse_separately(source, source_name, spans)


def _query_spans(source: str) -> list[tuple[str, Span]]:
    """The name and place of each query, by the lines that begin with `query name(`."""
    starts = [(found["name"], found.start()) for found in _QUERY_LINE.finditer(source)]
    spans: list[tuple[str, Span]] = []
    line, counted = 1, 0
    for i, (name, begin) in enumerate(starts):
        start = 0 if i == 0 else begin  # what stands before the first query belongs to it
        line += source.count("\n", counted, start)
        counted = start
        spans.append((name, Span(start, starts[i + 1][1] if i + 1 < len(starts) else len(source), line)))
    return spans


def _parse_separately(source: str, source_name: str, spans: list[tuple[str, Span]]) -> QueryFile:
    queries: list[QueryDecl] = []
    broken: list[BrokenQuery] = []
    places: dict[str, Token] = {}
    for name, span in spans:
        checkpoint()
        try:
            parser = _QueryParser(source, source_name, span)
            for query in parser.file().queries:
                parser.require_new_name(query, places)
                queries.append(query)
        except LanguageError as error:
            broken.append(BrokenQuery(name, error))
    if not queries:
        raise broken[0].error
    return QueryFile(tuple(queries), tuple(broken), source, source_name)


class _QueryParser(ExpressionParser):
    def __init__(self, source: str, source_name: str, span: Span | None = None) -> None:
        super().__init__(source, source_name, span)
        self.params: set[str] = set()
        self.wrapped = True  # in `query name() { … }`

    # The file

    def file(self) -> QueryFile:
        if self.peek().text in ("match", *STATEMENTS):
            return QueryFile((self.bare_query(),), (), self.source, self.source_name)
        queries: list[QueryDecl] = []
        names: dict[str, Token] = {}
        while self.peek().kind != "end":
            query = self.query()
            self.require_new_name(query, names)
            queries.append(query)
        if not queries:
            raise self.error("OG-GQ-102", "The text has no query", "write query name() { … }", self.peek())
        return QueryFile(tuple(queries), (), self.source, self.source_name)

    def require_new_name(self, query: QueryDecl, places: dict[str, Token]) -> None:
        """Every name once; `places` has those of the queries before."""
        first = places.setdefault(query.name, query.at)
        if first is not query.at:
            message = f"The query {query.name} is declared twice, first in line {first.line}"
            raise self.error("OG-GQ-101", message, "rename one of them", query.at)

    def bare_query(self) -> QueryDecl:
        """The body of a query alone, as one writes it at a prompt: it has no parameters."""
        self.wrapped = False
        start = self.peek()
        return QueryDecl(BARE_NAME, (), self.body(), (), start)

    def query(self) -> QueryDecl:
        if not self.accept("query"):
            raise self.unexpected("query name() { … }, or match { … } return { … } alone")
        name = self.expect_kind("name", "the query's name")
        self.expect("(", "( and the parameters, or ()")
        params: list[ParamDecl] = []
        while not self.at(")"):
            params.append(self.param())
            if not self.accept(","):
                break
        self.expect(")", ", or )")
        self.params = {param.name for param in params}
        annotations: list[QueryAnnotation] = []
        while self.peek().kind == "annotation":
            annotations.append(self.annotation())
        self.expect("{", "{ and the query's body")
        body = self.body()
        return QueryDecl(name.text, tuple(params), body, tuple(annotations), name)

    def annotation(self) -> QueryAnnotation:
        name = self.take()
        value: str | None = None
        if self.accept("("):
            value = self.expect_kind("string", 'a text, such as "people who know each other"').value
            self.expect(")")
        elif name.value == "description":
            raise self.unexpected('("…") after @description')
        return QueryAnnotation(name.value, value, name)

    def param(self) -> ParamDecl:
        name = self.expect_kind("variable", "a parameter, such as $name: String")
        if name.value == "_":
            raise self.error("OG-GQ-104", "$_ can't name a parameter", "give it a name", name)
        self.expect(":", f": and the type of {name}")
        kind = self.type()
        return ParamDecl(name.value, kind, self.accept("?") is not None, name)

    def body(self) -> ReadBody | MutationBody:
        start = self.peek()
        if self.at("match"):
            return self.read()
        if start.kind == "name" and start.text in STATEMENTS:
            return self.mutation()
        if start.kind == "name" and start.text in READ_PARTS:
            raise self.error("OG-GQ-106", f"{start} comes before match", "begin with match { … }", start)
        raise self.unexpected("match { … } or a mutation: insert, update, delete")

    def end_of_body(self, expected: str) -> None:
        token = self.peek()
        if not self.at_end_of_body():
            if token.kind == "name" and token.text in (*READ_PARTS, *STATEMENTS):
                raise self.misplaced(token, expected)
            raise self.unexpected(expected)

        if self.wrapped:
            self.take()

    def at_end_of_body(self) -> bool:
        return self.at("}") if self.wrapped else self.peek().kind == "end"

    def misplaced(self, token: Token, expected: str) -> LanguageError:
        if token.text in STATEMENTS:
            remedy = "write two queries, one that reads and one that writes"
            return self.error("OG-GQ-107", f"A query that reads can't {token}", remedy, token)
        remedy = "write match, return, order, limit in this order, each once"
        return self.error("OG-GQ-106", f"{token} is in the wrong position", f"expected {expected}; {remedy}", token)

    # Reads

    def read(self) -> ReadBody:
        self.take()
        match = self.clauses("match", 0)
        if not self.at("return"):
            token = self.peek()
            if token.kind == "name" and token.text in (*READ_PARTS, *STATEMENTS):
                raise self.misplaced(token, "return { … }")
            raise self.unexpected("return { … }")
        self.take()
        returns = tuple(self.return_items())
        order: tuple[OrderItem, ...] = ()
        if self.accept("order"):
            order = tuple(self.order_items())
        limit: int | None = None
        limit_at = self.peek()
        if self.accept("limit"):
            limit_at = self.expect_kind("integer", "an integer, such as limit 20")
            limit = limit_at.value
            if not 0 <= limit_at.value <= INTEGER_MAX // 2:
                raise self.error("OG-GQ-108", f"limit can't be {limit_at}", "write an integer from 0 on", limit_at)
        self.end_of_body("} " + ("or limit" if order else "or order or limit") if limit is None else "}")
        return ReadBody(match, returns, order, limit, limit_at)

    def clauses(self, what: str, depth: int) -> tuple[Clause, ...]:
        self.expect("{", f"{{ and the clauses of {what}")
        found: list[Clause] = []
        while not self.at("}"):
            found.append(self.clause(depth))
        if not found:
            raise self.unexpected("a clause, such as $p: Person")
        self.take()
        return tuple(found)

    def clause(self, depth: int) -> Clause:
        token, follows = self.peek(), self.peek(1)
        if token.kind == "variable":
            return self.clause_of_variable()
        if token.kind == "name":
            if token.text == "not" and follows.text == "{":
                return self.negation(depth)
            if token.text in _CONNECTIVES:
                raise self.error("OG-GQ-109", f"{token} is not a clause", _CONNECTIVES[token.text], token)
            if follows.text == "(" or token.text in ("not", "case", "true", "false", "null"):
                return FilterClause(self.expr())
        elif token.kind in ("string", "integer", "float") or token.text in ("[", "(", "-"):
            return FilterClause(self.expr())
        if token.text == ",":
            raise self.error("OG-GQ-109", "A comma is not a clause", "white space separates clauses, remove it", token)
        raise self.unexpected("a clause: $x: Type, $a edge $b, a condition, not { … } or }")

    def negation(self, depth: int) -> NotClause:
        start = self.take()
        if depth >= NOT_DEPTH_MAX:
            raise self.error("OG-GQ-110", f"More than {NOT_DEPTH_MAX} not {{ }} are nested", "nest less", start)
        return NotClause(self.clauses("not", depth + 1), start)

    def clause_of_variable(self) -> Clause:
        """A binding, a traversal or a condition, depending on what follows the variable."""
        start, follows = self.peek(), self.peek(1)
        if follows.text == ":":
            return self.binding()
        if start.value in self.params:
            return FilterClause(self.expr())
        if follows.kind == "variable":
            if self.peek(2).text != ":":
                expected = f"an edge between {start} and {follows}, such as {start} knows {follows}"
                raise self.unexpected(expected, follows)
            return self.traversal()
        if follows.kind == "name" and not self.is_condition(follows):
            return self.traversal()
        if follows.text == "<" and self.peek(2).kind == "name" and self.peek(3).text == ">":
            return self.traversal()
        if follows.kind not in ("symbol", "name") or follows.text in ("}", ",", "{", ")", "]", "?"):
            expected = f": Type, an edge, .property or an operator after {start}"
            raise self.unexpected(expected, follows)
        return FilterClause(self.expr())

    def is_condition(self, word: Token) -> bool:
        """Whether `$a word …` is a condition on `$a`: a word that is an operator, and no lone variable behind it."""
        if self.peek(2).kind == "variable" or self.peek(2).text == "{":
            return False
        return word.text in WORD_OPERATORS

    def binding(self) -> Binding:
        var = self.variable()
        self.take()
        name = self.expect_kind("name", f"the type of {var.at}")
        matches = self.values(f"{var.at}: {name}") if self.at("{") else ()
        return Binding(var, name.text, matches, name)

    def traversal(self) -> Traversal:
        source = self.variable()
        edge_var: VarRef | None = None
        if self.peek().kind == "variable":
            edge_var = self.variable()
            self.expect(":")
        undirected = self.accept("<") is not None
        edge = self.expect_kind("name", "an edge, such as knows")
        if undirected:
            self.expect(">", f"> after <{edge}")
        hops = self.hops() if self.at("{") else None
        if self.peek().kind != "variable":
            expected = f"the variable that {edge} leads to, such as $b or $_"
            if self.peek().kind == "name" or self.peek().text in COMPARISONS:
                expected += f"; a property is written ${source.name}.{edge}"
            raise self.unexpected(expected)
        return Traversal(source, edge.text, self.variable(), hops, undirected, edge_var, edge)

    def hops(self) -> Hops:
        start = self.take()
        lowest = self.expect_kind("integer", "the fewest hops, such as {1,3} or {2,}")
        self.expect(",", ", and the most hops, or , alone for no bound")
        highest = self.take() if self.peek().kind == "integer" else None
        self.expect("}", "} after the hop bounds")
        most: int | None = None if highest is None else highest.value
        if lowest.value < 1 or lowest.value > HOPS_MAX:
            raise self.error("OG-GQ-111", f"{lowest} is not a valid number of hops", "start at 1 or more", lowest)
        if most is not None and not lowest.value <= most <= HOPS_MAX:
            message = f"The most hops, {highest}, are fewer than the fewest, {lowest}"
            if most > HOPS_MAX:
                message = f"{highest} is not a valid number of hops"
            remedy = f"write {{{lowest},}} for no bound, or a number from {lowest} on"
            raise self.error("OG-GQ-111", message, remedy, highest or lowest)
        return Hops(lowest.value, most, start)

    # return and order

    def return_items(self) -> list[ReturnItem]:
        self.expect("{", "{ and what to return")
        items: list[ReturnItem] = []
        while not self.at("}"):
            start = self.peek()
            expr = self.expr()
            alias: str | None = None
            if self.accept("as"):
                start = self.expect_kind("name", "the column's name")
                alias = start.text
            items.append(ReturnItem(expr, alias, start))
            self.accept(",")
        if not items:
            raise self.unexpected("what to return, such as $p.name")
        self.take()
        return items

    def order_items(self) -> list[OrderItem]:
        self.expect("{", "{ and what to order by")
        items: list[OrderItem] = []
        while not self.at("}"):
            start = self.peek()
            expr = self.column_or_expr()
            direction: OrderDirection | None = None
            if self.at("asc") or self.at("desc"):
                start = self.take()
                direction = "asc" if start.text == "asc" else "desc"
            items.append(OrderItem(expr, direction, start))
            self.accept(",")
        if not items:
            raise self.unexpected("what to order by, such as $p.name or a column's name")
        self.take()
        return items

    def column_or_expr(self) -> Expr:
        """A name alone is a column, whatever the name."""
        start, follows = self.peek(), self.peek(1)
        if start.kind == "name" and (follows.text in (",", "}") or (follows.text in ("asc", "desc"))):
            return AliasRef(self.take().text, start)
        return self.expr_with_names()

    # Mutations

    def mutation(self) -> MutationBody:
        statements: list[MutationStatement] = []
        first = self.peek()
        while not self.at_end_of_body():
            start = self.peek()
            if start.kind == "name" and start.text in READ_PARTS:
                remedy = "write two queries, one that reads and one that writes"
                raise self.error("OG-GQ-107", f"A query that writes can't {start}", remedy, start)
            if start.kind != "name" or start.text not in STATEMENTS:
                raise self.unexpected("insert, update, delete or }")
            if (start.text == "delete") != (first.text == "delete"):
                raise self.mixed(first, start)
            statements.append(self.statement())
        if self.wrapped:
            self.take()
        return MutationBody(tuple(statements))

    def mixed(self, first: Token, other: Token) -> LanguageError:
        message = f"A query can't {first} and {other}"
        remedy = "move the deletes into a query of their own and run the two one after the other, each is one commit"
        return self.error("OG-GQ-118", message, remedy, other)

    def statement(self) -> MutationStatement:
        verb = self.take()
        name = self.expect_kind("name", f"the type to {verb}")
        if verb.text == "insert":
            return InsertStatement(name.text, self.values(f"insert {name}"), name)
        if verb.text == "delete":
            return DeleteStatement(name.text, self.where(f"delete {name}"), name)
        self.expect("set", f"set {{ … }} after update {name}")
        brace = self.peek()
        values = self.values(f"update {name} set")
        if not values:
            raise self.error("OG-GQ-119", "The update sets nothing", "name a property: set { prop: value }", brace)
        return UpdateStatement(name.text, values, self.where(f"update {name} set {{ … }}"), name)

    def where(self, what: str) -> Expr:
        """The condition of an update or delete, in which a bare name is a property of the row."""
        if not self.accept("where"):
            raise self.unexpected(f"where and a condition after {what}")
        return self.expr_with_names()

    def expr_with_names(self) -> Expr:
        self.bare_names = True
        try:
            return self.expr()
        finally:
            self.bare_names = False
