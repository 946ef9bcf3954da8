"""Compile query text to IR, cached: parsing would take most of the time of a point lookup.

The cache key is the text, the schema's hash and the query's name. The result depends on nothing else, so entries never
become stale. The number of entries and the size of their texts are bounded.
"""

import datetime as dt
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from threading import Lock

from omnigraph.caches import LruCache
from omnigraph.errors import BadRequest, NotFound
from omnigraph.fork_safety import renew_after_fork
from omnigraph.query import ast, ir
from omnigraph.query.bind import bind
from omnigraph.query.check.checker import check
from omnigraph.query.parser import parse
from omnigraph.schema.catalog import Catalog

ENTRIES_MAX = 1_000
TEXT_CHARS_MAX = 16_000_000


@dataclass(frozen=True, slots=True)
class CompiledQuery:
    """A query that was checked against one schema; `declaration` is its syntax tree."""

    query: ir.Query
    declaration: ast.QueryDecl

    @property
    def name(self) -> str:
        return self.query.name

    @property
    def params(self) -> tuple[ir.Param, ...]:
        return self.query.params

    def read(self) -> ir.ReadQuery:
        """The query as a read; refuses a mutation."""
        if isinstance(self.query, ir.ReadQuery):
            return self.query
        raise BadRequest(f"{self.name} writes: run it with mutate.")

    def mutation(self) -> ir.MutationQuery:
        """The query as a mutation; refuses a read."""
        if isinstance(self.query, ir.MutationQuery):
            return self.query
        raise BadRequest(f"{self.name} only reads: run it with query.")

    def bind_read(self, values: Mapping[str, object], *, now: dt.datetime) -> ir.ReadQuery:
        return bind(self.read(), values, now=now)

    def bind_mutation(self, values: Mapping[str, object], *, now: dt.datetime) -> ir.MutationQuery:
        return bind(self.mutation(), values, now=now)


def choose_query(file: ast.QueryFile, name: str | None) -> ast.QueryDecl:
    """The query of that name; the name may be omitted where there is only one query."""
    if name is None:
        if len(file.queries) == 1:
            return file.queries[0]
        raise BadRequest(f"{file.source_name} holds {len(file.queries)} queries: name one of {_names(file)}.")
    for query in file.queries:
        if query.name == name:
            return query
    raise NotFound(f"{file.source_name} has no query {name}: it has {_names(file)}.")


def _names(file: ast.QueryFile) -> str:
    shown = ", ".join(query.name for query in file.queries[:20])
    return shown + (", …" if len(file.queries) > 20 else "")


class CompileCache:
    """An LRU cache of compiled queries. Safe for threads; two threads may compile the same text at once."""

    def __init__(self, entries_max: int = ENTRIES_MAX, text_chars_max: int = TEXT_CHARS_MAX) -> None:
        self._entries_max, self._text_chars_max = entries_max, text_chars_max
        renew_after_fork(self, CompileCache._renew)

    def _renew(self) -> None:
        self._entries: LruCache[tuple[str, str | None, Hashable], tuple[CompiledQuery, Catalog]]
        self._entries = LruCache(self._entries_max, self._text_chars_max)
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def compile(
        self,
        text: str,
        catalog: Catalog,
        name: str | None = None,
        *,
        schema_hash: str | None = None,
        source_name: str = "query",
    ) -> CompiledQuery:
        # Without a hash the key is the catalog's `id()`; the entry keeps the catalog alive, so it can't be reused.
        key = (text, name, id(catalog) if schema_hash is None else schema_hash)
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                return found[0]
        file = parse(text, source_name)
        declaration = choose_query(file, name)
        compiled = CompiledQuery(check(declaration, file, catalog), declaration)
        with self._lock:
            self._entries.put(key, (compiled, catalog), len(text))
        return compiled


_SHARED = CompileCache()


def compile_queries(
    text: str,
    catalog: Catalog,
    name: str | None = None,
    *,
    schema_hash: str | None = None,
    source_name: str = "query",
) -> CompiledQuery:
    """The query `name` of a text, checked against a catalog; other queries of the text need only parse.

    With `schema_hash`, the hash of the catalog's schema, catalogs that were read separately share the result.
    """
    return _SHARED.compile(text, catalog, name, schema_hash=schema_hash, source_name=source_name)
