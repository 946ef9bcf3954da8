"""Print a catalog as schema text: `schema show` for a graph that was created without a text.

Compiling the text on top of the catalog gives the same catalog. Ids and columns, past renames and the provider and
model of embeddings are not part of the language and are not printed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omnigraph.schema.catalog import Catalog
from omnigraph.schema.definitions import InterfaceDef, Property, Rules, TypeDef, ValueRange
from omnigraph.schema.types import PropertyType, Scalar

_NOTHING = Rules()


def print_schema(catalog: Catalog) -> str:
    """The text that declares this catalog, interfaces first."""
    interfaces = {interface.name: interface for interface in catalog.interfaces}
    blocks = [_print_interface(interface) for interface in catalog.interfaces]
    blocks += [_print_type(definition, interfaces) for definition in catalog.types]
    return "\n".join(blocks)


def _print_interface(interface: InterfaceDef) -> str:
    head = " ".join([f"interface {interface.name}", *_about(interface.description, interface.annotations)])
    return _block(head, [*map(_print_property, interface.properties), *_print_rules(interface, _NOTHING)])


def _print_type(definition: TypeDef, interfaces: Mapping[str, InterfaceDef]) -> str:
    implemented = [interfaces[name] for name in definition.implements]
    inherited = {prop.name: prop for interface in implemented for prop in interface.properties}
    head = [f"{definition.kind} {definition.name}"]
    if definition.kind == "edge":
        head = [f"edge {definition.name}: {definition.source} -> {definition.target}"]
    if definition.implements:
        head.append(f"implements {', '.join(definition.implements)}")
    if definition.cardinality is not None:
        head.append(f"@card({definition.cardinality})")
    head += _about(definition.description, definition.annotations)
    own = [_print_property(prop) for prop in definition.properties if prop.name not in inherited]
    indexed = [
        prop.name
        for prop in definition.properties
        if prop.indexed and prop.name in inherited and not inherited[prop.name].indexed
    ]
    known = Rules(
        tuple(name for interface in implemented for name in interface.rules.key),
        tuple(group for interface in implemented for group in interface.rules.unique),
        tuple(entry for interface in implemented for entry in interface.rules.ranges),
        tuple(entry for interface in implemented for entry in interface.rules.checks),
    )
    rules = [*_print_rules(definition, known), *([f"@index({', '.join(indexed)})"] if indexed else [])]
    return _block(" ".join(head), [*own, *rules])


def _print_property(prop: Property) -> str:
    parts = [f"{prop.name}: {prop.type}{'?' if prop.nullable else ''}"]
    if prop.indexed:
        parts.append("@index" if prop.metric is None else f'@index(metric="{prop.metric}")')
    if prop.embed is not None:
        parts.append(f"@embed({_text(prop.embed.source)})")
    if prop.default is not None:
        parts.append(f"@default({_print_value(prop.default, prop.type)})")
    return " ".join([*parts, *_about(prop.description, prop.annotations)])


def _print_rules(declared: TypeDef | InterfaceDef, known: Rules) -> Iterator[str]:
    rules = declared.rules
    types = {prop.name: prop.type for prop in declared.properties}
    if rules.key and rules.key != known.key:
        yield f"@key({', '.join(rules.key)})"
    for group in rules.unique:
        if group not in known.unique:
            yield f"@unique({', '.join(group)})"
    for entry in rules.ranges:
        if entry not in known.ranges:
            yield f"@range({entry.property}, {_print_range(entry, types[entry.property])})"
    for pattern in rules.checks:
        if pattern not in known.checks:
            yield f"@check({pattern.property}, {_text(pattern.pattern)})"


def _print_range(entry: ValueRange, kind: PropertyType) -> str:
    low = "" if entry.low is None else _print_value(entry.low, kind)
    high = "" if entry.high is None else _print_value(entry.high, kind)
    return f"{low}..{high}"


def _about(description: str | None, annotations: Mapping[str, Any]) -> Iterator[str]:
    if description is not None:
        yield f"@description({_text(description)})"
    for name, arguments in annotations.items():
        yield f"@{name}({', '.join(_print_arguments(arguments))})" if arguments else f"@{name}"


def _print_arguments(arguments: Iterable[Any]) -> Iterator[str]:
    for argument in arguments:
        if isinstance(argument, Mapping):
            yield from (f"{name}={_print_value(value)}" for name, value in argument.items())
        else:
            yield _print_value(argument)


def _print_value(value: Any, kind: PropertyType | None = None) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str() if kind == Scalar("Date"):
            return f"date({_text(value)})"
        case str() if kind == Scalar("DateTime"):
            return f"datetime({_text(value)})"
        case str():
            return _text(value)
        case int() | float():
            return repr(value)
    return f"[{', '.join(_print_value(item) for item in value)}]"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _block(head: str, lines: list[str]) -> str:
    return head + (" {\n" + "".join(f"    {line}\n" for line in lines) + "}\n" if lines else "\n")
