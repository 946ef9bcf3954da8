"""Values on the wire: Python's as JSON takes them, and back by the types of a schema."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from omnigraph.errors import BadRequest
from omnigraph.schema.types import Enumeration, ListOf, PropertyType, Scalar, Vector

_PLAIN = frozenset({"String", "Bool", "I32", "I64", "U32", "U64", "F64"})


def wire_params(params: Mapping[str, object] | None) -> dict[str, Any]:
    """The parameters of a query as a body has them."""
    if params is not None and not isinstance(params, Mapping):
        raise BadRequest(f"Parameters are given by name, not as {type(params).__name__}: write {{name: value}}.")
    return {str(name): wire_value(value) for name, value in (params or {}).items()}


def wire_value(value: Any) -> Any:
    """A value as JSON takes it: the forms that `surface.md` prints, which every reader takes back."""
    from omnigraph.query.values import to_instant
    from omnigraph.read.project.render import blob_text
    from omnigraph.schema.literals import print_datetime

    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if value - value != 0:
                raise BadRequest(f"{value} is no number that a server can be sent: give a finite one.")
            return value
        case dt.datetime():
            return print_datetime(to_instant(value))
        case dt.date():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return blob_text(bytes(value))
        case list() | tuple():
            return [wire_value(item) for item in value]
        case Mapping():
            return {str(name): wire_value(item) for name, item in value.items()}
        case _ if callable(getattr(value, "tolist", None)):  # of numpy or Arrow
            return wire_value(value.tolist())
        case _ if callable(getattr(value, "as_py", None)):
            return wire_value(value.as_py())
        case _:
            raise BadRequest(
                f"A {type(value).__name__} can't be sent to a server: give text, a number, a list, a time."
            )


def wire_time(at: str | dt.datetime | None) -> str | None:
    """A state as a request names it: a commit, a tag, or a time, which without a zone is UTC."""
    return at.isoformat() if isinstance(at, dt.datetime) else at


def python_value(value: Any, kind: PropertyType) -> Any:
    """What a document says of a property, in Python's form."""
    from omnigraph.query.values import parse_value

    if value is None or is_plain(kind):
        return value
    found = parse_value(value, kind)
    return list(found) if isinstance(found, tuple) else found


def is_plain(kind: PropertyType) -> bool:
    """Whether JSON has these values as they are."""
    match kind:
        case Scalar(name) | ListOf(Scalar(name)):
            return name in _PLAIN
        case Enumeration():
            return True
        case Vector():
            return False
