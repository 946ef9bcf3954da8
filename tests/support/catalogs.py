"""Small schemas and rows for tests: people who know each other and work somewhere."""

from __future__ import annotations

import pyarrow as pa

from omnigraph.schema.arrow import arrow_schema
from omnigraph.schema.catalog import Catalog, Property, TypeDef
from omnigraph.schema.types import parse_type

PERSON, COMPANY, KNOWS, WORKS_AT = "node:Person", "node:Company", "edge:Knows", "edge:WorksAt"


def prop(name: str, type_: str = "String", *, nullable: bool = False, **annotations: object) -> Property:
    """A property whose id and column are its name."""
    return Property(name, name, name, parse_type(type_), nullable, annotations)


def node(name: str, *properties: Property) -> TypeDef:
    return TypeDef(f"type-{name}", "node", name, properties)


def edge(name: str, source: str, target: str, *properties: Property) -> TypeDef:
    return TypeDef(f"type-{name}", "edge", name, properties, source, target)


def people() -> Catalog:
    """Person(slug, name, age?), Company(name), Knows(since?) and WorksAt."""
    return Catalog(
        (
            node("Person", prop("slug"), prop("name"), prop("age", "I32", nullable=True)),
            node("Company", prop("name")),
            edge("Knows", "Person", "Person", prop("since", "Date", nullable=True)),
            edge("WorksAt", "Person", "Company"),
        )
    )


def wide(n: int) -> Catalog:
    """`n` node types T0, T1, …, each with a name."""
    return Catalog(tuple(node(f"T{i}", prop("name")) for i in range(n)))


def person_rows(*ids: str, age: int | None = None) -> pa.Table:
    """Persons with these ids; slug and name follow from the id."""
    names = [id_.capitalize() for id_ in ids]
    return _rows(people(), PERSON, id=ids, slug=ids, name=names, age=[age] * len(ids))


def company_rows(*ids: str) -> pa.Table:
    return _rows(people(), COMPANY, id=ids, name=[id_.capitalize() for id_ in ids])


def knows_rows(*ends: tuple[str, str]) -> pa.Table:
    """Edges between persons; the id of one is `src->dst`."""
    return _edges(KNOWS, ends, since=[None] * len(ends))


def works_at_rows(*ends: tuple[str, str]) -> pa.Table:
    return _edges(WORKS_AT, ends)


def wide_rows(i: int, *ids: str) -> pa.Table:
    """Rows of the type `T<i>` of a `wide` catalog."""
    return _rows(wide(i + 1), f"node:T{i}", id=ids, name=ids)


def ids_of(table: pa.Table) -> list[str]:
    """The ids of the rows, sorted: what most tests compare."""
    return sorted(str(value) for value in table.column("id").to_pylist())


def _edges(table_key: str, ends: tuple[tuple[str, str], ...], **more: object) -> pa.Table:
    sources, targets = [src for src, _ in ends], [dst for _, dst in ends]
    ids = [f"{src}->{dst}" for src, dst in ends]
    return _rows(people(), table_key, id=ids, src=sources, dst=targets, **more)


def _rows(catalog: Catalog, table_key: str, **columns: object) -> pa.Table:
    return pa.table(columns, schema=arrow_schema(catalog.type_of(table_key)))
