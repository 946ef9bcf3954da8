"""The catalog: what a graph's types are, as values with stable identities.

A type and a property have ids that outlive their names: a rename keeps the id, a drop and a new
declaration get a new one. `column` is where a property is kept in its table; the mapping exists so
that a rename never touches data. Stored content-addressed, so that equal schemas are one object.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from omnigraph.errors import BadRequest, Damaged, UnsupportedFormat
from omnigraph.schema.types import PropertyType, parse_type

SCHEMA_FORMAT = 1
RESERVED_COLUMNS = frozenset({"id", "src", "dst"})
RESERVED_PREFIX = "_row"
_TYPE_NAME = re.compile(r"[A-Z][A-Za-z0-9_]*\Z")
_PROPERTY_NAME = re.compile(r"[a-z_][A-Za-z0-9_]*\Z")

Kind = Literal["node", "edge"]


@dataclass(frozen=True, slots=True)
class Property:
    id: str
    name: str
    column: str
    type: PropertyType
    nullable: bool = False
    annotations: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TypeDef:
    """A node or edge type; `source` and `target` are an edge's ends."""

    id: str
    kind: Kind
    name: str
    properties: tuple[Property, ...] = ()
    source: str | None = None
    target: str | None = None
    constraints: tuple[Mapping[str, Any], ...] = ()
    annotations: Mapping[str, Any] = field(default_factory=dict)

    @property
    def table_key(self) -> str:
        """The name under which a manifest keeps this type's table."""
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class Catalog:
    types: tuple[TypeDef, ...]

    def __post_init__(self) -> None:
        _validate(self)

    @cached_property
    def by_key(self) -> Mapping[str, TypeDef]:
        return {definition.table_key: definition for definition in self.types}

    def type_of(self, table_key: str) -> TypeDef:
        try:
            return self.by_key[table_key]
        except KeyError:
            raise BadRequest(f"The schema has no type {table_key!r}: see `schema show`.") from None


@dataclass(frozen=True)
class Schema:
    """A catalog together with the text it came from: one object in `__schema`."""

    catalog: Catalog
    source: str = ""

    @cached_property
    def encoded(self) -> bytes:
        document = {"format": SCHEMA_FORMAT, "source": self.source, "catalog": catalog_to_json(self.catalog)}
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @cached_property
    def hash(self) -> str:
        return "sha256:" + hashlib.sha256(self.encoded).hexdigest()


def decode_schema(data: bytes, name: str) -> Schema:
    """The schema in a stored object; its content must be what its name promises."""
    try:
        document = json.loads(data)
        found = document["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"schema {name}", "it is not a schema document") from error
    if found != SCHEMA_FORMAT:
        raise UnsupportedFormat(f"schema {name}", found, SCHEMA_FORMAT)
    if "sha256:" + hashlib.sha256(data).hexdigest() != name:
        raise Damaged(f"schema {name}", "its content does not match its name")
    return Schema(catalog_from_json(document["catalog"]), document["source"])


def catalog_to_json(catalog: Catalog) -> dict[str, Any]:
    return {"types": [_type_to_json(definition) for definition in catalog.types]}


def catalog_from_json(document: Mapping[str, Any]) -> Catalog:
    """A catalog from its stored form; a slip in a hand-written one is named."""
    try:
        return Catalog(tuple(_type_from_json(entry) for entry in document["types"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"The catalog is not in the stored form: {type(error).__name__} {error}.") from error


def _type_to_json(definition: TypeDef) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": definition.id,
        "kind": definition.kind,
        "name": definition.name,
        "properties": [
            {
                "id": prop.id,
                "name": prop.name,
                "column": prop.column,
                "type": str(prop.type),
                "nullable": prop.nullable,
                "annotations": dict(prop.annotations),
            }
            for prop in definition.properties
        ],
        "constraints": [dict(constraint) for constraint in definition.constraints],
        "annotations": dict(definition.annotations),
    }
    if definition.kind == "edge":
        entry |= {"source": definition.source, "target": definition.target}
    return entry


def _type_from_json(entry: Mapping[str, Any]) -> TypeDef:
    return TypeDef(
        id=entry["id"],
        kind=entry["kind"],
        name=entry["name"],
        properties=tuple(
            Property(
                id=prop["id"],
                name=prop["name"],
                column=prop["column"],
                type=parse_type(prop["type"]),
                nullable=bool(prop.get("nullable", False)),
                annotations=dict(prop.get("annotations", {})),
            )
            for prop in entry.get("properties", ())
        ),
        source=entry.get("source"),
        target=entry.get("target"),
        constraints=tuple(dict(constraint) for constraint in entry.get("constraints", ())),
        annotations=dict(entry.get("annotations", {})),
    )


def _validate(catalog: Catalog) -> None:
    names: set[str] = set()
    ids: set[str] = set()
    nodes = {definition.name for definition in catalog.types if definition.kind == "node"}
    for definition in catalog.types:
        if definition.kind not in ("node", "edge"):
            raise BadRequest(f"{definition.name} has the kind {definition.kind!r}: it must be node or edge.")
        if not _TYPE_NAME.match(definition.name):
            raise BadRequest(f"{definition.name!r} can't name a type: start with an upper-case letter.")
        if definition.name in names:
            raise BadRequest(f"The type {definition.name} is declared twice: rename one of them.")
        if definition.id in ids:
            raise BadRequest(f"The type {definition.name} has the id {definition.id} of another type: ids are unique.")
        if definition.kind == "edge":
            for end in (definition.source, definition.target):
                if end not in nodes:
                    raise BadRequest(f"The edge {definition.name} ends in {end}, which is no node type: declare it.")
        names.add(definition.name)
        ids.add(definition.id)
        _validate_properties(definition)


def _validate_properties(definition: TypeDef) -> None:
    for attribute in ("name", "id", "column"):
        values = [getattr(prop, attribute) for prop in definition.properties]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise BadRequest(f"{definition.name} has two properties with the {attribute} {twice}: make them differ.")
    for prop in definition.properties:
        if not _PROPERTY_NAME.match(prop.name):
            raise BadRequest(f"{definition.name}.{prop.name} can't name a property: start with a lower-case letter.")
        if {prop.name, prop.column} & RESERVED_COLUMNS or prop.name.startswith(RESERVED_PREFIX):
            raise BadRequest(f"{definition.name}.{prop.name} is a reserved name: choose another.")
