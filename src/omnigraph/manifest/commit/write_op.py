"""WriteOp: what a verb decides about its own write, when the commit loop asks for it."""

from omnigraph.manifest.commit.plan import PublishPlan
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import Manifest, TableKey


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
