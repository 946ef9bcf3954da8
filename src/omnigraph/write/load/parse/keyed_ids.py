"""Ids of keyed rows for whole columns: the same ids as `schema/identity.py` gives, but faster."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.identity import canonical_text, id_from_texts
from omnigraph.schema.types import INTEGER_BOUNDS, Enumeration, PropertyType, Scalar

if TYPE_CHECKING:
    import pyarrow as pa

_ESCAPED_IN_JSON = r'[\x00-\x1f"\\]'


def derive_ids(definition: TypeDef, columns: "Mapping[str, Any] | pa.Table") -> Any:
    """The ids of rows from the columns of their key; null if a part of the key is null or not finite.

    The type must have a key.
    """
    texts: list[Any] = []
    for name in definition.key:
        prop = definition.by_name[name]
        texts.append(_canonical_texts(_column_array(columns, prop.column), prop.type))
    return texts[0] if len(texts) == 1 else _composite_ids(texts)


def _column_array(columns: Any, name: str) -> Any:
    import pyarrow as pa

    column = columns.column(name) if isinstance(columns, pa.Table) else columns[name]
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _canonical_texts(column: Any, kind: PropertyType) -> Any:
    """The canonical texts of the values of a column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(kind, Enumeration) or kind == Scalar("String"):
        return column
    match kind:
        case Scalar("Bool"):
            return pc.if_else(column, "true", "false")
        case Scalar(name) if name in INTEGER_BOUNDS or name == "Date":
            return column.cast(pa.string())
        case Scalar("DateTime"):
            return pc.replace_substring(column.cast(pa.string()), " ", "T")
        case _:
            return pa.array([_canonical_or_none(value, kind) for value in column.to_pylist()], pa.string())


def _canonical_or_none(value: Any, kind: PropertyType) -> str | None:
    try:
        return None if value is None else canonical_text(value, kind)
    except ValueError:
        return None


def _composite_ids(texts: list[Any]) -> Any:
    """JSON arrays of texts. Texts with a character that JSON escapes go through the JSON encoder."""
    import pyarrow as pa
    import pyarrow.compute as compute

    pc: Any = compute
    joined = pc.binary_join_element_wise('["', pc.binary_join_element_wise(*texts, '","'), '"]', "")
    escaped = pc.match_substring_regex(texts[0], _ESCAPED_IN_JSON)
    for text in texts[1:]:
        escaped = pc.or_(escaped, pc.match_substring_regex(text, _ESCAPED_IN_JSON))
    escaped = pc.fill_null(escaped, False)
    if not pc.any(escaped, min_count=0).as_py():
        return joined
    rows = zip(*(text.filter(escaped).to_pylist() for text in texts), strict=True)
    encoded = pa.array([None if None in row else id_from_texts(row) for row in rows], pa.string())
    return pc.replace_with_mask(joined, escaped, encoded)
