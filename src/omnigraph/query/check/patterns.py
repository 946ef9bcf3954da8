"""Patterns: `match` and `not`, from clauses in any order to nodes, traversals, filters and negations.

First every variable gets its type, from bindings and from the ends of edges; then filters can refer to all of them;
then negations, which see the variables around them.
"""

from dataclasses import dataclass, field

from omnigraph.cancellation import checkpoint
from omnigraph.query import ast, ir
from omnigraph.query.check.expressions import Expressions
from omnigraph.query.check.scope import BoundVariable, CheckContext, Scope, column_of
from omnigraph.query.check.type_rules import (
    compare,
    domain_of,
    membership,
    required_constant,
    resolve_property,
)
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.types import ListOf

FUZZY_EDITS_DEFAULT = 2
FUZZY_EDITS_MAX = 8


def check_pattern(context: CheckContext, clauses: tuple[ast.Clause, ...], scope: Scope) -> ir.Pattern:
    """The pattern of these clauses; adds its variables to `scope`, which is new."""
    return _PatternBuilder(context, scope).build(clauses)


@dataclass(slots=True)
class _PatternBuilder:
    context: CheckContext
    scope: Scope
    nodes: list[ir.NodeVar] = field(default_factory=list)
    traversals: list[ir.Traverse] = field(default_factory=list)
    filters: list[ir.Filter] = field(default_factory=list)
    bound: list[tuple[ast.Binding, BoundVariable]] = field(default_factory=list)

    def build(self, clauses: tuple[ast.Clause, ...]) -> ir.Pattern:
        for clause in clauses:
            if isinstance(clause, ast.Binding):
                self.bind(clause)
        for clause in clauses:
            if isinstance(clause, ast.Traversal):
                self.traverse(clause)
        for binding, entity in self.bound:
            for match in binding.matches:
                self.filters.append(self.property_match(entity, match))
        for clause in clauses:
            if isinstance(clause, ast.FilterClause):
                self.filters += self.condition(clause.condition)
        negations = tuple(self.negation(clause) for clause in clauses if isinstance(clause, ast.NotClause))
        parts = (tuple(self.nodes), tuple(self.traversals), tuple(self.filters), negations)
        return ir.Pattern(*parts, ir.free_variables(*parts))

    # Variables

    def bind(self, clause: ast.Binding) -> None:
        checkpoint()
        definition = self.context.node_type(clause.type_name, clause.at)
        self.bound.append((clause, self.node(clause.var, definition, clause.type_name)))

    def node(self, ref: ast.VarRef, definition: TypeDef, why: str) -> BoundVariable:
        """The node variable, declared here unless it is known; its type must match."""
        if ref.anonymous:
            entity = BoundVariable(self.context.new_variable(), definition, ref.at)
            self.nodes.append(ir.NodeVar(entity.var, definition.table_key))
            return entity
        self.reject_parameter(ref)
        known = self.scope.find(ref.name)
        if known is None:
            known = self.scope.own[ref.name] = BoundVariable(ref.name, definition, ref.at)
            self.nodes.append(ir.NodeVar(ref.name, definition.table_key))
        elif known.is_edge:
            message = f"${ref.name} is an edge {known.definition.name}, it can't be a node too"
            raise self.context.error("OG-GQ-401", message, "rename one of the variables", ref.at)
        elif known.definition.name != definition.name:
            message = f"${ref.name} is {known.definition.name}, but {why} needs {definition.name}"
            raise self.context.error("OG-GQ-402", message, "one variable has one type: rename one", ref.at)
        return known

    def reject_parameter(self, ref: ast.VarRef) -> None:
        if ref.name in self.context.params:
            message = f"${ref.name} is a parameter, it can't be a variable too"
            raise self.context.error("OG-GQ-206", message, "rename one of them", ref.at)

    def traverse(self, clause: ast.Traversal) -> None:
        checkpoint()
        context = self.context
        definition = context.edge_type(clause.edge, clause.at)
        source_type = context.catalog.by_name[definition.source or ""]
        target_type = context.catalog.by_name[definition.target or ""]
        symmetric = source_type.name == target_type.name
        if clause.undirected and not symmetric:
            ends = f"from {source_type.name} to {target_type.name}"
            message = f"<{clause.edge}> goes both ways, but {definition.name} leads {ends}"
            raise context.error("OG-GQ-404", message, f"write it with its direction: {clause.edge}", clause.at)
        if clause.edge_var is not None and clause.hops is not None:
            message = f"${clause.edge_var.name} is one edge, but there are hop bounds"
            remedy = f"remove {{…}}, or ${clause.edge_var.name}:"
            raise context.error("OG-GQ-405", message, remedy, clause.hops.at)
        source = self.end(clause.source, source_type, f"{clause.edge} from it")
        target = self.end(clause.target, target_type, f"{clause.edge} to it")
        least = 1 if clause.hops is None else clause.hops.minimum
        most = 1 if clause.hops is None or not symmetric else clause.hops.maximum
        edge_var = None if clause.edge_var is None else self.edge(clause.edge_var, definition)
        self.traversals.append(
            ir.Traverse(
                definition.table_key,
                source.var,
                target.var,
                source_type.table_key,
                target_type.table_key,
                least,
                most,
                clause.undirected,
                edge_var,
            )
        )

    def end(self, ref: ast.VarRef, definition: TypeDef, why: str) -> BoundVariable:
        known = None if ref.anonymous else self.scope.find(ref.name)
        if known is not None and not known.is_edge and known.definition.name != definition.name:
            message = f"${ref.name} is {known.definition.name}, but {why} needs {definition.name}"
            remedy = f"use a {definition.name}, or swap the ends: the direction is the declared one"
            raise self.context.error("OG-GQ-403", message, remedy, ref.at)
        return self.node(ref, definition, why)

    def edge(self, ref: ast.VarRef, definition: TypeDef) -> str:
        """The edge variable. A known one means the same edge: a new variable with an equal id."""
        if ref.anonymous:
            return self.context.new_variable()
        self.reject_parameter(ref)
        known = self.scope.find(ref.name)
        if known is None:
            self.scope.own[ref.name] = BoundVariable(ref.name, definition, ref.at)
            return ref.name
        if known.definition.name != definition.name:
            message = f"${ref.name} is {known.definition.name}, it can't be an edge {definition.name} too"
            raise self.context.error("OG-GQ-401", message, "rename one of the variables", ref.at)
        again = self.context.new_variable()
        key = definition.table_key
        self.filters.append(ir.Compare("=", ir.EntityId(again, key), ir.EntityId(ref.name, key), "text"))
        return again

    # Filters

    def property_match(self, entity: BoundVariable, match: ast.PropertyValue) -> ir.Filter:
        checkpoint()
        context, definition = self.context, entity.definition
        left: ir.Expr
        if match.prop == "id":
            left = ir.EntityId(entity.var, definition.table_key)
        else:
            prop = context.property_of(definition, match.prop, match.at)
            left = ir.Prop(entity.var, definition.table_key, column_of(prop))
        if isinstance(match.value, ast.LiteralExpr) and match.value.kind == "null":
            remedy = f"write ${entity.var}.{match.prop} is null as a clause"
            raise context.error("OG-GQ-116", "A comparison with null is never true", remedy, match.value.at)
        right = Expressions(context, self.scope).value(match.value)
        if isinstance(left.type, ListOf):
            if isinstance(right.type, ListOf):
                remedy = f"give one {left.type.item}, which the list must hold; several matches are allowed"
                raise context.error("OG-GQ-406", f"A match on {match.prop} means membership", remedy, match.at)
            return membership(context, left, right, match.at)
        return compare(context, "=", left, right, match.at)

    def condition(self, expr: ast.Expr) -> tuple[ir.Filter, ...]:
        """The filters of a clause: the parts of an `and`, unless an absent parameter drops the clause as a whole."""
        checkpoint()
        if isinstance(expr, ast.FunctionCall) and expr.fn in ast.TEXT_FILTERS:
            return (self.search(expr),)
        found = Expressions(self.context, self.scope).condition(expr)
        params = (leaf.name for leaf in ir.leaves(found) if isinstance(leaf, ir.ParamRef))
        if any(self.context.params[name].optional for name in params):
            return (found,)
        return ir.conjuncts(found)

    def search(self, call: ast.FunctionCall) -> ir.Filter:
        checkpoint()
        context = self.context
        most = 3 if call.fn == "fuzzy" else 2
        if not 2 <= len(call.args) <= most:
            usage = "fuzzy($x.prop, text, edits)" if call.fn == "fuzzy" else f"{call.fn}($x.prop, text)"
            raise context.error("OG-GQ-304", f"{call.fn} has {len(call.args)} arguments", f"write {usage}", call.at)
        searched = text_field(context, self.scope, call)
        query = text_query(context, self.scope, call)
        if call.fn == "search":
            return ir.TextSearch("search", searched, query)
        if call.fn == "match_text":
            return ir.TextSearch("match_text", searched, query)
        edits: ir.Constant = ir.Literal(FUZZY_EDITS_DEFAULT, ir.I64)
        if len(call.args) == 3:
            limits = (0, FUZZY_EDITS_MAX)
            edits = small_integer(context, self.scope, call.args[2], "edits", limits)
        return ir.TextSearch("fuzzy", searched, query, edits)

    def negation(self, clause: ast.NotClause) -> ir.Not:
        checkpoint()
        inner = Scope(self.scope)
        pattern = check_pattern(self.context, clause.clauses, inner)
        self.context.bound_in_not.update(inner.own)
        if not pattern.outer:
            remedy = "use one of its variables inside, such as not { $p knows $_ }"
            raise self.context.error("OG-GQ-407", "The not { } uses no variable from outside", remedy, clause.at)
        return ir.Not(pattern)


# Arguments of search functions


def text_field(context: CheckContext, scope: Scope, call: ast.FunctionCall) -> ir.Prop:
    """The first argument of a text search: a property of type String."""
    searched = call.args[0]
    found = resolve_property(context, scope, searched) if isinstance(searched, ast.PropRef) else None
    if not isinstance(found, ir.Prop) or found.type != ir.STRING:
        at = searched.at if isinstance(searched, ast.PropRef) else call.at
        shape = "" if found is None else f", not {found.type}" if isinstance(found, ir.Prop) else ", not an id"
        message = f"{call.fn} searches a property of type String{shape}"
        raise context.error("OG-GQ-408", message, f"write {call.fn}($x.prop, …)", at)
    return found


def text_query(context: CheckContext, scope: Scope, call: ast.FunctionCall) -> ir.Constant:
    """The second argument of a text search: a text."""
    query = required_constant(context, call.args[1], scope, "the searched text")
    if domain_of(query.type) != "text":
        message = f"{call.fn} searches for a text, not {query.type}"
        raise context.error("OG-GQ-409", message, 'give "words" or a String parameter', call.args[1].at)
    return query


def small_integer(
    context: CheckContext, scope: Scope, expr: ast.Expr, what: str, limits: tuple[int, int]
) -> ir.Constant:
    """An integer literal within limits, or a parameter that `bind` will check."""
    found = required_constant(context, expr, scope, what)
    low, high = limits
    integer = str(found.type) in ("I32", "I64", "U32", "U64")
    if integer and isinstance(found, ir.ParamRef):
        return found
    if integer and isinstance(found, ir.Literal) and isinstance(found.value, int) and low <= found.value <= high:
        return ir.Literal(found.value, ir.I64)
    raise context.error("OG-GQ-409", f"{what} must be an integer", f"give one from {low} to {high}", expr.at)
