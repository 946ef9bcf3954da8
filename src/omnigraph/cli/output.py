"""Answers as text or as JSON. Data goes to stdout; notes and errors go to stderr, so that a pipe gets data only."""

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO, TypeAlias

from omnigraph.api.wire_model import Document
from omnigraph.errors import (
    VIOLATIONS_SHOWN_MAX,
    ConstraintViolation,
    InvalidInput,
    MergeConflicts,
    OmnigraphError,
    SchemaChangeRefused,
    Violation,
)
from omnigraph.lexer import LanguageError

NAMES_SHOWN_MAX = 10
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
Data: TypeAlias = Document | Sequence[Document]


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
    def data(self, document: Data, text: Text) -> None:
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
    def data(self, document: Data, text: Text) -> None:
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
        for line in _below(error):
            _write(sys.stderr, line)


class JsonOutput(Output):
    """One document on stdout, or the error body on stderr; never both, never anything else."""

    def data(self, document: Data, text: Text) -> None:
        _write(sys.stdout, _dump(document, sys.stdout, indent=2 if sys.stdout.isatty() else None))

    def done(self, document: Document, sentence: str) -> None:
        self.data(document, lambda _: ())

    def note(self, sentence: str) -> None:
        return None

    def error(self, error: OmnigraphError) -> None:
        _write(sys.stderr, _dump(error.to_json(), sys.stderr))


def _below(error: OmnigraphError) -> Iterable[str]:
    """What stands below an error's sentence: the place it is about, or what else is wrong."""
    if isinstance(error, LanguageError):
        yield from excerpt_lines(error.excerpt)
    elif isinstance(error, InvalidInput):
        yield from (printable(f"  {place}: {problem}.") for place, problem in error.problems[1:])
    elif isinstance(error, SchemaChangeRefused):
        from omnigraph.cli.render.migration import plan_lines

        yield from (f"  {line}" for line in plan_lines(error.plan, Paint()))
    elif isinstance(error, MergeConflicts):
        yield from (printable(f"  {conflict.kind}: {conflict.message}") for conflict in error.conflicts)
    elif isinstance(error, ConstraintViolation) and error.violations:
        first, *others = error.violations[:VIOLATIONS_SHOWN_MAX]
        if len(first.places) > 1:
            yield printable(f"  {first.constraint}: also {_listed(first.places[1:])}.")
        yield from (printable(f"  {_brief(violation)}.") for violation in others)


def _brief(violation: Violation) -> str:
    subject = " ".join(part for part in (violation.type_name, _listed([*map(repr, violation.entity_ids)])) if part)
    place = f"{_listed(violation.places)}: " if violation.places else ""
    return f"{place}{subject} {violation.problem}: {violation.remedy}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def excerpt_lines(excerpt: str) -> Iterable[str]:
    """Every character as wide as any other, so that the caret stays below its place."""
    for line in excerpt.split("\n"):
        yield "".join(c if c.isprintable() else " " if c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line)


def counted(number: int, what: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


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
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _dump(document: Data, stream: TextIO, indent: int | None = None) -> str:
    text = json.dumps(document, ensure_ascii=not takes_unicode(stream), indent=indent)
    return text.encode("utf-8", "backslashreplace").decode()


def takes_unicode(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf")


def write_text(text: str) -> None:
    """Data to stdout as it is, line ends included: for answers that are written piece by piece."""
    _write(sys.stdout, text, end="")


def write_bytes(data: bytes) -> None:
    """Data to stdout that is UTF-8 whatever the locale says."""
    try:
        binary = getattr(sys.stdout, "buffer", None)
        if binary is None:
            sys.stdout.write(data.decode())
        else:
            sys.stdout.flush()
            binary.write(data)
    except OSError as error:
        raise OutputLost(error) from error


def _write(stream: TextIO, line: str, end: str = "\n") -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + end)
    except OSError as error:
        raise OutputLost(error) from error


def flush_stdout() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        raise OutputLost(error) from error
