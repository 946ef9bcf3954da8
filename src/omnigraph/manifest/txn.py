"""WriteTxn: all that a write may know about its base, captured once.

It has no function to ask for anything newer, so nothing made from it can mix two states.
"""

from dataclasses import dataclass

from omnigraph.manifest.model import CommitId, Manifest, TableKey, TableRef
from omnigraph.schema.catalog import Catalog, Schema


@dataclass(frozen=True, slots=True)
class WriteTxn:
    base: Manifest
    schema: Schema

    @property
    def branch(self) -> str:
        return self.base.branch

    @property
    def commit_id(self) -> CommitId:
        return self.base.logical_head

    @property
    def catalog(self) -> Catalog:
        return self.schema.catalog

    def table(self, key: TableKey) -> TableRef | None:
        """The type's table in the base; None for a type that has no rows yet."""
        self.catalog.type_of(key)
        return self.base.tables.get(key)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One manifest and its schema, pinned: what a read sees from beginning to end."""

    manifest: Manifest
    schema: Schema

    @property
    def commit_id(self) -> CommitId:
        return self.manifest.logical_head

    @property
    def catalog(self) -> Catalog:
        return self.schema.catalog

    def table(self, key: TableKey) -> TableRef | None:
        self.catalog.type_of(key)
        return self.manifest.tables.get(key)
