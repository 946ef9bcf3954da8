"""A sign of life on a terminal while something takes long."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

FIRST_SHOWN_AFTER_S = 0.3
FRAME_S = 0.1
WIDTH = 24
_CLEAR_LINE = "\r\x1b[K"


@contextmanager
def working(verb: str, what: str, *, quiet: bool = False) -> Iterator[None]:
    """A moving bar on stderr, if that is a terminal. It shows that something happens, not how much is left."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_draw, args=(f"{verb} {what}", done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _draw(label: str, done: threading.Event) -> None:
    if done.wait(FIRST_SHOWN_AFTER_S):
        return
    try:
        for frame in count():
            seconds = FIRST_SHOWN_AFTER_S + frame * FRAME_S
            print(f"{_CLEAR_LINE}{label} {_bar(frame)} {seconds:.0f} s", end="", file=sys.stderr, flush=True)
            if done.wait(FRAME_S):
                break
        print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody looks


def _bar(frame: int) -> str:
    """A block that walks to and fro."""
    at = frame % (2 * WIDTH)
    at = at if at < WIDTH else 2 * WIDTH - 1 - at
    return f"[{'·' * at}█{'·' * (WIDTH - 1 - at)}]"
