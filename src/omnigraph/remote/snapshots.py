"""A pinned state on a server."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from omnigraph.api.models import TypeEntry
from omnigraph.errors import BadRequest
from omnigraph.remote.session import Session
from omnigraph.remote.transport import Answer, Ask
from omnigraph.remote.wire.decode import cost_in_header
from omnigraph.storage.meter import Cost

if TYPE_CHECKING:
    import pyarrow as pa

    from omnigraph.graph.graph import TypeSummary
    from omnigraph.schema.catalog import TypeDef


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """What a server said of a state: later commits do not show in it."""

    branch: str
    commit_id: str
    manifest_version: int
    types: "list[TypeSummary]"
    session: Session = field(repr=False)
    cost: Cost = field(default_factory=Cost)

    def to_arrow(self, table_key: str, columns: Sequence[str] | None = None, filter: str | None = None) -> "pa.Table":
        """The rows of one type, such as `node:Person`."""
        if filter is not None:
            raise BadRequest("A server takes no filter that is spelled out for the store: run a query instead.")
        table = self._read(table_key)
        return table if columns is None else table.select(list(columns))

    def lookup(self, table_key: str, ids: Iterable[str], columns: Sequence[str] | None = None) -> "pa.Table":
        """The rows of one type that have these ids. All rows are sent: for a few, a query is better."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self._read(table_key)
        wanted: Any = pa.array(list(dict.fromkeys(ids)), pa.string())
        mask: Any = pc.is_in(table.column("id"), value_set=wanted)
        found = table.filter(mask)
        return found if columns is None else found.select(list(columns))

    def _read(self, table_key: str) -> "pa.Table":
        """As an export has them, under the names of the store's columns."""
        import pyarrow.parquet as pq

        from omnigraph.read.export.export_formats import file_columns
        from omnigraph.schema.arrow import arrow_schema

        definition = self._definition(table_key)
        document = {
            "branch": self.branch,
            "at": self.commit_id,
            "types": [definition.name],
            "format": "parquet",
        }
        ask = Ask("POST", f"{self.session.base}/export", document=document)
        with self.session.transport.stream(ask) as response:
            data = b"".join(self.session.transport.pieces(response))
        table = pq.read_table(io.BytesIO(data))
        stored = {shown.name: shown.column for shown in file_columns(definition)}
        return table.rename_columns([stored[name] for name in table.column_names]).cast(arrow_schema(definition))

    def _definition(self, table_key: str) -> "TypeDef":
        catalog = self.session.schema_at(self.commit_id, self.branch).catalog
        found = next((entry for entry in catalog.types if entry.table_key == table_key), None)
        if found is None:
            keys = ", ".join(entry.table_key for entry in catalog.types)
            raise BadRequest(f"The schema has no table {table_key!r}: its tables are {keys}.")
        return found


def snapshot_of(session: Session, answer: Answer) -> RemoteSnapshot:
    document = answer.document
    types = [TypeEntry.decode(entry) for entry in document["types"]]
    cost = cost_in_header(answer.headers.get("omnigraph-cost"))
    return RemoteSnapshot(document["branch"], document["commit_id"], document["manifest_version"], types, session, cost)
