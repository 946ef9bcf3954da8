"""Point questions to a table's state: does this id exist, give me this row, which rows have this value.

The overlay in memory is asked first, and Lance's indexes only for what it does not answer: no combination of the two
is made. What a stored version answered is remembered (`memo.py`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from omnigraph.storage.table.handles import Handles, TableVersion
from omnigraph.storage.table.lance_errors import explained
from omnigraph.storage.table.overlay import ID, Overlay, aligned, ids_of, without_ids
from omnigraph.storage.table.read.lookup_cache import QUESTION_MAX
from omnigraph.storage.table.read.predicates import Values, isin, rows_among, value_set
from omnigraph.storage.table.read.row_addresses import chunks, id_filter, reading
from omnigraph.storage.table.read.scan import batches, scan
from omnigraph.storage.util.parallel import gather
from omnigraph.storage.util.schema_cache import SchemaCache

if TYPE_CHECKING:
    import pyarrow as pa

VALUES_MAX = 10_000  # in one filter; above it one filter after another is faster
ROWS_A_VALUE_MAX = 10  # of a table that is looked through as a whole for that many values
OTHER_VALUES_MAX = 1_000  # of the further columns of a filter: they only narrow it down


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
    missing = [i for i in wanted if i not in overlay.answered] if at is not None else []
    whole = _columns(handles, at, overlay, schema)
    shape = whole if columns is None or list(columns) == whole.names else pa.schema([whole.field(n) for n in columns])
    parts = [] if overlay.ids.isdisjoint(wanted) else [overlay.rows_of(wanted)]
    if at is not None and missing:
        parts += _stored_rows(handles, at, missing, shape.names)
    return _united(parts, shape)


def lacks(handles: Handles, at: TableVersion | None, ids: Collection[str], overlay: Overlay) -> bool:
    """Whether it is known, without asking the store, that none of these ids has a row."""
    if not overlay.ids.isdisjoint(ids):
        return False
    return at is None or not handles.memo.possible(at, [i for i in ids if i not in overlay.shadowed])


def exists(handles: Handles, at: TableVersion | None, ids: Iterable[str], overlay: Overlay) -> frozenset[str]:
    """Which of these ids have a row."""
    wanted = frozenset(ids)
    found = wanted & overlay.ids
    missing = wanted - overlay.answered
    return found if at is None or not missing else found | stored_ids(handles, at, missing)


def stored_ids(handles: Handles, at: TableVersion, ids: Collection[str]) -> frozenset[str]:
    """Which of these ids have a row in the stored version."""
    known = handles.memo.known_ids(at, ids)
    found = {i for i, there in known.items() if there}
    for chunk in chunks(sorted(i for i in ids if i not in known)):
        there = frozenset(_stored_among(handles, at, chunk))
        handles.memo.learn_ids(at, chunk, there)
        found |= there
    return frozenset(found)


def matching(
    handles: Handles, at: TableVersion | None, column: str, values: Iterable[str], overlay: Overlay
) -> frozenset[str]:
    """Which of these values some row has in that column."""
    wanted = frozenset(values)
    rows = overlay.rows
    own = wanted.intersection(rows[column].to_pylist() if rows is not None and column in rows.column_names else ())
    left = sorted(wanted - own)
    if at is None or not left or column not in handles.open(at).schema.names:
        return own
    # Ids are read only where some stored row is not to be seen.
    columns = list(dict.fromkeys([ID, column])) if overlay.shadowed else [column]
    parts = [_stored_having(handles, at, columns, ({column: chunk},)) for chunk in chunks(left)]
    visible = [without_ids(part, overlay.shadowed) if overlay.shadowed else part for part in parts]
    return own.union(*(map(str, part[column].unique().to_pylist()) for part in visible))


def having(
    handles: Handles,
    at: TableVersion | None,
    columns: Sequence[str],
    either: Sequence[Values],
    overlay: Overlay,
    schema: "pa.Schema | None",
) -> "pa.Table":
    """The rows that have, for one of `either`, one of its values in each of its columns.

    Of a question with very many values, a few rows more: they only narrow it down.
    """
    import pyarrow as pa

    nothing = at is None and schema is None and overlay.rows is None
    known = pa.schema([]) if nothing else _columns(handles, at, overlay, schema)
    shape = pa.schema([known.field(name) if name in known.names else pa.field(name, pa.null()) for name in columns])
    parts = [] if overlay.rows is None else [rows_among(overlay.rows, either)]
    asked = [values for values in either if all(values.values())]
    if at is not None and asked:
        hidden = overlay.shadowed
        names = [*columns, ID] if hidden and ID not in columns else list(columns)
        found = _stored_having(handles, at, names, asked)
        parts.append(without_ids(found, hidden) if hidden else found)
    return _united(parts, shape)


def count(handles: Handles, at: TableVersion | None, overlay: Overlay) -> int:
    """How many rows there are."""
    on_top = 0 if overlay.rows is None else int(overlay.rows.num_rows)
    if at is None:
        return on_top
    with explained(str(at)):
        stored = int(handles.open(at).count_rows())
    return stored + on_top - (len(stored_ids(handles, at, overlay.shadowed)) if overlay.shadowed else 0)


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


def _columns(handles: Handles, at: TableVersion | None, overlay: Overlay, schema: "pa.Schema | None") -> "pa.Schema":
    """The columns of the combination; Lance is not asked if the caller says what they are."""
    if at is None or schema is not None:
        return overlay.columns(schema)
    return overlay.widened(handles.open(at).schema)


def _united(parts: "Iterable[pa.Table | None]", shape: "pa.Schema") -> "pa.Table":
    import pyarrow as pa

    given = [part for part in parts if part is not None]
    found = [part for part in given if part.num_rows] or given[:1]
    return pa.concat_tables([_shaped(part, shape) for part in found]) if found else _NOTHING.get(shape)


_NOTHING = SchemaCache(lambda shape: shape.empty_table())


def _shaped(rows: "pa.Table", shape: "pa.Schema") -> "pa.Table":
    if rows.schema.equals(shape):
        return rows
    return aligned(rows.select([name for name in shape.names if name in rows.column_names]), shape)


def _stored_rows(handles: Handles, at: TableVersion, ids: Sequence[str], columns: Sequence[str]) -> "list[pa.Table]":
    """Rows by id from the stored version: those of its columns that are asked for."""
    ids = handles.memo.possible(at, ids)
    if not ids:
        return []
    stored = handles.open(at)
    inside = [name for name in columns if name in stored.schema.names] or [ID]
    if ID not in inside:
        return [_stored_having(handles, at, inside, ({ID: chunk},)) for chunk in chunks(ids)]
    missing, found = handles.memo.known_rows(at, inside, ids)
    for chunk in chunks(missing):
        rows = scan(handles, stored, str(at), inside, id_filter(chunk))
        handles.memo.learn_rows(at, inside, chunk, rows)
        found.append(rows)
    return found


def _stored_having(handles: Handles, at: TableVersion, columns: Sequence[str], either: Sequence[Values]) -> "pa.Table":
    """The rows of the stored version, with those of the columns that it has."""
    known = frozenset(handles.open(at).schema.names)
    inside = [name for name in columns if name in known] or [ID]
    asked = [values for values in either if known.issuperset(values) and not _nobody_has(handles, at, values)]
    question = (at, tuple(inside), *map(_named, asked))
    found = handles.memo.known(question)
    if found is None:
        found = _read_having(handles, at, inside, asked)
        handles.memo.learn(question, sum(map(_size, asked)), found)
        _learn_parts(handles, at, asked, found)
    return found


def _learn_parts(handles: Handles, at: TableVersion, asked: Sequence[Values], found: "pa.Table") -> None:
    """What was asked together will be asked by itself, with other columns, when the write is judged again."""
    for values in asked:
        if set(values) == {ID} and ID in found.column_names:
            handles.memo.learn_ids(at, [str(i) for i in values[ID]], frozenset(ids_of(found)))
        elif not found.num_rows:
            handles.memo.learn((at, _named(values)), _size(values), found)


def _nobody_has(handles: Handles, at: TableVersion, values: Values) -> bool:
    """Whether it is known that no stored row has these values."""
    if _size(values) > QUESTION_MAX:
        return False
    if set(values) == {ID}:
        return not handles.memo.possible(at, [str(i) for i in values[ID]])
    return handles.memo.known((at, _named(values))) is not None


def _named(values: Values) -> tuple[tuple[str, frozenset[object]], ...]:
    return tuple((name, frozenset(some)) for name, some in values.items())


def _size(values: Values) -> int:
    return sum(map(len, values.values()))


def _read_having(handles: Handles, at: TableVersion, columns: Sequence[str], either: Sequence[Values]) -> "pa.Table":
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
        return _looked_through(handles, at, columns, widest, every)
    others = {name: some for name, some in values.items() if name != widest and len(some) <= OTHER_VALUES_MAX}
    filters = [
        _all_of({widest: every[start : start + VALUES_MAX], **others}) for start in range(0, len(every), VALUES_MAX)
    ]
    return pa.concat_tables(gather([partial(read, one) for one in filters]))


def _all_of(values: Values) -> str:
    return " AND ".join(isin(name, some) for name, some in values.items())


def _looked_through(
    handles: Handles, at: TableVersion, columns: Sequence[str], column: str, values: Sequence[object]
) -> "pa.Table":
    """One pass over the table: less work than naming a good part of its values in filters."""
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
