"""A graph with a bit of everything, and ways to break it: by really changing what is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lance.fragment
import pyarrow as pa
from lance.dataset import Transaction

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import Settings
from support.documents import sealed

SCHEMA = """
node Person {
    slug: String @key
    name: String @unique
    age:  I32? @index
    bio:  String? @index
    @range(age, 0..150)
}
node Company { name: String @key }
edge Knows: Person -> Person { since: Date? }
edge WorksAt: Person -> Company @card(0..1)
"""
PEOPLE = 600
INLINE = Settings(maintenance=0)
STAGED = Settings(inline_rows=0, maintenance=0)


def build(place: str, options: dict[str, str] | None = None) -> Graph:
    """Stored rows with deletions and indexes, small commits on top, a merged branch, a living one, a tag."""
    graph = omnigraph.init(place, schema=SCHEMA, storage_options=options, settings=INLINE)
    people: list[dict[str, Any]] = [
        {"type": "Person", "data": {"slug": f"p{n}", "name": f"Person {n}", "age": n % 90, "bio": f"word{n % 7} likes"}}
        for n in range(PEOPLE)
    ]
    companies = [{"type": "Company", "data": {"name": f"c{n}"}} for n in range(5)]
    knows = [{"edge": "Knows", "from": f"p{n}", "to": f"p{(n * 7 + 1) % PEOPLE}"} for n in range(PEOPLE)]
    works = [{"edge": "WorksAt", "from": f"p{n}", "to": f"c{n % 5}"} for n in range(0, PEOPLE, 2)]
    graph.load([*people, *companies, *knows, *works])
    graph.optimize()
    staged = omnigraph.open(place, options, settings=STAGED)
    staged.mutate('query q() { delete Person where slug = "p599" }')
    staged.mutate('query q() { insert Person { slug: "ada", name: "Ada", age: 36, bio: "engines" } }')
    graph = omnigraph.open(place, options, settings=INLINE)
    graph.tags.create("first")
    graph.mutate('query q() { insert Person { slug: "bob", name: "Bob" } insert Knows { from: "ada", to: "bob" } }')
    graph.branches.create("work")
    graph.mutate('query q() { insert Person { slug: "eve", name: "Eve" } }', branch="work")
    graph.branches.merge("work", delete_branch=True)
    graph.branches.create("side")
    graph.mutate('query q() { update Person set { age: 37 } where slug = "ada" }')
    graph.mutate('query q() { delete Person where slug = "p1" }')
    return graph


class Place:
    """The files of a local graph, as the test that damages them sees them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.main: str = json.loads((root / "_omnigraph.json").read_text())["main"]

    def manifest_path(self, back: int = 0) -> Path:
        """The newest manifest of main, or one before it."""
        return sorted((self.root / "__manifest" / self.main).glob("*.json"))[back]

    def manifest(self, back: int = 0) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.manifest_path(back).read_text())
        return document

    def edit(self, change: Callable[[dict[str, Any]], None], back: int = 0) -> None:
        document = self.manifest(back)
        change(document)
        self.manifest_path(back).write_bytes(sealed(document))

    def ref(self, key: str) -> dict[str, Any]:
        ref: dict[str, Any] = self.manifest()["tables"][key]
        return ref

    def table(self, key: str) -> Path:
        return self.root / "tables" / str(self.ref(key)["table_id"])

    def dataset(self, key: str) -> lance.LanceDataset:
        return lance.dataset(str(self.table(key)), version=self.ref(key)["table_version"])

    def data_file(self, key: str, fragment: int = 0) -> Path:
        return self.table(key) / "data" / str(self.dataset(key).get_fragments()[fragment].metadata.files[0].path)

    def index_folder(self, key: str, name: str) -> Path:
        found = next(one for one in self.dataset(key).describe_indices() if one.name == name)
        return self.table(key) / "_indices" / str(found.segments[0].uuid)

    def commit(self, key: str, operation: Any, rows: int) -> None:
        """A version that was never staged, put into the newest manifest."""
        dataset = self.dataset(key)
        transaction = Transaction(read_version=dataset.version, operation=operation)
        made = lance.LanceDataset.commit(dataset, transaction, detached=True)
        self.edit(lambda document: document["tables"][key].update(table_version=made.version, rows=rows))

    def append(self, key: str, **values: Any) -> None:
        """One more row, whatever its id and ends are."""
        dataset = self.dataset(key)
        row = {name: [values.get(name)] for name in dataset.schema.names}
        rows = pa.table(row, schema=dataset.schema)
        added = lance.fragment.write_fragments(rows, dataset, mode="append")
        self.commit(key, lance.LanceOperation.Append(added), self.ref(key)["rows"] + 1)
