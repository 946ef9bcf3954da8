"""The rows of a pattern while it is matched: for each variable a column of numbers, and how often each row counts."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from omnigraph.errors import BadRequest
from omnigraph.read.graph.csr import require_fits
from omnigraph.read.tables.arrow_numpy import BoolArray, NumArray

_COUNTABLE_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Bindings:
    """`weight` counts rows that differ only in variables nobody asks for; None where each counts once."""

    count: int
    columns: dict[str, NumArray]
    weight: NumArray | None = None

    def take(self, places: NumArray) -> "Bindings":
        require_fits(len(places), len(self.columns))
        return Bindings(
            len(places),
            {var: column[places] for var, column in self.columns.items()},
            None if self.weight is None else self.weight[places],
        )

    def filter(self, mask: BoolArray) -> "Bindings":
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def with_columns(self, more: dict[str, NumArray]) -> "Bindings":
        return Bindings(self.count, {**self.columns, **more}, self.weight)

    def keep(self, wanted: Collection[str]) -> "Bindings":
        if all(var in wanted for var in self.columns):
            return self
        return Bindings(self.count, {var: column for var, column in self.columns.items() if var in wanted}, self.weight)

    def multiply(self, counts: NumArray) -> "Bindings":
        """Each row as often as `counts` says; those with none are gone."""
        kept = counts > 0
        weight = counts if self.weight is None else multiply_weights(self.weight, counts)
        if bool(kept.all()):
            once = self.weight is None and bool((counts == 1).all())
            return self if once else Bindings(self.count, self.columns, weight)
        places = np.flatnonzero(kept)
        taken = Bindings(self.count, self.columns, weight).take(places)
        assert taken.weight is not None
        return Bindings(taken.count, taken.columns) if bool((taken.weight == 1).all()) else taken

    def expand_weights(self) -> "Bindings":
        """Every row on its own: what results without grouping are made of."""
        if self.weight is None:
            return self
        require_fits(int(self.weight.sum()), len(self.columns))
        return Bindings(self.count, self.columns).take(np.repeat(np.arange(self.count), self.weight))


def multiply_weights(one: NumArray, other: NumArray) -> NumArray:
    """How often rows count that each counted so often; refused where all of them might be more than can be counted."""
    most = int(one.max(initial=0)) * int(other.max(initial=0)) * len(one)
    if most > _COUNTABLE_MAX:
        raise BadRequest("The match has more rows than can be counted: add a filter to it, or leave a variable out.")
    return one * other


ONE_ROW = Bindings(1, {})  # the empty pattern has one match


def cross_join(left: Bindings, right: Bindings) -> Bindings:
    """Every row of one with every row of the other."""
    if left.count == 1 and not left.columns and left.weight is None:
        return right
    require_fits(left.count * right.count, len(left.columns) + len(right.columns))
    first = left.take(np.repeat(np.arange(left.count), right.count))
    second = right.take(np.tile(np.arange(right.count), left.count))
    if first.weight is not None and second.weight is not None:
        weight: NumArray | None = multiply_weights(first.weight, second.weight)
    else:
        weight = first.weight if first.weight is not None else second.weight
    return Bindings(first.count, {**first.columns, **second.columns}, weight)
