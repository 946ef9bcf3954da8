"""Answers as text or as JSON. Data goes to stdout; notes and errors go to stderr, so that a pipe gets data only."""

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO, TypeAlias

from omnigraph.errors import OmnigraphError

Document: TypeAlias = Mapping[str, Any]

_BOLD, _RED, _RESET = "\x1b[1m", "\x1b[31m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Paint:
    """Colours where a person reads, plain text everywhere else."""

    on: bool = False

    def heading(self, text: str) -> str:
        return f"{_BOLD}{text}{_RESET}" if self.on else text

    def alarm(self, text: str) -> str:
        return f"{_RED}{text}{_RESET}" if self.on else text


Text: TypeAlias = Callable[[Paint], Iterable[str]]  # the lines of an answer, for a person


class OutputLost(Exception):
    """The answer could not be written: the reader of a pipe went away, or a disk is full."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


class Output(ABC):
    """What a command may say. It gives its answer in both forms; the output chooses one."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet

    @abstractmethod
    def data(self, document: Document, text: Text) -> None:
        """The answer itself."""

    @abstractmethod
    def done(self, document: Document, sentence: str) -> None:
        """The answer of a command that changed something: the exit code says the same."""

    @abstractmethod
    def note(self, sentence: str) -> None:
        """Something worth knowing that is no part of the answer."""

    @abstractmethod
    def error(self, error: OmnigraphError) -> None:
        """Why there is no answer."""


class TextOutput(Output):
    def data(self, document: Document, text: Text) -> None:
        for line in text(paint_for(sys.stdout)):
            _write(sys.stdout, line)

    def done(self, document: Document, sentence: str) -> None:
        if not self._quiet:
            _write(sys.stdout, sentence)

    def note(self, sentence: str) -> None:
        if not self._quiet:
            _write(sys.stderr, sentence)

    def error(self, error: OmnigraphError) -> None:
        _write(sys.stderr, f"{paint_for(sys.stderr).alarm('error:')} {printable(str(error))}")


class JsonOutput(Output):
    """One document on stdout, or the error body on stderr; never both, never anything else."""

    def data(self, document: Document, text: Text) -> None:
        _write(sys.stdout, _dump(document, sys.stdout, indent=2 if sys.stdout.isatty() else None))

    def done(self, document: Document, sentence: str) -> None:
        self.data(document, lambda _: ())

    def note(self, sentence: str) -> None:
        return None

    def error(self, error: OmnigraphError) -> None:
        _write(sys.stderr, _dump(error.to_json(), sys.stderr))


def paint_for(stream: TextIO) -> Paint:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Paint(stream.isatty() and not plain)


def table(paint: Paint, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterable[str]:
    """Aligned columns: numbers to the right, everything else to the left."""
    cells = [[printable(_cell(value)) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    right = [bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(headings))]

    def line(values: Sequence[str]) -> str:
        pairs = zip(values, widths, right, strict=True)
        return "  ".join(v.rjust(width) if r else v.ljust(width) for v, width, r in pairs).rstrip()

    yield paint.heading(line(headings))
    for row in cells:
        yield line(row)


def fields(pairs: Iterable[tuple[str, object]]) -> Iterable[str]:
    """`name  value` lines, the values below one another."""
    known = [(name, printable(_cell(value))) for name, value in pairs]
    width = max(len(name) for name, _ in known)
    for name, value in known:
        yield f"{name.ljust(width)}  {value}"


def printable(text: str) -> str:
    """Names come from anybody who may write: they must not steer the reader's terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def iso_time(moment: datetime) -> str:
    """A time as everywhere on the surface: UTC, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _dump(document: Document, stream: TextIO, indent: int | None = None) -> str:
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
    text = json.dumps(document, ensure_ascii=not encoding.startswith("utf"), indent=indent)
    return text.encode("utf-8", "backslashreplace").decode()


def _write(stream: TextIO, line: str) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    except OSError as error:
        raise OutputLost(error) from error


def flush_stdout() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        raise OutputLost(error) from error
