"""Compile schema text to a catalog.

parse_schema  text → declarations
read_body     a declaration → properties and rules, interfaces copied in
here          ids and columns, those of the previous catalog or new ones
Catalog       checks itself; an error is reported at the token of its location
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from omnigraph.cancellation import checkpoint
from omnigraph.lexer import LanguageError, turn_of
from omnigraph.schema.catalog import Catalog, InvalidCatalog, Schema
from omnigraph.schema.consistency import check_patterns
from omnigraph.schema.definitions import EDGE_COLUMNS, InterfaceDef, Kind, Property, TypeDef
from omnigraph.schema.lang.ast import SchemaFile
from omnigraph.schema.lang.parser import parse_schema
from omnigraph.schema.lang.resolve import PropertyDraft, Rename, ResolvedDeclaration, resolve_declaration
from omnigraph.schema.lang.source_map import SourceMap
from omnigraph.schema.types import stored_as

INHERITED_MAX = 100_000
_AppliedRename: TypeAlias = tuple[str, str, str]


def compile_schema(text: str, previous: Catalog | Schema | None = None, name: str = "schema.pg") -> Schema:
    """The schema that a text declares, with the ids of `previous` for types and properties that are kept.

    A type or property is kept under its name, or under the one in `@rename_from`. One that was dropped and is declared
    again is new: it gets an id and a column that were never used. A rename that the text of `previous` has as well was
    applied before.
    """
    with turn_of(text):
        places = SourceMap(parse_schema(text, name))
        interfaces, types = _bodies(places)
        known = previous.catalog if isinstance(previous, Schema) else previous
        applied = applied_renames(previous.source) if isinstance(previous, Schema) and previous.source else frozenset()
        try:
            catalog = _Identities(known, places, applied).catalog(interfaces, types)
            check_patterns(catalog.types, catalog.interfaces)
            return Schema(catalog, text)
        except InvalidCatalog as invalid:
            raise places.locate_error(invalid) from None


def applied_renames(text: str) -> frozenset[_AppliedRename]:
    """The renames in a text: owner of a property or kind of a type, its name, the previous name."""
    _, types = _bodies(SourceMap(parse_schema(text)))
    renames: set[_AppliedRename] = set()
    for body in types:
        if body.rename is not None:
            renames.add((_kind(body), body.name, body.rename.old))
        renames.update((body.name, draft.property.name, draft.rename.old) for draft in body.drafts if draft.rename)
    return frozenset(renames)


def _bodies(places: SourceMap) -> tuple[list[ResolvedDeclaration], list[ResolvedDeclaration]]:
    """The interfaces of a file, and its types with what they inherit."""
    file = places.file
    interfaces: dict[str, ResolvedDeclaration] = {}
    for declaration in file.declarations:
        if declaration.kind == "interface":
            body = resolve_declaration(declaration, {}, places)
            if body.name in interfaces:
                message = f"The interface {body.name} is declared twice"
                raise places.error(declaration.name, "OG-PG-104", message, "rename one of them")
            interfaces[body.name] = body
    _check_inherited_size(file, interfaces, places)
    types = [resolve_declaration(entry, interfaces, places) for entry in file.declarations if entry.kind != "interface"]
    return list(interfaces.values()), types


def _check_inherited_size(file: SchemaFile, interfaces: Mapping[str, ResolvedDeclaration], places: SourceMap) -> None:
    """Interfaces multiply declarations: without a limit a short text could exhaust memory."""
    inherited = 0
    for declaration in file.declarations:
        for token in declaration.implements:
            inherited += interfaces[token.text].size if token.text in interfaces else 0
            if inherited > INHERITED_MAX:
                message = f"More than {INHERITED_MAX:,} properties and constraints come from interfaces"
                raise places.error(token, "OG-PG-113", message, "split the schema, or declare fewer")


class _Identities:
    """Matches declarations with the previous catalog."""

    def __init__(self, previous: Catalog | None, places: SourceMap, applied: frozenset[_AppliedRename]) -> None:
        self.applied = applied
        self.previous = previous or Catalog(())
        self.first = previous is None  # then renames have nothing to refer to
        self.places = places

    def catalog(self, interfaces: list[ResolvedDeclaration], bodies: list[ResolvedDeclaration]) -> Catalog:
        known = {
            "node": {definition.name: definition for definition in self.previous.nodes},
            "edge": {definition.name: definition for definition in self.previous.edges},
        }
        kinds: tuple[Kind, ...] = ("node", "edge")
        declared = {
            kind: _Declared(
                kind, known[kind], self.applied, ((body.name, body.rename) for body in bodies if _kind(body) == kind)
            )
            for kind in kinds
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

    def type(self, body: ResolvedDeclaration, before: TypeDef | None, type_id: str) -> TypeDef:
        known = before.by_name if before else {}
        ids = _Ids("p", before.property_ids if before else 0, [prop.id for prop in known.values()])
        entries = ((draft.property.name, draft.rename) for draft in body.drafts)
        declared = _Declared(before.name if before else "", known, self.applied, entries)
        matched: list[tuple[PropertyDraft, Property | None]] = []
        for draft in body.drafts:
            name = draft.property.name
            full = f"the property {body.name}.{name}"
            old = self.old_name(full, name, draft.rename, declared, new_owner=before is None)
            matched.append((draft, known.get(old)))
        stays = {prop.id for draft, prop in matched if prop and stored_as(draft.property.type) == stored_as(prop.type)}
        gone = [prop.column for prop in known.values() if prop.id not in stays]
        retired = tuple(dict.fromkeys([*(before.retired_columns if before else ()), *gone]))
        taken = {*EDGE_COLUMNS, *retired, *(prop.column for prop in known.values())}
        properties: list[Property] = []
        for draft, prop in matched:
            checkpoint()
            prop_id = prop.id if prop else ids.fresh()
            if prop is None or prop.id not in stays:  # a column never changes its type: the values move to a new one
                column = _free_column(draft.property.name, prop_id, taken)
                taken.add(column)
            else:
                column = prop.column
            properties.append(_keep_embedding(replace(draft.property, id=prop_id, column=column), prop))
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
        """The previous name: its own, or the one that it is renamed from.

        A rename that was applied before may stay in the text; one that can't be applied is an error, because ignoring
        it would drop data. Names may move along a chain or around a cycle at once, where each name that is taken is
        also released by a rename.
        """
        if rename is None:
            return name
        if declared.renamed[rename.old] is not rename:
            raise self.error(rename, "OG-PG-192", f"{rename.old!r} is renamed twice", "rename it once")
        if self.first or new_owner or (declared.owner, name, rename.old) in declared.applied:
            return name
        is_free = rename.old not in declared.names or rename.old in declared.taken
        if name in declared.known:
            if rename.old in declared.known and is_free:
                if name in declared.released:
                    return rename.old
                message = f"{what} exists beside {rename.old!r}, which would take its place"
                raise self.error(rename, "OG-PG-191", message, "remove @rename_from, or drop one of them first")
            return name
        if rename.old not in declared.known:
            message = f"There is no {rename.old!r} from which {what} could be renamed"
            raise self.error(rename, "OG-PG-190", message, "correct the name, or remove @rename_from")
        if not is_free:
            message = f"{rename.old!r} is still declared, so {what} can't be renamed from it"
            raise self.error(rename, "OG-PG-192", message, "remove one of them")
        return rename.old

    def error(self, rename: Rename, language_code: str, message: str, expected: str) -> LanguageError:
        return self.places.error(rename.token, language_code, message[0].upper() + message[1:], expected)


class _Declared:
    """Declared names, their renames, and previously known names."""

    def __init__(
        self,
        owner: str,
        known: Mapping[str, object],
        applied: frozenset[_AppliedRename],
        entries: Iterable[tuple[str, Rename | None]],
    ) -> None:
        self.owner, self.known, self.applied = owner, known, applied
        self.names: set[str] = set()
        self.renamed: dict[str, Rename] = {}  # by previous name
        self.taken: set[str] = set()  # names that a pending rename assigns
        self.released: set[str] = set()  # names that a pending rename frees
        for name, rename in entries:
            self.names.add(name)
            if rename is None:
                continue
            self.renamed.setdefault(rename.old, rename)
            if rename.old in known and (owner, name, rename.old) not in applied:
                self.taken.add(name)
                self.released.add(rename.old)


class _Ids:
    """New ids in the order of declaration, never used before."""

    def __init__(self, prefix: str, count: int, used: Iterable[str]) -> None:
        self.prefix, self.count, self.used = prefix, count, frozenset(used)

    def fresh(self) -> str:
        while True:
            self.count += 1
            candidate = f"{self.prefix}{self.count}"
            if candidate not in self.used:
                return candidate


def _kind(body: ResolvedDeclaration) -> Kind:
    return "edge" if body.declaration.kind == "edge" else "node"


def _interface(body: ResolvedDeclaration) -> InterfaceDef:
    properties = tuple(draft.property for draft in body.drafts)
    return InterfaceDef(body.name, properties, body.rules, body.description, body.annotations)


def _keep_embedding(declared: Property, before: Property | None) -> Property:
    """The property as declared now, with the provider and model that made its vectors."""
    embed = declared.embed
    if embed is None or before is None or before.embed is None:
        return declared
    return replace(declared, embed=replace(embed, provider=before.embed.provider, model=before.embed.model))


def _free_column(name: str, prop_id: str, taken: set[str]) -> str:
    """A column name that this table never had: dropped columns may still be in the data."""
    column = name
    while column in taken:
        column = f"{column}_{prop_id}"
    return column
