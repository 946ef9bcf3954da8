"""Partitions of a table version: groups of fragments that can be read separately, also on other machines."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.tables import Tables, TableVersion

if TYPE_CHECKING:
    import pyarrow as pa


def fragment_groups(tables: Tables, at: TableVersion, rows_max: int) -> list[tuple[int, ...]]:
    """The fragments in groups of about `rows_max` rows; one that has more is a group of its own."""
    groups: list[tuple[int, ...]] = []
    group: list[int] = []
    held = 0
    with translate_errors(str(at)):
        sizes = [(int(f.fragment_id), int(f.count_rows())) for f in tables.open(at).get_fragments()]
    for number, rows in sizes:
        if group and held + rows > rows_max:
            groups.append(tuple(group))
            group, held = [], 0
        group.append(number)
        held += rows
    return [*groups, tuple(group)] if group else groups


def fragment_batches(
    tables: Tables,
    at: TableVersion,
    fragments: Sequence[int],
    columns: Sequence[str],
    filter: str | None = None,
    schema: "pa.Schema | None" = None,
) -> "Iterator[pa.RecordBatch]":
    """The rows of some fragments that pass the filter, as batches; a column that only `schema` has is null."""
    dataset: Any = tables.dataset(at, schema=schema)
    with translate_errors(str(at)):
        chosen = [dataset.get_fragment(number) for number in fragments]
        batches = iter(dataset.scanner(columns=list(columns), filter=filter, fragments=chosen).to_batches())
    while True:
        with translate_errors(str(at)):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def row_bytes(tables: Tables, at: TableVersion, sample: int = 1_000) -> int:
    """The approximate size of a row in memory, from a sample of the first rows."""
    with translate_errors(str(at)):
        scanner: Any = tables.open(at).scanner(limit=sample)
        rows: pa.Table = scanner.to_table()
    return max(1, rows.nbytes // max(1, rows.num_rows))
