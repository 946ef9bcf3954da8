"""WriteTxn: all that a write may know about its base, captured once.

It has no function to ask for anything newer, so nothing made from it can mix two states.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from omnigraph.manifest.model.manifest import CommitId, Manifest, TableKey, TableRef
from omnigraph.schema.catalog import Catalog, Schema
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import TableContent, make_content


@dataclass(frozen=True, slots=True)
class WriteTxn:
    """`pending` are rows of writes that are about to be put together with this one, before it."""

    base: Manifest
    schema: Schema
    pending: Mapping[TableKey, Overlay] = field(default_factory=dict)

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

    def content(self, key: TableKey) -> TableContent | None:
        """What a read of the type's table is to be given; None for a type that has no rows yet."""
        ref, pending = self.table(key), self.pending.get(key)
        if ref is None:
            return None
        if pending is None:
            return make_content(ref.stored, ref.tail)
        return make_content(ref.stored, ref.tail[:-1], pending)  # the last entry names a manifest that is not there yet


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

    def content(self, key: TableKey) -> TableContent | None:
        ref = self.table(key)
        return None if ref is None else make_content(ref.stored, ref.tail)
