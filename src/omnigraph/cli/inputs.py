"""Inputs of commands: schema and query texts, and parameters, from files, stdin or the command line."""

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
class NamedSource:
    """A schema or query text, and its name in messages."""

    text: str
    name: str

    @contextmanager
    def relabel_errors(self) -> Iterator[None]:
        """Report language errors raised inside under this text's name."""
        try:
            yield
        except LanguageError as error:
            code, message, expected, _, *place = error.args
            raise LanguageError(code, message, expected, self.name, *place) from error


def read_source(path: str) -> NamedSource:
    """Read a file, or stdin where the path is `-`."""
    name = "stdin" if path == STDIN else path
    data = _read(path, SOURCE_BYTES_MAX + 1)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if len(data) > SOURCE_BYTES_MAX:  # the last character may be cut; the parser reports the length
            return NamedSource(data.decode(errors="replace"), name)
        line = data.count(b"\n", 0, error.start) + 1
        raise BadRequest(f"{name} is not UTF-8 text (line {line}): save it in that encoding.") from None
    return NamedSource(text, name)


class ParamsType(click.ParamType[dict[str, Any]]):
    """`--params`: a JSON object, or `@` and the file that holds one."""

    name = "JSON|@file"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            text = _read(value[1:], PARAMS_BYTES_MAX).decode() if value.startswith("@") else value
            params = json.loads(text, object_pairs_hook=_unique_object, parse_constant=_reject_constant)
        except (BadRequest, NotFound) as error:
            self.fail(str(error), param, context)
        except RecursionError:
            self.fail("the JSON is nested too deeply.", param, context)
        except ValueError as error:  # invalid JSON or UTF-8
            self.fail(f"{_shorten(value)} is not a JSON object ({error}): write '{{\"name\": value}}'.", param, context)
        if not isinstance(params, dict):
            self.fail(f"{_shorten(value)} is not a JSON object: write '{{\"name\": value}}'.", param, context)
        return params


def _read(path: str, bytes_max: int) -> bytes:
    """Read at most `bytes_max`; the parser rejects what is longer."""
    try:
        if path == STDIN:
            return sys.stdin.buffer.read(bytes_max)
        with Path(path).open("rb") as file:
            return file.read(bytes_max)
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist: check the path.") from None
    except (OSError, ValueError) as error:  # ValueError: the path contains a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise BadRequest(f"{path} can't be read ({reason}): check the path.") from error


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{duplicate!r} is given twice")
    return result


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _shorten(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:57]}…"
