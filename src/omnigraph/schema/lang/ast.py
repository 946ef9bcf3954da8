"""The syntax tree of a schema file: declarations with the tokens that errors point at."""

from dataclasses import dataclass
from typing import Literal as OneOf
from typing import TypeAlias

from omnigraph.lexer import Token
from omnigraph.schema.definitions import SchemaValue
from omnigraph.schema.types import PropertyType

DeclarationKind: TypeAlias = OneOf["interface", "node", "edge"]


@dataclass(frozen=True, slots=True)
class SchemaLiteral:
    """A value; `kind` distinguishes dates from other text, and bare names from quoted ones."""

    kind: OneOf["text", "number", "bool", "list", "date", "datetime", "name"]
    value: SchemaValue
    token: Token


@dataclass(frozen=True, slots=True)
class RangeLiteral:
    """`low..high`, either end open."""

    low: SchemaLiteral | None
    high: SchemaLiteral | None
    token: Token


@dataclass(frozen=True, slots=True)
class AnnotationArgument:
    """One argument of an annotation, with or without `name=`."""

    name: Token | None
    value: SchemaLiteral | RangeLiteral


@dataclass(frozen=True, slots=True)
class SchemaAnnotation:
    """`@name(arguments)`; `arguments` is None without parentheses."""

    token: Token
    arguments: tuple[AnnotationArgument, ...] | None

    @property
    def name(self) -> str:
        return str(self.token.value)


@dataclass(frozen=True, slots=True)
class PropertyDeclaration:
    name: Token
    type: PropertyType
    nullable: bool
    annotations: tuple[SchemaAnnotation, ...]


@dataclass(frozen=True, slots=True)
class Declaration:
    """An interface, node or edge; `rules` are the constraints in its body."""

    kind: DeclarationKind
    name: Token
    implements: tuple[Token, ...]
    ends: tuple[Token, Token] | None
    annotations: tuple[SchemaAnnotation, ...]
    properties: tuple[PropertyDeclaration, ...]
    rules: tuple[SchemaAnnotation, ...]


@dataclass(frozen=True, slots=True)
class SchemaFile:
    source: str
    source_name: str
    declarations: tuple[Declaration, ...]
