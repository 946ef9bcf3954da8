"""What the arguments of an annotation say, or an error that says how it is written."""

from collections.abc import Iterable, Sequence
from typing import Any

from omnigraph.lexer import LanguageError, Token
from omnigraph.schema.definitions import EdgeCount
from omnigraph.schema.lang.ast import AnnotationArgument, RangeLiteral, SchemaAnnotation, SchemaLiteral
from omnigraph.schema.lang.source_map import SourceMap

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
    """The annotations of one declaration, each understood by its name."""

    def __init__(self, places: SourceMap) -> None:
        self._places = places

    def by_name(
        self, annotations: Sequence[SchemaAnnotation], allowed: frozenset[str], owner: str
    ) -> dict[str, SchemaAnnotation]:
        """Each annotation once, and none that belongs elsewhere; unknown ones are metadata and welcome."""
        found: dict[str, SchemaAnnotation] = {}
        for annotation in annotations:
            name = annotation.name
            if name in KNOWN and name not in allowed:
                message = f"@{name} can't stand at {owner}"
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

    def bare(self, annotation: SchemaAnnotation) -> None:
        if annotation.arguments is not None:
            raise self.malformed(annotation)

    def text(self, annotation: SchemaAnnotation | None) -> str | None:
        """The one quoted text in the parentheses; None without the annotation."""
        if annotation is None:
            return None
        literal = self.value(annotation)
        if literal.kind != "text":
            raise self.malformed(annotation, literal.token)
        return str(literal.value)

    def value(self, annotation: SchemaAnnotation) -> SchemaLiteral:
        """The one value in the parentheses."""
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
        """The names in the parentheses, at least one."""
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
            case AnnotationArgument(None, SchemaLiteral("name" | "bool") as literal):  # a property may be called true
                return literal.token
        raise self.malformed(annotation, argument.value.token)
