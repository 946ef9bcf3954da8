"""A hook that runs before a thread blocks on the store.

Whether work can be served from memory, or needs round trips, is not known beforehand. So code that is about to block
calls the hook, and a caller that holds up other threads, such as the leader of a group commit, can release them first.
The hook travels in a context variable, also into the threads of `parallel.py`.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

_hook: ContextVar[Callable[[], None] | None] = ContextVar("omnigraph_before_blocking", default=None)


def run_blocking_hook() -> None:
    """Call this before every request to the store, and before waiting for another thread that may make one."""
    first = _hook.get()
    if first is not None:
        first()


def with_blocking_hook(first: Callable[[], None], work: Callable[P, T]) -> Callable[P, T]:
    """`work`, with `hook` called before it blocks: never, once or often, perhaps by several threads."""

    def done(*args: "P.args", **how: "P.kwargs") -> T:
        token = _hook.set(first)
        try:
            return work(*args, **how)
        finally:
            _hook.reset(token)

    return done
