"""Check every query of a text against a catalog, offline, and warn about what is valid but rarely intended."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from omnigraph.cancellation import checkpoint
from omnigraph.lexer import LanguageError, Token, error_at, turn_of
from omnigraph.query import ast, ir
from omnigraph.query.check.checker import check
from omnigraph.query.parser import parse
from omnigraph.schema.catalog import Catalog, TypeDef
from omnigraph.schema.types import Enumeration

LintSeverity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class LintIssue:
    """One finding. An error would be raised when the query runs; a warning would not."""

    severity: LintSeverity
    code: str
    message: str
    remedy: str
    query: str | None  # None where the text does not parse
    source_name: str
    line: int
    column: int
    excerpt: str = field(compare=False, repr=False)

    def __str__(self) -> str:
        where = f"{self.source_name}:{self.line}:{self.column}"
        return f"{where}: {self.severity}: {self.message}: {self.remedy}. [{self.code}]"


def lint(text: str, catalog: Catalog, source_name: str = "query") -> tuple[LintIssue, ...]:
    """The issues in the order of the text; without issues every query can run."""
    with turn_of(text):
        found = _issues(text, catalog, source_name)
        return tuple(sorted(found, key=lambda issue: (issue.line, issue.column)))


def _issues(text: str, catalog: Catalog, source_name: str) -> Iterator[LintIssue]:
    try:
        file = parse(text, source_name)
    except LanguageError as error:
        yield _issue("error", None, error)
        return
    yield from (_issue("error", broken.name, broken.error) for broken in file.broken)
    for declaration in file.queries:
        checkpoint()
        try:
            query = check(declaration, file, catalog)
        except LanguageError as error:
            yield _issue("error", declaration.name, error)
            continue
        warnings = _Warnings(file, declaration, query, catalog)
        yield from warnings.all()


def _issue(severity: LintSeverity, query: str | None, error: LanguageError) -> LintIssue:
    return LintIssue(
        severity,
        error.language_code,
        error.message,
        error.expected,
        query,
        error.source_name,
        error.line,
        error.column,
        error.excerpt,
    )


@dataclass(frozen=True, slots=True)
class _Warnings:
    file: ast.QueryFile
    declaration: ast.QueryDecl
    query: ir.Query
    catalog: Catalog

    def all(self) -> Iterator[LintIssue]:
        uses = Counter(ref.name for ref in _variables(self.declaration.body))
        yield from self.unused_parameters(uses)
        if isinstance(self.declaration.body, ast.ReadBody) and isinstance(self.query, ir.ReadQuery):
            yield from self.unused_variables(uses)
            yield from self.unconnected_parts(self.query.pattern, self.declaration.body.match)
            yield from self.limit_without_order(self.declaration.body)
            yield from self.hop_bounds(self.declaration.body.match)
            yield from self.unlisted_enum_values(self.query.pattern)
            yield from self.unindexed_searches(self.declaration.body)

    def warn(self, code: str, message: str, remedy: str, at: Token) -> LintIssue:
        error = error_at(self.file.source, self.file.source_name, at, code, message, remedy)
        return _issue("warning", self.declaration.name, error)

    def unused_parameters(self, uses: Counter[str]) -> Iterator[LintIssue]:
        for param in self.declaration.params:
            if not uses[param.name]:
                message = f"The parameter ${param.name} is never used"
                yield self.warn("OG-GW-801", message, "remove it, or use it", param.at)

    def unused_variables(self, uses: Counter[str]) -> Iterator[LintIssue]:
        params = {param.name for param in self.declaration.params}
        for ref in _variables(self.declaration.body):
            if uses[ref.name] == 1 and ref.name not in params and not ref.anonymous:
                message = f"${ref.name} is named but used nowhere else"
                yield self.warn("OG-GW-802", message, "write $_, or remove the clause", ref.at)

    def unconnected_parts(self, pattern: ir.Pattern, clauses: tuple[ast.Clause, ...]) -> Iterator[LintIssue]:
        """Parts of a pattern without a common variable: their rows multiply."""
        group: dict[str, str] = {}

        def root(var: str) -> str:
            while group.setdefault(var, var) != var:
                group[var] = group[group[var]]  # path halving
                var = group[var]
            return var

        def join(variables: tuple[str, ...]) -> None:
            for var in variables[1:]:
                group[root(var)] = root(variables[0])

        join(pattern.outer)
        for node in pattern.nodes:
            root(node.var)
        for step in pattern.traversals:
            join((step.source, step.target, *((step.edge_var,) if step.edge_var else ())))
        for condition in pattern.filters:
            join(ir.variables_of(condition))
        parts: dict[str, list[str]] = {root(var): [] for var in pattern.outer[:1]}
        for node in pattern.nodes:
            parts.setdefault(root(node.var), []).extend(() if node.hidden else (node.var,))
        places: dict[str, Token] = {}
        for ref in _variables_in(clauses):
            places.setdefault(ref.name, ref.at)
        for names in list(parts.values())[1:]:
            at = places[names[0]] if names else self.declaration.at
            shown = ", ".join(f"${name}" for name in names[:12]) or "A part of the pattern"
            message = f"{shown} shares no variable with the rest, so that the rows multiply"
            yield self.warn("OG-GW-803", message, "connect the parts by an edge or a filter, or use two queries", at)
        nots = [clause for clause in clauses if isinstance(clause, ast.NotClause)]
        for negation, clause in zip(pattern.negations, nots, strict=True):
            yield from self.unconnected_parts(negation.pattern, clause.clauses)

    def limit_without_order(self, body: ast.ReadBody) -> Iterator[LintIssue]:
        if body.limit is not None and not body.order and not self.is_single_row():
            message = "limit without order keeps the rows with the smallest ids"
            yield self.warn("OG-GW-804", message, "say what comes first with order { … }", body.limit_at)

    def is_single_row(self) -> bool:
        return isinstance(self.query, ir.ReadQuery) and self.query.grouped and not self.query.group_by

    def hop_bounds(self, clauses: tuple[ast.Clause, ...]) -> Iterator[LintIssue]:
        for clause in clauses:
            if isinstance(clause, ast.NotClause):
                yield from self.hop_bounds(clause.clauses)
            elif isinstance(clause, ast.Traversal) and clause.hops is not None:
                yield from self.hop_warnings(clause, clause.hops)

    def hop_warnings(self, clause: ast.Traversal, hops: ast.Hops) -> Iterator[LintIssue]:
        definition = self.catalog.by_traversal[clause.edge]
        if definition.source != definition.target:
            ends = f"leads from {definition.source} to {definition.target}, so there is only hop 1"
            if hops.minimum > 1:
                yield self.warn("OG-GW-808", f"{clause.edge} {ends}: this never matches", "remove the bounds", hops.at)
            elif hops.maximum != 1:
                yield self.warn("OG-GW-808", f"{clause.edge} {ends}", "remove the bounds", hops.at)
        elif hops.maximum is None:
            message = f"{clause.edge}{{{hops.minimum},}} may reach most of a large graph"
            yield self.warn("OG-GW-806", message, f"give the most hops, such as {{{hops.minimum},4}}", hops.at)

    def unlisted_enum_values(self, pattern: ir.Pattern) -> Iterator[LintIssue]:
        """Comparisons of an enum with a text that is not one of its values."""
        places: dict[object, Token] = {}
        for literal in _literals(self.declaration.body):
            places.setdefault(literal.value, literal.at)
        for inner in ir.patterns_of(pattern):
            for condition in inner.filters:
                if not isinstance(condition, ir.Compare) or condition.op not in ("=", "!="):
                    continue
                for one, other in ((condition.left, condition.right), (condition.right, condition.left)):
                    enum = one.type if isinstance(one.type, Enumeration) else None
                    if enum and isinstance(other, ir.Literal) and other.value not in enum.values:
                        yield self.enum_value_warning(other.value, enum, places)

    def enum_value_warning(self, value: ir.Value, kind: Enumeration, places: dict[object, Token]) -> LintIssue:
        at = places.get(value, self.declaration.at)
        return self.warn("OG-GW-807", f'The enum does not list "{value}"', f"use one of {', '.join(kind.values)}", at)

    def unindexed_searches(self, body: ast.ReadBody) -> Iterator[LintIssue]:
        types = {node.var: node.table_key for inner in self.patterns() for node in inner.nodes}
        types |= {step.edge_var: step.edge for inner in self.patterns() for step in inner.traversals if step.edge_var}
        for call in _searches(body):
            searched = call.args[0]
            if not isinstance(searched, ast.PropRef):
                continue
            definition: TypeDef = self.catalog.type_of(types[searched.var.name])
            if not definition.by_name[searched.prop].indexed:
                message = f"{call.fn} searches {definition.name}.{searched.prop}, which has no index"
                remedy = "declare it with @index: without one every search reads all rows"
                yield self.warn("OG-GW-805", message, remedy, searched.at)

    def patterns(self) -> Iterator[ir.Pattern]:
        if isinstance(self.query, ir.ReadQuery):
            yield from ir.patterns_of(self.query.pattern)


# Iterating over the AST


def _expressions(body: ast.ReadBody | ast.MutationBody) -> Iterator[ast.Expr]:
    if isinstance(body, ast.MutationBody):
        for statement in body.statements:
            if not isinstance(statement, ast.DeleteStatement):
                yield from (entry.value for entry in statement.values)
            if not isinstance(statement, ast.InsertStatement):
                yield statement.where
        return
    yield from _expressions_in(body.match)
    yield from (item.expr for item in body.returns)
    yield from (key.expr for key in body.order)


def _expressions_in(clauses: tuple[ast.Clause, ...]) -> Iterator[ast.Expr]:
    for clause in clauses:
        match clause:
            case ast.Binding(_, _, matches):
                yield from (entry.value for entry in matches)
            case ast.FilterClause(condition):
                yield condition
            case ast.NotClause(inner):
                yield from _expressions_in(inner)
            case ast.Traversal():
                pass


def _parts(expr: ast.Expr) -> Iterator[ast.Expr]:
    yield expr
    for part in ast.children(expr):
        yield from _parts(part)


def _variables_of(expr: ast.Expr) -> Iterator[ast.VarRef]:
    for part in _parts(expr):
        if isinstance(part, ast.PropRef):
            yield part.var
        elif isinstance(part, ast.VarRef):
            yield part


def _variables_in(clauses: tuple[ast.Clause, ...]) -> Iterator[ast.VarRef]:
    """The variables that clauses bind or traverse."""
    for clause in clauses:
        if isinstance(clause, ast.Binding):
            yield clause.var
        elif isinstance(clause, ast.Traversal):
            yield clause.source
            if clause.edge_var is not None:
                yield clause.edge_var
            yield clause.target
        elif isinstance(clause, ast.NotClause):
            yield from _variables_in(clause.clauses)


def _variables(body: ast.ReadBody | ast.MutationBody) -> Iterator[ast.VarRef]:
    if isinstance(body, ast.ReadBody):
        yield from _variables_in(body.match)
    for expr in _expressions(body):
        yield from _variables_of(expr)


def _literals(body: ast.ReadBody | ast.MutationBody) -> Iterator[ast.LiteralExpr]:
    for expr in _expressions(body):
        yield from (part for part in _parts(expr) if isinstance(part, ast.LiteralExpr))


def _searches(body: ast.ReadBody) -> Iterator[ast.FunctionCall]:
    searching = (*ast.TEXT_FILTERS, "bm25", "nearest")
    for expr in _expressions(body):
        yield from (part for part in _parts(expr) if isinstance(part, ast.FunctionCall) and part.fn in searching)
