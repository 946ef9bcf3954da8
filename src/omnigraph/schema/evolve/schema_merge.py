"""Two schemas that grew from one: which of them says all that the other says.

A schema is taken apart into facts, and each side's facts are compared with the common ancestor's. A side whose changes
are all among the other's is contained in it, so that the other one is the result; an unchanged side is contained in
anything. What only one side dropped is a change that the other lacks: it never comes back through a merge unasked.

A type is the one of the ancestor if it has its id. A property is if it has its column, because that is where its values
are: two sides that each added a property agree about it if definition and column are the same, whatever its id.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from omnigraph.errors import SchemasDiverged
from omnigraph.schema.catalog import Catalog, Schema, catalog_to_json
from omnigraph.schema.definitions import InterfaceDef, Property, Rules, TypeDef
from omnigraph.schema.types import Enumeration

Thing: TypeAlias = tuple[str, ...]  # identity of a type, a property or an interface


@dataclass(frozen=True, slots=True)
class _Fact:
    thing: Thing
    aspect: str
    value: Any
    name: str  # of the thing, as a message calls it

    @property
    def key(self) -> tuple[Thing, str, Any]:
        return self.thing, self.aspect, self.value


@dataclass(frozen=True)
class _Change:
    """What one side did since the ancestor."""

    said: Mapping[Any, _Fact]
    unsaid: Mapping[Any, _Fact]

    def __le__(self, other: "_Change") -> bool:
        return self.said.keys() <= other.said.keys() and self.unsaid.keys() <= other.unsaid.keys()

    def beyond(self, other: "_Change") -> tuple[str, ...]:
        """What this side changed and the other did not, in words."""
        said = [fact for key, fact in self.said.items() if key not in other.said]
        unsaid = [fact for key, fact in self.unsaid.items() if key not in other.unsaid]
        new = {fact.thing for fact in self.said.values() if fact.aspect == "existence"}
        gone = {fact.thing for fact in unsaid if fact.aspect == "existence"}
        agreed = {fact.thing for fact in other.said.values() if fact.aspect == "existence"}
        told: dict[str, None] = {}
        for fact in [*said, *unsaid]:
            if any(fact.thing[:depth] in (new | gone) - agreed for depth in range(1, len(fact.thing))):
                continue  # a part of something that is itself new or gone
            if fact.thing in new & agreed:
                told[f"adds {fact.name} with another {fact.aspect}"] = None
            elif fact.thing in new:
                told[f"adds {fact.name}"] = None
            elif fact.thing in gone:
                told[f"drops {fact.name}"] = None
            else:
                told[f"changes the {fact.aspect} of {fact.name}"] = None
        return tuple(told)


def merge_schemas(base: Schema, ours: Schema, theirs: Schema) -> Schema:
    """The schema that has what both sides have: one of the two, with neither side's ids and columns used again.

    Raises `SchemasDiverged` where neither contains the other.
    """
    if ours.hash == theirs.hash:
        return ours
    root = _facts(base.catalog, base.catalog)
    our, their = (_since(root, _facts(side.catalog, base.catalog)) for side in (ours, theirs))
    if our <= their and their <= our:
        return _together(base, *_preferred(base, ours, theirs))
    if our <= their:
        return _together(base, theirs, ours, swapped=True)
    if their <= our:
        return _together(base, ours, theirs)
    raise SchemasDiverged(our.beyond(their), their.beyond(our))


def renamed_tables(before: Catalog, after: Catalog) -> dict[str, str]:
    """Table keys of types that go on under another name: old to new."""
    known = {(entry.kind, entry.id): entry.table_key for entry in before.types}
    pairs = ((known.get((entry.kind, entry.id)), entry.table_key) for entry in after.types)
    return {old: new for old, new in pairs if old is not None and old != new}


def _preferred(base: Schema, ours: Schema, theirs: Schema) -> tuple[Schema, Schema]:
    """Two that say the same: the one in other words than before, then the one that gave out more ids, whoever asks."""

    def weight(side: Schema) -> tuple[bool, int, int, bytes]:
        given = sum(entry.property_ids for entry in side.catalog.types)
        return side.source != base.source, side.catalog.type_ids, given, side.encoded

    return (ours, theirs) if weight(ours) >= weight(theirs) else (theirs, ours)


def _together(base: Schema, whole: Schema, part: Schema, *, swapped: bool = False) -> Schema:
    """The containing schema, which also remembers what the other side gave out and retired."""
    parts = {(entry.kind, entry.id): entry for entry in part.catalog.types}
    known = {(entry.kind, entry.id): entry for entry in base.catalog.types}
    types = []
    for entry in whole.catalog.types:
        other = parts.get((entry.kind, entry.id))
        if other is not None:
            _refuse_revival(entry, other, known.get((entry.kind, entry.id)), swapped)
            entry = _remembering(entry, other)
        types.append(entry)
    catalog = replace(whole.catalog, types=tuple(types), type_ids=max(whole.catalog.type_ids, part.catalog.type_ids))
    return whole if catalog_to_json(catalog) == catalog_to_json(whole.catalog) else Schema(catalog, whole.source)


def _refuse_revival(entry: TypeDef, other: TypeDef, base: TypeDef | None, swapped: bool) -> None:
    """Tables of the side that retired a column may still have what was written there: it must not be read again."""
    live = {prop.column: prop.name for prop in entry.properties}
    before = base.retired_columns if base else ()
    for column in other.retired_columns:
        if column in live and column not in before:
            name = f"{entry.name}.{live[column]}"
            told = ((f"has {name}",), (f"added and dropped another property where {name} is kept",))
            raise SchemasDiverged(*(reversed(told) if swapped else told))


def _remembering(entry: TypeDef, other: TypeDef) -> TypeDef:
    """With the columns and ids that the other side used; an id that means another property there is given anew."""
    retired = (column for column in other.retired_columns if column not in entry.retired_columns)
    columns = (*entry.retired_columns, *sorted(retired))
    count = max(entry.property_ids, other.property_ids)
    theirs = {prop.id: prop.column for prop in other.properties}
    properties = []
    for prop in entry.properties:
        if theirs.get(prop.id, prop.column) != prop.column and theirs[prop.id] not in columns:
            count += 1
            prop = replace(prop, id=f"p{count}")
        properties.append(prop)
    return replace(entry, properties=tuple(properties), retired_columns=columns, property_ids=count)


def _since(root: Mapping[Any, _Fact], side: Mapping[Any, _Fact]) -> _Change:
    return _Change(
        {key: fact for key, fact in side.items() if key not in root},
        {key: fact for key, fact in root.items() if key not in side},
    )


def _facts(catalog: Catalog, base: Catalog) -> dict[Any, _Fact]:
    known = {(entry.kind, entry.id): entry for entry in base.types}
    things: dict[str, Thing] = {}
    for entry in catalog.types:
        before = known.get((entry.kind, entry.id))
        things[entry.name] = (entry.kind, "of the ancestor", entry.id) if before else (entry.kind, "new", entry.name)
    facts: list[_Fact] = []
    for entry in catalog.types:
        facts += _type_facts(entry, known.get((entry.kind, entry.id)), things)
    for interface in catalog.interfaces:
        facts += _interface_facts(interface)
    return {fact.key: fact for fact in facts}


def _type_facts(entry: TypeDef, before: TypeDef | None, things: Mapping[str, Thing]) -> Iterator[_Fact]:
    thing = things[entry.name]

    def fact(aspect: str, value: Any) -> _Fact:
        return _Fact(thing, aspect, value, f"{entry.kind} type {entry.name}")

    yield fact("existence", True)
    yield fact("id", entry.id)  # tables are followed through renames by it, so both sides must have given it the same
    yield fact("name", entry.name)
    for side, end in (("source", entry.source), ("target", entry.target)):
        yield fact(side, None if end is None else things[end])
    yield fact("@card", None if entry.cardinality is None else str(entry.cardinality))
    yield fact("description", entry.description)
    yield fact("annotations", _plain(entry.annotations))
    for interface in entry.implements:
        yield fact("interfaces", interface)
    places: dict[str, Thing] = {name: (name,) for name in entry.physical_columns}
    places |= {prop.name: _place(prop, entry, before) for prop in entry.properties}
    for prop in entry.properties:
        yield from _property_facts(prop, (*thing, *places[prop.name]), entry.name)
    for aspect, value in _rules(entry.rules, places):
        yield fact(aspect, value)


def _interface_facts(interface: InterfaceDef) -> Iterator[_Fact]:
    thing: Thing = ("interface", interface.name)

    def fact(aspect: str, value: Any) -> _Fact:
        return _Fact(thing, aspect, value, f"interface {interface.name}")

    yield fact("existence", True)
    yield fact("description", interface.description)
    yield fact("annotations", _plain(interface.annotations))
    for prop in interface.properties:
        yield from _property_facts(prop, (*thing, prop.name), interface.name)
    for aspect, value in _rules(interface.rules, {prop.name: (prop.name,) for prop in interface.properties}):
        yield fact(aspect, value)


def _place(prop: Property, entry: TypeDef, before: TypeDef | None) -> Thing:
    """The ancestor's property that this one is, by its column, or by its id if its values moved to another column."""
    if before is not None:
        for old in before.properties:
            if old.column == prop.column:
                return ("of the ancestor", old.id)
        if any(old.id == prop.id and old.column in entry.retired_columns for old in before.properties):
            return ("of the ancestor", prop.id)
    return ("new", prop.name)


def _property_facts(prop: Property, thing: Thing, owner: str) -> Iterator[_Fact]:
    def fact(aspect: str, value: Any) -> _Fact:
        return _Fact(thing, aspect, value, f"{owner}.{prop.name}")

    yield fact("existence", True)
    yield fact("name", prop.name)
    yield fact("column", prop.column)
    if isinstance(prop.type, Enumeration):
        yield fact("type", "enum")
        for value in prop.type.values:
            yield fact("enum", value)
    else:
        yield fact("type", str(prop.type))
    yield fact("nullability", prop.nullable)
    yield fact("@default", prop.default if prop.default is None else (type(prop.default).__name__, prop.default))
    yield fact("@index", (prop.indexed, prop.metric))
    yield fact("@embed", prop.embed)
    yield fact("description", prop.description)
    yield fact("annotations", _plain(prop.annotations))


def _rules(rules: Rules, places: Mapping[str, Thing]) -> Iterator[tuple[str, Any]]:
    def named(names: tuple[str, ...]) -> Any:
        return tuple(places[name] for name in names)

    yield "@key", named(rules.key)
    for group in rules.unique:
        yield "@unique", named(group)
    for entry in rules.ranges:
        yield "@range", (places[entry.property], entry.low, entry.high)
    for check in rules.checks:
        yield "@check", (places[check.property], check.pattern)


def _plain(annotations: Mapping[str, Any]) -> str:
    return repr(sorted(annotations.items()))
