"""Reading a table's state: a stored version with an overlay on top.

Point questions ask the overlay in memory first, and Lance only for the ids that it does not
answer. Everything else goes to a dataset that already is the combination (`views.py`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from omnigraph.storage.handles import Handles, TableVersion
from omnigraph.storage.lance_errors import explained
from omnigraph.storage.overlay import ID, Overlay, aligned, ids_of
from omnigraph.storage.rows import chunks, id_filter, reading
from omnigraph.storage.views import Views

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from lance import LanceDataset

    Filter = str | pc.Expression


def dataset(
    handles: Handles, views: Views, at: TableVersion | None, overlay: Overlay, schema: "pa.Schema | None"
) -> "LanceDataset":
    """The stored version itself if nothing lies on top of it, otherwise a private view."""
    if at is not None and overlay.is_empty:
        return handles.open(at)
    return views.get(at, overlay, schema)


def batches(
    handles: Handles,
    of: "LanceDataset",
    what: str,
    columns: Sequence[str] | None,
    row_filter: "Filter | None",
) -> "Iterator[pa.RecordBatch]":
    """The rows as they come. Holds on to the dataset, and so to a view's files, until the end."""
    fetched = len(of.schema if columns is None else columns)
    with explained(what), reading(handles, of, filtered=row_filter is not None, columns=fetched):
        scanner: Any = of.scanner(columns=None if columns is None else list(columns), filter=row_filter)
        reader = iter(scanner.to_batches())
        batch = next(reader, None)
    while batch is not None:
        yield batch
        with explained(what):
            batch = next(reader, None)
    del of


def scan(
    handles: Handles, of: "LanceDataset", what: str, columns: Sequence[str] | None, row_filter: "Filter | None"
) -> "pa.Table":
    fetched = len(of.schema if columns is None else columns)
    with explained(what), reading(handles, of, filtered=row_filter is not None, columns=fetched):
        scanner: Any = of.scanner(columns=None if columns is None else list(columns), filter=row_filter)
        table: pa.Table = scanner.to_table()
        return table


def lookup(
    handles: Handles,
    at: TableVersion | None,
    ids: Iterable[str],
    columns: Sequence[str] | None,
    overlay: Overlay,
    schema: "pa.Schema | None",
) -> "pa.Table":
    """The rows with these ids, in no particular order.

    If `schema` is given and the overlay answers for every id, Lance is not asked at all.
    """
    import pyarrow as pa

    wanted = sorted(set(ids))
    missing = [i for i in wanted if i not in overlay.shadowed] if at is not None else []
    if schema is None:
        if at is None:
            raise ValueError("rows without a stored table need a schema to be read by")
        schema = handles.open(at).schema
    whole = overlay.widened(schema)
    shape = whole if columns is None else pa.schema([whole.field(name) for name in columns])
    parts = [overlay.rows_of(wanted)]
    if at is not None and missing:
        stored = handles.open(at)
        inside = [name for name in shape.names if name in stored.schema.names] or [ID]
        parts += [scan(handles, stored, str(at), inside, id_filter(chunk)) for chunk in chunks(missing)]
    return pa.concat_tables([shape.empty_table(), *(_shaped(part, shape) for part in parts if part is not None)])


def _shaped(rows: "pa.Table", shape: "pa.Schema") -> "pa.Table":
    return aligned(rows.select([name for name in shape.names if name in rows.column_names]), shape)


def exists(handles: Handles, at: TableVersion | None, ids: Iterable[str], overlay: Overlay) -> frozenset[str]:
    """Which of these ids have a row."""
    wanted = set(ids)
    present = overlay.rows_of(wanted)
    found = frozenset(ids_of(present) if present is not None else ())
    missing = sorted(wanted - overlay.shadowed)
    if at is None or not missing:
        return found
    return found.union(*(_stored_among(handles, at, chunk) for chunk in chunks(missing)))


def _stored_among(handles: Handles, at: TableVersion, ids: Sequence[str]) -> Iterable[str]:
    """Which of these ids are stored. Counting them needs the index alone; their names, data pages.

    Usually all are there, or none: then the count says it.
    """
    stored = handles.open(at)
    with explained(str(at)), reading(handles, stored, filtered=True):
        present = stored.count_rows(filter=id_filter(ids))
    if present == len(ids):
        return ids
    if present == 0:
        return ()
    return ids_of(scan(handles, stored, str(at), [ID], id_filter(ids)))


def came_with(handles: Handles, at: TableVersion, since: TableVersion, ids: Iterable[str]) -> frozenset[str]:
    """Which of these ids are in fragments of `at` that an older version of the same table lacks.

    Fragments never gain rows, so this is all that can have come: a question about the change, not
    about the table.
    """
    before = {file.path for fragment in handles.open(since).get_fragments() for file in fragment.metadata.files}
    stored = handles.open(at)
    new = [f for f in stored.get_fragments() if not any(file.path in before for file in f.metadata.files)]
    found: set[str] = set()
    for chunk in chunks(sorted(set(ids))) if new else ():
        with explained(str(at)), reading(handles, stored, filtered=True, columns=1):
            scanner: Any = stored.scanner(columns=[ID], filter=id_filter(chunk), fragments=new)
            found.update(ids_of(scanner.to_table()))
    return frozenset(found)


def matching(handles: Handles, of: "LanceDataset", what: str, column: str, values: Iterable[str]) -> frozenset[str]:
    """Which of these values some row has in that column."""
    found: set[str] = set()
    for chunk in chunks(sorted(set(values))):
        rows = scan(handles, of, what, [column], id_filter(chunk, column))
        found.update(str(value) for value in rows.column(column).unique().to_pylist())
    return frozenset(found)
