"""Results as text or as JSON. Data goes to stdout, notes and errors to stderr, so that a pipe contains only data."""

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
class Style:
    """Colours on a terminal, plain text everywhere else."""

    colored: bool = False

    def heading(self, text: str) -> str:
        return f"{_BOLD}{text}{_RESET}" if self.colored else text

    def error(self, text: str) -> str:
        return f"{_RED}{text}{_RESET}" if self.colored else text


RenderLines: TypeAlias = Callable[[Style], Iterable[str]]  # renders a result as lines of text
JsonData: TypeAlias = Document | Sequence[Document]


class OutputLost(Exception):
    """The output could not be written: the reader of a pipe exited, or a disk is full."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


class Output(ABC):
    """Where a command prints. It passes its result as JSON and as text; the output chooses one."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet

    @abstractmethod
    def data(self, document: JsonData, render: RenderLines) -> None:
        """Print the result."""

    @abstractmethod
    def done(self, document: Document, sentence: str) -> None:
        """Print the result of a command that changed something; `--quiet` hides it, as the exit code says the same."""

    @abstractmethod
    def note(self, sentence: str) -> None:
        """Print a message to stderr that is not part of the result."""

    @abstractmethod
    def error(self, error: OmnigraphError) -> None:
        """Print an error to stderr."""


class TextOutput(Output):
    def data(self, document: JsonData, render: RenderLines) -> None:
        for line in render(style_for(sys.stdout)):
            _write(sys.stdout, line)

    def done(self, document: Document, sentence: str) -> None:
        if not self._quiet:
            _write(sys.stdout, sentence)

    def note(self, sentence: str) -> None:
        if not self._quiet:
            _write(sys.stderr, sentence)

    def error(self, error: OmnigraphError) -> None:
        _write(sys.stderr, f"{style_for(sys.stderr).error('error:')} {escape_control(str(error))}")
        for line in _detail_lines(error):
            _write(sys.stderr, line)


class JsonOutput(Output):
    """One document on stdout, or the error body on stderr; never both, and nothing else."""

    def data(self, document: JsonData, render: RenderLines) -> None:
        _write(sys.stdout, _dump(document, sys.stdout, indent=2 if sys.stdout.isatty() else None))

    def done(self, document: Document, sentence: str) -> None:
        self.data(document, lambda _: ())

    def note(self, sentence: str) -> None:
        return None

    def error(self, error: OmnigraphError) -> None:
        _write(sys.stderr, _dump(error.to_json(), sys.stderr))


def _detail_lines(error: OmnigraphError) -> Iterable[str]:
    """The lines below an error's message: an excerpt of the text, or further problems."""
    if isinstance(error, LanguageError):
        yield from excerpt_lines(error.excerpt)
    elif isinstance(error, InvalidInput):
        yield from (escape_control(f"  {place}: {problem}.") for place, problem in error.problems[1:])
    elif isinstance(error, SchemaChangeRefused):
        from omnigraph.cli.render.migration import plan_lines

        yield from (f"  {line}" for line in plan_lines(error.plan, Style()))
    elif isinstance(error, MergeConflicts):
        yield from (escape_control(f"  {conflict.kind}: {conflict.message}") for conflict in error.conflicts)
    elif isinstance(error, ConstraintViolation) and error.violations:
        first, *others = error.violations[:VIOLATIONS_SHOWN_MAX]
        if len(first.places) > 1:
            yield escape_control(f"  {first.constraint}: also {_join_names(first.places[1:])}.")
        yield from (escape_control(f"  {_violation_text(violation)}.") for violation in others)


def _violation_text(violation: Violation) -> str:
    subject = " ".join(part for part in (violation.type_name, _join_names([*map(repr, violation.entity_ids)])) if part)
    place = f"{_join_names(violation.places)}: " if violation.places else ""
    return f"{place}{subject} {violation.problem}: {violation.remedy}"


def _join_names(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def excerpt_lines(excerpt: str) -> Iterable[str]:
    """Each character is printed as one cell, so that the caret stays below its position."""
    for line in excerpt.split("\n"):
        yield "".join(c if c.isprintable() else " " if c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line)


def pluralize(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def style_for(stream: TextIO) -> Style:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Style(stream.isatty() and not plain)


def format_table(style: Style, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterable[str]:
    """Aligned columns: numbers to the right, everything else to the left."""
    cells = [[escape_control(_cell_text(value)) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    right = [bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(headings))]

    def line(values: Sequence[str]) -> str:
        pairs = zip(values, widths, right, strict=True)
        return "  ".join(v.rjust(width) if r else v.ljust(width) for v, width, r in pairs).rstrip()

    yield style.heading(line(headings))
    for row in cells:
        yield line(row)


def format_fields(pairs: Iterable[tuple[str, object]]) -> Iterable[str]:
    """`name  value` lines with aligned values."""
    texts = [(name, escape_control(_cell_text(value))) for name, value in pairs]
    width = max(len(name) for name, _ in texts)
    for name, value in texts:
        yield f"{name.ljust(width)}  {value}"


def escape_control(text: str) -> str:
    """Escape unprintable characters: any writer chooses names, and they must not control the reader's terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def _cell_text(value: object) -> str:
    return "-" if value is None else str(value)


def _dump(document: JsonData, stream: TextIO, indent: int | None = None) -> str:
    text = json.dumps(document, ensure_ascii=not supports_unicode(stream), indent=indent)
    return text.encode("utf-8", "backslashreplace").decode()


def supports_unicode(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf")


def write_text(text: str) -> None:
    """Write to stdout as it is, line ends included: for results that are streamed."""
    _write(sys.stdout, text, end="")


def write_bytes(data: bytes) -> None:
    """Write UTF-8 to stdout, whatever the locale is."""
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
