"""Shared by the tests of writes: a graph of a schema, with short methods to change and read it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omnigraph.errors import ConstraintViolation
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.repository import Repository, init_repository, open_repository
from omnigraph.read.export.export import export_lines
from omnigraph.read.tables import scan as read_table
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.write.commit import CommitOptions
from omnigraph.write.load.load import LoadResult, load
from omnigraph.write.load.load_options import LoadOptions
from omnigraph.write.mutate.mutate import Mutation, MutationText

NOW = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)

PEOPLE = """
node Person {
    slug: String @key
    name: String
    age:  I32?
    role: enum(engineer, lead, ops) @default("ops")
    tags: [String]?
    bio:  String?
    face: Vector(2)? @embed("bio")
    @range(age, 0..150)
    @check(slug, "[a-z0-9-]+")
    @unique(name, role)
}
node Company { name: String @key }
node Note { text: String  rank: I64? @unique }
edge Knows: Person -> Person { since: Date?  @unique(src, dst) }
edge Likes: Person -> Person { much: F64? }
edge WorksAt: Person -> Company @card(0..1)
edge Needs: Company -> Person @card(1..2)
"""


@dataclass
class World:
    repository: Repository

    def mutate(self, body: str, branch: str = "main", params: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Run the statements of a mutation; `params` are `$name` → (type, value)."""
        declared = ", ".join(f"${name}: {kind}" for name, (kind, _) in (params or {}).items())
        values = {name: value for name, (_, value) in (params or {}).items()}
        text = f"query q({declared}) {{ {body} }}"
        txn = options.pop("txn", None)
        return Mutation(self.repository, prepared(text, values), CommitOptions(branch, **options), txn=txn).commit()

    def load(self, source: Any, **options: Any) -> LoadResult:
        limits = options.pop("limits", None)
        return load(self.repository, source, LoadOptions(**options), limits=limits)

    def rows(self, type_name: str, branch: str = "main") -> list[dict[str, Any]]:
        """The rows of a type by id, without their ids where a key says the same."""
        snapshot = self.repository.snapshot(branch)
        definition = snapshot.catalog.by_name[type_name]
        found = read_table.scan(self.repository.tables, snapshot, definition.table_key).to_pylist()
        return sorted(found, key=lambda row: str(row["id"]))

    def row(self, type_name: str, entity: str) -> dict[str, Any]:
        return next(row for row in self.rows(type_name) if row["id"] == entity)

    def ids(self, type_name: str) -> list[str]:
        return [row["id"] for row in self.rows(type_name)]

    def pairs(self, type_name: str) -> list[tuple[str, str]]:
        return sorted((row["src"], row["dst"]) for row in self.rows(type_name))

    def export(self, types: list[str] | None = None) -> bytes:
        return b"".join(export_lines(self.repository.tables, self.repository.snapshot(), types))

    @property
    def elsewhere(self) -> World:
        """The same graph in another process: what is written there meets nobody here."""
        return World(open_repository(self.repository.location.uri))

    @property
    def head(self) -> str:
        return self.repository.snapshot().commit_id

    def refused(self, write: Callable[[], Any], constraint: str) -> ConstraintViolation:
        """The write breaks this constraint, and leaves nothing."""
        before = (self.head, self.export())
        with pytest.raises(ConstraintViolation) as raised:
            write()
        assert (self.head, self.export()) == before
        names = [violation.constraint for violation in raised.value.violations]
        assert constraint in names, names
        return raised.value


def prepared(text: str, values: Mapping[str, Any]) -> MutationText:
    return MutationText(text, None, values, NOW)


def make_world(place: str | Path, schema: str = PEOPLE, options: Mapping[str, str] | None = None) -> World:
    return World(init_repository(str(place), compile_schema(schema), options))


def touched(commit: PublishedCommit | None) -> dict[str, dict[str, int]]:
    assert commit is not None
    return {key.partition(":")[2]: counts for key, counts in commit.touched.items()}


def person(slug: str, **more: Any) -> dict[str, Any]:
    return {"type": "Person", "data": {"slug": slug, "name": slug.capitalize(), **more}}


def edge(name: str, source: str, target: str, **data: Any) -> dict[str, Any]:
    return {"edge": name, "from": source, "to": target, "data": data}
