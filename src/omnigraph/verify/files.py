"""Compares table files with what manifests recorded of them when they were written.

The record of a file is in the manifest for which it was written, on whatever branch that was, or in the stub that a
cleanup left of it. History is read from its newest objects backwards, and only until all wanted records are found.
"""

from collections.abc import Iterator
from functools import partial

from omnigraph.manifest.model.manifest import NO_FILES, Entry, Point
from omnigraph.manifest.model.paths import MANIFESTS, manifest_number
from omnigraph.manifest.repository import Repository
from omnigraph.storage.objects.object_store import ObjectInfo
from omnigraph.storage.table.file_records import ETAG, SHA256, FileRecord, etag_record, hash_file
from omnigraph.storage.table.maintain.inspect import NamedFile
from omnigraph.storage.util.parallel import gather
from omnigraph.verify.report import Findings

READ_AT_ONCE = 64  # manifests and stubs


class FileChecks:
    """Compares files with their records; each record is searched for once."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._records: dict[str, FileRecord] = {}  # by key
        self._history: Iterator[list[Point]] | None = None

    def check(self, found: Findings, place: str, file: NamedFile, listed: ObjectInfo) -> None:
        """Add a problem where the file is not what was written."""
        record = self._find_record(found, file.key)
        if record is None:
            found.count("files_not_recorded")
        elif record.size != listed.size:
            found.add(place, f"the {file.what} {file.key} has {listed.size:,} bytes instead of {record.size:,}")
        else:
            self._compare_checksum(found, place, file, listed, record)

    def _compare_checksum(
        self, found: Findings, place: str, file: NamedFile, listed: ObjectInfo, record: FileRecord
    ) -> None:
        local = self._repository.location.is_local
        if not record.checksum.startswith(SHA256 if local else ETAG):
            found.count("files_not_recorded")  # the graph was copied here from another kind of store
            return
        found.count("files_compared")
        if local:
            now: FileRecord | None = hash_file(self._repository.location.path / file.key)
        else:
            now = etag_record(listed.size, listed.etag)
        if now != record:
            what = "SHA-256" if local else "ETag"
            found.add(
                place,
                f"the {file.what} {file.key} has changed since it was written: its {what} is not the recorded one",
            )

    def _find_record(self, found: Findings, key: str) -> FileRecord | None:
        if self._history is None:
            self._history = self._newest_first()
        while key not in self._records and (points := next(self._history, None)) is not None:
            for entry, problems in gather([partial(self._read, point) for point in points]):
                found.absorb(problems)
                for table_id, files in (NO_FILES if entry is None else entry.files).items():
                    for path, record in files.items():
                        self._records.setdefault(f"tables/{table_id}/{path}", record)
        return self._records.get(key)

    def _newest_first(self) -> Iterator[list[Point]]:
        """All manifests and stubs, those of branches that have ended included, some at a time."""
        known = [
            (listed.modified, listed.key.split("/")[1], number)
            for listed in self._repository.store.list(MANIFESTS)
            if (number := manifest_number(listed.key)) is not None
        ]
        known.sort(reverse=True)
        for start in range(0, len(known), READ_AT_ONCE):
            yield [Point(branch_id, number) for _, branch_id, number in known[start : start + READ_AT_ONCE]]

    def _read(self, point: Point) -> tuple[Entry | None, Findings]:
        problems = Findings()
        with problems.catching(f"manifest {point.manifest_version} of branch id {point.branch_id}"):
            return self._repository.manifests.read(point), problems
        return None, problems
