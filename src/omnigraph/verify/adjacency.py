"""Saved adjacency: where there is one for an edge table's version, it is the one that would be built."""

from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.repository import Repository
from omnigraph.schema.catalog import TypeDef
from omnigraph.verify.report import NOTICE, Findings

REMOVE = "remove the file, or run `optimize`: whoever needs it builds it from the tables"
ROWS_MAX = 20_000_000  # of edges and of nodes: numbered in memory, as queries do


def check_adjacency(found: Findings, repository: Repository, snapshot: Snapshot, edge: TypeDef) -> None:
    """Compares stored versions alone; what lies on top of them is no part of the file."""
    from omnigraph.read.graph.adjacency_file import adjacency_key

    ref = snapshot.manifest.tables[edge.table_key]
    keys = (edge.table_key, f"node:{edge.source}", f"node:{edge.target}")
    sizes = [snapshot.manifest.tables[key].rows for key in keys if key in snapshot.manifest.tables]
    if ref.stored is None or max(sizes) > ROWS_MAX or repository.store.head(adjacency_key(ref.stored)) is None:
        return
    found.count("adjacencies")
    told = _equals_rebuilt(repository, snapshot, keys)
    where = f"{edge.table_key}, {adjacency_key(ref.stored)}"
    if told is None:
        found.add(where, "the saved adjacency can't be used: it is damaged or of another format", REMOVE, NOTICE)
    elif not told:
        found.add(where, "the saved adjacency is not that of the edges", REMOVE)


def _equals_rebuilt(repository: Repository, snapshot: Snapshot, keys: tuple[str, str, str]) -> bool | None:
    """Whether the saved adjacency equals a built one; None where it is of no use."""
    import numpy as np

    from omnigraph.read.graph.adjacency import Adjacency, build_adjacency
    from omnigraph.read.graph.adjacency_file import load_adjacency
    from omnigraph.read.reader import SnapshotReader
    from omnigraph.read.tables.read_cache import ReadCache
    from omnigraph.read.tables.resident_table import ResidentTable

    caches = ReadCache()
    reader = SnapshotReader(repository.tables, snapshot, caches, store=repository.store)
    edges, source, target = (ResidentTable(repository.tables, caches, reader.state(key)) for key in keys)
    saved = load_adjacency(repository.store, edges, source, target)
    if saved is None:
        return None
    built = build_adjacency(edges, source, target)

    def arrays(of: Adjacency) -> list[object]:
        parts = [(csr.starts, csr.targets, csr.edges) for csr in (of.forward, of.backward)]
        return [array for part in parts for array in part] + [np.sort(of.loose)]

    pairs = zip(arrays(saved), arrays(built), strict=True)
    return all(np.array_equal(np.asarray(one), np.asarray(other)) for one, other in pairs)
