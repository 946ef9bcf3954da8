"""Saved adjacency: derived state beside the version of an edge table, for processes that have just started.

Only `optimize` writes it. A query loads it or builds its own; a cleanup keeps it exactly while the table version is
marked.
"""

from dataclasses import replace

from omnigraph.maintenance.report import TypeReport
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.repository import Repository
from omnigraph.schema.definitions import TypeDef

EDGE_BYTES, NODE_BYTES = 24, 40  # about what a row takes in memory


def save_adjacency(repository: Repository, snapshot: Snapshot, report: TypeReport) -> TypeReport:
    """Save the adjacency of an edge type, unless it is there; answers the report with what became of it."""
    definition = snapshot.catalog.type_of(report.table_key)
    ref = snapshot.manifest.tables.get(report.table_key)
    if definition.kind != "edge" or ref is None or ref.stored is None or not ref.rows:
        return report
    from omnigraph.read.graph.adjacency_file import adjacency_key
    from omnigraph.read.tables.read_cache import BYTES_MAX

    if repository.store.head(adjacency_key(ref.stored)) is not None:
        return report
    ends = [snapshot.manifest.tables.get(key) for key in end_keys(definition)]
    if ref.rows * EDGE_BYTES + sum(end.rows * NODE_BYTES for end in ends if end is not None) > BYTES_MAX // 2:
        too_large = f"adjacency: {ref.rows} edges are more than a query holds in memory, it looks them up"
        return replace(report, pending=(*report.pending, too_large))
    _build_and_save(repository, snapshot, definition)
    return replace(report, adjacency=True)


def end_keys(definition: TypeDef) -> tuple[str, str]:
    return f"node:{definition.source}", f"node:{definition.target}"


def _build_and_save(repository: Repository, snapshot: Snapshot, definition: TypeDef) -> None:
    from omnigraph.read.graph.adjacency import build_adjacency
    from omnigraph.read.graph.adjacency_file import save_adjacency
    from omnigraph.read.reader import SnapshotReader
    from omnigraph.read.tables.read_cache import ReadCache
    from omnigraph.read.tables.resident_table import ResidentTable

    reader = SnapshotReader(repository.tables, snapshot, ReadCache())
    keys = (definition.table_key, *end_keys(definition))
    edges, source, target = (ResidentTable(reader.tables, reader.caches, reader.state(key)) for key in keys)
    save_adjacency(repository.store, build_adjacency(edges, source, target), edges, source, target)
