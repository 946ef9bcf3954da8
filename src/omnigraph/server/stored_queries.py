"""Stored queries: `.gq` files of a directory, offered by name.

Files that lie in the directory itself are for every graph, those in a subdirectory named like a graph for that one.
They are parsed when the server starts and checked against each graph's schema then, and again whenever a graph's schema
has another hash; a query that no longer fits is listed with the reason, and refused by name. What a query may do is
decided by its text once and for all: a read can't become a write.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omnigraph.errors import BadRequest, NotFound, OmnigraphError
from omnigraph.query import ast
from omnigraph.query.compile import compile_queries
from omnigraph.query.parser import parse

if TYPE_CHECKING:
    from omnigraph.manifest.commit.txn import Snapshot

SUFFIX = ".gq"
SCHEMAS_KEPT_MAX = 16

_log = logging.getLogger("omnigraph.server")


@dataclass(frozen=True, slots=True)
class StoredQueryFile:
    """A query as it was written, and what its text alone says about it."""

    name: str
    file: str
    text: str
    writes: bool
    description: str | None
    params: tuple[tuple[str, str, bool], ...]  # name, type, whether it may be left out


def read_queries(folder: Path) -> dict[str, StoredQueryFile]:
    """All queries of the files in one folder; a name that is there twice is an error of the operator's."""
    found: dict[str, StoredQueryFile] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        for query in _queries_of(path):
            if query.name in found:
                raise BadRequest(
                    f"The query {query.name} is in {found[query.name].file} and in {query.file}: rename one of them."
                )
            found[query.name] = query
    return found


def _queries_of(path: Path) -> Iterator[StoredQueryFile]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} can't be read ({type(error).__name__}): take it away, or correct it.") from error
    for declaration in parse(text, path.name).queries:
        yield StoredQueryFile(
            declaration.name,
            path.name,
            text,
            isinstance(declaration.body, ast.MutationBody),
            declaration.description,
            tuple((param.name, str(param.type), param.optional) for param in declaration.params),
        )


class StoredQueries:
    """The queries of all graphs, with what the schemas seen so far make of them."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._shared: dict[str, StoredQueryFile] = {}
        self._own: dict[str, Mapping[str, StoredQueryFile]] = {}
        self._errors: dict[tuple[str, str], Mapping[str, OmnigraphError]] = {}
        self._lock = threading.Lock()
        if folder is None:
            return
        if not folder.is_dir():
            raise BadRequest(f"{folder} is no directory: name one that holds {SUFFIX} files.")
        self._shared = read_queries(folder)
        for child in sorted(path for path in folder.iterdir() if path.is_dir()):
            self._own[child.name] = read_queries(child)

    def of_graph(self, graph_id: str) -> Mapping[str, StoredQueryFile]:
        """A graph's own go before those that are for all."""
        return {**self._shared, **self._own.get(graph_id, {})}

    def find(self, graph_id: str, name: str) -> StoredQueryFile:
        query = self.of_graph(graph_id).get(name)
        if query is None:
            raise NotFound(f"There is no stored query {name!r} for this graph: see GET /graphs/{graph_id}/queries.")
        return query

    def errors(self, graph_id: str, snapshot: "Snapshot") -> Mapping[str, OmnigraphError]:
        """What the checker says about them with this schema, by name; asked once for each schema."""
        key = (graph_id, snapshot.manifest.schema)
        with self._lock:
            known = self._errors.get(key)
        if known is not None:
            return known
        found: dict[str, OmnigraphError] = {}
        for query in self.of_graph(graph_id).values():
            try:
                compile_queries(
                    query.text,
                    snapshot.catalog,
                    query.name,
                    schema_hash=snapshot.manifest.schema,
                    source_name=query.file,
                )
            except OmnigraphError as error:
                found[query.name] = error
        for name, problem in found.items():
            fields = {"graph": graph_id, "query": name, "error": str(problem)}
            _log.warning("A stored query does not fit the schema.", extra={"fields": fields})
        with self._lock:
            while len(self._errors) >= SCHEMAS_KEPT_MAX:
                del self._errors[next(iter(self._errors))]
            self._errors[key] = found
        return found

    def require(self, graph_id: str, query: StoredQueryFile, snapshot: "Snapshot") -> None:
        """Refuse one that does not fit the schema it would run on."""
        error = self.errors(graph_id, snapshot).get(query.name)
        if error is not None:
            raise error
