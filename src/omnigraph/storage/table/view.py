"""Views: a stored version and an overlay as one private Lance dataset on local scratch disk.

The view's fragments and indexes refer to the stored files by base path; hidden rows are deleted in it, the overlay's
rows are one more fragment. Scans, joins and searches then have Lance's own semantics over all rows. Building a view
writes nothing to the store, and takes a few milliseconds.
"""

import os
import shutil
import tempfile
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnigraph.caches import SingleFlightCache
from omnigraph.storage import meter
from omnigraph.storage.table.align import align_table, widen_schema
from omnigraph.storage.table.handles import Handles, TableVersion, lance_module
from omnigraph.storage.table.index.metadata import has_indexes, highest_fragment, rebase_indexes
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.lance_io_stats import Origin
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.read.row_addresses import cached_row_addresses
from omnigraph.storage.table.write.detached_commit import widen_lance_schema, write_deletion_files
from omnigraph.threads import run_blocking_hook

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

VIEWS_MAX = 64
INDEXES_MAX = 256  # stored versions whose index section is cached: the next view of one needs no request for it
NAMES_MAX = 1024  # stored versions whose column names are cached
_STORED = 1  # the id of the base path under which the stored files are
_Key = tuple[TableVersion | None, str, str]


class ViewCache:
    """An LRU cache of views.

    A view's scratch directory is removed once neither this cache nor a reader refers to its dataset: hold on to the
    dataset for as long as anything reads from it. The rest is removed at exit.
    """

    def __init__(self, handles: Handles, scratch: Path | None = None, views_max: int = VIEWS_MAX) -> None:
        self._handles = handles
        self._scratch = scratch
        self._views: SingleFlightCache[_Key, LanceDataset] = SingleFlightCache(views_max)
        self._indexes: SingleFlightCache[TableVersion, tuple[Any, ...]] = SingleFlightCache(INDEXES_MAX)
        self._names: SingleFlightCache[TableVersion, frozenset[str]] = SingleFlightCache(NAMES_MAX)

    def get(self, at: TableVersion | None, overlay: Overlay, schema: "pa.Schema | None" = None) -> "LanceDataset":
        """The view of `at` with `overlay` on top; without a stored version, of the overlay alone.

        A column of `schema` that no stored file has is null in all stored rows.
        """
        widens = schema is not None and (at is None or self.lacks_columns(at, schema))
        key = (at, overlay.fingerprint, schema.to_string() if schema is not None and widens else "")
        meter.track_lance()
        return self._views.get_or_create(key, lambda: self._build(at, overlay, schema))

    def lacks_columns(self, at: TableVersion, schema: "pa.Schema | None") -> bool:
        """Whether the stored version lacks columns of the schema.

        Manifests of format 2 never refer to such a version, but some of format 1 do: a fold had stored the rows of a
        type before a property was added to it. No row has a value there.
        """
        if schema is None:
            return False
        names = self._names.get_or_create(at, lambda: frozenset(self._handles.open(at).schema.names))
        return not names.issuperset(schema.names)

    def _build(self, at: TableVersion | None, overlay: Overlay, schema: "pa.Schema | None") -> "LanceDataset":
        run_blocking_hook()
        folder = self._make_folder()
        try:
            with translate_errors(f"a view of {at}" if at is not None else "a view of inline rows"):
                if at is None:
                    view = self._local_only(folder, overlay, schema)
                else:
                    view = _ViewBuilder(self._handles, self._indexes, at, folder).build(overlay, schema)
        except BaseException:
            _remove(folder, os.getpid())
            raise
        weakref.finalize(view, _remove, folder, os.getpid())
        return view

    def _local_only(self, folder: Path, overlay: Overlay, schema: "pa.Schema | None") -> "LanceDataset":
        columns = overlay.columns(schema)
        rows = columns.empty_table() if overlay.rows is None else align_table(overlay.rows, columns)
        view: LanceDataset = lance_module().write_dataset(
            rows, str(folder), mode="create", session=self._handles.session
        )
        return view

    def _make_folder(self) -> Path:
        if self._scratch is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="omnigraph-view-", dir=self._scratch))


class _ViewBuilder:
    """Builds one view over a stored version."""

    def __init__(
        self,
        handles: Handles,
        indexes: "SingleFlightCache[TableVersion, tuple[Any, ...]]",
        at: TableVersion,
        folder: Path,
    ) -> None:
        self._handles = handles
        self._indexes = indexes
        self._at = at
        self._folder = folder
        self._stored = handles.open(at)
        self._operations = lance_module().LanceOperation

    def build(self, overlay: Overlay, wanted: "pa.Schema | None") -> "LanceDataset":
        schema = widen_schema(overlay.widen(self._stored.schema), wanted)
        view = self._with_indexes(self._with_stored_fragments(schema))
        hidden = cached_row_addresses(self._handles, self._at, overlay.hidden_ids)
        updated, removed = write_deletion_files(self._at, view, hidden, stages=0)  # on scratch
        added = []
        if overlay.rows is not None and overlay.rows.num_rows:
            rows = align_table(overlay.rows, schema)
            added = lance_module("lance.fragment").write_fragments(rows, view, mode="append")
            number = self._next_number(view)
            added = [replace(fragment, id=number + place) for place, fragment in enumerate(added)]
        if updated or removed or added:
            update = self._operations.Update(
                removed_fragment_ids=removed, updated_fragments=updated, new_fragments=added
            )
            view = self._commit(view, update)
        return view

    def _next_number(self, view: "LanceDataset") -> int:
        """A number that no fragment ever had: an index may still cover removed ones, and would answer for these rows.

        By default Lance takes the number after those of the present fragments.
        """
        used: list[int] = [fragment.fragment_id for fragment in view.get_fragments()]
        known: list[int] = [number for index in self._stored_indexes() for number in index.fragment_ids]
        return 1 + max([highest_fragment(self._stored), *used, *known])

    def _with_stored_fragments(self, schema: "pa.Schema") -> "LanceDataset":
        """A local dataset of the stored fragments, under their stored ids: indexes hold row addresses."""
        base = lance_module("lance.dataset").DatasetBasePath(
            self._handles.uri(self._at.table_id), name="stored", is_dataset_root=True, id=_STORED
        )
        view = lance_module().write_dataset(
            self._stored.schema.empty_table(),
            str(self._folder),
            mode="create",
            initial_bases=[base],
            storage_options=self._handles.options,  # the bases fall back on these; the local disk has none
            session=self._handles.session,
        )
        fragments = [_based(fragment.metadata) for fragment in self._stored.get_fragments()]
        wide = self._stored.lance_schema
        if len(schema) > len(self._stored.schema):
            wide = widen_lance_schema(self._stored, schema)
        view = self._counted(self._commit(view, self._operations.Merge(fragments, wide)))
        ids = [fragment.fragment_id for fragment in view.get_fragments()]
        if ids != [fragment.id for fragment in fragments]:
            raise AssertionError(f"a view renumbered the fragments of {self._at} to {ids}")
        return view

    def _counted(self, view: "LanceDataset") -> "LanceDataset":
        """The view, reopened through a client whose requests are counted; the reopening itself is local."""
        if self._handles.location.is_local or self._handles.counter.is_followed(Origin.CREATED):
            return view
        opened: LanceDataset = lance_module().dataset(
            view.uri, version=view.version, storage_options=self._handles.options, session=self._handles.session
        )
        return opened

    def _with_indexes(self, view: "LanceDataset") -> "LanceDataset":
        indexes = self._stored_indexes()
        return self._commit(view, self._operations.CreateIndex(list(indexes), [])) if indexes else view

    def _stored_indexes(self) -> tuple[Any, ...]:
        if not has_indexes(self._stored):
            return ()

        def read() -> tuple[Any, ...]:
            return tuple(rebase_indexes(self._stored, self._version_file(), _STORED))

        return self._indexes.get_or_create(self._at, read)

    def _version_file(self) -> bytes:
        """The stored version file: one request that Lance's counter does not see, so it is recorded here."""
        name = f"_versions/d{self._at.table_version}.manifest"
        if self._handles.location.is_local:
            return (self._handles.location.path / "tables" / self._at.table_id / name).read_bytes()
        files = lance_module("lance.file").LanceFileSession(
            self._handles.uri(self._at.table_id), storage_options=self._handles.options
        )
        copy = self._folder / "stored.manifest"
        start = time.monotonic()
        files.download_file(name, str(copy))
        data = copy.read_bytes()
        meter.record_request(start, time.monotonic(), bytes_moved=len(data))
        return data

    def _commit(self, view: "LanceDataset", operation: Any) -> "LanceDataset":
        transaction = lance_module("lance.dataset").Transaction(read_version=view.version, operation=operation)
        committed: LanceDataset = lance_module().LanceDataset.commit(
            view, transaction, storage_options=self._handles.options, detached=True
        )
        return committed


def _based(fragment: Any) -> Any:
    """The fragment's metadata with its files at the stored base path."""
    files = lance_module("lance.fragment")
    deletion = fragment.deletion_file
    if deletion is not None:
        deletion = files.DeletionFile(**{**deletion.asdict(), "base_id": _STORED})
    return replace(fragment, files=[_based_file(file) for file in fragment.files], deletion_file=deletion)


def _based_file(file: Any) -> Any:
    return lance_module("lance.fragment").DataFile(
        str(file.path),
        file.fields,
        file.column_indices,
        file.file_major_version,
        file.file_minor_version,
        file.file_size_bytes,
        _STORED,
    )


def _remove(folder: Path, owner: int) -> None:
    """Remove a scratch directory, but only in the process that made it, not in a forked child."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
