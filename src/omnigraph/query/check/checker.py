"""The type checker's entry, AST and catalog to IR; mutations: statements to typed assignments and filters.

The schema's constraints on values (required, enum, range, …) are left to the validator, which loads use too.
"""

from omnigraph.cancellation import checkpoint
from omnigraph.query import ast, ir
from omnigraph.query.ast import start_token
from omnigraph.query.check.expressions import Expressions
from omnigraph.query.check.patterns import check_pattern
from omnigraph.query.check.projection import check_outputs
from omnigraph.query.check.scope import CheckContext, Scope, column_of
from omnigraph.query.check.type_rules import (
    check_assignment,
    compare,
    describe,
    domain_of,
    is_null,
    required_constant,
    with_article,
)
from omnigraph.query.values import BadValue, parse_value
from omnigraph.schema.catalog import Catalog, TypeDef
from omnigraph.schema.identity import canonical_text, id_from_texts
from omnigraph.schema.types import INTEGER_BOUNDS, ListOf, PropertyType, Scalar

ENDS: dict[str, ir.End] = {"from": "src", "to": "dst"}


def check_statement(context: CheckContext, statement: ast.MutationStatement) -> ir.Statement:
    checkpoint()
    definition = context.any_type(statement.type_name, statement.at)
    match statement:
        case ast.InsertStatement():
            return _insert(context, definition, statement)
        case ast.UpdateStatement():
            assignments = _assignments(context, definition, statement.values, update=True)
            return ir.UpdateRows(definition.table_key, assignments, _where(context, definition, statement.where))
        case ast.DeleteStatement():
            return ir.DeleteRows(definition.table_key, _where(context, definition, statement.where))


def _insert(context: CheckContext, definition: TypeDef, statement: ast.InsertStatement) -> ir.InsertRow:
    if definition.kind == "node":
        return ir.InsertRow(definition.table_key, _assignments(context, definition, statement.values))
    ends: dict[str, ir.Constant] = {}
    others: list[ast.PropertyValue] = []
    for entry in statement.values:
        if entry.prop not in ENDS:
            others.append(entry)
            continue
        if entry.prop in ends:
            raise context.error("OG-GQ-601", f"{entry.prop} is given twice", "remove one", entry.at)
        ends[entry.prop] = _node_id(context, _end_type(context, definition, entry.prop), entry.value, entry.prop)
    for name in ENDS:
        if name not in ends:
            message = f"insert {definition.name} does not say {name}"
            raise context.error("OG-GQ-602", message, f"an edge takes from: … and to: …, add {name}", statement.at)
    assignments = _assignments(context, definition, tuple(others))
    return ir.InsertRow(definition.table_key, assignments, ends["from"], ends["to"])


def _assignments(
    context: CheckContext, definition: TypeDef, values: tuple[ast.PropertyValue, ...], *, update: bool = False
) -> tuple[ir.Assign, ...]:
    found: dict[str, ir.Assign] = {}
    for entry in values:
        _reject_identity(context, definition, entry, update)
        prop = context.property_of(definition, entry.prop, entry.at)
        if entry.prop in found:
            raise context.error("OG-GQ-601", f"{entry.prop} is given twice", "remove one", entry.at)
        value = check_assignment(context, prop.type, entry.value, f"{definition.name}.{prop.name}")
        found[entry.prop] = ir.Assign(column_of(prop), value)
    return tuple(found.values())


def _reject_identity(context: CheckContext, definition: TypeDef, entry: ast.PropertyValue, update: bool) -> None:
    name = entry.prop
    if name == "id":
        remedy = "an id is derived from the key, or generated"
        if definition.key:
            remedy = f"give the key: {', '.join(definition.key)}"
        raise context.error("OG-GQ-603", "An id can't be set", remedy, entry.at)
    if not update:
        if name in ENDS and definition.kind == "node" and name not in definition.by_name:
            message = f"{definition.name} is a node type, it has no {name}"
            raise context.error("OG-GQ-604", message, f"only edges take from and to, remove {name}", entry.at)
        return
    if definition.kind == "edge" and name in ENDS:
        remedy = "delete the edge and insert another, in two queries"
        raise context.error("OG-GQ-603", f"An edge's {name} can't be updated", remedy, entry.at)
    if name in definition.key:
        remedy = f"insert a {definition.name} with the new key"
        raise context.error("OG-GQ-603", f"{name} is part of the key, which can't be updated", remedy, entry.at)


# where


def _where(context: CheckContext, definition: TypeDef, where: ast.Expr) -> ir.Condition:
    """The condition that selects rows; a bare name is a property, `id`, or an edge's `from` or `to`."""
    end = _end_comparison(context, definition, where)
    if end is not None:
        return end

    def named(ref: ast.AliasRef) -> ir.Expr:
        if definition.kind == "edge" and ref.name in ENDS and ref.name not in definition.by_name:
            return ir.EdgeEnd(ir.WHERE_ROW, definition.table_key, ENDS[ref.name])
        if ref.name == "id":
            return ir.EntityId(ir.WHERE_ROW, definition.table_key)
        prop = context.property_of(definition, ref.name, ref.at)
        return ir.Prop(ir.WHERE_ROW, definition.table_key, column_of(prop))

    return Expressions(context, Scope(), named).condition(where)


def _end_comparison(context: CheckContext, definition: TypeDef, where: ast.Expr) -> ir.Condition | None:
    """`from = key`: an edge's end may be compared with a node's key instead of its id."""
    if not isinstance(where, ast.BinaryExpr) or where.op not in ("=", "!=") or definition.kind != "edge":
        return None
    if not isinstance(where.left, ast.AliasRef) or where.left.name not in ENDS:
        return None
    if is_null(where.right):
        return None  # which the expression refuses, as for any property
    name = where.left.name
    left = ir.EdgeEnd(ir.WHERE_ROW, definition.table_key, ENDS[name])
    right = _node_id(context, _end_type(context, definition, name), where.right, name)
    return compare(context, where.op, left, right, where.at)


# Node ids


def _end_type(context: CheckContext, definition: TypeDef, name: str) -> TypeDef:
    end = definition.source if name == "from" else definition.target
    return context.catalog.by_name[end or ""]


def _node_id(context: CheckContext, node: TypeDef, expr: ast.Expr, what: str) -> ir.Constant:
    """A node's id as a String, given as the id or as the node's key."""
    if isinstance(expr, ast.ListExpr) and len(expr.items) == len(node.key) > 1:
        return _id_from_key(context, node, expr.items)
    found = required_constant(context, expr, Scope(), what)
    if domain_of(found.type) == "text":
        return found
    if isinstance(found, ir.ParamRef):
        if found.param_type == ListOf(ir.STRING) and len(node.key) > 1:
            return ir.ParamRef(found.name, ir.STRING, found.param_type)
        if len(node.key) == 1 and _same_text(found.param_type, node.by_name[node.key[0]].type):
            return ir.ParamRef(found.name, ir.STRING, found.param_type)
    elif isinstance(expr, ast.LiteralExpr) and len(node.key) == 1:
        return _id_from_key(context, node, (expr,))
    key = ", ".join(f"{name} {node.by_name[name].type}" for name in node.key)
    remedy = f"give the id of a {node.name} as a text" + (f", or its key: {key}" if key else "")
    raise context.error("OG-GQ-605", f"{describe(found)} is not a {node.name}", remedy, start_token(expr))


def _id_from_key(context: CheckContext, node: TypeDef, parts: tuple[ast.LiteralExpr, ...]) -> ir.Literal:
    texts = [_key_part(context, node, name, part) for name, part in zip(node.key, parts, strict=True)]
    return ir.Literal(id_from_texts(texts), ir.STRING)


def _key_part(context: CheckContext, node: TypeDef, name: str, part: ast.LiteralExpr) -> str:
    kind = node.by_name[name].type
    try:
        value = parse_value(part.value, kind) if _same_literal(part, kind) else None
    except BadValue:
        value = None
    if value is None:
        message = f"{part.value} is not a valid {name} of {node.name}"
        raise context.error("OG-GQ-605", message, f"give {with_article(kind)}", part.at)
    return canonical_text(value, kind)


def _same_literal(part: ast.LiteralExpr, kind: PropertyType) -> bool:
    if domain_of(kind) == "number":
        return part.kind in ("integer", "float")
    return {"string": "text"}.get(part.kind, part.kind) == domain_of(kind)


def _same_text(given: PropertyType, wanted: PropertyType) -> bool:
    """Whether a value has the same canonical text in both types."""
    integers = INTEGER_BOUNDS.keys()
    both = isinstance(given, Scalar) and isinstance(wanted, Scalar) and {given.name, wanted.name} <= integers
    return given == wanted or both


def check(query: ast.QueryDecl, file: ast.QueryFile, catalog: Catalog) -> ir.Query:
    """The IR of a query. Raises LanguageError at the first error; `file` has the query."""
    context = CheckContext(catalog, file)
    params = context.declare_params(query.params)
    if isinstance(query.body, ast.MutationBody):
        statements = tuple(check_statement(context, statement) for statement in query.body.statements)
        return ir.MutationQuery(query.name, params, statements, context.uses_now, query.description)
    scope = Scope()
    pattern = check_pattern(context, query.body.match, scope)
    outputs = check_outputs(context, query.body, scope)
    return ir.ReadQuery(
        query.name,
        params,
        pattern,
        outputs.returns,
        outputs.grouped,
        outputs.group_by,
        outputs.order,
        outputs.tiebreak,
        query.body.limit,
        outputs.keeps,
        context.uses_now,
        query.description,
    )
