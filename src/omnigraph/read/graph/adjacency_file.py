"""A saved adjacency: derived state beside a table, so that a cold process need not look up the ids again.

`optimize` writes it, and queries use it if it is intact. It is never authoritative: where it is missing, damaged or of
another format, the adjacency is built from the tables.
"""

import json
import zlib
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.errors import OmnigraphError
from omnigraph.read.graph.adjacency import Adjacency
from omnigraph.read.graph.csr import Csr
from omnigraph.read.tables.arrow_numpy import ArrowArray
from omnigraph.read.tables.id_index import hashes
from omnigraph.read.tables.resident_table import ResidentTable
from omnigraph.storage.objects.object_store import ObjectStore
from omnigraph.storage.table.tables import TableVersion

FORMAT = 1
_ARRAYS = ("starts", "targets", "edges", "back_starts", "back_targets", "back_edges", "loose")
_IDS = ("source_ids", "target_ids")


def adjacency_key(at: TableVersion) -> str:
    return f"tables/{at.table_id}/_adjacency/{at.table_version}.arrow"


def save_adjacency(
    store: ObjectStore, adjacency: Adjacency, edges: ResidentTable, source: ResidentTable, target: ResidentTable
) -> str:
    """Write the adjacency of stored versions, without overlays; the object's key."""
    assert edges.state.at is not None
    key = adjacency_key(edges.state.at)
    store.put(key, _encode(adjacency, edges, source, target))
    return key


def load_adjacency(
    store: ObjectStore, edges: ResidentTable, source: ResidentTable, target: ResidentTable
) -> Adjacency | None:
    """The saved adjacency of this edge table version, in the row numbers of the given node tables; None without one."""
    if edges.state.at is None:
        return None
    try:
        stored = store.get(adjacency_key(edges.state.at))
        return None if stored is None else _decode(stored.data, edges, source, target)
    except (OmnigraphError, pa.ArrowException, ValueError, KeyError, TypeError, IndexError, OverflowError):
        return None


def _versions(edges: ResidentTable, source: ResidentTable, target: ResidentTable) -> dict[str, Any]:
    return {
        name: [table.state.at.table_id, table.state.at.table_version] if table.state.at else None
        for name, table in (("edges", edges), ("source", source), ("target", target))
    }


def _encode(adjacency: Adjacency, edges: ResidentTable, source: ResidentTable, target: ResidentTable) -> bytes:
    forward, backward = adjacency.forward, adjacency.backward
    arrays = [forward.starts, forward.targets, forward.edges, backward.starts, backward.targets, backward.edges]
    arrays.append(adjacency.loose.astype(np.int32))
    columns: list[Any] = [pa.array(array) for array in arrays]
    columns += [nodes.stored.column("id") for nodes in (source, target)]
    about = {"format": FORMAT, "checksum": _checksum(columns), **_versions(edges, source, target)}
    rows = [pa.LargeListArray.from_arrays(pa.array([0, len(column)], pa.int64()), column) for column in columns]
    schema = pa.schema(
        [pa.field(name, row.type) for name, row in zip((*_ARRAYS, *_IDS), rows, strict=True)],
        metadata={"omnigraph": json.dumps(about)},
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(rows, schema=schema))
    return sink.getvalue().to_pybytes()


def _decode(data: bytes, edges: ResidentTable, source: ResidentTable, target: ResidentTable) -> Adjacency | None:
    reader = pa.ipc.open_file(pa.py_buffer(data))
    about = json.loads((reader.schema.metadata or {})[b"omnigraph"])
    expected = _versions(edges, source, target)
    if about["format"] != FORMAT or about["edges"] != expected["edges"]:
        return None
    batch: Any = reader.get_batch(0)
    columns = [batch.column(name).values for name in (*_ARRAYS, *_IDS)]
    if about["checksum"] != _checksum(columns):
        return None
    starts, targets, numbers, *back, loose = (column.to_numpy() for column in columns[: len(_ARRAYS)])
    forward = Csr(starts, targets, numbers, len(back[0]) - 1)
    if about["source"] == expected["source"] and about["target"] == expected["target"]:
        return Adjacency(forward, loose, Csr(back[0], back[1], back[2], forward.vertices))
    return None if len(loose) else _renumber(forward, columns[-2], columns[-1], source, target)


def _renumber(
    forward: Csr, source_ids: Any, target_ids: Any, source: ResidentTable, target: ResidentTable
) -> Adjacency:
    """The same edges in the row numbers of other versions of the node tables, by the ids that the file has."""
    sources = source.stored.index.find(source_ids)[forward.owners()]
    targets = target.stored.index.find(target_ids)[forward.targets]
    inside = (sources >= 0) & (targets >= 0)
    csr = Csr.build(sources[inside], targets[inside], forward.edges[inside], source.stored.rows, target.stored.rows)
    return Adjacency(csr, forward.edges[~inside].astype(np.int32))


def _checksum(columns: list[ArrowArray]) -> int:
    """Over all values."""
    total = 0
    for column in columns:
        if pa.types.is_integer(column.type):
            total = zlib.crc32(np.ascontiguousarray(column.to_numpy()).data, total)
        else:
            total = zlib.crc32(hashes(column).data, total)
    return total
