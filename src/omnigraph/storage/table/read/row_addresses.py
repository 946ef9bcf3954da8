"""Row addresses by id within one Lance dataset."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from omnigraph.storage.table.handles import Handles, TableVersion
from omnigraph.storage.table.index.metadata import has_indexes
from omnigraph.storage.table.overlay import ID

if TYPE_CHECKING:
    from lance import LanceDataset

# Up to here one filter with all ids is fastest, with or without an index; above it, one pass over the id column.
FILTER_IDS_MAX = 10_000
LOOKUP_STAGES_MAX = 8  # version file, index, its pages, deletion file, data file: when nothing is cached
SCAN_STAGES_MAX = 4  # deletion file, then metadata and pages of a data file


def measure_read(
    handles: Handles, dataset: "LanceDataset", *, filtered: bool, columns: int = 0
) -> AbstractContextManager[None]:
    """Charge a read's serial stages to the open accounts; `columns` is the number of columns fetched.

    Stages depend on what Lance has cached and runs concurrently. Lance exposes only the number of requests, and the
    stages are derived from that.
    """

    def stages(made: int) -> int:
        if made <= 1:
            return made
        if not (filtered and has_indexes(dataset)):  # fragments are read concurrently
            return min(math.ceil(made / max(1, len(dataset.get_fragments()))), SCAN_STAGES_MAX)
        if handles.first_use(dataset.uri):  # the index is opened step by step
            return min(made, LOOKUP_STAGES_MAX)
        # A warm index: its pages concurrently, unless all are cached, then the columns concurrently.
        return 1 if columns == 0 or made <= columns else 2

    return handles.measure(stages)


def id_filter(ids: Iterable[str], column: str = ID) -> str:
    """A predicate for rows with these ids. Ids are arbitrary text; a quote is the only special character."""
    return f"{column} IN ({', '.join(_quoted(i) for i in ids)})"


def row_addresses(handles: Handles, dataset: "LanceDataset", ids: Sequence[str]) -> dict[int, list[int]]:
    """The offsets of the live rows with these ids, by fragment id."""
    found: dict[int, list[int]] = defaultdict(list)
    if not ids or not dataset.count_rows():
        return found
    with measure_read(handles, dataset, filtered=len(ids) <= FILTER_IDS_MAX):
        for addresses in _matching_addresses(dataset, ids):
            for address in addresses.to_pylist():
                found[address >> 32].append(address & 0xFFFFFFFF)
    return dict(found)


def cached_row_addresses(handles: Handles, at: TableVersion, ids: Iterable[str]) -> dict[int, list[int]]:
    """As `row_addresses`, of a stored version, through the lookup cache."""
    missing, known = handles.lookup_cache.get_addresses(at, frozenset(ids))
    found: dict[int, list[int]] = defaultdict(list)
    for address in known:
        found[address >> 32].append(address & 0xFFFFFFFF)
    if missing:
        come = row_addresses(handles, handles.open(at), missing)
        handles.lookup_cache.add_addresses(
            at, missing, [(f << 32) | offset for f, offsets in come.items() for offset in offsets]
        )
        for fragment, offsets in come.items():
            found[fragment] += offsets
    return dict(found)


def id_batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), FILTER_IDS_MAX):
        yield ids[start : start + FILTER_IDS_MAX]


def _matching_addresses(dataset: "LanceDataset", ids: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(ids) <= FILTER_IDS_MAX:
        scanner: Any = dataset.scanner(columns=[], filter=id_filter(ids), with_row_address=True)
        for batch in scanner.to_batches():
            yield batch.column("_rowaddr")
        return
    wanted = pa.array(ids, dataset.schema.field(ID).type)
    scanner = dataset.scanner(columns=[ID], with_row_address=True)
    for batch in scanner.to_batches():
        yield batch.column("_rowaddr").filter(pc.is_in(batch.column(ID), value_set=wanted))


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
