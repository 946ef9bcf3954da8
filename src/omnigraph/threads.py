"""Threads: independent calls at once, and a hook that runs before a thread blocks on the store.

Whether work can be served from memory, or needs round trips, is not known beforehand. So code that is about to block
calls the hook, and a caller that holds up other threads, such as the leader of a group commit, can release them first.
The hook travels in a context variable, also into the threads of `gather`.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

WORKERS_MAX = 16


def gather(calls: Iterable[Callable[[], T]]) -> list[T]:
    """The results in the order of the calls, or the first error once all calls have ended.

    Each call runs in the caller's context, so that the meter counts it. Waiting for all of them means that nothing is
    still being written after an error.
    """
    todo = list(calls)
    if len(todo) <= 1:
        return [call() for call in todo]
    with ThreadPoolExecutor(max_workers=min(WORKERS_MAX, len(todo))) as pool:
        futures = [pool.submit(copy_context().run, call) for call in todo]
    return [future.result() for future in futures]


_hook: ContextVar[Callable[[], None] | None] = ContextVar("omnigraph_before_blocking", default=None)


def run_blocking_hook() -> None:
    """Call this before every request to the store, and before waiting for another thread that may make one."""
    hook = _hook.get()
    if hook is not None:
        hook()


def with_blocking_hook(hook: Callable[[], None], work: Callable[P, T]) -> Callable[P, T]:
    """`work`, with `hook` called before it blocks: never, once or often, perhaps by several threads."""

    def run(*args: "P.args", **kwargs: "P.kwargs") -> T:
        token = _hook.set(hook)
        try:
            return work(*args, **kwargs)
        finally:
            _hook.reset(token)

    return run
