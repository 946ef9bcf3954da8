"""What is derived from an Arrow schema, made once for each."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

V = TypeVar("V")

SCHEMAS_MAX = 256


class SchemaCache(Generic[V]):
    """Values by schema, as a dictionary would keep them; but to hash a schema takes longer than to compare it."""

    def __init__(self, make: "Callable[[pa.Schema], V]") -> None:
        self._make = make
        self._kept: dict[tuple[str, ...], tuple[pa.Schema, V]] = {}

    def get(self, schema: "pa.Schema") -> V:
        name = tuple(schema.names)
        kept = self._kept.get(name)
        if kept is not None and kept[0].equals(schema, check_metadata=True):
            return kept[1]
        if len(self._kept) >= SCHEMAS_MAX:
            self._kept.clear()
        made = self._make(schema)
        self._kept[name] = (schema, made)
        return made
