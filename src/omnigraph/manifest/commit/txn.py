"""A write as the commit loop knows it: its base (`WriteTxn`), and what it decides about itself (`WriteOp`).

A base is captured once. It has no function to ask for anything newer, so nothing made from it can mix two states.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from omnigraph.manifest.commit.plan import PublishPlan
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
        ref = self.base.tables.get(key)
        if ref is None:
            self.catalog.type_of(key)
        return ref

    def content(self, key: TableKey) -> TableContent | None:
        """What a read of the type's table is to be given; None for a type that has no rows yet."""
        ref, pending = self.table(key), self.pending.get(key)
        if ref is None:
            return None
        if pending is None:
            return ref.content
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
        ref = self.manifest.tables.get(key)
        if ref is None:
            self.catalog.type_of(key)
        return ref

    def content(self, key: TableKey) -> TableContent | None:
        ref = self.table(key)
        return None if ref is None else ref.content


class TooLargeToShare(Exception):
    """A plan that was made again in a batch, where there is no base yet that a table could be staged from."""


class WriteOp:
    """One write, from its first plan to its commit. By default nothing of it can be derived again.

    A plan that stages tables needs `restage`, a plan with checks needs `validate`. Where the conflict table asks for a
    new plan, an operation that `can_replan` is planned again, a strict one too: so a merge never fails because another
    writer was first. For any other, that loss is a conflict.
    """

    can_replan = False
    base: Manifest | None = None  # that the work refers to at the moment; set before each of the calls below

    def plan(self, txn: WriteTxn) -> PublishPlan:
        """All that the write changes on this base."""
        raise AssertionError(f"{type(self).__name__} can't be planned again")

    def restage(self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        """The plan with what was derived from the base of these tables derived again (`rebase`)."""
        raise AssertionError(f"{type(self).__name__} stages nothing, so {sorted(tables)} can't be staged again")

    def validate(self, txn: WriteTxn, plan: PublishPlan) -> None:
        """Raise if what the plan relies on does not hold on this base."""

    def first_plan(self, txn: WriteTxn) -> PublishPlan:
        """The plan on the base that the verb has opened."""
        self.base = txn.base
        return self.plan(txn)

    def bases_in_use(self) -> tuple[Manifest, ...]:
        """The states that the work refers to at the moment."""
        return () if self.base is None else (self.base,)
