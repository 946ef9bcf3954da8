"""Row estimates that decide the order of a match: rows from the manifest's counts, filters by fixed selectivities."""

from math import prod

from omnigraph.query.ir import (
    Apply,
    Compare,
    EntityId,
    Filter,
    ListContains,
    Literal,
    Prop,
    TextContains,
    TextSearch,
    TextStartsWith,
    Traverse,
    as_condition,
)
from omnigraph.read.reader import SnapshotReader
from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.identity import canonical_text, id_from_texts
from omnigraph.schema.types import Scalar

_FLOATS = (Scalar("F32"), Scalar("F64"))  # zero has two texts
_SELECTIVITY = {"=": 0.02, "!=": 0.95, "<": 0.33, "<=": 0.33, ">": 0.33, ">=": 0.33}


def selectivity(condition: Filter, rows: int) -> float:
    """The estimated fraction of a table's rows that pass a filter."""
    match condition:
        case Compare("=", EntityId(), _) | Compare("=", _, EntityId()):
            return 1 / max(rows, 1)
        case Compare(op):
            return _SELECTIVITY[op]
        case ListContains(Literal(tuple() as values), _):
            return min(1.0, len(values) * _SELECTIVITY["="])
        case ListContains() | TextStartsWith() | TextSearch():
            return 0.05
        case TextContains() | Apply("is_null" | "ends_with" | "matches"):
            return 0.1
        case Apply("not", (arg,)):
            return max(0.05, 1 - selectivity(as_condition(arg), rows))
        case Apply("or", args):
            return min(1.0, sum(selectivity(as_condition(arg), rows) for arg in args))
        case Apply("and", args):
            return prod(selectivity(as_condition(arg), rows) for arg in args)
        case Apply():
            return 0.33


def estimate_rows(reader: SnapshotReader, table_key: str, filters: list[Filter]) -> float:
    rows = reader.state(table_key).rows
    expected = float(rows)
    for condition in filters:
        expected *= selectivity(condition, rows)
    return expected


def estimate_degree(reader: SnapshotReader, step: Traverse, backward: bool) -> float:
    """The estimated number of vertices that a traversal reaches from one vertex."""
    if step.never:
        return 0.0
    edges = reader.state(step.edge).rows
    near = max(1, reader.state(step.target_key if backward else step.source_key).rows)
    far = reader.state(step.source_key if backward else step.target_key).rows
    one = edges / near * (2 if step.undirected else 1)
    hops = step.max_hops if step.max_hops is not None else 10
    return min(float(far), sum(one**hop for hop in range(step.min_hops, min(hops, 10) + 1)))


def key_as_id(var: str, definition: TypeDef, filters: list[Filter]) -> list[Filter]:
    """The filters of a node, with equality on its complete key replaced by one filter on the id derived from it."""
    if definition.kind != "node" or not definition.key or not filters:
        return filters
    texts, used = [], []
    for name in definition.key:
        prop = definition.by_name[name]
        given = [(f, value) for f in filters if (value := _equal_constant(f, prop.column)) is not None]
        if not given or prop.type in _FLOATS:
            return filters
        try:
            texts.append(canonical_text(given[0][1].value, prop.type))
        except ValueError:
            return filters  # such as 3.0 for an integer: equal, but not the text of a key
        used.append(given[0][0])
    entity = EntityId(var, definition.table_key)
    named = Compare("=", entity, Literal(id_from_texts(texts), entity.type), "text")
    return [named, *(condition for condition in filters if condition not in used)]


def _equal_constant(condition: Filter, column: str) -> Literal | None:
    match condition:
        case Compare("=", Prop() as prop, Literal() as value) | Compare("=", Literal() as value, Prop() as prop):
            return value if prop.column.column == column else None
    return None
