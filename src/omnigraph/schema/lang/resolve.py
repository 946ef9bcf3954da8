"""Resolve one declaration to properties and rules: annotations parsed, interfaces inherited, without ids."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from omnigraph.cancellation import checkpoint
from omnigraph.lexer import LanguageError, Token
from omnigraph.schema.definitions import (
    EdgeCount,
    Embed,
    Metric,
    PatternCheck,
    Property,
    RangeBound,
    Rules,
    SchemaValue,
    ValueRange,
)
from omnigraph.schema.lang.ast import (
    AnnotationArgument,
    Declaration,
    PropertyDeclaration,
    RangeLiteral,
    SchemaAnnotation,
    SchemaLiteral,
)
from omnigraph.schema.lang.source_map import SourceMap
from omnigraph.schema.literals import canonical_value
from omnigraph.schema.types import ListOf, PropertyType, Scalar

_FORMS = {
    "key": "@key behind a property, or @key(a, b) in the body",
    "unique": "@unique behind a property, or @unique(a, …) in the body",
    "index": '@index, @index(metric="cosine") or @index(metric="l2") behind a property, or @index(a, …) in the body',
    "embed": '@embed("source") behind a Vector property',
    "rename_from": '@rename_from("old")',
    "default": '@default(7), @default("text"), @default(date("2026-01-31")) or another value behind a property',
    "description": '@description("…")',
    "card": "@card(0..1) or @card(1..) before the { of an edge",
    "range": "@range(property, 0..150), either end may be open, in the body",
    "check": '@check(property, "[a-z]+") in the body',
}
KNOWN = frozenset(_FORMS)
OF_PROPERTIES = frozenset({"key", "unique", "index", "embed", "rename_from", "default", "description"})
OF_TYPES = frozenset({"rename_from", "description"})
OF_EDGES = OF_TYPES | {"card"}


class Annotations:
    """Parses annotations and their arguments."""

    def __init__(self, places: SourceMap) -> None:
        self._places = places

    def by_name(
        self, annotations: Sequence[SchemaAnnotation], allowed: frozenset[str], owner: str
    ) -> dict[str, SchemaAnnotation]:
        """The annotations by name, each once and where it is allowed; unknown ones are metadata."""
        found: dict[str, SchemaAnnotation] = {}
        for annotation in annotations:
            name = annotation.name
            if name in KNOWN and name not in allowed:
                message = f"@{name} is not allowed at {owner}"
                raise self._places.error(annotation.token, "OG-PG-130", message, f"write {_FORMS[name]}")
            if name in found:
                message = f"{owner} has @{name} twice"
                expected = "remove one of them"
                raise self._places.error(annotation.token, "OG-PG-132", message, expected)
            found[name] = annotation
        return found

    def malformed(self, annotation: SchemaAnnotation, token: Token | None = None) -> LanguageError:
        name = annotation.name
        message = f"@{name} is not written like this"
        return self._places.error(token or annotation.token, "OG-PG-131", message, f"write {_FORMS[name]}")

    def check_bare(self, annotation: SchemaAnnotation) -> None:
        if annotation.arguments is not None:
            raise self.malformed(annotation)

    def text(self, annotation: SchemaAnnotation | None) -> str | None:
        """The single text argument; None without the annotation."""
        if annotation is None:
            return None
        literal = self.value(annotation)
        if literal.kind != "text":
            raise self.malformed(annotation, literal.token)
        return str(literal.value)

    def value(self, annotation: SchemaAnnotation) -> SchemaLiteral:
        """The single argument."""
        match annotation.arguments:
            case (AnnotationArgument(None, SchemaLiteral() as literal),) if literal.kind != "name":
                return literal
        raise self.malformed(annotation)

    def metric(self, annotation: SchemaAnnotation) -> str | None:
        match annotation.arguments:
            case None:
                return None
            case (AnnotationArgument(Token(text="metric"), SchemaLiteral("text", str() as metric)),):
                return metric
        raise self.malformed(annotation)

    def names(self, annotation: SchemaAnnotation) -> tuple[Token, ...]:
        """The arguments as names, at least one."""
        if not annotation.arguments:
            raise self.malformed(annotation)
        return tuple(self._name(annotation, argument) for argument in annotation.arguments)

    def range(self, annotation: SchemaAnnotation) -> tuple[Token, RangeLiteral]:
        match annotation.arguments:
            case (first, AnnotationArgument(None, RangeLiteral() as bounds)):
                return self._name(annotation, first), bounds
        raise self.malformed(annotation)

    def check(self, annotation: SchemaAnnotation) -> tuple[Token, SchemaLiteral]:
        match annotation.arguments:
            case (first, AnnotationArgument(None, SchemaLiteral("text") as pattern)):
                return self._name(annotation, first), pattern
        raise self.malformed(annotation)

    def card(self, annotation: SchemaAnnotation) -> EdgeCount:
        match annotation.arguments:
            case (AnnotationArgument(None, RangeLiteral(SchemaLiteral("number", int() as low), None)),):
                return EdgeCount(low, None)
            case (
                AnnotationArgument(
                    None, RangeLiteral(SchemaLiteral("number", int() as low), SchemaLiteral("number", int() as high))
                ),
            ):
                return EdgeCount(low, high)
        raise self.malformed(annotation)

    def metadata(self, annotations: Iterable[SchemaAnnotation]) -> dict[str, Any]:
        """Unknown annotations by name: their values in order, those with names as one mapping at the end."""
        found: dict[str, Any] = {}
        for annotation in annotations:
            if annotation.name in KNOWN:
                continue
            values: list[Any] = []
            named: dict[str, Any] = {}
            for argument in annotation.arguments or ():
                if isinstance(argument.value, RangeLiteral):
                    message = f"@{annotation.name} is unknown and kept as metadata, which can't hold a range"
                    raise self._places.error(argument.value.token, "OG-PG-131", message, "write its ends as two values")
                if argument.name is None:
                    values.append(argument.value.value)
                else:
                    named[argument.name.text] = argument.value.value
            found[annotation.name] = (*values, named) if named else tuple(values)
        return found

    def _name(self, annotation: SchemaAnnotation, argument: AnnotationArgument) -> Token:
        match argument:
            case AnnotationArgument(None, SchemaLiteral("name" | "bool") as literal):  # a property may be named true
                return literal.token
        raise self.malformed(annotation, argument.value.token)


@dataclass(frozen=True, slots=True)
class Rename:
    """`@rename_from("old")` with its token."""

    old: str
    token: Token


@dataclass(frozen=True, slots=True)
class PropertyDraft:
    """A property whose id and column are still its name."""

    property: Property
    rename: Rename | None


@dataclass(frozen=True, slots=True)
class ResolvedDeclaration:
    """A resolved declaration: inherited properties and rules first, then its own."""

    declaration: Declaration
    drafts: tuple[PropertyDraft, ...]
    rules: Rules
    rename: Rename | None
    description: str | None
    annotations: Mapping[str, Any]
    cardinality: EdgeCount | None

    @property
    def name(self) -> str:
        return self.declaration.name.text

    @property
    def size(self) -> int:
        """How many entries a type that implements it inherits."""
        rules = self.rules
        return 1 + len(self.drafts) + len(rules.key) + len(rules.unique) + len(rules.ranges) + len(rules.checks)


def resolve_declaration(
    declaration: Declaration, interfaces: Mapping[str, ResolvedDeclaration], places: SourceMap
) -> ResolvedDeclaration:
    """A declaration with the properties and rules of its interfaces before its own."""
    return _Resolver(declaration, interfaces, places).body()


class _Resolver:
    def __init__(
        self, declaration: Declaration, interfaces: Mapping[str, ResolvedDeclaration], places: SourceMap
    ) -> None:
        self.declaration, self.places = declaration, places
        self.name = declaration.name.text
        self.interfaces = [interfaces[token.text] for token in declaration.implements if token.text in interfaces]
        self.annotations = Annotations(places)
        self.inherited = self.inherit_properties()
        self.types = {draft.property.name: draft.property.type for draft in self.inherited}
        self.types |= {prop.name.text: prop.type for prop in declaration.properties}

    def body(self) -> ResolvedDeclaration:
        declaration, name = self.declaration, self.name
        self.places.record(declaration.name, name)
        for token in declaration.implements:
            self.places.record(token, name, "implements", token.text)
        for token, side in zip(declaration.ends or (), ("src", "dst"), strict=False):
            self.places.record(token, name, side)
        allowed = OF_EDGES if declaration.kind == "edge" else OF_TYPES
        about = self.annotations.by_name(declaration.annotations, allowed, f"the {declaration.kind} {name}")
        card = about.get("card")
        if card is not None:
            self.places.record(card.token, name, "@card")
        drafts = [*self.inherited, *(self.draft(prop) for prop in declaration.properties)]
        return ResolvedDeclaration(
            declaration,
            tuple(self.indexed(drafts)),
            self.rules(),
            self.rename(about.get("rename_from")),
            self.annotations.text(about.get("description")),
            self.annotations.metadata(declaration.annotations),
            None if card is None else self.annotations.card(card),
        )

    def inherit_properties(self) -> list[PropertyDraft]:
        drafts: dict[str, tuple[PropertyDraft, str]] = {}
        for token, interface in zip(self.declaration.implements, self.interfaces, strict=False):
            for draft in interface.drafts:
                name = draft.property.name
                known = drafts.setdefault(name, (draft, interface.name))
                if known[0].property != draft.property:
                    message = f"{known[1]} and {interface.name} declare {name} differently"
                    raise self.places.error(token, "OG-PG-111", message, "make them agree or implement one of them")
        for prop in self.declaration.properties:
            if prop.name.text in drafts:
                message = f"{self.name}.{prop.name} comes from the interface {drafts[prop.name.text][1]} already"
                raise self.places.error(prop.name, "OG-PG-105", message, "remove it here")
        return [draft for draft, _ in drafts.values()]

    def draft(self, declared: PropertyDeclaration) -> PropertyDraft:
        checkpoint()
        name, places = declared.name.text, self.places
        places.record(declared.name, self.name, name)
        about = self.annotations.by_name(declared.annotations, OF_PROPERTIES, f"the property {self.name}.{name}")
        for annotation in about.values():
            places.record(annotation.token, self.name, name, f"@{annotation.name}")
        for rule in ("key", "unique"):
            if rule in about:
                self.annotations.check_bare(about[rule])
        index = about.get("index")
        embed = self.annotations.text(about.get("embed"))
        prop = Property(
            name,
            name,
            name,
            declared.type,
            declared.nullable,
            self.annotations.metadata(declared.annotations),
            self.default(declared, about.get("default")),
            indexed=index is not None,
            metric=None if index is None else cast(Metric | None, self.annotations.metric(index)),
            embed=None if embed is None else Embed(embed),
            description=self.annotations.text(about.get("description")),
        )
        return PropertyDraft(prop, self.rename(about.get("rename_from")))

    def default(self, declared: PropertyDeclaration, annotation: SchemaAnnotation | None) -> SchemaValue | None:
        if annotation is None:
            return None
        literal = self.annotations.value(annotation)
        self.places.record(literal.token, self.name, declared.name.text, "@default")
        return self.canonical(literal, declared.type)

    def canonical(self, literal: SchemaLiteral, kind: PropertyType) -> SchemaValue:
        """The value in canonical form; one that does not fit is unchanged, and the catalog reports it."""
        dated = {"date": Scalar("Date"), "datetime": Scalar("DateTime")}.get(literal.kind)
        if dated is not None and dated != kind and not isinstance(kind, ListOf):
            message = f"A {literal.kind} does not fit {kind}"
            raise self.places.error(literal.token, "OG-PG-180", message, f"write a value of {kind}")
        try:
            return canonical_value(literal.value, kind)
        except ValueError:
            return literal.value

    def rename(self, annotation: SchemaAnnotation | None) -> Rename | None:
        old = self.annotations.text(annotation)
        return None if annotation is None or old is None else Rename(old, annotation.token)

    def indexed(self, drafts: Sequence[PropertyDraft]) -> list[PropertyDraft]:
        """The properties, with `@index(a, …)` of the body applied."""
        always = {"src", "dst"} if self.declaration.kind == "edge" else set[str]()
        wanted: set[str] = set()
        for rule in self.declaration.rules:
            if rule.name != "index":
                continue
            for token in self.annotations.names(rule):
                if token.text not in self.types and token.text not in always:
                    message = f"@index of {self.name} names {token}, which does not exist"
                    raise self.places.error(token, "OG-PG-140", message, f"name a property of {self.name}")
                if token.text in wanted:
                    message = f"@index of {self.name} names {token} twice"
                    raise self.places.error(token, "OG-PG-141", message, "name each property once")
                wanted.add(token.text)
                self.places.record(token, self.name, token.text, "@index")
        return [
            replace(draft, property=replace(draft.property, indexed=True)) if draft.property.name in wanted else draft
            for draft in drafts
        ]

    def rules(self) -> Rules:
        """The rules in the order of the text, inherited ones first."""
        inherited = _merge_rules([interface.rules for interface in self.interfaces])
        keys: list[tuple[tuple[str, ...], Token]] = []
        unique = list(inherited.unique)
        ranges = list(inherited.ranges)
        checks = list(inherited.checks)
        for annotation, names in self.declared_rules():
            token = annotation.token
            match annotation.name:
                case "key":
                    keys.append((tuple(name.text for name in names), token))
                    self.record_names(names, token, "@key")
                case "unique":
                    self.record_names(names, token, "@unique", len(unique))
                    unique.append(tuple(name.text for name in names))
                case "range":
                    ranges.append(self.value_range(annotation, len(ranges)))
                case "check":
                    name, pattern = self.annotations.check(annotation)
                    self.record_names((name,), token, "@check", len(checks))
                    self.places.record(pattern.token, self.name, "@check", len(checks))
                    checks.append(PatternCheck(name.text, str(pattern.value)))
        key = self.check_single_key(inherited.key, keys)
        return Rules(key, tuple(unique), tuple(ranges), tuple(checks))

    def declared_rules(self) -> list[tuple[SchemaAnnotation, tuple[Token, ...]]]:
        """The rules of the body and of properties, in the order of the text."""
        of_properties = [
            (annotation, (prop.name,))
            for prop in self.declaration.properties
            for annotation in prop.annotations
            if annotation.name in ("key", "unique")
        ]
        body = [
            (rule, self.annotations.names(rule) if rule.name in ("key", "unique") else ())
            for rule in self.declaration.rules
        ]
        return sorted([*of_properties, *body], key=lambda written: written[0].token.offset)

    def record_names(self, names: Sequence[Token], token: Token, *place: object) -> None:
        self.places.record(token, self.name, *place)
        for name in names:
            at = name if name.offset > token.offset else token  # a property's own @unique follows its name
            self.places.record(at, self.name, *place, name.text)

    def value_range(self, annotation: SchemaAnnotation, index: int) -> ValueRange:
        name, bounds = self.annotations.range(annotation)
        self.record_names((name,), annotation.token, "@range", index)
        self.places.record(bounds.token, self.name, "@range", index)
        kind = self.types.get(name.text)
        ends: list[RangeBound | None] = []
        for side, literal in (("low", bounds.low), ("high", bounds.high)):
            if literal is None:
                ends.append(None)
                continue
            self.places.record(literal.token, self.name, "@range", index, side)
            if literal.kind not in ("number", "text", "date", "datetime"):
                raise self.annotations.malformed(annotation, literal.token)
            ends.append(cast(RangeBound, literal.value if kind is None else self.canonical(literal, kind)))
        return ValueRange(name.text, ends[0], ends[1])

    def check_single_key(self, inherited: tuple[str, ...], own: list[tuple[tuple[str, ...], Token]]) -> tuple[str, ...]:
        for token, interface in zip(self.declaration.implements, self.interfaces, strict=False):
            if interface.rules.key and interface.rules.key != inherited:
                message = f"{self.name} gets two keys from its interfaces"
                raise self.places.error(token, "OG-PG-144", message, "implement one of them")
        if own[1:] or (own and inherited):
            message = f"{self.name} has more than one key"
            expected = "write one, @key(a, b) in the body if it has several properties"
            raise self.places.error(own[-1][1], "OG-PG-144", message, expected)
        return own[0][0] if own else inherited


def _merge_rules(rules: Sequence[Rules]) -> Rules:
    """The rules of several interfaces, without duplicates."""
    return Rules(
        next((entry.key for entry in rules if entry.key), ()),
        tuple(dict.fromkeys(group for entry in rules for group in entry.unique)),
        tuple(dict.fromkeys(item for entry in rules for item in entry.ranges)),
        tuple(dict.fromkeys(item for entry in rules for item in entry.checks)),
    )
