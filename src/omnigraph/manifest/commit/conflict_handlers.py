"""What a verb can do about a lost race."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from omnigraph.manifest.commit.plan import PublishPlan
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey

Restage: TypeAlias = Callable[[WriteTxn, PublishPlan, frozenset[TableKey], bool], PublishPlan]
Validate: TypeAlias = Callable[[WriteTxn, PublishPlan], None]
PlanOn: TypeAlias = Callable[[WriteTxn], PublishPlan]


class TooLargeToShare(Exception):
    """A plan that was made again in a group, where there is nothing yet that a table could be staged from."""


@dataclass(frozen=True, slots=True)
class Recourse:
    """What a verb can do after a lost race; where it can't plan again, that loss is a conflict.

    A strict plan that can be planned again is: so a merge never fails because somebody else was first.

    A plan that stages must bring `restage`, a plan with checks `validate`.
    """

    restage: Restage | None = None
    validate: Validate | None = None
    plan_again: PlanOn | None = None
