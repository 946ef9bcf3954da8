"""A syntax tree as text; parsing the text gives the same tree."""

from collections.abc import Iterable, Iterator

from omnigraph.query import ast
from omnigraph.query.printer import print_expr

INDENT = "    "


def print_file(file: ast.QueryFile) -> str:
    return "\n\n".join(print_query(query) for query in file.queries) + "\n"


def print_query(query: ast.QueryDecl) -> str:
    params = ", ".join(f"${param.name}: {param.type}{'?' if param.optional else ''}" for param in query.params)
    notes = "".join(f" @{note.name}" + _note(note.value) for note in query.annotations)
    return "\n".join([f"query {query.name}({params}){notes} {{", *_indented(_body(query.body)), "}"])


def print_clause(clause: ast.Clause) -> Iterator[str]:
    match clause:
        case ast.Binding(var, type_name, matches):
            yield f"${var.name}: {type_name}" + (f" {_values(matches)}" if matches else "")
        case ast.Traversal(source, edge, target, hops, undirected, edge_var):
            name = f"<{edge}>" if undirected else edge
            bound = "" if edge_var is None else f"${edge_var.name}:"
            bounds = "" if hops is None else f"{{{hops.minimum},{'' if hops.maximum is None else hops.maximum}}}"
            yield f"${source.name} {bound}{name}{bounds} ${target.name}"
        case ast.ComparisonClause(left, op, right):
            yield f"{print_expr(left)} {op} {print_expr(right)}"
        case ast.SearchFilter(call):
            yield print_expr(call)
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
            return f"update {type_name} set {_values(values)} where {_where(where)}"
        case ast.DeleteStatement(type_name, where):
            return f"delete {type_name} where {_where(where)}"


def _where(where: ast.Where) -> str:
    return f"{where.prop} {where.op} {print_expr(where.value)}"


def _values(values: tuple[ast.PropertyValue, ...]) -> str:
    if not values:
        return "{ }"
    return f"{{ {', '.join(f'{entry.prop}: {print_expr(entry.value)}' for entry in values)} }}"


def _note(value: str | None) -> str:
    return "" if value is None else f"({print_expr(ast.LiteralExpr('string', value))})"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield INDENT + line
