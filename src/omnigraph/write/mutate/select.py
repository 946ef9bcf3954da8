"""The rows that a mutation's `where` selects: of a table's content with what the mutation has written so far on top."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from omnigraph.errors import BadRequest
from omnigraph.query.ir import Compare, EntityId, Filter, Literal, Prop
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.identity import canonical_text
from omnigraph.storage.table.overlay import Overlay, align_table, without_ids
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables

if TYPE_CHECKING:
    import pyarrow as pa


def select(
    tables: Tables,
    content: TableContent | None,
    overlay: Overlay,
    definition: TypeDef,
    condition: Filter,
    columns: Sequence[str] | None = None,
) -> "pa.Table":
    """All rows that pass, with these columns or all."""
    from omnigraph.schema.arrow import arrow_schema

    schema = arrow_schema(definition)
    wanted = list(schema.names if columns is None else columns)
    if content is None and overlay.rows is None:
        return schema.empty_table().select(wanted)
    entity = _named_id(definition, condition)
    if entity is not None:
        return tables.lookup(content, [entity], wanted, overlay, schema)
    return _filtered(tables, content, overlay, definition, condition, wanted, schema)


def _filtered(
    tables: Tables,
    content: TableContent | None,
    overlay: Overlay,
    definition: TypeDef,
    condition: Filter,
    wanted: list[str],
    schema: "pa.Schema",
) -> "pa.Table":
    """Lance filters where it does so exactly; otherwise rows come in batches and are judged here."""
    import pyarrow as pa

    from omnigraph.read.match.filters import columns_of, filter_table, lance_filter

    def passing(rows: "pa.Table") -> "pa.Table":
        return rows.filter(pa.array(filter_table(condition, rows))).select(wanted)

    pushed = lance_filter(condition, definition)
    if pushed is not None:
        return _pushed(tables, content, overlay, schema, wanted, pushed, passing)
    read = list(dict.fromkeys([*wanted, *columns_of(condition)]))
    shape = pa.schema([schema.field(name) for name in wanted])
    parts = [shape.empty_table()]
    for batch in tables.batches(content, read, None, overlay, schema):
        table = pa.table(batch)
        parts.append(passing(table))
    return pa.concat_tables(parts)


def _pushed(
    tables: Tables,
    content: TableContent | None,
    overlay: Overlay,
    schema: "pa.Schema",
    wanted: list[str],
    predicate: str,
    passing: "Callable[[pa.Table], pa.Table]",
) -> "pa.Table":
    """Without a view: stored rows by the predicate, through whatever index there is, those on top by `passing`."""
    import pyarrow as pa

    at, own = tables.resolve(content)
    above = own.compose(overlay)
    shape = pa.schema([schema.field(name) for name in wanted])
    parts = [shape.empty_table()]
    if above.rows is not None:
        known = [name for name in schema.names if name in above.rows.column_names]
        parts.append(passing(align_table(above.rows.select(known), schema)))
    if at is not None:
        stored = tables.scan(at, list(dict.fromkeys([*wanted, "id"])), predicate)
        parts.append((without_ids(stored, above.hidden_ids) if above.hidden_ids else stored).select(wanted))
    return pa.concat_tables(parts)


def _named_id(definition: TypeDef, condition: Filter) -> str | None:
    """The one id that can pass, where the filter says it: by the id itself, or by a key of one property."""
    if not isinstance(condition, Compare) or condition.op != "=" or not isinstance(condition.right, Literal):
        return None
    value = condition.right.value
    match condition.left:
        case EntityId():
            return value if isinstance(value, str) else None
        case Prop(column=column) if definition.key == (column.name,):
            try:
                named = canonical_text(value, column.type)
            except (ValueError, BadRequest):
                return None  # a number of another type, which compares by value
            return named if condition.domain == "text" or isinstance(value, int) else None
    return None
