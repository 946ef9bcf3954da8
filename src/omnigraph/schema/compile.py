"""From text to a catalog.

parse_schema  text → declarations
read_body     a declaration → properties and rules, interfaces copied in
here          ids and columns, those of the previous catalog or new ones
Catalog       checks itself; a breach is reported at the token that stands for its place
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from omnigraph.lexing import LanguageError
from omnigraph.schema.ast import SchemaFile
from omnigraph.schema.bodies import Body, Draft, Rename, read_body
from omnigraph.schema.catalog import Catalog, InvalidCatalog, Schema
from omnigraph.schema.definitions import EDGE_COLUMNS, InterfaceDef, Kind, Property, TypeDef
from omnigraph.schema.parser import parse_schema
from omnigraph.schema.places import Places

INHERITED_MAX = 100_000


def compile_schema(text: str, previous: Catalog | None = None, name: str = "schema.pg") -> Schema:
    """The schema that a text declares, with the ids of `previous` wherever it goes on with it.

    A type or property goes on under its name, or under the one that `@rename_from` gives. What was
    dropped and is declared again is new: it gets an id and a column that were never used.
    """
    file = parse_schema(text, name)
    places = Places(file)
    interfaces: dict[str, Body] = {}
    for declaration in file.declarations:
        if declaration.kind == "interface":
            body = read_body(declaration, {}, places)
            if body.name in interfaces:
                message = f"The interface {body.name} is declared twice"
                raise places.error(declaration.name, "OG-PG-104", message, "rename one of them")
            interfaces[body.name] = body
    _refuse_an_avalanche(file, interfaces, places)
    types = [read_body(entry, interfaces, places) for entry in file.declarations if entry.kind != "interface"]
    try:
        return Schema(_Identities(previous, places).catalog(list(interfaces.values()), types), text)
    except InvalidCatalog as invalid:
        raise places.located(invalid) from None


def _refuse_an_avalanche(file: SchemaFile, interfaces: Mapping[str, Body], places: Places) -> None:
    """Interfaces multiply what is written: without a bound a short text could fill the memory."""
    inherited = 0
    for declaration in file.declarations:
        for token in declaration.implements:
            inherited += interfaces[token.text].size if token.text in interfaces else 0
            if inherited > INHERITED_MAX:
                message = f"More than {INHERITED_MAX:,} properties and constraints come from interfaces"
                raise places.error(token, "OG-PG-113", message, "split the schema, or declare fewer")


class _Identities:
    """Who is who: matches what is declared with the previous catalog."""

    def __init__(self, previous: Catalog | None, places: Places) -> None:
        self.previous = previous or Catalog(())
        self.first = previous is None  # then there is nothing that a rename could refer to
        self.places = places

    def catalog(self, interfaces: list[Body], bodies: list[Body]) -> Catalog:
        known = {
            "node": {definition.name: definition for definition in self.previous.nodes},
            "edge": {definition.name: definition for definition in self.previous.edges},
        }
        declared = {
            "node": _Declared(known["node"], ((body.name, body.rename) for body in bodies if _kind(body) == "node")),
            "edge": _Declared(known["edge"], ((body.name, body.rename) for body in bodies if _kind(body) == "edge")),
        }
        kept: list[TypeDef | None] = []
        for body in bodies:
            kind = _kind(body)
            old = self.old_name(f"the {kind} type {body.name}", body.name, body.rename, declared[kind])
            kept.append(known[kind].get(old))
        ids = _Ids("t", self.previous.type_ids, [definition.id for definition in self.previous.types])
        types = tuple(
            self.type(body, before, before.id if before else ids.fresh())
            for body, before in zip(bodies, kept, strict=True)
        )
        return Catalog(types, tuple(_interface(body) for body in interfaces), ids.count)

    def type(self, body: Body, before: TypeDef | None, type_id: str) -> TypeDef:
        known = before.by_name if before else {}
        ids = _Ids("p", before.property_ids if before else 0, [prop.id for prop in known.values()])
        declared = _Declared(known, ((draft.property.name, draft.rename) for draft in body.drafts))
        matched: list[tuple[Draft, Property | None]] = []
        for draft in body.drafts:
            name = draft.property.name
            full = f"the property {body.name}.{name}"
            old = self.old_name(full, name, draft.rename, declared, new_owner=before is None)
            matched.append((draft, known.get(old)))
        goes_on = {prop.id for _, prop in matched if prop}
        gone = [prop.column for prop in known.values() if prop.id not in goes_on]
        retired = tuple(dict.fromkeys([*(before.retired_columns if before else ()), *gone]))
        taken = {*EDGE_COLUMNS, *retired, *(prop.column for prop in known.values())}
        properties: list[Property] = []
        for draft, prop in matched:
            if prop is None:
                prop_id = ids.fresh()
                column = _free_column(draft.property.name, prop_id, taken)
                taken.add(column)
                properties.append(replace(draft.property, id=prop_id, column=column))
            else:
                properties.append(_going_on(draft.property, prop))
        ends = body.declaration.ends
        return TypeDef(
            id=type_id,
            kind=_kind(body),
            name=body.name,
            properties=tuple(properties),
            source=ends[0].text if ends else None,
            target=ends[1].text if ends else None,
            rules=body.rules,
            annotations=body.annotations,
            cardinality=body.cardinality,
            implements=tuple(token.text for token in body.declaration.implements),
            description=body.description,
            property_ids=ids.count,
            retired_columns=retired,
        )

    def old_name(
        self, what: str, name: str, rename: Rename | None, declared: "_Declared", *, new_owner: bool = False
    ) -> str:
        """The name under which something was known: its own, or the one that it is renamed from.

        A rename that has been carried out before may stay in the text; one that can't be carried out is an error,
        because ignoring it would drop data.
        """
        if rename is None:
            return name
        if declared.renamed[rename.old] is not rename:
            raise self.error(rename, "OG-PG-192", f"{rename.old!r} is renamed twice", "rename it once")
        if self.first or new_owner:
            return name
        if name in declared.known:
            if rename.old in declared.known and rename.old not in declared.names:
                message = f"{what} exists beside {rename.old!r}, which would take its place"
                raise self.error(rename, "OG-PG-191", message, "remove @rename_from, or drop one of them first")
            return name
        if rename.old not in declared.known:
            message = f"There is no {rename.old!r} from which {what} could be renamed"
            raise self.error(rename, "OG-PG-190", message, "correct the name, or remove @rename_from")
        if rename.old in declared.names:
            message = f"{rename.old!r} is still declared, so {what} can't be renamed from it"
            raise self.error(rename, "OG-PG-192", message, "remove one of them")
        return rename.old

    def error(self, rename: Rename, language_code: str, message: str, expected: str) -> LanguageError:
        return self.places.error(rename.token, language_code, message[0].upper() + message[1:], expected)


class _Declared:
    """The names that are declared, what they are renamed from, and what was known before."""

    def __init__(self, known: Mapping[str, object], entries: Iterable[tuple[str, Rename | None]]) -> None:
        self.known = known
        self.names: set[str] = set()
        self.renamed: dict[str, Rename] = {}
        for name, rename in entries:
            self.names.add(name)
            if rename is not None:
                self.renamed.setdefault(rename.old, rename)


class _Ids:
    """Small ids in the order of declaration, none of them used before."""

    def __init__(self, prefix: str, count: int, used: Iterable[str]) -> None:
        self.prefix, self.count, self.used = prefix, count, frozenset(used)

    def fresh(self) -> str:
        while True:
            self.count += 1
            candidate = f"{self.prefix}{self.count}"
            if candidate not in self.used:
                return candidate


def _kind(body: Body) -> Kind:
    return "edge" if body.declaration.kind == "edge" else "node"


def _interface(body: Body) -> InterfaceDef:
    properties = tuple(draft.property for draft in body.drafts)
    return InterfaceDef(body.name, properties, body.rules, body.description, body.annotations)


def _going_on(declared: Property, before: Property) -> Property:
    """The property as it is declared now, where it was before; who embedded it stays known with the vectors."""
    embed = declared.embed
    if embed is not None and before.embed is not None:
        embed = replace(embed, provider=before.embed.provider, model=before.embed.model)
    return replace(declared, id=before.id, column=before.column, embed=embed)


def _free_column(name: str, prop_id: str, taken: set[str]) -> str:
    """A column that this table never had: a dropped one may still be in the data."""
    column = name
    while column in taken:
        column = f"{column}_{prop_id}"
    return column
