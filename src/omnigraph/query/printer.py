"""Expressions of the syntax tree as text, for messages and names of columns."""

import datetime as dt
import json

from omnigraph.query import ast
from omnigraph.schema.literals import print_datetime


def print_expr(expr: ast.Expr) -> str:
    match expr:
        case ast.LiteralExpr():
            return _literal(expr)
        case ast.ListExpr(items):
            return f"[{', '.join(_literal(item) for item in items)}]"
        case ast.VarRef(name):
            return f"${name}"
        case ast.PropRef(var, prop):
            return f"${var.name}.{prop}"
        case ast.AliasRef(name):
            return name
        case ast.FunctionCall(fn, args):
            return f"{fn}({', '.join(print_expr(arg) for arg in args)})"


def column_name(expr: ast.Expr) -> str:
    """The name of a column without `as`: its expression, without the `$`."""
    match expr:
        case ast.VarRef(name):
            return name
        case ast.PropRef(var, prop):
            return f"{var.name}.{prop}"
        case ast.FunctionCall(fn, args):
            return f"{fn}({', '.join(column_name(arg) for arg in args)})"
        case _:
            return print_expr(expr)


def summarize(expr: ast.Expr) -> str:
    """An expression for a message, without literals and arguments."""
    match expr:
        case ast.PropRef() | ast.VarRef() | ast.AliasRef():
            return print_expr(expr)
        case ast.FunctionCall(fn):
            return f"{fn}(…)"
        case _:
            return "a literal"


def _literal(expr: ast.LiteralExpr) -> str:
    value = expr.value
    if isinstance(value, dt.datetime):
        return f'datetime("{print_datetime(value)}")'
    if isinstance(value, dt.date):
        return f'date("{value.isoformat()}")'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
