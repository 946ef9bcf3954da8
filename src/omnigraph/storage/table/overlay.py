"""Overlays: the inline rows of small commits as one value on top of a stored table.

An overlay is the sum of a table's tail: row images that replace or add, and ids whose stored row is hidden. It is pure
data; `scan.py` and `view.py` combine it with Lance.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from omnigraph.errors import BadRequest
from omnigraph.schema.ipc_row import EncodedRow, same_encoder, table_of
from omnigraph.storage.table.align import widen_schema

if TYPE_CHECKING:
    import pyarrow as pa

RowChunk: TypeAlias = "pa.Table | EncodedRow"  # a part of an overlay's rows

ID = "id"  # the key column that every table has


class Overlay:
    """Upserted row images, and the ids whose stored row they or a delete have replaced.

    A stored row is visible exactly if its id is not in `hidden_ids`. Rows known to be new, because no row had their id
    when they were written, hide nothing: combining them with a table needs no lookup. Rows keep the columns of the
    commit that wrote them; columns added later read as null. `rows` is None only if no row was ever put: if all were
    removed again, an empty table still has the columns.

    Rows stay in their parts and are concatenated on first use: many lookups, such as whether a key is new, never need
    the whole table. Other derived values are computed on first use too.
    """

    __slots__ = ("_decided_ids", "_fingerprint", "_rows", "_schemas", "hidden_ids", "ids", "parts")
    EMPTY: ClassVar["Overlay"]

    def __init__(
        self,
        parts: tuple[RowChunk, ...],
        hidden_ids: frozenset[str],
        ids: frozenset[str],
        schemas: "tuple[pa.Schema, ...] | None" = None,
    ) -> None:
        self.parts: Final = parts
        self.hidden_ids: Final = hidden_ids
        self.ids: Final = ids  # of the rows
        self._schemas = schemas
        self._rows: pa.Table | None = None
        self._decided_ids: frozenset[str] | None = None
        self._fingerprint: str | None = None

    @staticmethod
    def of(upserts: "pa.Table | None" = None, deletes: Iterable[str] = (), new: bool = False) -> "Overlay":
        """The changes of one commit to one table. An id that is both deleted and upserted was replaced.

        `new` means that no row had one of the upserted ids before.
        """
        rows = upserts if upserts is not None and upserts.num_rows else None
        ids = frozenset(unique_ids(rows) if rows is not None else ())
        gone = frozenset(deletes)
        return Overlay(() if rows is None else (rows,), gone if new or not ids else gone | ids, ids)

    @staticmethod
    def of_rows(rows: "RowChunk", ids: frozenset[str], new: bool = False) -> "Overlay":
        """As `of`, for at least one row, with the ids that the caller knows, which are unique."""
        return Overlay((rows,), frozenset() if new else ids, ids)

    def as_new(self, new: bool) -> "Overlay":
        """The same rows; `new` means that no row had one of their ids before."""
        hidden = frozenset[str]() if new else self.ids
        return self if hidden == self.hidden_ids else Overlay(self.parts, hidden, self.ids)

    @property
    def single_row(self) -> EncodedRow | None:
        """The only row, if it was encoded from values and is no Arrow table yet."""
        part = self.parts[0] if len(self.parts) == 1 else None
        return part if isinstance(part, EncodedRow) else None

    @property
    def rows(self) -> "pa.Table | None":
        if not self.parts:
            return None
        if self._rows is None:
            self._rows = concat_rows(self.parts)
        return self._rows

    @property
    def decided_ids(self) -> frozenset[str]:
        """The ids whose row, or absence, the overlay decides."""
        if self._decided_ids is None:
            self._decided_ids = self.hidden_ids if self.ids <= self.hidden_ids else self.hidden_ids | self.ids
        return self._decided_ids

    @property
    def is_empty(self) -> bool:
        return not self.hidden_ids and not any(part.num_rows for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """Equal for equal content: the cache key of a view."""
        if self._fingerprint is None:
            self._fingerprint = _fingerprint(self)
        return self._fingerprint

    def compose(self, later: "Overlay") -> "Overlay":
        """This overlay with a later one on top."""
        if not later.parts and not later.hidden_ids:
            return self
        if not self.parts and not self.hidden_ids:
            return later
        overwritten = self.ids & later.decided_ids
        parts = self.parts
        if overwritten and (rows := self.rows) is not None:
            parts = (without_ids(rows, overwritten),)
        # A set operation copies the set, and a tail may be long: none for what usually changes nothing.
        hidden = self.hidden_ids | later.hidden_ids if later.hidden_ids else self.hidden_ids
        ids = self.ids
        if overwritten:
            ids -= overwritten
            # A row that was new here replaces nothing stored, however often it is written again. A removed one stays
            # hidden, so that it is not looked up in the store; so does one that is marked new a second time.
            hidden -= (overwritten & later.hidden_ids & later.ids) - self.hidden_ids
            hidden |= overwritten - later.hidden_ids
        schemas, own = self.schemas, later.schemas
        new = [one for one in own if not schemas or (one is not schemas[-1] and not one.equals(schemas[-1]))]
        return Overlay(_on_top(parts, later.parts), hidden, ids | later.ids, (*schemas, *new) if new else schemas)

    def rows_of(self, ids: Iterable[str]) -> "pa.Table | None":
        """The row images among `ids`."""
        if self.rows is None:
            return None
        there = self.ids.intersection(ids)
        return with_ids(self.rows, there) if there else self.rows.slice(0, 0)

    def widen(self, schema: "pa.Schema") -> "pa.Schema":
        """`schema`, then the columns that only the overlay's rows have, which are null in stored rows."""
        for own in self.schemas:
            schema = widen_schema(schema, own)
        return schema

    @property
    def schemas(self) -> "tuple[pa.Schema, ...]":
        """The schemas of the parts without consecutive repeats: usually all are the same."""
        if self._schemas is None:
            self._schemas = tuple([part.schema for part in self.parts])
        return self._schemas

    def columns(self, schema: "pa.Schema | None") -> "pa.Schema":
        """The columns of the overlay alone: those of `schema` first, if given."""
        if schema is not None:
            return self.widen(schema)
        if self.rows is None:
            raise ValueError("rows without a stored table need a schema to be read by")
        return self.rows.schema


def _on_top(parts: tuple[RowChunk, ...], later: tuple[RowChunk, ...]) -> tuple[RowChunk, ...]:
    if len(parts) == 1 and later and not parts[0].num_rows and parts[0].schema.equals(later[0].schema):
        return later
    return parts + later


Overlay.EMPTY = Overlay((), frozenset(), frozenset())


def unique_ids(rows: "pa.Table") -> list[str]:
    """The ids of `rows`; refuses rows without an id, or two rows with the same one."""
    if rows.schema.get_field_index(ID) < 0:
        raise BadRequest(f"rows need a column {ID!r}: it is the key of every table.")
    ids = ids_of(rows)
    if None in ids:
        raise BadRequest(f"{rows[ID].null_count} of {rows.num_rows} rows have no {ID}: give each one.")
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


def concat_rows(parts: Sequence[RowChunk]) -> "pa.Table":
    """All rows as one table; a column that a part lacks is null there, a narrower type is widened."""
    import pyarrow as pa

    tables = _as_tables(parts)
    first, *others = tables
    if all(part.schema.equals(first.schema) for part in others):
        return pa.concat_tables(tables)
    return pa.concat_tables(tables, promote_options="permissive")


def _as_tables(parts: Sequence[RowChunk]) -> "list[pa.Table]":
    """The parts as tables; consecutive single rows, the usual case, are decoded together."""
    tables: list[pa.Table] = []
    made: list[EncodedRow] = []
    for part in parts:
        if made and not (isinstance(part, EncodedRow) and same_encoder(made[0], part)):
            tables.append(table_of(made))
            made = []
        if isinstance(part, EncodedRow):
            made.append(part)
        else:
            tables.append(part)
    return [*tables, table_of(made)] if made else tables


def _id_mask(rows: "pa.Table", ids: Iterable[str]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = rows[ID]
    return pc.is_in(column, value_set=pa.array(list(ids), column.type))


def _fingerprint(overlay: Overlay) -> str:
    import pyarrow as pa

    digest = hashlib.sha256()
    for hidden_id in sorted(overlay.hidden_ids):
        encoded = hidden_id.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    if overlay.rows is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, overlay.rows.schema) as writer:
            writer.write_table(overlay.rows.combine_chunks())
        digest.update(sink.getvalue())
    return digest.hexdigest()
