"""A progress bar on the terminal for operations that take long."""

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnigraph.pipeline.progress import Progress

FIRST_SHOWN_AFTER_S = 0.3
FRAME_S = 0.1
WIDTH = 24
_CLEAR_LINE = "\r\x1b[K"


@contextmanager
def progress_bar(verb: str, subject: str, *, quiet: bool = False, progress: "Progress | None" = None) -> Iterator[None]:
    """Show a progress bar on stderr, if that is a terminal.

    It bounces until `progress` has a stage, and then shows the stage's progress.
    """
    if quiet or not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_draw, args=(f"{verb} {subject}", done, progress), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _draw(label: str, done: threading.Event, progress: "Progress | None") -> None:
    if done.wait(FIRST_SHOWN_AFTER_S):
        return
    try:
        for frame in count():
            seconds = FIRST_SHOWN_AFTER_S + frame * FRAME_S
            text = f"{label} {_bar(frame)} {seconds:.0f} s"
            if progress is not None and progress.state.stage:
                text = f"{label}: {progress.line()}"
            width = shutil.get_terminal_size().columns - 1  # a line that wraps could not be cleared
            print(f"{_CLEAR_LINE}{text[:width]}", end="", file=sys.stderr, flush=True)
            if done.wait(FRAME_S):
                break
        print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)
    except OSError:
        pass  # the terminal is gone


def _bar(frame: int) -> str:
    """A block that moves to the right and back."""
    position = frame % (2 * WIDTH)
    position = position if position < WIDTH else 2 * WIDTH - 1 - position
    return f"[{'·' * position}█{'·' * (WIDTH - 1 - position)}]"
