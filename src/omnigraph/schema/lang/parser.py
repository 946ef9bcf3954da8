"""The recursive-descent parser of `.pg`: text to declarations.

    file        = { declaration }
    declaration = "interface" Name annotations [ body ]
                | "node" Name [ "implements" Name { "," Name } ] annotations [ body ]
                | "edge" Name ":" Name "->" Name annotations [ body ]
    body        = "{" { name ":" type [ "?" ] annotations | rule } "}"
    type        = scalar | "[" scalar "]" | "Vector" "(" n ")" | "enum" "(" value { "," value } ")"
    annotation  = "@" name [ "(" [ argument { "," argument } ] ")" ]
    argument    = [ name "=" ] ( literal | [ literal ] ".." [ literal ] )

A rule is an annotation that names properties: `@range`, `@check`, and `@key`, `@unique`, `@index` with
names in parentheses. So `@unique` after a property is the property's, `@unique(a)` the type's.
"""

from difflib import get_close_matches

from omnigraph.lexer import LanguageError, Token, Tokens
from omnigraph.schema.lang.ast import (
    AnnotationArgument,
    Declaration,
    DeclarationKind,
    PropertyDeclaration,
    RangeLiteral,
    SchemaAnnotation,
    SchemaFile,
    SchemaLiteral,
)
from omnigraph.schema.literals import canonical_date, canonical_datetime
from omnigraph.schema.types import (
    ENUM_VALUE,
    SCALARS,
    TYPES_EXPECTED,
    VECTOR_DIMENSION_MAX,
    Enumeration,
    ListOf,
    PropertyType,
    Scalar,
    Vector,
)

_ALWAYS_RULES = frozenset({"range", "check"})
_RULES_WITH_NAMES = frozenset({"key", "unique", "index"})


def parse_schema(text: str, name: str = "schema.pg") -> SchemaFile:
    """The declarations of a schema text; raises LanguageError."""
    return _SchemaParser(text, name).file()


def is_rule(annotation: SchemaAnnotation) -> bool:
    """Whether an annotation in a body is about the type, not about the property before it."""
    if annotation.name in _ALWAYS_RULES:
        return True
    named = any(argument.name is None for argument in annotation.arguments or ())
    return annotation.name in _RULES_WITH_NAMES and named


class _SchemaParser:
    def __init__(self, source: str, source_name: str) -> None:
        self.tokens = Tokens(source, source_name)

    def file(self) -> SchemaFile:
        declarations: list[Declaration] = []
        while self.tokens.peek().kind != "end":
            declarations.append(self.declaration())
        return SchemaFile(self.tokens.source, self.tokens.source_name, tuple(declarations))

    def declaration(self) -> Declaration:
        tokens = self.tokens
        kind: DeclarationKind
        if tokens.accept("interface"):
            kind = "interface"
        elif tokens.accept("node"):
            kind = "node"
        elif tokens.accept("edge"):
            kind = "edge"
        else:
            raise tokens.unexpected("a declaration: interface, node or edge")
        name = tokens.expect_kind("name", "the name of a type")
        implements = self.implemented() if kind == "node" else ()
        ends = self.ends() if kind == "edge" else None
        annotations = self.annotations()
        properties, rules = self.body(after_annotations=bool(annotations))
        return Declaration(kind, name, implements, ends, annotations, properties, rules)

    def implemented(self) -> tuple[Token, ...]:
        if not self.tokens.accept("implements"):
            return ()
        names = [self.tokens.expect_kind("name", "the name of an interface")]
        while self.tokens.accept(","):
            names.append(self.tokens.expect_kind("name", "the name of an interface"))
        return tuple(names)

    def ends(self) -> tuple[Token, Token]:
        self.tokens.expect(":", ": and the ends of the edge, such as `edge Knows: Person -> Person`")
        source = self.tokens.expect_kind("name", "the node type that the edge leaves")
        self.tokens.expect("->", "-> and the node type that the edge enters")
        return source, self.tokens.expect_kind("name", "the node type that the edge enters")

    def body(self, after_annotations: bool) -> tuple[tuple[PropertyDeclaration, ...], tuple[SchemaAnnotation, ...]]:
        tokens = self.tokens
        properties: list[PropertyDeclaration] = []
        rules: list[SchemaAnnotation] = []
        if not tokens.accept("{"):
            following = tokens.peek()
            if following.kind != "end" and following.text not in ("interface", "node", "edge"):
                hint = "" if after_annotations else " an annotation,"
                raise tokens.unexpected(f"{{ and properties,{hint} or the next declaration")
            return (), ()
        while not tokens.accept("}"):
            if tokens.peek().kind == "annotation":
                rules.append(self.rule())
            elif tokens.peek().kind == "name":
                prop, following_rules = self.property_declaration()
                properties.append(prop)
                rules += following_rules
            else:
                raise tokens.unexpected("a property such as `name: String`, a constraint such as @unique(name), or }")
        return tuple(properties), tuple(rules)

    def rule(self) -> SchemaAnnotation:
        annotation = self.annotation()
        if is_rule(annotation):
            return annotation
        if annotation.name in _RULES_WITH_NAMES:
            expected = f"name its properties here, @{annotation.name}(a, …), or write it behind a property"
        else:
            expected = "write annotations of a property behind it, those of a type before its {"
        raise self.tokens.error("OG-PG-130", f"@{annotation.name} is not complete", expected, annotation.token)

    def property_declaration(self) -> tuple[PropertyDeclaration, list[SchemaAnnotation]]:
        """A property, and the rules before the next one."""
        name = self.tokens.take()
        self.tokens.expect(":", f": and the type of {name}")
        kind = self.property_type()
        nullable = self.tokens.accept("?") is not None
        own: list[SchemaAnnotation] = []
        while self.tokens.peek().kind == "annotation":
            annotation = self.annotation()
            if is_rule(annotation):
                rules = [annotation]
                while self.tokens.peek().kind == "annotation":
                    rules.append(self.rule())
                return PropertyDeclaration(name, kind, nullable, tuple(own)), rules
            own.append(annotation)
        return PropertyDeclaration(name, kind, nullable, tuple(own)), []

    def property_type(self) -> PropertyType:
        tokens = self.tokens
        if tokens.accept("["):
            item = tokens.peek()
            if item.kind != "name" or item.text not in SCALARS:
                raise self.no_type(item, f"a list holds scalars: {', '.join(SCALARS)}")
            tokens.take()
            tokens.expect("]", "], a list holds one scalar that is never null")
            return ListOf(Scalar(item.text))
        name = tokens.expect_kind("name", f"a type: {TYPES_EXPECTED}")
        if name.text == "Vector":
            return self.vector()
        if name.text == "enum":
            return self.enumeration()
        if name.text not in SCALARS:
            near = get_close_matches(name.text[:50], [*SCALARS, "Vector", "enum"], 1)
            raise self.no_type(name, f"did you mean {near[0]}?" if near else f"use {TYPES_EXPECTED}")
        return Scalar(name.text)

    def no_type(self, token: Token, expected: str) -> LanguageError:
        return self.tokens.error("OG-PG-106", f"{token} is not a property type", expected, token)

    def vector(self) -> Vector:
        self.tokens.expect("(", "( and the dimension, such as Vector(64)")
        dimension = self.tokens.expect_kind("integer", "the dimension, a whole number")
        if not 1 <= dimension.value <= VECTOR_DIMENSION_MAX:
            message = f"A vector can't have {dimension} dimensions"
            expected = f"write a number from 1 to {VECTOR_DIMENSION_MAX}"
            raise self.tokens.error("OG-PG-107", message, expected, dimension)
        self.tokens.expect(")")
        return Vector(dimension.value)

    def enumeration(self) -> Enumeration:
        self.tokens.expect("(", "( and the values, such as enum(small, large)")
        values: dict[str, None] = {}
        while True:
            token, text = self.enum_value()
            if text in values:
                raise self.tokens.error("OG-PG-108", f"The value {text} is listed twice", "remove one of them", token)
            values[text] = None
            if not self.tokens.accept(","):
                break
        self.tokens.expect(")", ", and another value, or )")
        return Enumeration(tuple(values))

    def enum_value(self) -> tuple[Token, str]:
        """Tokens without space between them: `b-c` and `24h` are one value."""
        first = token = self.tokens.peek()
        end = first.offset
        while token.offset == end and token.text not in (",", ")") and token.kind != "end":
            end += len(token.text)
            self.tokens.take()
            token = self.tokens.peek()
        text = self.tokens.source[first.offset : end]
        if not ENUM_VALUE.match(text):
            message = f"{first if len(text) > 40 else text} is not an enum value" if text else f"Found {first}"
            raise self.tokens.error("OG-PG-108", message, "values have letters A-Z, digits, _ and -", first)
        return first, text

    def annotations(self) -> tuple[SchemaAnnotation, ...]:
        found: list[SchemaAnnotation] = []
        while self.tokens.peek().kind == "annotation":
            found.append(self.annotation())
        return tuple(found)

    def annotation(self) -> SchemaAnnotation:
        token = self.tokens.take()
        if not self.tokens.accept("("):
            return SchemaAnnotation(token, None)
        arguments: list[AnnotationArgument] = []
        while not self.tokens.accept(")"):
            if arguments:
                self.tokens.expect(",", ", and another argument, or )")
            arguments.append(self.argument())
        return SchemaAnnotation(token, tuple(arguments))

    def argument(self) -> AnnotationArgument:
        name = None
        if self.tokens.peek().kind == "name" and self.tokens.at("=", 1):
            name = self.tokens.take()
            self.tokens.take()
        first = self.tokens.peek()
        low = None if self.tokens.at("..") else self.literal()
        if not self.tokens.accept(".."):
            assert low is not None
            return AnnotationArgument(name, low)
        following = self.tokens.peek()
        high = None if following.text in (",", ")") and following.kind == "symbol" else self.literal()
        return AnnotationArgument(name, RangeLiteral(low, high, first))

    def literal(self) -> SchemaLiteral:
        token = self.tokens.take()
        if token.kind == "string":
            return SchemaLiteral("text", token.value, token)
        if token.kind in ("integer", "float"):
            return SchemaLiteral("number", token.value, token)
        if token.kind == "name" and token.text in ("true", "false"):
            return SchemaLiteral("bool", token.text == "true", token)
        if token.kind == "name" and token.text in ("date", "datetime") and self.tokens.accept("("):
            return self.date_or_datetime(token)
        if token.kind == "name":
            return SchemaLiteral("name", token.text, token)
        if token.kind == "symbol" and token.text == "[":
            return self.list_literal(token)
        raise self.tokens.unexpected('a value, such as "text", 7, true or [1, 2]', token)

    def date_or_datetime(self, function: Token) -> SchemaLiteral:
        text = self.tokens.expect_kind("string", 'a text, such as "2026-01-31"')
        self.tokens.expect(")")
        try:
            if function.text == "date":
                return SchemaLiteral("date", canonical_date(text.value), function)
            return SchemaLiteral("datetime", canonical_datetime(text.value), function)
        except ValueError as error:
            example = "2026-01-31" if function.text == "date" else "2026-01-31T12:00:00Z"
            message = f"{text} is not a {function}"
            raise self.tokens.error("OG-PG-133", message, f'write it like "{example}"', text) from error

    def list_literal(self, bracket: Token) -> SchemaLiteral:
        values: list[SchemaLiteral] = []
        while not self.tokens.accept("]"):
            if values:
                self.tokens.expect(",", ", and another value, or ]")
            value = self.literal()
            if value.kind == "name":
                raise self.tokens.unexpected('a value, such as "text", 7 or true', value.token)
            values.append(value)
        return SchemaLiteral("list", tuple(literal.value for literal in values), bracket)
