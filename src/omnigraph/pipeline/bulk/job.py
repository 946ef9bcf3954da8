"""Inputs and results of the tasks of a bulk load: values that can be pickled or written as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnigraph.manifest.model.manifest import TableKey
from omnigraph.schema.catalog import Catalog
from omnigraph.storage.location import Location
from omnigraph.storage.table.file_records import FileRecord
from omnigraph.storage.table.write.fragments import TargetTable, WrittenFragment
from omnigraph.write.load.load_options import Mode
from omnigraph.write.load.parse.parsed import IdMinter

RESULT_FORMAT = 1


@dataclass(frozen=True)
class BulkJob:
    """One pass over the input, on one base. Staged again on another base it is another job in another folder."""

    location: Location
    catalog: Catalog
    mode: Mode
    targets: Mapping[TableKey, TargetTable]
    minter: IdMinter
    folder: str  # where the answers of finished splits are put, below the root
    source_options: Mapping[str, str] = field(default_factory=dict)

    def result_key(self, split: int) -> str:
        return f"{self.folder}/{split:07d}.json"

    def side_key(self, split: int, what: str) -> str:
        """An object beside a result, for what only some splits have."""
        return f"{self.folder}/{split:07d}.{what}"


@dataclass(frozen=True)
class TableResult:
    """What a split has for one table.

    In a merge `replacing` are rows whose id is stored already and `added` those that are new; elsewhere all are added.
    """

    replacing: tuple[WrittenFragment, ...] = ()
    added: tuple[WrittenFragment, ...] = ()
    unchanged: int = 0  # rows that are stored exactly so; their ids are in the side object
    minted: int = 0  # rows whose id was made here, and that match no stored one
    seen: int = 0  # entities, taken or not
    flawed: int = 0  # rows that break a constraint by themselves; which ones is in the side object

    @property
    def rows(self) -> int:
        return sum(one.rows for one in (*self.replacing, *self.added))

    @property
    def taken(self) -> int:
        return self.rows + self.unchanged

    def to_json(self) -> dict[str, Any]:
        return {
            "replacing": [_fragment_to_json(one) for one in self.replacing],
            "added": [_fragment_to_json(one) for one in self.added],
            "unchanged": self.unchanged,
            "minted": self.minted,
            "seen": self.seen,
            "flawed": self.flawed,
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> "TableResult":
        return TableResult(
            _fragments(document["replacing"]),
            _fragments(document["added"]),
            int(document["unchanged"]),
            int(document["minted"]),
            int(document["seen"]),
            int(document["flawed"]),
        )


@dataclass(frozen=True)
class SplitResult:
    """The result of one split."""

    split: int
    lines: int  # of the input that it went over
    tables: Mapping[TableKey, TableResult] = field(default_factory=dict)
    misformed: int = 0  # lines that are no rows
    refused: int = 0  # rows that break a constraint before they are rows, a row counted for each
    cpu_s: Mapping[str, float] = field(default_factory=dict)  # CPU seconds by phase

    @property
    def rows(self) -> int:
        return sum(table.taken for table in self.tables.values())

    def encode(self) -> bytes:
        document = {
            "format": RESULT_FORMAT,
            "split": self.split,
            "lines": self.lines,
            "tables": {key: table.to_json() for key, table in self.tables.items()},
            "misformed": self.misformed,
            "refused": self.refused,
            "cpu_s": dict(self.cpu_s),
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> "SplitResult":
        document = json.loads(data)
        if document["format"] != RESULT_FORMAT:
            raise ValueError(f"format {document['format']!r}")
        tables = {str(key): TableResult.from_json(table) for key, table in document["tables"].items()}
        return SplitResult(
            int(document["split"]),
            int(document["lines"]),
            tables,
            int(document["misformed"]),
            int(document["refused"]),
            dict(document["cpu_s"]),
        )


def _fragment_to_json(fragment: WrittenFragment) -> list[Any]:
    records = {path: [record.size, record.checksum] for path, record in fragment.records}
    return [fragment.document, fragment.rows, records]


def _fragments(documents: Sequence[Sequence[Any]]) -> tuple[WrittenFragment, ...]:
    """Earlier releases stored no records."""
    return tuple(
        WrittenFragment(str(document), int(rows), _records(more[0] if more else {}))
        for document, rows, *more in documents
    )


def _records(document: Mapping[str, Sequence[Any]]) -> tuple[tuple[str, FileRecord], ...]:
    return tuple((path, FileRecord(int(size), str(checksum))) for path, (size, checksum) in document.items())
