"""AST to text; parsing the text gives the same AST."""

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator

from omnigraph.query import ast
from omnigraph.schema.literals import print_datetime

INDENT = "    "


def print_file(file: ast.QueryFile) -> str:
    return "\n\n".join(print_query(query) for query in file.queries) + "\n"


def print_query(query: ast.QueryDecl) -> str:
    params = ", ".join(f"${param.name}: {param.type}{'?' if param.optional else ''}" for param in query.params)
    notes = "".join(f" @{note.name}" + _note(note.value) for note in query.annotations)
    return "\n".join([f"query {query.name}({params}){notes} {{", *_indented(_body(query.body)), "}"])


def print_expr(expr: ast.Expr) -> str:
    return _printed(expr, str)


def column_name(expr: ast.Expr) -> str:
    """The name of a column without `as`: its expression, without the `$`."""
    return _printed(expr, lambda text: text.replace("$", "", 1))


def _printed(expr: ast.Expr, variable: Callable[[str], str]) -> str:
    """An expression; `variable` prints a variable or a property of one."""

    def inside(part: ast.Expr, loosest: int) -> str:
        """A part, in parentheses unless it binds at least as tightly as `loosest`."""
        text = _printed(part, variable)
        return text if _tightness(part) >= loosest else f"({text})"

    match expr:
        case ast.LiteralExpr():
            return _literal(expr)
        case ast.ListExpr(items):
            return f"[{', '.join(_literal(item) for item in items)}]"
        case ast.VarRef(name):
            return variable(f"${name}")
        case ast.PropRef(var, prop):
            return variable(f"${var.name}.{prop}")
        case ast.AliasRef(name):
            return name
        case ast.FunctionCall(fn, args):
            return f"{fn}({', '.join(_printed(arg, variable) for arg in args)})"
        case ast.ConnectiveExpr(op, args):
            return f" {op} ".join(inside(arg, _tightness(expr) + 1) for arg in args)
        case ast.BinaryExpr(op, left, right):
            own = _tightness(expr)
            chains = 0 if own > _COMPARISON else 1
            return f"{inside(left, own + chains)} {op} {inside(right, own + 1)}"
        case ast.UnaryExpr("not", arg):
            return f"not {inside(arg, _NOT)}"
        case ast.UnaryExpr("-", arg):
            text = inside(arg, _SIGN)
            return f"-({text})" if text[0].isdigit() else f"-{text}"  # -5 would be a literal
        case ast.UnaryExpr(op, arg):
            return f"{inside(arg, _COMPARISON + 1)} {op}"
        case ast.CaseExpr(branches, otherwise):
            parts = [f"when {_printed(c, variable)} then {_printed(value, variable)}" for c, value in branches]
            parts += [] if otherwise is None else [f"else {_printed(otherwise, variable)}"]
            return f"case {' '.join(parts)} end"
        case ast.IndexExpr(items, index):
            return f"{inside(items, _SIGN + 1)}[{_printed(index, variable)}]"


_NOT, _COMPARISON, _SIGN = 3, 4, 8
_ARITHMETIC = {"||": 5, "+": 6, "-": 6, "*": 7, "/": 7, "%": 7}


def _tightness(expr: ast.Expr) -> int:
    """How tightly an expression's outermost operator binds."""
    match expr:
        case ast.ConnectiveExpr(op):
            return 1 if op == "or" else 2
        case ast.UnaryExpr("not"):
            return _NOT
        case ast.UnaryExpr("-"):
            return _SIGN
        case ast.UnaryExpr():
            return _COMPARISON
        case ast.BinaryExpr(op):
            return _ARITHMETIC.get(op, _COMPARISON)
        case _:
            return _SIGN + 1


def summarize(expr: ast.Expr) -> str:
    """An expression for a message, without literals and arguments."""
    match expr:
        case ast.PropRef() | ast.VarRef() | ast.AliasRef():
            return print_expr(expr)
        case ast.FunctionCall(fn):
            return f"{fn}(…)"
        case ast.LiteralExpr() | ast.ListExpr():
            return "a literal"
        case _:
            return "an expression"


def print_clause(clause: ast.Clause) -> Iterator[str]:
    match clause:
        case ast.Binding(var, type_name, matches):
            yield f"${var.name}: {type_name}" + (f" {_values(matches)}" if matches else "")
        case ast.Traversal(source, edge, target, hops, undirected, edge_var):
            name = f"<{edge}>" if undirected else edge
            bound = "" if edge_var is None else f"${edge_var.name}:"
            bounds = "" if hops is None else f"{{{hops.minimum},{'' if hops.maximum is None else hops.maximum}}}"
            yield f"${source.name} {bound}{name}{bounds} ${target.name}"
        case ast.FilterClause(condition):
            yield print_expr(condition)
        case ast.NotClause(clauses):
            yield "not {"
            yield from _indented(_clauses(clauses))
            yield "}"


def _body(body: ast.ReadBody | ast.MutationBody) -> Iterator[str]:
    if isinstance(body, ast.MutationBody):
        for statement in body.statements:
            yield _statement(statement)
        return
    yield "match {"
    yield from _indented(_clauses(body.match))
    yield "}"
    items = [print_expr(item.expr) + (f" as {item.alias}" if item.alias else "") for item in body.returns]
    yield f"return {{ {', '.join(items)} }}"
    if body.order:
        keys = [print_expr(key.expr) + (f" {key.direction}" if key.direction else "") for key in body.order]
        yield f"order {{ {', '.join(keys)} }}"
    if body.limit is not None:
        yield f"limit {body.limit}"


def _clauses(clauses: tuple[ast.Clause, ...]) -> Iterator[str]:
    for clause in clauses:
        yield from print_clause(clause)


def _statement(statement: ast.MutationStatement) -> str:
    match statement:
        case ast.InsertStatement(type_name, values):
            return f"insert {type_name} {_values(values)}"
        case ast.UpdateStatement(type_name, values, where):
            return f"update {type_name} set {_values(values)} where {print_expr(where)}"
        case ast.DeleteStatement(type_name, where):
            return f"delete {type_name} where {print_expr(where)}"


def _values(values: tuple[ast.PropertyValue, ...]) -> str:
    if not values:
        return "{ }"
    return f"{{ {', '.join(f'{entry.prop}: {print_expr(entry.value)}' for entry in values)} }}"


def _literal(expr: ast.LiteralExpr) -> str:
    value = expr.value
    if value is None:
        return "null"
    if isinstance(value, dt.datetime):
        return f'datetime("{print_datetime(value)}")'
    if isinstance(value, dt.date):
        return f'date("{value.isoformat()}")'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    return repr(value)


def _string(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _note(value: str | None) -> str:
    return "" if value is None else f"({_string(value)})"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield INDENT + line
