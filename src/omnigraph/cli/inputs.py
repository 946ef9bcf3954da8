"""What a command reads: schema and query texts, and parameters, from files, from stdin or from the command line."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from omnigraph.errors import BadRequest, NotFound
from omnigraph.lexer import SOURCE_BYTES_MAX, LanguageError

STDIN = "-"
PARAMS_BYTES_MAX = 256 * 1024 * 1024  # a parameter may be a blob


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text in one of the languages, and what messages call it."""

    text: str
    name: str

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Errors about this text that were found further inside, under the name that the user knows."""
        try:
            yield
        except LanguageError as error:
            code, message, expected, _, *place = error.args
            raise LanguageError(code, message, expected, self.name, *place) from error


def read_source(path: str) -> SourceText:
    """The text of a file, or of stdin where the path is `-`."""
    name = "stdin" if path == STDIN else path
    data = _read(path, SOURCE_BYTES_MAX + 1)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if len(data) > SOURCE_BYTES_MAX:  # the last character may be cut, and the language refuses the length anyway
            return SourceText(data.decode(errors="replace"), name)
        line = data.count(b"\n", 0, error.start) + 1
        raise BadRequest(f"{name} is not UTF-8 text (line {line}): save it in that encoding.") from None
    return SourceText(text, name)


class Params(click.ParamType[dict[str, Any]]):
    """`--params`: a JSON object, or `@` and the file that holds one."""

    name = "JSON|@file"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            text = _read(value[1:], PARAMS_BYTES_MAX).decode() if value.startswith("@") else value
            found = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
        except (BadRequest, NotFound) as error:
            self.fail(str(error), param, context)
        except RecursionError:
            self.fail("the JSON is nested too deeply.", param, context)
        except ValueError as error:  # no JSON, or no UTF-8
            self.fail(f"{_shown(value)} is no JSON object ({error}): write '{{\"name\": value}}'.", param, context)
        if not isinstance(found, dict):
            self.fail(f"{_shown(value)} is no JSON object: write '{{\"name\": value}}'.", param, context)
        return found


def _read(path: str, bytes_max: int) -> bytes:
    """At most so much: what is longer is refused by whoever understands it."""
    try:
        if path == STDIN:
            return sys.stdin.buffer.read(bytes_max)
        with Path(path).open("rb") as file:
            return file.read(bytes_max)
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist: check the path.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise BadRequest(f"{path} can't be read ({reason}): check the path.") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _shown(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:57]}…"
