"""The layout of a table version: its fragments and index segments, as values for maintenance to decide on.

Everything is in the version file, which an open handle has, and in its index section: no row is read.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnigraph.storage.location import Location
from omnigraph.storage.table.handles import Handles, TableVersion, handles_of
from omnigraph.storage.table.index.metadata import highest_fragment, segments
from omnigraph.storage.table.lance_errors import translate_errors

if TYPE_CHECKING:
    from lance import LanceDataset


@dataclass(frozen=True, slots=True)
class FragmentLayout:
    """One fragment. `document` is equal only for the same files with the same deleted rows."""

    number: int
    rows: int  # live
    deleted: int
    size: int  # in bytes, deleted rows included
    document: str


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """One index segment, and all fragments that it was built over, including removed ones."""

    uuid: str
    index: str
    fragments: frozenset[int]


@dataclass(frozen=True, slots=True)
class TableLayout:
    fragments: tuple[FragmentLayout, ...] = ()
    segments: tuple[SegmentLayout, ...] = ()
    columns: frozenset[str] = frozenset()
    highest: int = -1  # id that a fragment ever had in this lineage

    @property
    def rows(self) -> int:
        return sum(fragment.rows for fragment in self.fragments)

    @property
    def by_number(self) -> dict[int, FragmentLayout]:
        return {fragment.number: fragment for fragment in self.fragments}

    @property
    def documents(self) -> frozenset[str]:
        return frozenset(fragment.document for fragment in self.fragments)


def read_layout(location: Location, at: TableVersion) -> TableLayout:
    handles = handles_of(location)
    dataset = handles.open(at)
    with translate_errors(str(at)):
        known = _segments(handles, dataset)
        fragments = tuple(_fragment(one.metadata) for one in dataset.get_fragments())
    used = {number for segment in known for number in segment.fragments}
    highest = max([highest_fragment(dataset), *used, *(fragment.number for fragment in fragments)])
    return TableLayout(fragments, known, frozenset(dataset.schema.names), highest)


def _segments(handles: Handles, dataset: "LanceDataset") -> tuple[SegmentLayout, ...]:
    with handles.measure(lambda made: min(made, 1)):
        return tuple(
            SegmentLayout(str(one.uuid), str(one.name), frozenset(int(number) for number in one.fragment_ids))
            for one in segments(dataset)
        )


def _fragment(metadata: Any) -> FragmentLayout:
    size = sum(int(file.file_size_bytes or 0) for file in metadata.files)
    rows, deleted = int(metadata.num_rows), int(metadata.num_deletions)
    return FragmentLayout(int(metadata.id), rows, deleted, size, fragment_document(metadata))


def fragment_document(metadata: Any) -> str:
    """A fragment's metadata as JSON with sorted keys."""
    return json.dumps(metadata.to_json(), sort_keys=True)
