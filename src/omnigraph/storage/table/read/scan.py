"""Scans of a table's content: a stored version with an overlay on top.

With an overlay, the scan reads a view of both (`view.py`). Point lookups need no view: see `point_lookup.py`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from omnigraph.storage.table.handles import Handles, TableVersion
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.read.row_addresses import measure_read
from omnigraph.storage.table.view import ViewCache

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from lance import LanceDataset

    Filter = str | pc.Expression


def dataset(
    handles: Handles, views: ViewCache, at: TableVersion | None, overlay: Overlay, schema: "pa.Schema | None"
) -> "LanceDataset":
    """The stored version itself if nothing lies on top and it has all columns, otherwise a view."""
    if at is not None and overlay.is_empty and not views.lacks_columns(at, schema):
        return handles.open(at)
    return views.get(at, overlay, schema)


def batches(
    handles: Handles,
    of: "LanceDataset",
    what: str,
    columns: Sequence[str] | None,
    row_filter: "Filter | None",
) -> "Iterator[pa.RecordBatch]":
    """The rows as batches. Keeps the dataset, and so a view's files, until the end."""
    fetched = len(of.schema if columns is None else columns)
    with translate_errors(what), measure_read(handles, of, filtered=row_filter is not None, columns=fetched):
        scanner: Any = of.scanner(columns=None if columns is None else list(columns), filter=row_filter)
        reader = iter(scanner.to_batches())
        batch = next(reader, None)
    while batch is not None:
        yield batch
        with translate_errors(what):
            batch = next(reader, None)
    del of


def scan(
    handles: Handles, of: "LanceDataset", what: str, columns: Sequence[str] | None, row_filter: "Filter | None"
) -> "pa.Table":
    fetched = len(of.schema if columns is None else columns)
    with translate_errors(what), measure_read(handles, of, filtered=row_filter is not None, columns=fetched):
        scanner: Any = of.scanner(columns=None if columns is None else list(columns), filter=row_filter)
        table: pa.Table = scanner.to_table()
        return table
