"""Run independent calls in threads, each in the caller's context, so that the meter counts them."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

WORKERS_MAX = 16


def gather(calls: Iterable[Callable[[], T]]) -> list[T]:
    """The results in the order of the calls, or the first error once all calls have ended.

    Waiting for all of them means that nothing is still being written after an error.
    """
    todo = list(calls)
    if len(todo) <= 1:
        return [call() for call in todo]
    with ThreadPoolExecutor(max_workers=min(WORKERS_MAX, len(todo))) as pool:
        futures = [pool.submit(copy_context().run, call) for call in todo]
    return [future.result() for future in futures]
