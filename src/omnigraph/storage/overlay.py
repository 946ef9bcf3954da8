"""The rows of small commits that still ride in manifests, as one value on top of a stored table.

An overlay is what a table's tail says, added up: row images that replace or add, and ids whose
stored row must not be seen. It is pure data; `reading.py` and `views.py` combine it with Lance.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from omnigraph.errors import BadRequest

if TYPE_CHECKING:
    import pyarrow as pa

ID = "id"  # the key column that every table has


@dataclass(frozen=True, slots=True, eq=False)
class Overlay:
    """Upserted row images, and the ids whose stored row they or a delete have replaced.

    `shadowed` contains the ids of `rows`: a stored row is visible exactly if its id is not in it.
    Rows keep the columns of the commit that wrote them; columns that came later read as null.
    """

    EMPTY: ClassVar["Overlay"]

    rows: "pa.Table | None"
    shadowed: frozenset[str]
    _fingerprint: list[str] = field(default_factory=list, init=False, repr=False)

    @staticmethod
    def of(upserts: "pa.Table | None" = None, deletes: Iterable[str] = ()) -> "Overlay":
        """What one commit did to one table. An id that is both deleted and upserted was replaced."""
        rows = upserts if upserts is not None and upserts.num_rows else None
        ids = unique_ids(rows) if rows is not None else []
        return Overlay(rows, frozenset(deletes).union(ids))

    @property
    def is_empty(self) -> bool:
        return not self.shadowed

    @property
    def fingerprint(self) -> str:
        """Equal for equal content: what a cached combination of table and overlay is filed under."""
        if not self._fingerprint:
            self._fingerprint.append(_digest(self))
        return self._fingerprint[0]

    def then(self, later: "Overlay") -> "Overlay":
        """This overlay with a later one on top."""
        if later.is_empty:
            return self
        if self.is_empty:
            return later
        kept = without_ids(self.rows, later.shadowed) if self.rows is not None else None
        parts = [part for part in (kept, later.rows) if part is not None and part.num_rows]
        return Overlay(stacked(parts) if parts else None, self.shadowed | later.shadowed)

    def rows_of(self, ids: Iterable[str]) -> "pa.Table | None":
        """The row images among `ids`."""
        return None if self.rows is None else with_ids(self.rows, ids)

    def widened(self, schema: "pa.Schema") -> "pa.Schema":
        """`schema`, then the columns that only the overlay's rows have."""
        for column in self.rows.schema if self.rows is not None else ():
            if column.name not in schema.names:
                schema = schema.append(column)
        return schema


Overlay.EMPTY = Overlay(None, frozenset())


def unique_ids(rows: "pa.Table") -> list[str]:
    """The ids of `rows`; refuses rows that have none or share one, which would become two truths."""
    if ID not in rows.column_names:
        raise BadRequest(f"rows need a column {ID!r}: it is the key of every table.")
    column = rows[ID]
    if column.null_count:
        raise BadRequest(f"{column.null_count} of {rows.num_rows} rows have no {ID}: give each one.")
    ids = ids_of(rows)
    if len(set(ids)) != len(ids):
        twice, _ = Counter(ids).most_common(1)[0]
        raise BadRequest(f"{ID} {twice!r} occurs more than once in the rows of one write: keep one of them.")
    return ids


def ids_of(rows: "pa.Table") -> list[str]:
    ids: list[Any] = rows[ID].to_pylist()
    return ids


def with_ids(rows: "pa.Table", ids: Iterable[str]) -> "pa.Table":
    """The rows whose id is among `ids`."""
    return rows.filter(_id_mask(rows, ids))


def without_ids(rows: "pa.Table", ids: Iterable[str]) -> "pa.Table":
    """The rows whose id is not among `ids`."""
    import pyarrow.compute as pc

    return rows.filter(pc.invert(_id_mask(rows, ids)))


def stacked(parts: Sequence["pa.Table"]) -> "pa.Table":
    """One table of all rows; a column that a part lacks is null there, a narrower type is widened."""
    import pyarrow as pa

    return pa.concat_tables(parts, promote_options="permissive")


def aligned(rows: "pa.Table", schema: "pa.Schema") -> "pa.Table":
    """`rows` with exactly the columns of `schema`, in its order; missing ones are null.

    A column that the schema does not know is refused: dropping it would lose what was written.
    """
    import pyarrow as pa

    if rows.schema.equals(schema):
        return rows
    unknown = [name for name in rows.column_names if name not in schema.names]
    if unknown:
        raise BadRequest(f"the table has no column {unknown[0]!r}: add it first, or leave it out.")
    columns = []
    for target in schema:
        if target.name not in rows.column_names:
            if not target.nullable:
                raise BadRequest(f"column {target.name!r} is required: give it a value in every row.")
            columns.append(pa.nulls(rows.num_rows, target.type))
            continue
        column = rows[target.name]
        try:
            columns.append(column if column.type.equals(target.type) else column.cast(target.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadRequest(f"column {target.name!r} is {target.type}, not {column.type}: {error}") from error
    return pa.table(columns, schema=schema)


def _id_mask(rows: "pa.Table", ids: Iterable[str]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = rows[ID]
    return pc.is_in(column, value_set=pa.array(list(ids), column.type))


def _digest(overlay: Overlay) -> str:
    import pyarrow as pa

    digest = hashlib.sha256()
    for shadowed in sorted(overlay.shadowed):
        encoded = shadowed.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    if overlay.rows is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, overlay.rows.schema) as writer:
            writer.write_table(overlay.rows.combine_chunks())
        digest.update(sink.getvalue())
    return digest.hexdigest()
