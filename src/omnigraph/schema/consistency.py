"""Consistency of a catalog, however it was made: compiled from text, read from storage or written by hand.

An error gives its location by names (`CatalogPath`), which the compiler maps to a token of the text.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from omnigraph.cancellation import checkpoint
from omnigraph.errors import BadRequest
from omnigraph.schema.definitions import (
    EDGE_COLUMNS,
    SOURCE,
    TARGET,
    InterfaceDef,
    PatternCheck,
    Property,
    Rules,
    TypeDef,
    ValueRange,
)
from omnigraph.schema.literals import canonical_value, has_range
from omnigraph.schema.regex import is_quick_to_match, matches_text, pattern_problem
from omnigraph.schema.types import Enumeration, ListOf, Scalar, Vector

RESERVED_COLUMNS = frozenset(EDGE_COLUMNS)
RESERVED_PREFIX = "_row"
METRICS = ("cosine", "l2")
_TYPE_NAME = re.compile(r"[A-Z][A-Za-z0-9_]*\Z")
_PROPERTY_NAME = re.compile(r"[a-z_][A-Za-z0-9_]*\Z")

CatalogPath: TypeAlias = tuple[Any, ...]  # ("Person", "age", "@default"), ("Person", "@unique", 0)
Declared: TypeAlias = TypeDef | InterfaceDef


class InvalidCatalog(BadRequest):
    """An inconsistent catalog; `place` is the path of names to the error."""

    def __init__(self, language_code: str, message: str, expected: str, place: CatalogPath) -> None:
        super().__init__(language_code, message, expected, place)
        self.language_code, self.message, self.expected, self.place = language_code, message, expected, place

    def __str__(self) -> str:
        return f"{self.message}: {self.expected}."


def check(types: Sequence[TypeDef], interfaces: Sequence[InterfaceDef]) -> None:
    """Raises the first error, in the order of declaration."""
    _check_names([*interfaces, *types])
    for interface in interfaces:
        _check_properties(interface)
        _check_rules(interface, interface.rules, frozenset())
        _check_defaults(interface, interface.rules)
    known_interfaces = {interface.name for interface in interfaces}
    nodes = {definition.name for definition in types if definition.kind == "node"}
    ids: set[str] = set()
    for definition in types:
        name = definition.name
        if definition.id in ids:
            message = f"The type {name} has the id {definition.id} of another type"
            raise InvalidCatalog("OG-PG-199", message, "ids are unique", (name,))
        ids.add(definition.id)
        if definition.kind == "edge":
            _check_edge(definition, nodes)
        else:
            _check_node(definition, known_interfaces)
        _check_properties(definition)
        _check_rules(definition, definition.rules, frozenset(definition.physical_columns) - {"id"})
        _check_defaults(definition, definition.rules)


def _check_names(declared: Iterable[Declared]) -> None:
    names: set[str] = set()
    for entry in declared:
        name, place = entry.name, (entry.name,)
        if isinstance(entry, TypeDef) and entry.kind not in ("node", "edge"):
            raise InvalidCatalog("OG-PG-199", f"{name} has the kind {entry.kind!r}", "it must be node or edge", place)
        if not _TYPE_NAME.match(name):
            message = f"{name!r} can't name a type"
            raise InvalidCatalog("OG-PG-101", message, "start with an upper-case letter", place)
        if name in names:
            raise InvalidCatalog("OG-PG-104", f"The type {name} is declared twice", "rename one of them", place)
        names.add(name)


def _check_node(definition: TypeDef, interfaces: set[str]) -> None:
    name = definition.name
    for given in (definition.source, definition.target, definition.cardinality):
        if given is not None:
            message = f"The node type {name} has an end or a cardinality"
            raise InvalidCatalog("OG-PG-199", message, "only edges do", (name,))
    for interface in definition.implements:
        if interface not in interfaces:
            message = f"{name} implements {interface}, which is no interface"
            raise InvalidCatalog("OG-PG-110", message, "declare it", (name, "implements", interface))
    twice = _first_repeated(definition.implements)
    if twice is not None:
        message = f"{name} implements {twice} twice"
        raise InvalidCatalog("OG-PG-112", message, "name it once", (name, "implements", twice))


def _check_edge(definition: TypeDef, nodes: set[str]) -> None:
    name = definition.name
    for side, end in ((SOURCE, definition.source), (TARGET, definition.target)):
        if end not in nodes:
            message = f"The edge {name} ends in {end}, which is no node type"
            raise InvalidCatalog("OG-PG-120", message, "declare it", (name, side))
    if definition.implements:
        raise InvalidCatalog("OG-PG-199", f"The edge {name} implements an interface", "only nodes do", (name,))
    rules = definition.rules
    for present, rule in ((rules.key, "@key"), (rules.ranges, "@range"), (rules.checks, "@check")):
        if present:
            message = f"The edge {name} has {rule}"
            place = (name, rule) if rule == "@key" else (name, rule, 0)
            raise InvalidCatalog("OG-PG-145", message, "edges take @unique and @index only", place)
    count = definition.cardinality
    if count is not None and not (0 <= count.minimum <= (count.minimum if count.maximum is None else count.maximum)):
        message = f"The edge {name} has the cardinality {count}"
        raise InvalidCatalog("OG-PG-121", message, "write @card(min..max) with 0 <= min <= max", (name, "@card"))
    if count is not None and count.maximum == 0:
        message = f"The edge {name} has the cardinality {count}, which allows no edge"
        raise InvalidCatalog("OG-PG-121", message, "write a maximum of 1 or more, or drop the edge", (name, "@card"))


def _check_properties(declared: Declared) -> None:
    for attribute in ("name", "id", "column"):
        twice = _first_repeated([getattr(prop, attribute) for prop in declared.properties])
        if twice is None:
            continue
        if attribute == "name":
            message, expected = f"{declared.name}.{twice} is declared twice", "rename one of them"
            raise InvalidCatalog("OG-PG-105", message, expected, (declared.name, twice))
        message = f"{declared.name} has two properties with the {attribute} {twice}"
        raise InvalidCatalog("OG-PG-199", message, "make them differ", (declared.name,))
    for prop in declared.properties:
        _check_property(declared, prop)


def _check_property(declared: Declared, prop: Property) -> None:
    checkpoint()
    full, place = f"{declared.name}.{prop.name}", (declared.name, prop.name)
    if not _PROPERTY_NAME.match(prop.name):
        raise InvalidCatalog("OG-PG-102", f"{full} can't name a property", "start with a lower-case letter", place)
    if {prop.name, prop.column} & RESERVED_COLUMNS or prop.name.startswith(RESERVED_PREFIX):
        raise InvalidCatalog("OG-PG-103", f"{full} is a reserved name", "choose another", place)
    if prop.default is not None:
        try:
            canonical_value(prop.default, prop.type)
        except ValueError as error:
            message = f"The default of {full} does not fit {prop.type}"
            raise InvalidCatalog("OG-PG-180", message, f"write {error}", (*place, "@default")) from error
    if prop.indexed and (isinstance(prop.type, ListOf) or prop.type == Scalar("Blob")):
        message = f"{full} can't be indexed, {prop.type} has no order"
        raise InvalidCatalog("OG-PG-170", message, "remove @index", (*place, "@index"))
    if prop.metric is not None and not (prop.indexed and isinstance(prop.type, Vector) and prop.metric in METRICS):
        message = f"{full} has the metric {prop.metric}"
        expected = 'only an indexed Vector has one, "cosine" or "l2"'
        raise InvalidCatalog("OG-PG-171", message, expected, (*place, "@index"))
    if prop.embed is not None:
        _check_embed(declared, prop, prop.embed.source)


def _check_embed(declared: Declared, prop: Property, source: str) -> None:
    full, place = f"{declared.name}.{prop.name}", (declared.name, prop.name, "@embed")
    if not isinstance(prop.type, Vector):
        raise InvalidCatalog("OG-PG-172", f"{full} is {prop.type}", "only a Vector takes @embed", place)
    found = declared.by_name.get(source)
    if found is None:
        expected = f"name a String property of {declared.name}"
        raise InvalidCatalog("OG-PG-173", f"{full} embeds {source}, which does not exist", expected, place)
    if found.type != Scalar("String"):
        message = f"{full} embeds {source}, which is {found.type}"
        raise InvalidCatalog("OG-PG-173", message, "name a String property", place)


def _check_defaults(declared: Declared, rules: Rules) -> None:
    """A default that violates a rule of its own type would make every row with it invalid."""
    for entry in rules.ranges:
        prop = declared.by_name.get(entry.property)
        if prop is not None and prop.default is not None and not _is_within(entry, prop.default):
            raise _bad_default(declared, prop, f"is outside {entry}", "write one within the range")


def _is_within(entry: ValueRange, default: Any) -> bool:
    return (entry.low is None or default >= entry.low) and (entry.high is None or default <= entry.high)


def check_patterns(types: Sequence[TypeDef], interfaces: Sequence[InterfaceDef]) -> None:
    """Raises the first error of a pattern, or of a default that does not match one.

    Of new schemas only: a stored one stays readable whatever an earlier release accepted in it.
    """
    every: list[Declared] = [*interfaces, *types]
    for declared in every:
        for i, entry in enumerate(declared.rules.checks):
            checkpoint()
            problem = pattern_problem(entry.pattern)
            if problem:
                message = f"The pattern for {declared.name}.{entry.property} can't be used, {problem}"
                expected, place = "write one that RE2 understands", (declared.name, "@check", i)
                raise InvalidCatalog("OG-PG-161", message, expected, place)
            _check_default_matches(declared, entry)


def _check_default_matches(declared: Declared, entry: PatternCheck) -> None:
    prop = declared.by_name[entry.property]
    if prop.default is None:
        return
    default = str(prop.default)
    if not is_quick_to_match(default, entry.pattern):
        problem = f"has {len(default):,} characters, too many for the pattern {entry.pattern}"
        raise _bad_default(declared, prop, problem, "write a shorter one, or a simpler pattern")
    if not matches_text(default, entry.pattern):
        raise _bad_default(declared, prop, f"does not match {entry.pattern}", "write one that matches")


def _bad_default(declared: Declared, prop: Property, problem: str, expected: str) -> InvalidCatalog:
    message = f"The default of {declared.name}.{prop.name} {problem}"
    return InvalidCatalog("OG-PG-180", message, expected, (declared.name, prop.name, "@default"))


def _check_rules(declared: Declared, rules: Rules, columns: frozenset[str]) -> None:
    known = declared.by_name
    named: list[tuple[str, tuple[str, ...], CatalogPath]] = []
    if rules.key:
        named.append(("@key", rules.key, (declared.name, "@key")))
    named += [("@unique", group, (declared.name, "@unique", i)) for i, group in enumerate(rules.unique)]
    for rule, names, place in named:
        _check_columns(declared, rule, names, known, columns, place)
    for name in rules.key:
        if known[name].nullable:
            message = f"The key {declared.name}.{name} is nullable"
            raise InvalidCatalog("OG-PG-142", message, "remove the ?, a key is never null", (declared.name, "@key"))
    twice = _first_repeated([frozenset(group) for group in rules.unique])
    if twice is not None:
        index = max(i for i, group in enumerate(rules.unique) if frozenset(group) == twice)
        message = f"{declared.name} has @unique({', '.join(rules.unique[index])}) twice"
        raise InvalidCatalog("OG-PG-146", message, "remove one of them", (declared.name, "@unique", index))
    ranged: set[str] = set()
    for i, entry in enumerate(rules.ranges):
        place = (declared.name, "@range", i)
        _check_columns(declared, "@range", (entry.property,), known, frozenset(), place)
        _check_range(declared, known[entry.property], entry, place)
        if entry.property in ranged:
            message = f"{declared.name}.{entry.property} has two ranges"
            raise InvalidCatalog("OG-PG-146", message, "write one with both ends", place)
        ranged.add(entry.property)
    checked: set[PatternCheck] = set()
    for i, pattern in enumerate(rules.checks):
        place = (declared.name, "@check", i)
        _check_columns(declared, "@check", (pattern.property,), known, frozenset(), place)
        if known[pattern.property].type != Scalar("String"):
            message = f"{declared.name}.{pattern.property} is {known[pattern.property].type}"
            raise InvalidCatalog("OG-PG-160", message, "@check takes a String property", place)
        if pattern in checked:
            message = f"{declared.name} has this @check of {pattern.property} twice"
            raise InvalidCatalog("OG-PG-146", message, "remove one of them", place)
        checked.add(pattern)


def _check_columns(
    declared: Declared,
    rule: str,
    names: tuple[str, ...],
    known: Mapping[str, Property],
    columns: frozenset[str],
    place: CatalogPath,
) -> None:
    for name in names:
        if name in columns:
            continue
        if name not in known:
            message = f"{rule} of {declared.name} names {name}, which does not exist"
            raise InvalidCatalog("OG-PG-140", message, f"name a property of {declared.name}", (*place, name))
        if rule in ("@key", "@unique") and not can_be_unique(known[name]):
            message = f"{declared.name}.{name} is {known[name].type}"
            expected = f"{rule} takes neither Blob nor Vector nor lists"
            raise InvalidCatalog("OG-PG-143", message, expected, (*place, name))
    twice = _first_repeated(names)
    if twice is not None or not names:
        message = f"{rule} of {declared.name} names {twice or 'nothing'}{' twice' if names else ''}"
        raise InvalidCatalog("OG-PG-141", message, "name each property once", (*place, twice))


def _check_range(declared: Declared, prop: Property, entry: ValueRange, place: CatalogPath) -> None:
    full = f"{declared.name}.{prop.name}"
    if not has_range(prop.type):
        expected = "@range takes a number, Date or DateTime"
        raise InvalidCatalog("OG-PG-150", f"{full} is {prop.type}", expected, place)
    ends = [end for end in (entry.low, entry.high) if end is not None]
    for end, side in ((entry.low, "low"), (entry.high, "high")):
        try:
            if end is not None:
                canonical_value(end, prop.type)
        except ValueError as error:
            message = f"The bound {end} of {full} does not fit {prop.type}"
            raise InvalidCatalog("OG-PG-151", message, f"write {error}", (*place, side)) from error
    if not ends:
        raise InvalidCatalog("OG-PG-152", f"The range of {full} has no end", "write lo..hi, lo.. or ..hi", place)
    if len(ends) == 2 and ends[0] > ends[1]:  # type: ignore[operator]
        message = f"The range {entry} of {full} is empty"
        raise InvalidCatalog("OG-PG-152", message, "write the smaller bound first", place)


def can_be_unique(prop: Property) -> bool:
    """Whether values have a canonical text to compare by: blobs, vectors and lists do not."""
    return isinstance(prop.type, Enumeration) or (isinstance(prop.type, Scalar) and prop.type.name != "Blob")


def _first_repeated(values: Iterable[Any]) -> Any:
    return next(_repeated(values), None)


def _repeated(values: Iterable[Any]) -> Iterator[Any]:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            yield value
        seen.add(value)
