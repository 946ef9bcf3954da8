"""Name resolution: a query's variables, parameters, types, properties and edges.

A pattern's variables are visible throughout it and inside its negations; a negation's own stay inside.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from omnigraph.lexer import LanguageError, Token, error_at
from omnigraph.query import ast, ir
from omnigraph.schema.catalog import Catalog, Property, TypeDef

SUGGESTIONS_FROM = 1_000  # names compared with a misspelt one


@dataclass(frozen=True, slots=True)
class BoundVariable:
    """A variable: a node or an edge of one type."""

    var: str
    definition: TypeDef
    at: Token

    @property
    def is_edge(self) -> bool:
        return self.definition.kind == "edge"


@dataclass(slots=True)
class Scope:
    """The variables of one pattern, inside those of the patterns around it."""

    parent: "Scope | None" = None
    own: dict[str, BoundVariable] = field(default_factory=dict)

    def find(self, name: str) -> BoundVariable | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.own:
                return scope.own[name]
            scope = scope.parent
        return None

    def names(self) -> Iterable[str]:
        scope: Scope | None = self
        while scope is not None:
            yield from scope.own
            scope = scope.parent


@dataclass(slots=True)
class CheckContext:
    """The state of checking one query: the catalog, the parameters, and the source for errors."""

    catalog: Catalog
    file: ast.QueryFile
    params: dict[str, ir.Param] = field(default_factory=dict)
    hidden_count: int = 0
    uses_now: bool = False
    bound_in_not: set[str] = field(default_factory=set)  # variables that only a `not` binds, for a better message

    def error(self, code: str, message: str, expected: str, at: Token) -> LanguageError:
        return error_at(self.file.source, self.file.source_name, at, code, message, expected)

    def new_variable(self) -> str:
        """A new hidden variable."""
        self.hidden_count += 1
        return f"{ir.HIDDEN}{self.hidden_count}"

    def declare_params(self, params: tuple[ast.ParamDecl, ...]) -> tuple[ir.Param, ...]:
        for param in params:
            if param.name in self.params:
                message = f"The parameter ${param.name} is declared twice"
                raise self.error("OG-GQ-201", message, "rename or remove one", param.at)
            self.params[param.name] = ir.Param(param.name, param.type, param.optional)
        return tuple(self.params.values())

    # Lookups

    def node_type(self, name: str, at: Token) -> TypeDef:
        """The node type of a binding."""
        definition = self.catalog.by_name.get(name)
        if definition is None:
            raise self.unknown_type(name, at)
        if definition.kind == "edge":
            remedy = f"bind an edge where it is traversed: $a $w:{definition.traversal} $b"
            raise self.error("OG-GQ-202", f"{name} is an edge, not a node type", remedy, at)
        return definition

    def any_type(self, name: str, at: Token) -> TypeDef:
        definition = self.catalog.by_name.get(name)
        if definition is None:
            raise self.unknown_type(name, at)
        return definition

    def unknown_type(self, name: str, at: Token) -> LanguageError:
        if any(interface.name == name for interface in self.catalog.interfaces):
            having = [definition.name for definition in self.catalog.nodes if name in definition.implements]
            remedy = f"name a node type that implements it: {', '.join(having) or 'there is none'}"
            return self.error("OG-GQ-202", f"{name} is an interface, which has no rows", remedy, at)
        known = [definition.name for definition in self.catalog.types]
        return self.error("OG-GQ-202", f"The schema has no type {name}", suggestion(name, known, "types"), at)

    def edge_type(self, name: str, at: Token) -> TypeDef:
        definition = self.catalog.by_traversal.get(name)
        if definition is not None:
            return definition
        named = self.catalog.by_name.get(name)
        if named is not None and named.kind == "edge":
            remedy = f"write {named.traversal}: a traversal lower-cases the first letter"
            raise self.error("OG-GQ-203", f"{name} is the edge's type", remedy, at)
        known = list(self.catalog.by_traversal)
        raise self.error("OG-GQ-203", f"The schema has no edge {name}", suggestion(name, known, "edges"), at)

    def property_of(self, definition: TypeDef, name: str, at: Token) -> Property:
        prop = definition.by_name.get(name)
        if prop is not None:
            return prop
        known = [*definition.by_name, "id"]
        message = f"{definition.name} has no property {name}"
        raise self.error("OG-GQ-204", message, suggestion(name, known, "properties"), at)

    def variable(self, scope: Scope, ref: ast.VarRef) -> BoundVariable:
        """The variable that a reference names."""
        if ref.anonymous:
            raise self.error("OG-GQ-205", "$_ can't be used, it is anonymous", "give the variable a name", ref.at)
        found = scope.find(ref.name)
        if found is None:
            raise self.unbound(scope, ref)
        return found

    def unbound(self, scope: Scope, ref: ast.VarRef) -> LanguageError:
        if ref.name in self.params:
            remedy = (
                f"leave out the property, or name a variable; ${ref.name} has the type {self.params[ref.name].type}"
            )
            return self.error("OG-GQ-206", f"${ref.name} is a parameter, not a node or edge", remedy, ref.at)
        if ref.name in self.bound_in_not:
            remedy = "what a not { } binds stays inside it: bind it outside too, or use it inside"
            return self.error("OG-GQ-207", f"${ref.name} is bound inside not {{ }} only", remedy, ref.at)
        known = [f"${name}" for name in islice((*scope.names(), *self.params), SUGGESTIONS_FROM)]
        close = difflib.get_close_matches(f"${ref.name}", known, 1)
        also = f", or did you mean {close[0]}" if close else ""
        remedy = f"bind it in match, such as ${ref.name}: Type, or declare it as a parameter{also}"
        return self.error("OG-GQ-207", f"No clause binds ${ref.name}", remedy, ref.at)


def column_of(prop: Property) -> ir.PropertyColumn:
    return ir.PropertyColumn(prop.id, prop.name, prop.column, prop.type, prop.nullable)


def suggestion(name: str, known: list[str], what: str) -> str:
    """The closest known name, or a list of what there is."""
    close = difflib.get_close_matches(name, known[:SUGGESTIONS_FROM], 1, 0.6)
    if close:
        return f"did you mean {close[0]}"
    shown = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return f"the {what} are {shown}" if known else f"there are no {what}"
