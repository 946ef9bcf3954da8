"""Frozen dataclasses that every small commit makes: frozen for the type checker, and while the tests run.

A frozen dataclass sets each field by a slow call. For the values of a one-row commit that is a tenth of its processing
time (decisions 13 and 16), so in production these are ordinary dataclasses. All others are really frozen.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

__all__ = ["fast_frozen"]

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass as fast_frozen
else:
    _FROZEN = "OMNIGRAPH_FREEZE_VALUES" in os.environ  # the tests set it: a write to any of these raises there

    def fast_frozen(*, frozen: bool, slots: bool = False, eq: bool = True) -> Callable[[type[T]], type[T]]:
        """As `dataclass(frozen=True, …)`, which it is for the type checker."""
        assert frozen
        return dataclass(slots=slots, eq=eq, frozen=_FROZEN, unsafe_hash=eq and not _FROZEN)
