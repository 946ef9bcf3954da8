"""The text of JSON documents, and those two that no wire model makes: versions, and changes as a stream."""

import json
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from omnigraph.api.models import ChangesExplained, ChangesHead, CostEntry
from omnigraph.api.wire_model import Document

if TYPE_CHECKING:
    from omnigraph.api.interface import ChangesLike

LIBRARIES = ("pylance", "pyarrow", "duckdb", "obstore", "click")


def finite(value: Any) -> Any:
    """JSON has no infinity, which a sum may overflow to: it is written as null."""
    match value:
        case float():
            return value if value - value == 0 else None
        case list():
            return [finite(item) for item in value]
        case dict():
            return {name: finite(item) for name, item in value.items()}
        case _:
            return value


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def json_text(value: Any) -> str:
    """The shortest JSON of a value; what is not finite in it becomes null."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(finite(value))


def version_document() -> Document:
    from omnigraph import __version__
    from omnigraph.manifest.model.document import FORMAT

    libraries = {"python": platform.python_version()} | {name: _installed(name) for name in LIBRARIES}
    return {"release": __version__, "format_version": FORMAT, "libraries": libraries}


def _installed(name: str) -> str | None:
    """From the package's metadata: importing it would cost a second."""
    try:
        return installed_version(name)
    except PackageNotFoundError:
        return None


def changes_text(found: "ChangesLike", *, explain: bool = False) -> Iterator[str]:
    """The document of `changes`, in pieces, while they are found; what fails at once fails at the first piece."""
    dumps = json.JSONEncoder(ensure_ascii=True).encode
    changes = iter(found)
    first = list(islice(changes, 1))
    yield dumps(ChangesHead.encode(found))[:-1] + ', "changes": ['
    for number, change in enumerate(chain(first, changes)):
        yield (", " if number else "") + dumps(change.to_json())
    tail: dict[str, Any] = {"next_page": found.next_page}
    if explain:
        cost = CostEntry.encode(found.cost)
        del cost["retries"]
        tail["explain"] = ChangesExplained.encode(found.explained) | {"cost": cost}
    yield "], " + dumps(tail)[1:] + "\n"
