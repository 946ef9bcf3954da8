"""What is done before work waits for the store, for the sake of others that wait for the work.

Nobody knows beforehand whether memory will answer all that work asks, which takes no time, or whether some of it takes
round trips. So whatever is about to wait says so, and who keeps others waiting lets them go first. What to do travels
in a context variable, also into the threads of `parallel.py`.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

_hook: ContextVar[Callable[[], None] | None] = ContextVar("omnigraph_before_waiting", default=None)


def run_blocking_hook() -> None:
    """Said before every request to the store, and before waiting for another thread that may make one."""
    first = _hook.get()
    if first is not None:
        first()


def with_blocking_hook(first: Callable[[], None], work: Callable[P, T]) -> Callable[P, T]:
    """The work, with `first` done before any of it waits: perhaps never, perhaps often, perhaps by several threads."""

    def done(*args: "P.args", **how: "P.kwargs") -> T:
        token = _hook.set(first)
        try:
            return work(*args, **how)
        finally:
            _hook.reset(token)

    return done
