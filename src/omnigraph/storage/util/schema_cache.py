"""A cache of values derived from Arrow schemas."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

V = TypeVar("V")

SCHEMAS_MAX = 256


class SchemaCache(Generic[V]):
    """Values by schema. Keyed by column names, then compared: hashing a schema takes longer than comparing two."""

    def __init__(self, make: "Callable[[pa.Schema], V]") -> None:
        self._make = make
        self._values: dict[tuple[str, ...], tuple[pa.Schema, V]] = {}

    def get(self, schema: "pa.Schema") -> V:
        name = tuple(schema.names)
        cached = self._values.get(name)
        if cached is not None and cached[0].equals(schema, check_metadata=True):
            return cached[1]
        if len(self._values) >= SCHEMAS_MAX:
            self._values.clear()
        made = self._make(schema)
        self._values[name] = (schema, made)
        return made
