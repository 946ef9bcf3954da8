"""Schemas on storage: content-addressed, so written any number of times and never changed."""

from omnigraph.errors import Damaged
from omnigraph.manifest.model.paths import schema_key
from omnigraph.schema.catalog import Schema, decode_schema
from omnigraph.storage.objects.object_store import ObjectStore


class Schemas:
    """Schemas are small, few and immutable: what was read stays in memory."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[str, Schema] = {}

    def read(self, schema_hash: str) -> Schema:
        known = self._known.get(schema_hash)
        if known is None:
            stored = self._store.get(schema_key(schema_hash))
            if stored is None:
                raise Damaged(f"schema {schema_hash}", "it is missing")
            known = self._known[schema_hash] = decode_schema(stored.data, schema_hash)
        return known

    def write(self, schema: Schema) -> str:
        self._store.put(schema_key(schema.hash), schema.encoded)
        self._known[schema.hash] = schema
        return schema.hash
