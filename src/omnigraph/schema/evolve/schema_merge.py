"""The merge of two schemas with a common ancestor: the one that contains the changes of the other.

A schema is decomposed into facts, and each side's facts are compared with the ancestor's. A side whose changes are all
among the other's is contained in it, so that the other one is the result; an unchanged side is contained in any other.
What only one side dropped is a change that the other lacks, so a merge never restores it silently.

A type corresponds to the ancestor's with its id, a property to the one with its column, because that has the values:
two sides that each added a property agree if definition and column are equal, whatever the id.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from omnigraph.errors import SchemasDiverged
from omnigraph.schema.catalog import Catalog, Schema, catalog_to_json
from omnigraph.schema.definitions import InterfaceDef, Property, Rules, TypeDef
from omnigraph.schema.types import Enumeration

FactSubject: TypeAlias = tuple[str, ...]  # identity of a type, a property or an interface


@dataclass(frozen=True, slots=True)
class _Fact:
    subject: FactSubject
    aspect: str
    value: Any
    name: str  # of the subject, for messages

    @property
    def key(self) -> tuple[FactSubject, str, Any]:
        return self.subject, self.aspect, self.value


@dataclass(frozen=True)
class _Change:
    """The changes of one side since the ancestor."""

    added: Mapping[Any, _Fact]
    removed: Mapping[Any, _Fact]

    def __le__(self, other: "_Change") -> bool:
        return self.added.keys() <= other.added.keys() and self.removed.keys() <= other.removed.keys()

    def describe_beyond(self, other: "_Change") -> tuple[str, ...]:
        """Descriptions of the changes that the other side lacks."""
        added = [fact for key, fact in self.added.items() if key not in other.added]
        removed = [fact for key, fact in self.removed.items() if key not in other.removed]
        new = {fact.subject for fact in self.added.values() if fact.aspect == "existence"}
        gone = {fact.subject for fact in removed if fact.aspect == "existence"}
        agreed = {fact.subject for fact in other.added.values() if fact.aspect == "existence"}
        messages: dict[str, None] = {}
        for fact in [*added, *removed]:
            if any(fact.subject[:depth] in (new | gone) - agreed for depth in range(1, len(fact.subject))):
                continue  # a part of something that is itself new or gone
            if fact.subject in new & agreed:
                messages[f"adds {fact.name} with another {fact.aspect}"] = None
            elif fact.subject in new:
                messages[f"adds {fact.name}"] = None
            elif fact.subject in gone:
                messages[f"drops {fact.name}"] = None
            else:
                messages[f"changes the {fact.aspect} of {fact.name}"] = None
        return tuple(messages)


def merge_schemas(base: Schema, ours: Schema, theirs: Schema) -> Schema:
    """The side that contains the other's changes, with the ids and columns that either side used marked as used.

    Raises `SchemasDiverged` where neither contains the other.
    """
    if ours.hash == theirs.hash:
        return ours
    root = _facts(base.catalog, base.catalog)
    our, their = (_changes_since(root, _facts(side.catalog, base.catalog)) for side in (ours, theirs))
    if our <= their and their <= our:
        return _combine(base, *_prefer(base, ours, theirs))
    if our <= their:
        return _combine(base, theirs, ours, swapped=True)
    if their <= our:
        return _combine(base, ours, theirs)
    raise SchemasDiverged(our.describe_beyond(their), their.describe_beyond(our))


def renamed_tables(before: Catalog, after: Catalog) -> dict[str, str]:
    """Table keys of renamed types: old to new."""
    known = {(entry.kind, entry.id): entry.table_key for entry in before.types}
    pairs = ((known.get((entry.kind, entry.id)), entry.table_key) for entry in after.types)
    return {old: new for old, new in pairs if old is not None and old != new}


def _prefer(base: Schema, ours: Schema, theirs: Schema) -> tuple[Schema, Schema]:
    """Of two equal schemas the one whose text changed, else the one that assigned more ids; symmetric."""

    def weight(side: Schema) -> tuple[bool, int, int, bytes]:
        given = sum(entry.property_ids for entry in side.catalog.types)
        return side.source != base.source, side.catalog.type_ids, given, side.encoded

    return (ours, theirs) if weight(ours) >= weight(theirs) else (theirs, ours)


def _combine(base: Schema, whole: Schema, part: Schema, *, swapped: bool = False) -> Schema:
    """The containing schema, with the ids that the other side assigned and the columns it retired."""
    parts = {(entry.kind, entry.id): entry for entry in part.catalog.types}
    known = {(entry.kind, entry.id): entry for entry in base.catalog.types}
    types = []
    for entry in whole.catalog.types:
        other = parts.get((entry.kind, entry.id))
        if other is not None:
            before = known.get((entry.kind, entry.id))
            _refuse_revival(entry, other, before, swapped)
            entry = _with_used_ids(entry, other, before)
        types.append(entry)
    catalog = replace(whole.catalog, types=tuple(types), type_ids=max(whole.catalog.type_ids, part.catalog.type_ids))
    return whole if catalog_to_json(catalog) == catalog_to_json(whole.catalog) else Schema(catalog, whole.source)


def _refuse_revival(entry: TypeDef, other: TypeDef, base: TypeDef | None, swapped: bool) -> None:
    """A column that one side retired may still have its old values there, so the other must not read it."""
    live = {prop.column: prop.name for prop in entry.properties}
    before = base.retired_columns if base else ()
    for column in other.retired_columns:
        if column in live and column not in before:
            name = f"{entry.name}.{live[column]}"
            messages = ((f"has {name}",), (f"added and dropped another property where {name} is kept",))
            raise SchemasDiverged(*(reversed(messages) if swapped else messages))


def _with_used_ids(entry: TypeDef, other: TypeDef, base: TypeDef | None) -> TypeDef:
    """With the columns and ids that the other side used; an id of another property there is replaced.

    A property keeps its id when its values move to a new column, and retires the old one. Where both sides have
    assigned an id since their base, that is not enough to be the same property: they number independently.
    """
    retired = (column for column in other.retired_columns if column not in entry.retired_columns)
    columns = (*entry.retired_columns, *sorted(retired))
    count = max(entry.property_ids, other.property_ids)
    theirs = {prop.id: prop for prop in other.properties}
    shared = {prop.id for prop in base.properties} if base else set()
    properties = []
    for prop in entry.properties:
        twin = theirs.get(prop.id, prop)
        is_another = twin.column not in columns or (prop.id not in shared and twin.name != prop.name)
        if twin.column != prop.column and is_another:
            count += 1
            prop = replace(prop, id=f"p{count}")
        properties.append(prop)
    return replace(entry, properties=tuple(properties), retired_columns=columns, property_ids=count)


def _changes_since(root: Mapping[Any, _Fact], side: Mapping[Any, _Fact]) -> _Change:
    return _Change(
        {key: fact for key, fact in side.items() if key not in root},
        {key: fact for key, fact in root.items() if key not in side},
    )


def _facts(catalog: Catalog, base: Catalog) -> dict[Any, _Fact]:
    known = {(entry.kind, entry.id): entry for entry in base.types}
    things: dict[str, FactSubject] = {}
    for entry in catalog.types:
        before = known.get((entry.kind, entry.id))
        things[entry.name] = (entry.kind, "of the ancestor", entry.id) if before else (entry.kind, "new", entry.name)
    facts: list[_Fact] = []
    for entry in catalog.types:
        facts += _type_facts(entry, known.get((entry.kind, entry.id)), things)
    for interface in catalog.interfaces:
        facts += _interface_facts(interface)
    return {fact.key: fact for fact in facts}


def _type_facts(entry: TypeDef, before: TypeDef | None, things: Mapping[str, FactSubject]) -> Iterator[_Fact]:
    subject = things[entry.name]

    def fact(aspect: str, value: Any) -> _Fact:
        return _Fact(subject, aspect, value, f"{entry.kind} type {entry.name}")

    yield fact("existence", True)
    yield fact("id", entry.id)  # renames are followed by id, so both sides must have assigned the same
    yield fact("name", entry.name)
    for side, end in (("source", entry.source), ("target", entry.target)):
        yield fact(side, None if end is None else things[end])
    yield fact("@card", None if entry.cardinality is None else str(entry.cardinality))
    yield fact("description", entry.description)
    yield fact("annotations", _annotation_text(entry.annotations))
    for interface in entry.implements:
        yield fact("interfaces", interface)
    places: dict[str, FactSubject] = {name: (name,) for name in entry.physical_columns}
    places |= {prop.name: _place(prop, entry, before) for prop in entry.properties}
    for prop in entry.properties:
        yield from _property_facts(prop, (*subject, *places[prop.name]), entry.name)
    for aspect, value in _rules(entry.rules, places):
        yield fact(aspect, value)


def _interface_facts(interface: InterfaceDef) -> Iterator[_Fact]:
    subject: FactSubject = ("interface", interface.name)

    def fact(aspect: str, value: Any) -> _Fact:
        return _Fact(subject, aspect, value, f"interface {interface.name}")

    yield fact("existence", True)
    yield fact("description", interface.description)
    yield fact("annotations", _annotation_text(interface.annotations))
    for prop in interface.properties:
        yield from _property_facts(prop, (*subject, prop.name), interface.name)
    for aspect, value in _rules(interface.rules, {prop.name: (prop.name,) for prop in interface.properties}):
        yield fact(aspect, value)


def _place(prop: Property, entry: TypeDef, before: TypeDef | None) -> FactSubject:
    """The ancestor's property, by column, or by id if its values moved to another column."""
    if before is not None:
        for old in before.properties:
            if old.column == prop.column:
                return ("of the ancestor", old.id)
        if any(old.id == prop.id and old.column in entry.retired_columns for old in before.properties):
            return ("of the ancestor", prop.id)
    return ("new", prop.name)


def _property_facts(prop: Property, subject: FactSubject, owner: str) -> Iterator[_Fact]:
    def fact(aspect: str, value: Any) -> _Fact:
        return _Fact(subject, aspect, value, f"{owner}.{prop.name}")

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
    yield fact("annotations", _annotation_text(prop.annotations))


def _rules(rules: Rules, places: Mapping[str, FactSubject]) -> Iterator[tuple[str, Any]]:
    def subjects(names: tuple[str, ...]) -> Any:
        return tuple(places[name] for name in names)

    yield "@key", subjects(rules.key)
    for group in rules.unique:
        yield "@unique", subjects(group)
    for entry in rules.ranges:
        yield "@range", (places[entry.property], entry.low, entry.high)
    for check in rules.checks:
        yield "@check", (places[check.property], check.pattern)


def _annotation_text(annotations: Mapping[str, Any]) -> str:
    return repr(sorted(annotations.items()))
