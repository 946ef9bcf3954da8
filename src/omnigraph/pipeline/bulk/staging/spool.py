"""Rows that come from elsewhere than files, such as a Spark DataFrame, into a bulk load: spooled, and staged at once.

A task that is handed rows writes them to the store as Parquet files of a split each, and stages each split right away,
as `stage_split` would. What follows is an ordinary bulk load of those files, whose splits are all done already: it
verifies and publishes. The files are there for what comes seldom: to stage again on another base, because rows can't
be asked for twice, and to say which rows are wrong. They go with the load's intent.

Spark may run a task twice, and a DataFrame need not give the same rows twice. So every attempt has split numbers of
its own, and a load has those of the attempts whose answers Spark took.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omnigraph.errors import BranchNotFound, KeyReused, PreconditionFailed
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.intent.intent import Intent
from omnigraph.manifest.intent.intent_store import OwnedIntent
from omnigraph.manifest.model.manifest import TxnId
from omnigraph.manifest.model.paths import recovery_folder
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.bulk.job import BulkJob
from omnigraph.pipeline.bulk.load_intent import is_of_another, new_details, take_load_intent
from omnigraph.pipeline.bulk.resume import create_job, writable_tables
from omnigraph.pipeline.bulk.staging.stage import stage_parsed
from omnigraph.pipeline.spark.types import restore_integers
from omnigraph.storage.objects.object_store import ObjectStore, open_store
from omnigraph.write.load.input.input_splits import SPLIT_BYTES, Split
from omnigraph.write.load.input.sources import SourceFile
from omnigraph.write.load.input.table_rows import check_columns, check_types
from omnigraph.write.load.load_options import LoadOptions
from omnigraph.write.load.parse.parse import parse_table

if TYPE_CHECKING:
    import pyarrow as pa

FILE_BYTES = 64 * 1024 * 1024  # of rows in memory; a file is one split
FILES_A_TASK = 10_000
_FINGERPRINT = "spooled"


@dataclass(frozen=True)
class Spool:
    """The input of tasks: the load they stage for, and where their files go."""

    intent: Intent  # of this start, as it began
    job: BulkJob

    @property
    def txn_id(self) -> TxnId:
        return self.intent.txn_id

    def key(self, number: int) -> str:
        return f"{self.intent.prefix}/rows/{number:012d}.parquet"


@dataclass(frozen=True, slots=True)
class SpooledRows:
    """A source for `bulk_load`: files that are spooled, and staged already, by the start that has this intent.

    It is that start which `bulk_load` goes on with, and no other: what another one spooled is not its input.
    """

    intent: Intent | None  # None: these rows were only counted, because a load of the same id is committed
    splits: tuple[Split, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)  # how many there are of each type
    fingerprint: str = _FINGERPRINT

    @property
    def files(self) -> list[SourceFile]:
        return [SourceFile(one.path, one.shown, one.kind, one.file_size, one.type_name) for one in self.splits]


@dataclass(frozen=True, slots=True)
class SpooledPart:
    """What a task has spooled of one type; `rows` are for the progress, and distinguish one input from another."""

    splits: tuple[Split, ...]
    rows: int


def begin_spool(repository: Repository, options: LoadOptions) -> Spool:
    """Put the intent of a load whose rows will come, and release it: another process may go on with this start."""
    spool, held = _begin(repository, options)
    held.release()
    return spool


@contextmanager
def hold_spool(repository: Repository, options: LoadOptions) -> Iterator[Spool]:
    """The same where this process waits for the rows: meanwhile the intent is kept alive."""
    spool, held = _begin(repository, options)
    try:
        with repository.intents.keep_refreshed(held):
            yield spool
    except BaseException:
        discard_spool(repository, spool)
        raise
    held.release()


def _begin(repository: Repository, options: LoadOptions) -> tuple[Spool, OwnedIntent]:
    txn = _base(repository, options.branch, options.from_)
    if options.if_commit not in (None, txn.commit_id):
        raise PreconditionFailed(str(options.if_commit), txn.commit_id)
    own_id = options.txn_id or repository.runtime.ids.txn_id()
    details = new_details(repository, txn, _FINGERPRINT, SPLIT_BYTES, options.branch)
    held = take_load_intent(repository, own_id, txn, details, options.actor, named=options.txn_id is not None)
    if is_of_another(options, held):
        held.release()
        raise KeyReused(own_id)
    if held.resumed:  # of an earlier start: its rows can't be used, new ones are put under another prefix
        repository.intents.delete_job_objects(held.intent)
        prefix = f"{recovery_folder(own_id)}/{held.token}"
        held.refresh(details.to_json(), tables=writable_tables(details, txn), prefix=prefix)
    job = create_job(repository, held, details, txn, options.mode, repository.location.options)
    return Spool(held.intent, job), held


def discard_spool(repository: Repository, spool: Spool) -> None:
    """Discard a spool whose rows will not come, unless another start has taken it over."""
    held = repository.intents.resume(spool.intent)
    if held.discard():
        repository.intents.delete_job_objects(held.intent)


def check_rows(spool: Spool, type_name: str, schema: "pa.Schema", shown: str) -> None:
    """BadRequest where rows with these columns can't be of the type, before any of them is asked for."""
    definition = spool.job.catalog.by_name[type_name]
    check_columns(shown, definition, schema.names)
    check_types(shown, definition, restore_integers(schema.empty_table(), definition).schema)


def spool_rows(
    spool: Spool, type_name: str, batches: "Iterable[pa.RecordBatch]", *, first_number: int, shown: str
) -> SpooledPart:
    """What a task does: write the rows as files and stage them. The numbers must be this attempt's alone."""
    store = open_store(spool.job.location)
    splits: list[Split] = []
    before = 0
    for rows in _file_tables(batches):
        number = first_number + len(splits)
        if len(splits) >= FILES_A_TASK:
            raise AssertionError(f"{shown} has more than {FILES_A_TASK} files")
        splits.append(_spool_file(spool, store, type_name, rows, number, shown, before))
        before += rows.num_rows
    return SpooledPart(tuple(splits), before)


def spool_nothing(spool: Spool, type_name: str, schema: "pa.Schema", *, first_number: int, shown: str) -> SpooledPart:
    """A type that was named and has no rows: an overwrite empties it."""
    store = open_store(spool.job.location)
    return SpooledPart((_spool_file(spool, store, type_name, schema.empty_table(), first_number, shown, 0),), 0)


def _spool_file(
    spool: Spool, store: ObjectStore, type_name: str, rows: "pa.Table", number: int, shown: str, before: int
) -> Split:
    definition = spool.job.catalog.by_name[type_name]
    rows = restore_integers(rows, definition)
    data = _encode(rows)
    key = spool.key(number)
    store.put(key, data)
    path = spool.job.location.child_uri(key)
    split = Split(number, number, "parquet", path, shown, 0, len(data), (0,), type_name, before, len(data))
    minter = spool.job.minter.for_split(number)
    parsed = (parse_table(rows, definition, before, minter, shown) for _ in range(1))  # when staging asks for it
    stage_parsed(spool.job, number, parsed, store)
    return split


def _encode(rows: "pa.Table") -> bytes:
    """One row group, so that it is one split."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows.schema, compression="zstd", compression_level=1) as writer:
        writer.write_table(rows, row_group_size=max(1, rows.num_rows))
    return sink.getvalue()


def _file_tables(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.Table]":
    """Rows in tables that become a file each."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= FILE_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _base(repository: Repository, branch: str, from_: str | None) -> WriteTxn:
    try:
        return repository.open_txn(branch)
    except BranchNotFound:
        if from_ is None:
            raise
        return repository.open_txn(from_)


def combine_parts(spool: Spool, answers: Sequence[SpooledPart]) -> SpooledRows:
    splits = [split for answer in answers for split in answer.splits]
    rows: dict[str, int] = {}
    for answer in answers:
        for name in {str(split.type_name) for split in answer.splits}:
            rows[name] = rows.get(name, 0) + answer.rows
    return SpooledRows(spool.intent, tuple(sorted(splits, key=lambda split: split.number)), rows)
