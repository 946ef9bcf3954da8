"""`df.write.format("omnigraph")`: executors write and stage rows, the driver verifies them and publishes once.

What Spark calls a commit is one bulk load of what the tasks have staged (`spool.py`): all of it becomes visible with
one put, or nothing does. A task that fails or runs twice leaves files that belong to nobody.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from omnigraph.errors import BadRequest
from omnigraph.manifest.model.manifest import MAIN
from omnigraph.manifest.repository import Repository, open_repository
from omnigraph.pipeline.bulk.dataframe_source import shown_partition, task_number
from omnigraph.pipeline.bulk.load import bulk_load
from omnigraph.pipeline.bulk.staging.spool import (
    Answer,
    Spool,
    abandon,
    begin,
    check_rows,
    spool_nothing,
    spool_rows,
    together,
)
from omnigraph.pipeline.source.options import (
    refuse_unknown,
    required,
    storage_options_of,
    store_of,
)
from omnigraph.pipeline.source.scans import type_named
from omnigraph.pipeline.spark.types import arrow_for_spark
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load_options import MODES, LoadOptions

if TYPE_CHECKING:
    import pyarrow as pa

WRITE_OPTIONS = frozenset({"store", "path", "type", "branch", "from", "mode", "actor", "ifcommit", "txnid"})


@dataclass(frozen=True)
class Destination:
    """Where a write goes, as its options say."""

    store: str
    storage_options: Mapping[str, str]
    type_name: str
    options: LoadOptions

    def open(self) -> Repository:
        return open_repository(self.store, self.storage_options)


@dataclass
class Staged(WriterCommitMessage):
    """What one task has to say to the driver."""

    answer: Answer


def destination_of(options: Mapping[str, str], overwrite: bool) -> Destination:
    refuse_unknown(options, WRITE_OPTIONS)
    mode = options.get("mode", "overwrite" if overwrite else "append").lower()
    if mode not in MODES:
        raise BadRequest(f"The option mode is {mode!r}: it is {', '.join(MODES)}.")
    if overwrite != (mode == "overwrite"):
        raise BadRequest(
            f'The option mode is {mode!r}, which is not Spark\'s save mode: use .mode("overwrite") to overwrite, and '
            '.mode("append") with the option for a merge.'
        )
    load = LoadOptions(
        mode=next(known for known in MODES if known == mode),
        branch=options.get("branch", MAIN),
        from_=options.get("from"),
        actor=options.get("actor"),
        if_commit=options.get("ifCommit"),
        txn_id=options.get("txnId"),
    )
    return Destination(store_of(options), storage_options_of(options), required(options, "type"), load)


class Writer(DataSourceArrowWriter):
    """Made by the driver when the write begins; its copies are what tasks call."""

    def __init__(self, destination: Destination, schema: StructType) -> None:
        self._to = destination
        repository = destination.open()
        self._schema = arrow_for_spark(schema)
        self._spool: Spool = begin(repository, destination.options)
        try:
            type_named(self._spool.job.catalog, destination.type_name)
            check_rows(self._spool, destination.type_name, self._schema, "The DataFrame")
        except BaseException:
            abandon(repository, self._spool)
            raise

    def write(  # type: ignore[override]  # as its base class documents it, and declares it no better
        self, iterator: "Iterator[pa.RecordBatch]"
    ) -> WriterCommitMessage:
        type_name = self._to.type_name
        shown = shown_partition(type_name)
        return Staged(spool_rows(self._spool, type_name, iterator, first_number=task_number(), shown=shown))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        answers = [message.answer for message in messages if isinstance(message, Staged)]
        if not any(answer.splits for answer in answers):
            name = self._to.type_name
            answers.append(spool_nothing(self._spool, name, self._schema, first_number=0, shown=name))
        options = replace(self._to.options, txn_id=self._spool.txn_id)
        bulk_load(self._to.open(), LocalRunner(), together(self._spool, answers), options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abandon(self._to.open(), self._spool)
