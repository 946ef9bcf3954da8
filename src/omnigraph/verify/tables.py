"""Tables of a manifest: stored versions with all their files, tails, and row counts.

With `full`, files are compared with the size and checksum that were recorded when they were written. The record is in
the manifest for which a file was written, on whatever branch, or in the stub that a cleanup left of it. History is read
from its newest objects backwards, until all wanted records are found.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

from omnigraph.manifest.model.manifest import NO_FILES, Entry, Manifest, Point, Stub, TableRef
from omnigraph.manifest.model.paths import MANIFESTS, commit_id, manifest_number
from omnigraph.manifest.model.table_columns import lacking_property
from omnigraph.manifest.repository import Repository
from omnigraph.schema.definitions import TypeDef
from omnigraph.storage.objects.object_store import ObjectInfo
from omnigraph.storage.table.file_records import ETAG, SHA256, FileRecord, etag_record, hash_file
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.maintain import inspect as checking
from omnigraph.storage.table.maintain.inspect import NamedFile
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import Tail, TailEntry
from omnigraph.threads import gather
from omnigraph.verify.report import RESTORE, REWRITE, Findings

FRAGMENTS_SAMPLED = 4  # of each table version that is read
WIDEN = "all its rows read as null there: run `optimize` on the branch, which adds the column"
READ_AT_ONCE = 64  # manifests and stubs of the history


class TableChecks:
    """Checks each stored version, fragment and tail entry once, however many manifests name it."""

    def __init__(self, repository: Repository, *, full: bool, seed: int) -> None:
        self._repository = repository
        self._full = full
        self._seed = seed
        self._listed: dict[str, dict[str, ObjectInfo]] = {}
        self._files = FileChecks(repository)

    def check(self, found: Findings, where: str, key: str, ref: TableRef) -> bool:
        """Whether all of the table can be read: only then are its rows checked."""
        stored = ref.stored
        place = f"{where}, {key}" + ("" if stored is None else f" ({stored})")
        if stored is not None and found.is_first("version", stored) and not self._check_version(found, place, stored):
            found.is_first("unsound", stored)
        sound = ("unsound", stored) not in found
        overlay = self._check_tail(found, f"{where}, {key}", ref.tail)
        if sound and overlay is not None and found.is_first("rows", stored, ref.tail, ref.rows):
            with found.catching(place):
                self._check_row_count(found, place, ref, overlay)
        return sound and overlay is not None

    def check_columns(self, found: Findings, where: str, ref: TableRef, definition: TypeDef) -> None:
        """Every property has a column in the stored version and in the schema recorded for the columns."""
        stored = ref.stored
        if stored is None or not found.is_first("columns", stored, ref.columns, definition):
            return
        place = f"{where}, {definition.table_key} ({stored})"
        with found.catching(place):
            names = frozenset(self._repository.tables.open(stored).schema.names)
            missing = [prop for prop in definition.properties if prop.column not in names]
            for prop in missing:
                remedy = WIDEN if prop.default is None else RESTORE
                found.add(place, f"it has no column {prop.column!r} for the property {prop.name!r}", remedy)
            if not missing and ref.columns is not None:
                denied = lacking_property(self._repository.schemas.read(ref.columns), definition)
                if denied is not None:
                    found.add(place, f"its columns were made for a schema that has no {denied!r}", REWRITE)

    def _check_version(self, found: Findings, place: str, at: TableVersion) -> bool:
        """Whether its rows can be read; a damaged index is reported too, but searches work without it."""
        tentative, unsound = found.tentative(), True
        with tentative.catching(place):
            dataset = self._repository.tables.open(at)
            tentative.count("table_versions")
            for file in checking.version_files(at, dataset):
                if tentative.is_first("file", file.key):
                    tentative.count("files")
                    self._check_file(tentative, place, file)
            for fragment in self._choose_fragments(at, checking.fragment_names(dataset), tentative):
                with tentative.catching(place):
                    checking.check_fragment(at, dataset, fragment)
                    tentative.count("fragments")
            unsound = tentative.damaged
            for file in checking.index_files(self._repository.store, at, dataset):
                if tentative.is_first("file", file.key):
                    tentative.count("files")
                    self._check_file(tentative, place, file)
        found.absorb(tentative)
        return not unsound

    def _choose_fragments(
        self, at: TableVersion, fragments: dict[int, tuple[str, ...]], found: Findings
    ) -> Sequence[int]:
        """The fragments that were not read yet; without `full`, a sample of them."""
        fresh = [one for one, names in fragments.items() if ("fragment", at.table_id, names) not in found]
        if not self._full and len(fresh) > FRAGMENTS_SAMPLED:
            fresh = sorted(Random(f"{self._seed} {at}").sample(fresh, FRAGMENTS_SAMPLED))
        return [one for one in fresh if found.is_first("fragment", at.table_id, fragments[one])]

    def _check_file(self, found: Findings, place: str, file: NamedFile) -> None:
        listed = self._find_listed(file.key)
        if listed is None:
            found.add(place, f"the {file.what} {file.key} is missing")
        elif file.size is not None and listed.size != file.size:
            found.add(place, f"the {file.what} {file.key} has {listed.size:,} bytes instead of {file.size:,}")
        elif self._full:
            self._compare_content(found, place, file, listed)

    def _compare_content(self, found: Findings, place: str, file: NamedFile, listed: ObjectInfo) -> None:
        """A version does not name every file of an index, so all files in its folder are compared."""
        inside = {file: listed}
        if file.key.endswith("/"):
            known = self._listed["/".join(file.key.split("/")[:2])]
            inside = {NamedFile(key, None, "index file"): one for key, one in known.items() if key.startswith(file.key)}
        for one, seen in inside.items():
            if found.is_first("compared", one.key):
                self._files.check(found, place, one, seen)

    def _find_listed(self, key: str) -> ObjectInfo | None:
        """Look a key up in one listing of its table; a key that is missing there may be newer, and is requested."""
        folder = "/".join(key.split("/")[:2])
        if folder not in self._listed:
            self._listed = {folder: {listed.key: listed for listed in self._repository.store.list(folder)}}
        known = self._listed[folder].get(key)
        if known is not None:
            return known
        if key.endswith("/"):
            return next(self._repository.store.list(key.rstrip("/")), None)
        return self._repository.store.head(key)

    def _check_tail(self, found: Findings, place: str, tail: Tail) -> Overlay | None:
        """The rows of a tail; None if some can't be read."""
        tentative = found.tentative()
        for entry in tail:
            if tentative.is_first("tail", entry):
                with tentative.catching(place):
                    self._check_tail_entry(tentative, place, entry)
        overlay = None
        if not tentative.damaged:
            with tentative.catching(place):
                overlay = self._repository.inline_rows.overlay(tail)
        found.absorb(tentative)
        return overlay

    def _check_tail_entry(self, found: Findings, place: str, entry: TailEntry) -> None:
        point = Point(entry.branch_id, entry.manifest_version)
        name = f"manifest {commit_id(point)}, which has rows of its tail,"
        manifest = self._repository.manifests.read(point, cached=False)
        found.count("tail_entries")
        if manifest is None:
            found.add(place, f"{name} is missing")
        elif isinstance(manifest, Stub):
            found.add(place, f"{name} is a stub: its rows are gone")
        else:
            self._check_inline_rows(found, place, name, manifest, entry)

    def _check_inline_rows(self, found: Findings, place: str, name: str, manifest: Manifest, entry: TailEntry) -> None:
        groups = manifest.inline if entry.commits is None else manifest.inline[: entry.commits]
        changes = [group[entry.table_key] for group in groups if entry.table_key in group]
        if not changes:
            found.add(place, f"{name} has no rows of {entry.table_key}", RESTORE)
        self._repository.inline_rows.overlay((entry,))

    def _check_row_count(self, found: Findings, place: str, ref: TableRef, overlay: Overlay) -> None:
        """Count the stored rows that no tail entry replaced or removed, and those of the tail."""
        tables = self._repository.tables
        rows = 0 if overlay.rows is None else overlay.rows.num_rows
        if ref.stored is not None:
            rows += tables.count(ref.stored)
            rows -= len(tables.exists(ref.stored, overlay.hidden_ids)) if overlay.hidden_ids else 0
        if rows != ref.rows:
            found.add(place, f"it has {rows:,} rows, the manifest says {ref.rows:,}", REWRITE)


class FileChecks:
    """Compares files with their records; each part of the history is read once."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._records: dict[str, FileRecord] = {}  # by key
        self._history: Iterator[list[Point]] | None = None

    def check(self, found: Findings, place: str, file: NamedFile, listed: ObjectInfo) -> None:
        """Report a file that is not as it was written."""
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
        """All manifests and stubs, those of deleted branches included, in batches."""
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
