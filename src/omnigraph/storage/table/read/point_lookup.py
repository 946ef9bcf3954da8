"""Point lookups in a table's content: whether an id exists, rows by id, rows by value.

The overlay in memory is consulted first, then Lance's indexes for what it does not decide; no view is built. Results of
stored versions are cached (`lookup_cache.py`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.handles import Handles, TableVersion
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.overlay import ID, Overlay, ids_of, without_ids
from omnigraph.storage.table.read.lookup_cache import LOOKUP_VALUES_MAX
from omnigraph.storage.table.read.predicates import ColumnValues, filter_rows, sql_in, value_set
from omnigraph.storage.table.read.row_addresses import id_batches, id_filter, measure_read
from omnigraph.storage.table.read.scan import batches, scan
from omnigraph.storage.util.schema_cache import SchemaCache
from omnigraph.threads import gather

if TYPE_CHECKING:
    import pyarrow as pa

VALUES_MAX = 10_000  # in one filter; above it one filter after another is faster
ROWS_A_VALUE_MAX = 10  # of a table that is scanned for that many values
OTHER_VALUES_MAX = 1_000  # of the further columns of a filter: they only narrow the result


def lookup(
    handles: Handles,
    at: TableVersion | None,
    ids: Iterable[str],
    columns: Sequence[str] | None,
    overlay: Overlay,
    schema: "pa.Schema | None",
) -> "pa.Table":
    """The rows with these ids, in no particular order.

    With `schema`, nothing is requested if the overlay decides every id.
    """
    import pyarrow as pa

    wanted = sorted(set(ids))
    missing = [i for i in wanted if i not in overlay.decided_ids] if at is not None else []
    whole = _columns(handles, at, overlay, schema)
    shape = whole if columns is None or list(columns) == whole.names else pa.schema([whole.field(n) for n in columns])
    parts = [] if overlay.ids.isdisjoint(wanted) else [overlay.rows_of(wanted)]
    if at is not None and missing:
        parts += _stored_rows(handles, at, missing, shape.names)
    return _concat(parts, shape)


def exists(handles: Handles, at: TableVersion | None, ids: Iterable[str], overlay: Overlay) -> frozenset[str]:
    """Which of these ids have a row."""
    wanted = frozenset(ids)
    found = wanted & overlay.ids
    missing = wanted - overlay.decided_ids
    return found if at is None or not missing else found | stored_ids(handles, at, missing)


def stored_ids(handles: Handles, at: TableVersion, ids: Collection[str]) -> frozenset[str]:
    """Which of these ids have a row in the stored version."""
    known = handles.lookup_cache.get_ids(at, ids)
    found = {i for i, there in known.items() if there}
    for chunk in id_batches(sorted(i for i in ids if i not in known)):
        there = frozenset(_stored_among(handles, at, chunk))
        handles.lookup_cache.add_ids(at, chunk, there)
        found |= there
    return frozenset(found)


def present_values(
    handles: Handles, at: TableVersion | None, column: str, values: Iterable[str], overlay: Overlay
) -> frozenset[str]:
    """Which of these values some row has in that column."""
    wanted = frozenset(values)
    rows = overlay.rows
    own = wanted.intersection(rows[column].to_pylist() if rows is not None and column in rows.column_names else ())
    left = sorted(wanted - own)
    if at is None or not left or column not in handles.open(at).schema.names:
        return own
    # Ids are read only if some stored rows are hidden.
    columns = list(dict.fromkeys([ID, column])) if overlay.hidden_ids else [column]
    parts = [_find_stored(handles, at, columns, ({column: chunk},)) for chunk in id_batches(left)]
    visible = [without_ids(part, overlay.hidden_ids) if overlay.hidden_ids else part for part in parts]
    return own.union(*(map(str, part[column].unique().to_pylist()) for part in visible))


def find_rows(
    handles: Handles,
    at: TableVersion | None,
    columns: Sequence[str],
    either: Sequence[ColumnValues],
    overlay: Overlay,
    schema: "pa.Schema | None",
) -> "pa.Table":
    """The rows that match one of `either`: one of its values in each of its columns.

    For very many values perhaps a few rows more, since further columns only narrow the result.
    """
    import pyarrow as pa

    nothing = at is None and schema is None and overlay.rows is None
    known = pa.schema([]) if nothing else _columns(handles, at, overlay, schema)
    shape = pa.schema([known.field(name) if name in known.names else pa.field(name, pa.null()) for name in columns])
    parts = [] if overlay.rows is None else [filter_rows(overlay.rows, either)]
    asked = [values for values in either if all(values.values())]
    if at is not None and asked:
        hidden = overlay.hidden_ids
        names = [*columns, ID] if hidden and ID not in columns else list(columns)
        found = _find_stored(handles, at, names, asked)
        parts.append(without_ids(found, hidden) if hidden else found)
    return _concat(parts, shape)


def count(handles: Handles, at: TableVersion | None, overlay: Overlay) -> int:
    """How many rows there are."""
    on_top = 0 if overlay.rows is None else int(overlay.rows.num_rows)
    if at is None:
        return on_top
    with translate_errors(str(at)):
        stored = int(handles.open(at).count_rows())
    return stored + on_top - (len(stored_ids(handles, at, overlay.hidden_ids)) if overlay.hidden_ids else 0)


def written_since(handles: Handles, at: TableVersion, since: TableVersion, ids: Iterable[str]) -> frozenset[str]:
    """Which of these ids are in fragments of `at` that an older version of the same table lacks.

    Fragments never gain rows, so these are all new rows: the cost is that of the change, not of the table.
    """
    before = {file.path for fragment in handles.open(since).get_fragments() for file in fragment.metadata.files}
    stored = handles.open(at)
    new = [f for f in stored.get_fragments() if not any(file.path in before for file in f.metadata.files)]
    found: set[str] = set()
    for chunk in id_batches(sorted(set(ids))) if new else ():
        with translate_errors(str(at)), measure_read(handles, stored, filtered=True, columns=1):
            scanner: Any = stored.scanner(columns=[ID], filter=id_filter(chunk), fragments=new)
            found.update(ids_of(scanner.to_table()))
    return frozenset(found)


def _columns(handles: Handles, at: TableVersion | None, overlay: Overlay, schema: "pa.Schema | None") -> "pa.Schema":
    """The columns of version and overlay together; no request if the caller passes them."""
    if at is None or schema is not None:
        return overlay.columns(schema)
    return overlay.widen(handles.open(at).schema)


def _concat(parts: "Iterable[pa.Table | None]", shape: "pa.Schema") -> "pa.Table":
    import pyarrow as pa

    given = [part for part in parts if part is not None]
    found = [part for part in given if part.num_rows] or given[:1]
    if not found:
        return _EMPTY_TABLES.get(shape)
    return pa.concat_tables([align_table(part, shape, drop_unknown=True) for part in found])


_EMPTY_TABLES = SchemaCache(lambda shape: shape.empty_table())


def _stored_rows(handles: Handles, at: TableVersion, ids: Sequence[str], columns: Sequence[str]) -> "list[pa.Table]":
    """Rows by id from the stored version, with those of the columns that it has."""
    ids = handles.lookup_cache.possibly_present(at, ids)
    if not ids:
        return []
    stored = handles.open(at)
    inside = [name for name in columns if name in stored.schema.names] or [ID]
    if ID not in inside:
        return [_find_stored(handles, at, inside, ({ID: chunk},)) for chunk in id_batches(ids)]
    missing, found = handles.lookup_cache.get_rows(at, inside, ids)
    for chunk in id_batches(missing):
        rows = scan(handles, stored, str(at), inside, id_filter(chunk))
        handles.lookup_cache.add_rows(at, inside, chunk, rows)
        found.append(rows)
    return found


def _find_stored(
    handles: Handles, at: TableVersion, columns: Sequence[str], either: Sequence[ColumnValues]
) -> "pa.Table":
    """The matching rows of the stored version, with those of the columns that it has."""
    known = frozenset(handles.open(at).schema.names)
    inside = [name for name in columns if name in known] or [ID]
    asked = [values for values in either if known.issuperset(values) and not _known_empty(handles, at, values)]
    key = (at, tuple(inside), *map(_frozen_values, asked))
    found = handles.lookup_cache.get(key)
    if found is None:
        found = _read_stored(handles, at, inside, asked)
        handles.lookup_cache.add(key, sum(map(_size, asked)), found)
        _cache_parts(handles, at, asked, found)
    return found


def _cache_parts(handles: Handles, at: TableVersion, asked: Sequence[ColumnValues], found: "pa.Table") -> None:
    """Cache each condition by itself too: a revalidation looks it up alone, with other columns."""
    for values in asked:
        if set(values) == {ID} and ID in found.column_names:
            handles.lookup_cache.add_ids(at, [str(i) for i in values[ID]], frozenset(ids_of(found)))
        elif not found.num_rows:
            handles.lookup_cache.add((at, _frozen_values(values)), _size(values), found)


def _known_empty(handles: Handles, at: TableVersion, values: ColumnValues) -> bool:
    """Whether it is known that no stored row matches."""
    if _size(values) > LOOKUP_VALUES_MAX:
        return False
    if set(values) == {ID}:
        return not handles.lookup_cache.possibly_present(at, [str(i) for i in values[ID]])
    return handles.lookup_cache.get((at, _frozen_values(values))) is not None


def _frozen_values(values: ColumnValues) -> tuple[tuple[str, frozenset[object]], ...]:
    return tuple((name, frozenset(some)) for name, some in values.items())


def _size(values: ColumnValues) -> int:
    return sum(map(len, values.values()))


def _read_stored(
    handles: Handles, at: TableVersion, columns: Sequence[str], either: Sequence[ColumnValues]
) -> "pa.Table":
    import pyarrow as pa

    stored = handles.open(at)
    if not either:
        return pa.schema([stored.schema.field(name) for name in columns]).empty_table()
    read: Callable[[str], pa.Table] = partial(scan, handles, stored, str(at), columns)
    if len(either) > 1:
        return read(" OR ".join(f"({_all_of(values)})" for values in either))
    (values,) = either
    widest = max(values, key=lambda name: len(values[name]))
    every = list(values[widest])
    if len(every) > VALUES_MAX and stored.count_rows() <= len(every) * ROWS_A_VALUE_MAX:
        return _scan_for(handles, at, columns, widest, every)
    others = {name: some for name, some in values.items() if name != widest and len(some) <= OTHER_VALUES_MAX}
    filters = [
        _all_of({widest: every[start : start + VALUES_MAX], **others}) for start in range(0, len(every), VALUES_MAX)
    ]
    return pa.concat_tables(gather([partial(read, one) for one in filters]))


def _all_of(values: ColumnValues) -> str:
    return " AND ".join(sql_in(name, some) for name, some in values.items())


def _scan_for(
    handles: Handles, at: TableVersion, columns: Sequence[str], column: str, values: Sequence[object]
) -> "pa.Table":
    """One pass over the table: cheaper than filters that name a good part of its values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stored = handles.open(at)
    read = list(dict.fromkeys([*columns, column]))
    wanted = value_set(values, stored.schema.field(column).type)
    found = [pa.schema([stored.schema.field(name) for name in read]).empty_table()]
    for batch in batches(handles, stored, str(at), read, None):
        table = pa.table(batch)
        found.append(table.filter(pc.is_in(table.column(column), value_set=wanted)))
    return pa.concat_tables(found).select(list(columns))


def _stored_among(handles: Handles, at: TableVersion, ids: Sequence[str]) -> Iterable[str]:
    """Which of these ids are stored. Counting reads the index alone; reading ids needs data pages.

    Usually all exist or none: then the count is enough.
    """
    stored = handles.open(at)
    with translate_errors(str(at)), measure_read(handles, stored, filtered=True):
        present = stored.count_rows(filter=id_filter(ids))
    if present == len(ids):
        return ids
    if present == 0:
        return ()
    return ids_of(scan(handles, stored, str(at), [ID], id_filter(ids)))
