"""Values that the type checker alone keeps from being changed.

A frozen dataclass is guarded at run time too, and pays for it whenever one is made: a slow call for each field. Of what
every small commit makes by the dozen that was a twelfth of all that it computes (decision 13). Everything
else is an ordinary frozen dataclass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

__all__ = ["unguarded"]

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass as unguarded
else:

    def unguarded(*, frozen: bool, slots: bool = False, eq: bool = True) -> Callable[[type[T]], type[T]]:
        """As `dataclass(frozen=True, …)`, which it is for the type checker."""
        assert frozen
        return dataclass(slots=slots, eq=eq, unsafe_hash=eq)
