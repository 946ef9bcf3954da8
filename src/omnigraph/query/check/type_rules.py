"""Type rules: which expressions may be compared or assigned, and how they compare.

Numbers of all types are comparable with each other, and so are enums and Strings. Lists, vectors and blobs are not
comparable; lists take `contains`.
"""

from typing import cast

from omnigraph.lexer import LanguageError, Token
from omnigraph.query import ast, ir
from omnigraph.query.ast import start_token
from omnigraph.query.check.scope import CheckContext, Scope, column_of
from omnigraph.query.printer import summarize
from omnigraph.query.values import BadValue, parse_value, round_f32
from omnigraph.schema.types import INTEGER_BOUNDS, Enumeration, ListOf, PropertyType, Scalar, Vector

F32 = Scalar("F32")
FLOATS = frozenset({"F32", "F64"})
I64_MAX = INTEGER_BOUNDS["I64"][1]
_DOMAINS: dict[str, ir.Domain] = {"String": "text", "Bool": "bool", "Date": "date", "DateTime": "datetime"}
_DOMAINS.update(dict.fromkeys((*INTEGER_BOUNDS, *FLOATS), "number"))
_LITERAL_TYPES: dict[ast.LiteralKind, Scalar] = {
    "string": ir.STRING,
    "float": ir.F64,
    "bool": Scalar("Bool"),
    "date": Scalar("Date"),
    "datetime": ir.DATETIME,
}


def domain_of(kind: PropertyType) -> ir.Domain | None:
    """How values of a type compare; None where they are not comparable."""
    match kind:
        case Scalar(name):
            return _DOMAINS.get(name)
        case Enumeration():
            return "text"
        case _:
            return None


def literal(context: CheckContext, expr: ast.LiteralExpr | ast.ListExpr) -> ir.Literal:
    if isinstance(expr, ast.LiteralExpr):
        if expr.kind == "null":
            raise null_error(context, expr)
        kind = _LITERAL_TYPES.get(expr.kind)
        if kind is None:
            kind = ir.I64 if cast(int, expr.value) <= I64_MAX else ir.U64
        return ir.Literal(expr.value, kind)
    items = [literal(context, item) for item in expr.items]
    kinds = {cast(Scalar, item.type) for item in items}
    if len({domain_of(kind) for kind in kinds}) > 1:
        other = next(entry for entry, item in zip(expr.items, items, strict=True) if item.type != items[0].type)
        message = f"The list holds {items[0].type} and {literal(context, other).type}"
        raise context.error("OG-GQ-303", message, "all items of a list have one type", other.at)
    item_type = kinds.pop() if len(kinds) == 1 else (ir.F64 if ir.F64 in kinds else ir.U64)
    if not items:
        item_type = ir.STRING
    values = [float(cast(float, item.value)) if item_type == ir.F64 else item.value for item in items]
    return ir.Literal(tuple(cast(list[ir.Scalarlike], values)), ListOf(item_type))


def is_null(expr: ast.Expr) -> bool:
    return isinstance(expr, ast.LiteralExpr) and expr.kind == "null"


def null_error(context: CheckContext, expr: ast.Expr) -> LanguageError:
    remedy = "test with is null or is not null; null is a value in case, coalesce and assignments"
    return context.error("OG-GQ-116", "null is not a value here", remedy, start_token(expr))


def constant(context: CheckContext, expr: ast.Expr) -> ir.Constant | None:
    """A literal, a parameter or `now()`; None for anything else."""
    match expr:
        case ast.LiteralExpr() | ast.ListExpr():
            return literal(context, expr)
        case ast.VarRef(name) if name in context.params:
            declared = context.params[name].type
            return ir.ParamRef(name, declared, declared)
        case ast.FunctionCall("now"):
            if expr.args:
                raise context.error("OG-GQ-304", "now() takes nothing", "write now()", expr.at)
            context.uses_now = True
            return ir.Now()
        case _:
            return None


def required_constant(context: CheckContext, expr: ast.Expr, scope: Scope, what: str) -> ir.Constant:
    """A literal, a parameter or `now()`; anything else is an error."""
    found = constant(context, expr)
    if found is not None:
        return found
    if isinstance(expr, ast.VarRef):
        if scope.find(expr.name) is None:
            raise context.unbound(scope, expr)
        raise context.error(
            "OG-GQ-305", f"${expr.name} is not a value", f"{what} is a literal, $param or now()", expr.at
        )
    message = f"{summarize(expr)} is not allowed here"
    raise context.error("OG-GQ-305", message, f"{what} is a literal, $param or now()", start_token(expr))


def resolve_property(context: CheckContext, scope: Scope, expr: ast.PropRef) -> ir.Prop | ir.EntityId:
    entity = context.variable(scope, expr.var)
    definition = entity.definition
    if expr.prop == "id":
        return ir.EntityId(entity.var, definition.table_key)
    if entity.is_edge and expr.prop in ("src", "dst", "from", "to") and expr.prop not in definition.by_name:
        remedy = "use the variables at the traversal's ends"
        raise context.error("OG-GQ-204", f"{definition.name} has no property {expr.prop}", remedy, expr.at)
    return ir.Prop(entity.var, definition.table_key, column_of(context.property_of(definition, expr.prop, expr.at)))


def compare(context: CheckContext, op: ast.Comparison, left: ir.Expr, right: ir.Expr, at: Token) -> ir.Condition:
    """The filter of a comparison, whose sides must have comparable types."""
    if op == "contains":
        return _contains(context, left, right, at)
    one, other = domain_of(left.type), domain_of(right.type)
    if op == "starts_with":
        if one != "text" or other != "text":
            raise _type_mismatch(context, op, left, right, at, "starts_with takes two texts")
        return ir.TextStartsWith(left, right)
    for side in (left, right):
        if domain_of(side.type) is None:
            remedy = "use contains for a list" if isinstance(side.type, ListOf) else "it has no order and no equality"
            raise context.error("OG-GQ-302", f"{describe(side)} can't be compared with {op}", remedy, at)
    if one is None or one != other:
        raise _type_mismatch(context, op, left, right, at, _remedy(left, right))
    domain, left, right = _unify_precision(one, left, right)
    return ir.Compare(cast(ir.CompareOp, op), left, right, domain)


def membership(context: CheckContext, items: ir.Expr, item: ir.Expr, at: Token) -> ir.Condition:
    """`items contains item` for a list."""
    assert isinstance(items.type, ListOf)
    one, other = domain_of(items.type.item), domain_of(item.type)
    if isinstance(items, ir.Literal) and items.value == ():
        one = other  # an empty list has any item type
    if one is None or one != other:
        remedy = "blobs are not comparable" if one is None else f"an item of {items.type} is a {items.type.item}"
        raise _type_mismatch(context, "contains", items, item, at, remedy)
    domain, items, item = _unify_precision(one, items, item)
    return ir.ListContains(items, item, domain)


def _contains(context: CheckContext, left: ir.Expr, right: ir.Expr, at: Token) -> ir.Condition:
    if isinstance(left.type, ListOf):
        return membership(context, left, right, at)
    if domain_of(left.type) == "text" and domain_of(right.type) == "text":
        return ir.TextContains(left, right)
    raise _type_mismatch(context, "contains", left, right, at, "contains takes a list and an item, or two texts")


def _unify_precision(domain: ir.Domain, left: ir.Expr, right: ir.Expr) -> tuple[ir.Domain, ir.Expr, ir.Expr]:
    """Where only one side is F32, constants of the other are rounded to F32 here or by `bind`."""
    if domain != "number" or (_item_type(left.type) == F32) == (_item_type(right.type) == F32):
        return domain, left, right
    return "f32", _round_side(left), _round_side(right)


def _item_type(kind: PropertyType) -> PropertyType:
    return kind.item if isinstance(kind, ListOf) else kind


def _round_side(side: ir.Expr) -> ir.Expr:
    if isinstance(side, ir.Literal):
        if isinstance(side.value, tuple):
            return ir.Literal(tuple(round_f32(cast(float, item)) for item in side.value), ListOf(F32))
        return ir.Literal(round_f32(cast(float, side.value)), F32)
    if isinstance(side, ir.ParamRef):
        return ir.ParamRef(side.name, ListOf(F32) if isinstance(side.type, ListOf) else F32, side.param_type)
    return side


def _type_mismatch(
    context: CheckContext, op: str, left: ir.Expr, right: ir.Expr, at: Token, remedy: str
) -> LanguageError:
    message = f"{describe(left)} {op} {describe(right)} compares different types"
    return context.error("OG-GQ-301", message, remedy, at)


def _remedy(left: ir.Expr, right: ir.Expr) -> str:
    kinds = {str(left.type), str(right.type)}
    if "String" in kinds and kinds & {"Date", "DateTime"}:
        return 'write a date as date("2026-01-31"), a time as datetime("2026-01-31T12:00:00Z")'
    if kinds == {"Date", "DateTime"}:
        return "a Date has no time of day: compare it with a Date"
    if isinstance(right, ir.Literal | ir.ParamRef):
        return f"give a value of the type {left.type} on the right"
    return "compare values of one type; all numbers are comparable, enums are Strings"


# Assignments


def check_assignment(context: CheckContext, kind: PropertyType, expr: ast.Expr, what: str) -> ir.Constant:
    """The value for a property of type `kind`, converted here, or by `bind` for a parameter."""
    if is_null(expr):
        return ir.Literal(None, kind)  # whether the property may be null is the validator's to say
    found = required_constant(context, expr, Scope(), "a value")
    if isinstance(found, ir.ParamRef):
        if not assignable(found.param_type, kind):
            message = f"${found.name} is {found.param_type}, but {what} is {kind}"
            raise context.error("OG-GQ-308", message, f"declare ${found.name}: {kind}", start_token(expr))
        return ir.ParamRef(found.name, kind, found.param_type)
    if isinstance(found, ir.Now):
        if kind != ir.DATETIME:
            raise context.error(
                "OG-GQ-308", f"now() is DateTime, but {what} is {kind}", f"give {with_article(kind)}", start_token(expr)
            )
        return found
    if isinstance(expr, ast.ListExpr) and isinstance(kind, ListOf | Vector):
        found = ir.Literal(tuple(cast(ir.Scalarlike, item.value) for item in expr.items), found.type)
    if found.value != () and not assignable(found.type, kind) and not _is_blob(found, kind):
        message = f"{describe(found)} is not a value for {what}, which is {kind}"
        raise context.error("OG-GQ-308", message, f"give {with_article(kind)}", start_token(expr))
    if isinstance(kind, Enumeration):
        return ir.Literal(found.value, kind)
    try:
        return ir.Literal(parse_value(found.value, kind), kind)
    except BadValue as error:
        raise context.error("OG-GQ-309", f"{error.problem} ({what})", error.remedy, start_token(expr)) from None


def assignable(given: PropertyType, wanted: PropertyType) -> bool:
    """Whether values of one type may be stored as another; ranges and dimensions are checked value by value."""
    match given, wanted:
        case (Vector(one), Vector(other)):
            return one == other
        case (ListOf(item), Vector()):
            return domain_of(item) == "number"
        case (ListOf(one_item), ListOf(other_item)):
            return assignable(one_item, other_item)
        case (Scalar(name), Scalar(other_name)) if domain_of(given) == domain_of(wanted) == "number":
            return name not in FLOATS or other_name in FLOATS
        case _:
            return given == wanted or (domain_of(given) == domain_of(wanted) == "text")


def _is_blob(found: ir.Literal, kind: PropertyType) -> bool:
    """A blob has no literal; it is written as text."""
    return kind == Scalar("Blob") and isinstance(found.value, str)


# Words for messages


def describe(side: ir.Expr) -> str:
    match side:
        case ir.Prop(var, _, column):
            return f"{_dotted(var, column.name)} ({side.type})"
        case ir.EntityId(var):
            return f"{_dotted(var, 'id')} (String)"
        case ir.EdgeEnd(_, _, end):
            return "from" if end == "src" else "to"
        case ir.ParamRef(name):
            return f"${name} ({side.param_type})"
        case ir.Now():
            return "now() (DateTime)"
        case ir.Literal(value):
            text = (
                f'"{value}"'
                if isinstance(value, str)
                else str(value).lower()
                if isinstance(value, bool)
                else str(value)
            )
            if isinstance(value, tuple):
                return "the list"
            return f"{text if len(text) <= 40 else text[:39] + '…'} ({side.type})"
        case _:
            return f"the expression ({side.type})"


def _dotted(var: str, name: str) -> str:
    return name if ir.is_hidden(var) else f"${var}.{name}"


def with_article(kind: PropertyType) -> str:
    return f"{'an' if str(kind)[0] in 'AEIO' else 'a'} {kind}"
