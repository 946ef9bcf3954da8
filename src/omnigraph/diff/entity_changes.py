"""Changes of single nodes and edges: what was inserted, updated and deleted, with the images before and after."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from omnigraph.schema.definitions import ID, Kind, TypeDef
from omnigraph.storage.table.diff.equality import equal_values
from omnigraph.storage.table.diff.row_diff import Difference

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    RowNumbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

ChangeOperation: TypeAlias = Literal["insert", "update", "delete"]
OPERATIONS: tuple[ChangeOperation, ...] = ("insert", "update", "delete")
KINDS: tuple[Kind, ...] = ("node", "edge")
Image: TypeAlias = Mapping[str, Any]
ChangePosition: TypeAlias = tuple[str, str, str, str]  # kind, type name, type id and id of a change: the sort order
BATCH_ROWS = 4096  # rows that are Python objects at a time


@dataclass(frozen=True, slots=True)
class EntityChange:
    """One changed node or edge. An image has `id`, an edge's `src` and `dst`, and every property by name."""

    operation: ChangeOperation
    kind: Kind
    type_name: str
    id: str
    before: Image | None
    after: Image | None
    changed: tuple[str, ...] = ()  # the properties that an update changed, and an edge's ends
    type_id: str = field(default="", repr=False, compare=False)  # tells apart two types with one name
    printers: Mapping[str, Any] = field(
        default_factory=dict, repr=False, compare=False
    )  # of properties that JSON lacks

    @property
    def position(self) -> ChangePosition:
        return self.kind, self.type_name, self.type_id, self.id

    def to_json(self) -> dict[str, Any]:
        """As JSON, with values as in exports."""
        return {
            "operation": self.operation,
            "kind": self.kind,
            "type_name": self.type_name,
            "id": self.id,
            "before": _print_values(self.before, self.printers),
            "after": _print_values(self.after, self.printers),
            "changed": list(self.changed),
        }


def parse_position(stored: Sequence[Any]) -> ChangePosition:
    kind, type_name, type_id, entity = map(str, stored)
    return kind, type_name, type_id, entity


def entity_changes(found: Difference, definition: TypeDef, after: str | None = None) -> Iterator[EntityChange]:
    """The changes of one type, ordered by id; only those after the id `after`, if given."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = [chunk for side in (found.before, found.after) for chunk in side.column(ID).chunks]
    ids: Any = pa.chunked_array(chunks, pa.string()).unique()
    if after is not None:
        ids = ids.filter(pc.greater(ids, pa.scalar(after, pa.string())))
    ids = ids.take(pc.sort_indices(ids))
    was, now = (row_numbers(ids, side) for side in (found.before, found.after))
    for start in range(0, len(ids), BATCH_ROWS):
        part = slice(start, start + BATCH_ROWS)
        yield from _changes_of_batch(found, was[part], now[part], definition)


def _changes_of_batch(
    found: Difference, was: "RowNumbers", now: "RowNumbers", definition: TypeDef
) -> Iterator[EntityChange]:
    import numpy as np

    names = {definition.column(name): name for name in (*definition.physical_columns, *definition.by_name)}
    printers = _printers(definition)
    before, after = found.before.take(was[was >= 0]), found.after.take(now[now >= 0])
    befores, afters = (iter(_rows_as_dicts(rows, names)) for rows in (before, after))
    both = np.flatnonzero((was >= 0) & (now >= 0))
    changed = _changed_properties(found.before.take(was[both]), found.after.take(now[both]), names)
    updates = iter(changed)
    for at_before, at_after in zip(was.tolist(), now.tolist(), strict=True):
        old = next(befores) if at_before >= 0 else None
        new = next(afters) if at_after >= 0 else None
        operation: ChangeOperation = "insert" if old is None else "delete" if new is None else "update"
        image = new or old
        assert image is not None
        yield EntityChange(
            operation,
            definition.kind,
            definition.name,
            image[ID],
            old,
            new,
            next(updates) if operation == "update" else (),
            definition.id,
            printers,
        )


def row_numbers(ids: Any, rows: "pa.Table") -> "RowNumbers":
    """The row number of each id; -1 where there is none."""
    import numpy as np
    import pyarrow.compute as pc

    found = pc.fill_null(pc.index_in(ids, value_set=rows.column(ID).combine_chunks()), -1)
    return np.asarray(found).astype(np.int64)


def _rows_as_dicts(rows: "pa.Table", names: Mapping[str, str]) -> list[Image]:
    columns = [rows.column(column).to_pylist() for column in names]
    return [dict(zip(names.values(), values, strict=True)) for values in zip(*columns, strict=True)]


def _changed_properties(before: "pa.Table", after: "pa.Table", names: Mapping[str, str]) -> list[tuple[str, ...]]:
    found: list[list[str]] = [[] for _ in range(before.num_rows)]
    for column, name in names.items():
        for row in (~equal_values(before.column(column), after.column(column))).nonzero()[0].tolist():
            found[row].append(name)
    return [tuple(changed) for changed in found]


def _printers(definition: TypeDef) -> Mapping[str, Any]:
    from omnigraph.read.project.render import converter

    found = {prop.name: converter(prop.type) for prop in definition.properties}
    return {name: convert for name, convert in found.items() if convert is not None}


def _print_values(image: Image | None, printers: Mapping[str, Any]) -> dict[str, Any] | None:
    if image is None:
        return None
    return {
        name: value if value is None or name not in printers else printers[name](value) for name, value in image.items()
    }
