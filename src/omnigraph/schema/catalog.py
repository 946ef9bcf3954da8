"""The catalog: the types of a graph, as values with stable identities.

Types and properties have ids that outlive their names: a rename keeps the id, while a declaration after a drop gets a
new one. `column` is the property's column in the table, so that a rename never touches data. Schemas are stored
content-addressed, so that equal schemas are one object.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from omnigraph.caches import DerivedCache
from omnigraph.errors import BadRequest, Damaged, UnsupportedFormat
from omnigraph.schema.consistency import InvalidCatalog, check
from omnigraph.schema.definitions import (
    EdgeCount,
    Embed,
    InterfaceDef,
    Kind,
    PatternCheck,
    Property,
    Rules,
    TypeDef,
    ValueRange,
)
from omnigraph.schema.types import parse_type

__all__ = [
    "Catalog",
    "EdgeCount",
    "Embed",
    "InterfaceDef",
    "InvalidCatalog",
    "Kind",
    "PatternCheck",
    "Property",
    "Rules",
    "Schema",
    "TypeDef",
    "ValueRange",
    "catalog_from_json",
    "catalog_to_json",
    "decode_schema",
]

SCHEMA_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Catalog:
    """All types and interfaces; a value of this class is consistent. `type_ids` counts the ids ever given.

    No two types have one name, whatever their kind. `by_id` knows types through renames; `by_traversal` has the edge
    types as a query's traversals name them: `worksAt`.
    """

    types: tuple[TypeDef, ...]
    interfaces: tuple[InterfaceDef, ...] = ()
    type_ids: int = 0
    by_key: Mapping[str, TypeDef] = field(init=False, repr=False, compare=False)
    by_name: Mapping[str, TypeDef] = field(init=False, repr=False, compare=False)
    by_id: Mapping[tuple[Kind, str], TypeDef] = field(init=False, repr=False, compare=False)
    by_traversal: Mapping[str, TypeDef] = field(init=False, repr=False, compare=False)
    nodes: tuple[TypeDef, ...] = field(init=False, repr=False, compare=False)
    edges: tuple[TypeDef, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self.types, self.interfaces)
        edges = tuple(definition for definition in self.types if definition.kind == "edge")
        set_field = partial(object.__setattr__, self)
        set_field("by_key", {definition.table_key: definition for definition in self.types})
        set_field("by_name", {definition.name: definition for definition in self.types})
        set_field("by_id", {(definition.kind, definition.id): definition for definition in self.types})
        set_field("by_traversal", {definition.traversal: definition for definition in edges})
        set_field("nodes", tuple(definition for definition in self.types if definition.kind == "node"))
        set_field("edges", edges)

    def type_of(self, table_key: str) -> TypeDef:
        try:
            return self.by_key[table_key]
        except KeyError:
            raise BadRequest(f"The schema has no type {table_key!r}: see `schema show`.") from None


@dataclass(frozen=True, slots=True)
class Schema:
    """A catalog together with the text it came from: one object in `__schema`, `encoded`, named by its `hash`."""

    catalog: Catalog
    source: str = ""

    @property
    def encoded(self) -> bytes:
        return _ENCODED.of(self)[0]

    @property
    def hash(self) -> str:
        return _ENCODED.of(self)[1]


def _encode_schema(schema: Schema) -> tuple[bytes, str]:
    document = {"format": SCHEMA_FORMAT, "source": schema.source, "catalog": catalog_to_json(schema.catalog)}
    encoded = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return encoded, "sha256:" + hashlib.sha256(encoded).hexdigest()


_ENCODED = DerivedCache(_encode_schema, entries_max=64)


def decode_schema(data: bytes, name: str) -> Schema:
    """The schema in a stored object, whose name is the hash of its content."""
    try:
        document = json.loads(data)
        found = document["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"schema {name}", "it is not a schema document") from error
    if found != SCHEMA_FORMAT:
        raise UnsupportedFormat(f"schema {name}", found, SCHEMA_FORMAT)
    if "sha256:" + hashlib.sha256(data).hexdigest() != name:
        raise Damaged(f"schema {name}", "its content does not match its name")
    return Schema(catalog_from_json(document["catalog"]), document["source"])


def catalog_to_json(catalog: Catalog) -> dict[str, Any]:
    """The stored form, without default values, so that a hand-written catalog can be as short."""
    return {"types": [_type_to_json(definition) for definition in catalog.types]} | _without_defaults(
        {
            "interfaces": [_interface_to_json(interface) for interface in catalog.interfaces],
            "type_ids": catalog.type_ids,
        }
    )


def catalog_from_json(document: Mapping[str, Any]) -> Catalog:
    """A catalog from its stored form; an error in a hand-written one is named."""
    try:
        return Catalog(
            tuple(_type_from_json(entry) for entry in document["types"]),
            tuple(_interface_from_json(entry) for entry in document.get("interfaces", ())),
            document.get("type_ids", 0),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadRequest(f"The catalog is not in the stored form: {type(error).__name__} {error}.") from error


def _without_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    """Without null, false, 0 and empty lists; an empty text has a meaning."""
    return {name: value for name, value in fields.items() if value or value == ""}


def _type_to_json(definition: TypeDef) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": definition.id, "kind": definition.kind, "name": definition.name}
    if definition.kind == "edge":
        entry |= {"source": definition.source, "target": definition.target}
    if definition.cardinality is not None:
        entry |= {"cardinality": [definition.cardinality.minimum, definition.cardinality.maximum]}
    return (
        entry
        | _body_to_json(definition)
        | _without_defaults(
            {
                "implements": list(definition.implements),
                "property_ids": definition.property_ids,
                "retired_columns": list(definition.retired_columns),
            }
        )
    )


def _interface_to_json(interface: InterfaceDef) -> dict[str, Any]:
    return {"name": interface.name} | _body_to_json(interface)


def _body_to_json(declared: TypeDef | InterfaceDef) -> dict[str, Any]:
    rules = declared.rules
    return _without_defaults(
        {
            "properties": [_property_to_json(prop) for prop in declared.properties],
            "key": list(rules.key),
            "unique": [list(columns) for columns in rules.unique],
            "ranges": [[entry.property, entry.low, entry.high] for entry in rules.ranges],
            "checks": [[entry.property, entry.pattern] for entry in rules.checks],
            "description": declared.description,
            "annotations": _thaw(declared.annotations),
        }
    )


def _property_to_json(prop: Property) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": prop.id, "name": prop.name, "column": prop.column, "type": str(prop.type)}
    if prop.default is not None:
        entry |= {"default": _thaw(prop.default)}
    if prop.embed is not None:
        embed = {"provider": prop.embed.provider, "model": prop.embed.model}
        entry |= {"embed": {"source": prop.embed.source} | _without_defaults(embed)}
    return entry | _without_defaults(
        {
            "nullable": prop.nullable,
            "indexed": prop.indexed,
            "metric": prop.metric,
            "description": prop.description,
            "annotations": _thaw(prop.annotations),
        }
    )


def _type_from_json(entry: Mapping[str, Any]) -> TypeDef:
    cardinality = entry.get("cardinality")
    return TypeDef(
        id=entry["id"],
        kind=entry["kind"],
        name=entry["name"],
        properties=_properties_from_json(entry),
        source=entry.get("source"),
        target=entry.get("target"),
        rules=_rules_from_json(entry),
        annotations=_freeze(entry.get("annotations", {})),
        cardinality=None if cardinality is None else EdgeCount(cardinality[0], cardinality[1]),
        implements=tuple(entry.get("implements", ())),
        description=entry.get("description"),
        property_ids=entry.get("property_ids", 0),
        retired_columns=tuple(entry.get("retired_columns", ())),
    )


def _interface_from_json(entry: Mapping[str, Any]) -> InterfaceDef:
    return InterfaceDef(
        name=entry["name"],
        properties=_properties_from_json(entry),
        rules=_rules_from_json(entry),
        description=entry.get("description"),
        annotations=_freeze(entry.get("annotations", {})),
    )


def _properties_from_json(entry: Mapping[str, Any]) -> tuple[Property, ...]:
    return tuple(_property_from_json(prop) for prop in entry.get("properties", ()))


def _property_from_json(entry: Mapping[str, Any]) -> Property:
    embed = entry.get("embed")
    return Property(
        id=entry["id"],
        name=entry["name"],
        column=entry["column"],
        type=parse_type(entry["type"]),
        nullable=bool(entry.get("nullable", False)),
        annotations=_freeze(entry.get("annotations", {})),
        default=_freeze(entry.get("default")),
        indexed=bool(entry.get("indexed", False)),
        metric=entry.get("metric"),
        embed=None if embed is None else Embed(embed["source"], embed.get("provider"), embed.get("model")),
        description=entry.get("description"),
    )


def _rules_from_json(entry: Mapping[str, Any]) -> Rules:
    return Rules(
        key=tuple(entry.get("key", ())),
        unique=tuple(tuple(columns) for columns in entry.get("unique", ())),
        ranges=tuple(ValueRange(name, low, high) for name, low, high in entry.get("ranges", ())),
        checks=tuple(PatternCheck(name, pattern) for name, pattern in entry.get("checks", ())),
    )


def _freeze(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_freeze(item) for item in value)
    return {name: _freeze(item) for name, item in value.items()} if isinstance(value, Mapping) else value


def _thaw(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_thaw(item) for item in value]
    return {name: _thaw(item) for name, item in value.items()} if isinstance(value, Mapping) else value
