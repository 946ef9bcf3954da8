"""parse(print(c)) == c for every catalog, and again after it was stored and read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnigraph.schema.catalog import Catalog, InterfaceDef, Property, Rules, TypeDef, catalog_from_json, catalog_to_json
from omnigraph.schema.consistency import can_be_unique
from omnigraph.schema.definitions import EdgeCount, Embed, PatternCheck, ValueRange
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.schema.lang.printer import print_schema
from omnigraph.schema.literals import has_range
from omnigraph.schema.types import INTEGER_BOUNDS, SCALARS, Enumeration, ListOf, PropertyType, Scalar, Vector

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
SETTINGS = settings(max_examples=30, deadline=None, suppress_health_check=SLOW)

WORDS = st.sampled_from(["a", "b", "node", "date", "order", "from", "true", "_x", "camelCase", "y2"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
DATES = st.dates().map(lambda day: day.isoformat())
TIMES = st.datetimes().map(lambda moment: f"{moment.isoformat(timespec='milliseconds')}Z")
VALUES = st.recursive(
    st.one_of(TEXTS, st.booleans(), st.integers(-(10**20), 10**20), FLOATS),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
TYPES: st.SearchStrategy[PropertyType] = st.one_of(
    st.sampled_from(SCALARS).map(Scalar),
    st.sampled_from(SCALARS).map(lambda name: ListOf(Scalar(name))),
    st.integers(1, 4).map(Vector),
    st.lists(st.sampled_from(["a", "b-c", "24h", "-", "2026-01-31", "X_1"]), min_size=1, max_size=4, unique=True).map(
        lambda values: Enumeration(tuple(values))
    ),
)


def scalar_values(name: str) -> st.SearchStrategy[Any]:
    if name in INTEGER_BOUNDS:
        return st.integers(*INTEGER_BOUNDS[name])
    others = {"String": TEXTS, "Bool": st.booleans(), "Date": DATES, "DateTime": TIMES}
    return others.get(name, st.sampled_from(["base64:", "base64:aGk="]) if name == "Blob" else FLOATS)


def fitting_values(kind: PropertyType) -> st.SearchStrategy[Any]:
    match kind:
        case Scalar(name):
            return scalar_values(name)
        case ListOf(item):
            return st.lists(scalar_values(item.name), max_size=3).map(tuple)
        case Vector(dimension):
            return st.lists(FLOATS, min_size=dimension, max_size=dimension).map(tuple)
        case Enumeration(values):
            return st.sampled_from(values)


@st.composite
def metadata(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(["ui", "owner", "node"]), max_size=2, unique=True)):
        named = draw(st.dictionaries(WORDS, VALUES, max_size=2))
        found[name] = (*draw(st.lists(VALUES, max_size=2)), *([named] if named else []))
    return found


def descriptions() -> st.SearchStrategy[str | None]:
    return st.none() | TEXTS


@st.composite
def property_lists(draw: st.DrawFn, prefix: str) -> tuple[Property, ...]:
    """Properties as an interface has them: their ids are their names."""
    found: list[Property] = []
    for word in draw(st.lists(WORDS, max_size=5, unique=True)):
        name, kind = word + prefix, draw(TYPES)
        texts = [prop.name for prop in found if prop.type == Scalar("String")]
        vector = isinstance(kind, Vector)
        indexed = draw(st.booleans()) and not isinstance(kind, ListOf) and kind != Scalar("Blob")
        found.append(
            Property(
                name,
                name,
                name,
                kind,
                nullable=draw(st.booleans()),
                annotations=draw(metadata()),
                default=draw(st.none() | fitting_values(kind)),
                indexed=indexed,
                metric=draw(st.sampled_from([None, "cosine", "l2"])) if indexed and vector else None,
                embed=Embed(draw(st.sampled_from(texts))) if vector and texts and draw(st.booleans()) else None,
                description=draw(descriptions()),
            )
        )
    return tuple(found)


@st.composite
def rules(draw: st.DrawFn, properties: tuple[Property, ...], *, edge: bool = False, key: bool = True) -> Rules:
    distinct = [prop.name for prop in properties if can_be_unique(prop)] + (["src", "dst"] if edge else [])
    required = [prop.name for prop in properties if can_be_unique(prop) and not prop.nullable]
    groups = st.lists(st.sampled_from(distinct), min_size=1, max_size=3, unique=True).map(tuple) if distinct else None
    unique = draw(st.lists(groups, max_size=3, unique_by=frozenset)) if groups is not None else []
    if edge:
        return Rules(unique=tuple(unique))
    ranges = []
    for prop in properties:
        if has_range(prop.type) and prop.default is None and draw(st.booleans()):  # a default must obey its rules
            low, high = sorted(draw(st.lists(fitting_values(prop.type), min_size=2, max_size=2)))
            ends = draw(st.sampled_from([(low, high), (low, None), (None, high)]))
            ranges.append(ValueRange(prop.name, *ends))
    texts = [prop.name for prop in properties if prop.type == Scalar("String") and prop.default is None]
    patterns = st.sampled_from(["[a-z]+", 'a"b', "\\d{3}", "(x|y)*", ""])
    checks = st.builds(PatternCheck, st.sampled_from(texts), patterns) if texts else None
    return Rules(
        tuple(draw(st.lists(st.sampled_from(required), max_size=2, unique=True))) if required and key else (),
        tuple(unique),
        tuple(ranges),
        tuple(draw(st.lists(checks, max_size=2, unique=True))) if checks is not None else (),
    )


@st.composite
def catalogs(draw: st.DrawFn) -> Catalog:
    """Catalogs as a first compilation makes them: ids in the order of declaration, columns named like properties."""
    interfaces = []
    for i in range(draw(st.integers(0, 2))):
        properties = draw(property_lists(f"_i{i}"))
        interfaces.append(
            InterfaceDef(
                f"I{i}", properties, draw(rules(properties, key=i == 0)), draw(descriptions()), draw(metadata())
            )
        )
    types: list[TypeDef] = []
    nodes = [f"N{i}" for i in range(draw(st.integers(0, 3)))]
    for name in nodes:
        implemented = (
            draw(st.lists(st.sampled_from(interfaces), max_size=2, unique_by=lambda i: i.name)) if interfaces else []
        )
        inherited = tuple(prop for interface in implemented for prop in interface.properties)
        inherited = tuple(
            replace(prop, indexed=True) if prop.type == Scalar("I32") and draw(st.booleans()) else prop
            for prop in inherited
        )
        own_properties = draw(property_lists(""))
        given_rules = [interface.rules for interface in implemented]
        key = next((entry.key for entry in given_rules if entry.key), ())
        own = draw(rules(own_properties, key=not key))
        merged = Rules(
            key or own.key,
            tuple(group for entry in given_rules for group in entry.unique) + own.unique,
            tuple(entry for given in given_rules for entry in given.ranges) + own.ranges,
            tuple(entry for given in given_rules for entry in given.checks) + own.checks,
        )
        types.append(
            numbered(
                TypeDef(
                    f"t{len(types) + 1}",
                    "node",
                    name,
                    inherited + own_properties,
                    rules=merged,
                    annotations=draw(metadata()),
                    implements=tuple(interface.name for interface in implemented),
                    description=draw(descriptions()),
                )
            )
        )
    for i in range(draw(st.integers(0, 2)) if nodes else 0):
        properties = draw(property_lists(""))
        count = st.tuples(st.integers(0, 3), st.none() | st.integers(3, 5))
        types.append(
            numbered(
                TypeDef(
                    f"t{len(types) + 1}",
                    "edge",
                    f"E{i}",
                    properties,
                    draw(st.sampled_from(nodes)),
                    draw(st.sampled_from(nodes)),
                    rules=draw(rules(properties, edge=True)),
                    annotations=draw(metadata()),
                    cardinality=draw(st.none() | count.map(lambda bounds: EdgeCount(*bounds))),
                    description=draw(descriptions()),
                )
            )
        )
    return Catalog(tuple(types), tuple(interfaces), len(types))


def numbered(definition: TypeDef) -> TypeDef:
    properties = tuple(replace(prop, id=f"p{n}") for n, prop in enumerate(definition.properties, 1))
    return replace(definition, properties=properties, property_ids=len(properties))


@SETTINGS
@given(catalogs())
def test_a_printed_catalog_compiles_to_the_same_catalog(catalog: Catalog) -> None:
    assert compile_schema(print_schema(catalog)).catalog == catalog


@SETTINGS
@given(catalogs())
def test_a_stored_catalog_reads_back(catalog: Catalog) -> None:
    assert catalog_from_json(catalog_to_json(catalog)) == catalog


@SETTINGS
@given(catalogs(), catalogs())
def test_ids_and_columns_are_unique_and_stay_through_any_change(first: Catalog, second: Catalog) -> None:
    check_change(first, second)


@pytest.mark.soak
@settings(max_examples=1_000, deadline=None, suppress_health_check=SLOW)
@given(catalogs(), catalogs())
def test_a_thousand_other_catalogs_are_no_exception(first: Catalog, second: Catalog) -> None:
    assert compile_schema(print_schema(first)).catalog == first
    assert catalog_from_json(catalog_to_json(first)) == first
    check_change(first, second)


def check_change(first: Catalog, second: Catalog) -> None:
    evolved = compile_schema(print_schema(second), first).catalog

    assert compile_schema(print_schema(evolved), evolved).catalog == evolved
    before = {definition.name: definition for definition in first.types}
    for definition in evolved.types:
        old = before.get(definition.name)
        if old is not None and old.kind == definition.kind:
            assert definition.id == old.id
            kept = {prop.name: prop.id for prop in old.properties}
            assert all(prop.id == kept.get(prop.name, prop.id) for prop in definition.properties)
            gone = {prop.column for prop in old.properties} - {prop.column for prop in definition.properties}
            assert gone <= set(definition.retired_columns)
