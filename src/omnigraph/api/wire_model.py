"""Wire models: each describes one JSON document once, by the members it has and the result they are read from.

A model is a class whose annotations are the members of the document, in their order. Three things are derived from it:
the document of a result (`encode`: the command line and the server), the result of a document (`decode`: the client),
and the schema in the server's OpenAPI document. Documents themselves are plain dicts; a model has no instances.
"""

from collections.abc import Callable, Container, Mapping
from functools import cache
from importlib import import_module
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, ClassVar, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

Document: TypeAlias = Mapping[str, Any]


class Converter(NamedTuple):
    """A value of a result as JSON, and back."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


AS_IS = Converter(_same, _same)


class _Source(NamedTuple):
    """How a member and an attribute of the result correspond."""

    read: str | Callable[[Any], Any] | None = None  # an attribute, dotted or not, or a function of the result
    target: str | None = None  # the argument of the result's class that the member is decoded to
    via: Converter | None = None
    key: str | None = None  # the member's name, where Python can't spell it
    omit_empty: bool = False
    is_part: bool = False
    description: str | None = None


def member(
    source: str | None = None,
    *,
    via: Converter | None = None,
    key: str | None = None,
    omit_empty: bool = False,
    description: str | None = None,
) -> Any:
    """The attribute `source` of the result, or the one of the member's name; `omit_empty` leaves out what is falsy."""
    return _Source(source, source, via, key, omit_empty, description=description)


def derived(
    read: str | Callable[[Any], Any] | None = None, *, via: Converter | None = None, target: str | None = None
) -> Any:
    """What the result computes, by a dotted attribute or a function; decoded only if `target` names an argument."""
    return _Source(read, target or "", via)


def part() -> Any:
    """A document inside this one whose members are of the same result."""
    return _Source(is_part=True)


class Field(NamedTuple):
    """A member, ready to use."""

    name: str
    key: str
    annotation: Any
    read: Callable[[Any], Any]
    convert: Converter
    target: str  # "": not decoded
    source: _Source


class WireModel:
    """The base of all models. `result_class` is what a document is decoded to, by its full name: it is imported when
    that happens. `openapi_name` is the schema's name where the class can't have it."""

    result_class: ClassVar[str] = ""
    openapi_name: ClassVar[str]
    undescribed: ClassVar[Document] = {}  # arguments of the result's class that no document has
    _fields: ClassVar[tuple[Field, ...]]

    def __init_subclass__(cls, result: str = "", openapi_name: str = "", **undescribed: Any) -> None:
        cls.result_class = result
        cls.openapi_name = openapi_name or cls.__name__
        cls.undescribed = undescribed

    @classmethod
    def fields(cls) -> tuple[Field, ...]:
        if "_fields" not in vars(cls):
            hints = get_type_hints(cls).items()
            cls._fields = tuple(_field(cls, name, kind) for name, kind in hints if get_origin(kind) is not ClassVar)
        return cls._fields

    @classmethod
    def encode(cls, value: Any = None, **given: Any) -> dict[str, Any]:
        """The document of a result; `given` values take the place of its attributes, or of a result at all."""
        document: dict[str, Any] = {}
        for field in cls.fields():
            found = given[field.name] if field.name in given else field.read(value)
            if found or not field.source.omit_empty:
                document[field.key] = field.convert.encode(found)
        return document

    @classmethod
    def arguments(cls, document: Document, without: Container[str] = ()) -> dict[str, Any]:
        """The members as arguments of the result's class, but for those in `without`. Others are ignored: a server may
        be newer than its client."""
        found: dict[str, Any] = {}
        for field in cls.fields():
            if field.source.is_part:
                found |= field.annotation.arguments(document[field.key], without)
                continue
            is_wanted = field.target and field.target not in without
            if is_wanted and (field.key in document or not field.source.omit_empty):
                found[field.target] = field.convert.decode(document[field.key])
        return found

    @classmethod
    def decode(cls, document: Document, **given: Any) -> Any:
        """The result of a document; `given` arguments are not decoded."""
        return class_named(cls.result_class)(**{**cls.undescribed, **cls.arguments(document, given), **given})


def _field(model: type[WireModel], name: str, annotation: Any) -> Field:
    source: _Source = getattr(model, name, None) or _Source()
    read = _same if source.is_part else source.read or name
    return Field(
        name,
        source.key or name,
        annotation,
        attrgetter(read) if isinstance(read, str) else read,
        _converter(annotation, source.via),
        name if source.target is None else source.target,
        source,
    )


def _converter(annotation: Any, via: Converter | None = None) -> Converter:
    """Lists become tuples, as results have them; a converter is not asked about null."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType) and NoneType in inner and len(inner) == 2:
        one = _converter(inner[0] if inner[1] is NoneType else inner[1], via)
        return Converter(
            lambda value: None if value is None else one.encode(value),
            lambda value: None if value is None else one.decode(value),
        )
    if via is not None:
        return via
    if isinstance(annotation, type) and issubclass(annotation, WireModel):
        return Converter(annotation.encode, annotation.decode if annotation.result_class else _same)
    if origin is list:
        item = _converter(inner[0])
        return Converter(
            lambda values: [item.encode(value) for value in values],
            lambda values: tuple(item.decode(value) for value in values),
        )
    if origin is dict:
        item = _converter(inner[1])
        return Converter(
            lambda values: {name: item.encode(value) for name, value in values.items()},
            lambda values: {name: item.decode(value) for name, value in values.items()},
        )
    return AS_IS


@cache
def class_named(name: str) -> Any:
    module, _, class_name = name.rpartition(".")
    return getattr(import_module(module), class_name)
