"""Resuming a bulk load: what its intent records about it, and what an earlier run has staged.

The marker `complete.json` of a load that is fully staged holds the options to publish it: with it another process can
make the commit without the input.
"""

import hashlib
import re
from base64 import b32encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from omnigraph.errors import BadRequest, Damaged
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.intent.intent import Intent
from omnigraph.manifest.intent.intent_store import OwnedIntent
from omnigraph.manifest.model.document import decode_document, encode_document
from omnigraph.manifest.model.manifest import Manifest, Point, TableKey, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.bulk.fold_base import FoldedBases
from omnigraph.pipeline.bulk.job import BulkJob, SplitResult
from omnigraph.runtime import SHORT_ID_LENGTH
from omnigraph.storage.objects.object_store import ObjectStore
from omnigraph.storage.table.write.fragments import TargetTable
from omnigraph.threads import gather
from omnigraph.write.load.input.input_splits import Split
from omnigraph.write.load.load_options import MODES, LoadOptions, Mode
from omnigraph.write.load.parse.parsed import IdMinter

JOB_PREFIX = "load-"  # of the transaction of a job
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


@dataclass(frozen=True, slots=True)
class LoadDetails:
    """The part of an intent that describes a load: whether another run may resume it, and how."""

    fingerprint: str
    salt: str
    milliseconds: int
    split_bytes: int
    staged_on: Point  # the base of the pass that is under way
    target: str | None = None  # the branch that it is to land on, which may have to be forked from the base's

    def to_json(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "salt": self.salt,
            "milliseconds": self.milliseconds,
            "split_bytes": self.split_bytes,
            "staged_on": [self.staged_on.branch_id, self.staged_on.manifest_version],
            "target": self.target,
        }

    @staticmethod
    def from_json(document: Mapping[str, Any], what: str) -> "LoadDetails":
        try:
            branch_id, number = document["staged_on"]
            return LoadDetails(
                str(document["fingerprint"]),
                str(document["salt"]),
                int(document["milliseconds"]),
                int(document["split_bytes"]),
                Point(str(branch_id), int(number)),
                None if document.get("target") is None else str(document["target"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(what, f"{type(error).__name__}: {error}") from error


def txn_id_of_job(job_id: str) -> TxnId:
    """The transaction of a job: the same each time it is started, so that it lands once."""
    if not _JOB_ID.match(job_id):
        raise BadRequest(
            f"{job_id[:50]!r} can't be a job id: take up to 100 letters, digits, dots, hyphens and underscores."
        )
    return f"{JOB_PREFIX}{job_id}"


def fingerprint_of(files: Sequence[tuple[str, int, str]], mode: Mode, branch: str, type_name: str | None) -> str:
    """What makes two starts the same load, in readable form: files (name, size, tag), mode and branch."""
    size = sum(size for _, size, _ in files)
    shown = f"{len(files):,} file{'s' if len(files) != 1 else ''} of {size:,} bytes, {mode}"
    return f"{shown}, {_digest((sorted(files), mode, branch, type_name))}"


def fingerprint_of_rows(rows: Mapping[str, int], mode: Mode, branch: str) -> str:
    """The same of rows that come from elsewhere than files: how many there are of each type."""
    shown = ", ".join(f"{count:,} {name}" for name, count in sorted(rows.items())) or "no rows"
    return f"{shown}, {mode}, {_digest((sorted(rows.items()), mode, branch))}"


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def writable_tables(details: "LoadDetails", txn: WriteTxn) -> frozenset[str]:
    """The tables that a load may write when it is staged on a base: those that are there, and a first one of each type.

    Of which types the input has rows is not known before it is parsed, nor which of them will have no stored table on
    a later base that the load is planned on: a merge may put rows in manifests in the place of a table.
    """
    first = {first_table_id(details.salt, txn.base.point, definition.table_key) for definition in txn.catalog.types}
    return stored_tables(txn) | first


def stored_tables(txn: WriteTxn) -> frozenset[str]:
    return frozenset(ref.stored.table_id for ref in txn.base.tables.values() if ref.stored is not None)


def create_job(
    repository: Repository,
    held: OwnedIntent,
    details: LoadDetails,
    txn: WriteTxn,
    mode: Mode,
    options: Mapping[str, str],
    settled: FoldedBases | None = None,
) -> BulkJob:
    """The job that tasks run when the input is staged on this base."""
    point = txn.base.point
    keys = [definition.table_key for definition in txn.catalog.types]
    target = partial(_target, settled or FoldedBases(repository), txn, mode, details.salt)
    return BulkJob(
        repository.location,
        txn.catalog,
        mode,
        dict(zip(keys, gather([partial(target, key) for key in keys]), strict=True)),
        IdMinter(details.milliseconds, details.salt),
        folder_of(held.intent.prefix, point),
        options,
    )


def _target(settled: FoldedBases, txn: WriteTxn, mode: Mode, salt: str, key: TableKey) -> TargetTable:
    """Where rows of a type go. A merge reads all rows that exist, whether this run or a later one folds them."""
    ref, fresh = txn.table(key), first_table_id(salt, txn.base.point, key)
    at = settled.version(txn, key, fresh) if mode == "merge" else None if ref is None else ref.stored
    return TargetTable(fresh) if at is None else TargetTable(at.table_id, at.table_version)


def read_staged_base(repository: Repository, details: LoadDetails) -> WriteTxn | None:
    """The base on which an earlier run staged; None where it is no longer there."""
    entry = repository.manifests.read(details.staged_on)
    return WriteTxn(entry, repository.schemas.read(entry.schema)) if isinstance(entry, Manifest) else None


def read_finished_splits(store: ObjectStore, job: BulkJob, splits: Sequence[Split]) -> dict[int, SplitResult]:
    """Splits that an earlier run has staged completely."""
    wanted = {job.result_key(split.number): split.number for split in splits}
    there = [listed.key for listed in store.list(job.folder) if listed.key in wanted]
    stored = gather([lambda key=key: store.get(key) for key in there])  # type: ignore[misc]
    return {
        wanted[key]: SplitResult.decode(one.data) for key, one in zip(there, stored, strict=True) if one is not None
    }


def folder_of(prefix: str, staged_on: Point) -> str:
    """Where the answers of finished splits are, of a load that is staged on this base."""
    return f"{prefix}/{staged_on.branch_id}-{staged_on.manifest_version}"


def with_staged_base(details: LoadDetails, txn: WriteTxn) -> LoadDetails:
    return replace(details, staged_on=txn.base.point)


def first_table_id(salt: str, point: Point, key: TableKey) -> str:
    """An id for a type's first table that nobody else takes, and that every task, every run and every later plan of the
    pass that is staged on this base derives alike. The intent has named it before the pass began (`tables_of`)."""
    digest = hashlib.blake2b(f"{salt} {point.branch_id} {point.manifest_version} {key}".encode(), digest_size=10)
    return b32encode(digest.digest()).decode("ascii").lower()[:SHORT_ID_LENGTH]


_MARKER = "complete.json"


@dataclass(frozen=True, slots=True)
class StagedLoad:
    """A fully staged load: everything that its commit needs but the input."""

    options: LoadOptions
    splits: tuple[Split, ...]
    input: str | None = None  # a digest of the input
    request: str | None = None  # a digest of the request whose idempotency key it has


def note_complete(store: ObjectStore, job: BulkJob, staged: StagedLoad) -> None:
    """Write the marker, after the results of all splits."""
    options = staged.options
    document = {
        "mode": options.mode,
        "branch": options.branch,
        "from": options.from_,
        "if_commit": options.if_commit,
        "quarantines": options.quarantines,
        "max_errors": options.max_errors,
        "quarantine": None if options.quarantine is None else str(options.quarantine),
        "splits": [split.to_json() for split in staged.splits],
        "input": staged.input,
        **({} if staged.request is None else {"request": staged.request}),
    }
    store.put(f"{job.folder}/{_MARKER}", encode_document(document))


def is_complete(store: ObjectStore, intent: Intent, staged_on: Point) -> bool:
    return store.head(_marker_key(intent, staged_on)) is not None


def read_staged_load(store: ObjectStore, intent: Intent, staged_on: Point) -> StagedLoad | None:
    """None unless everything was staged on that base."""
    stored = store.get(_marker_key(intent, staged_on))
    if stored is None:
        return None
    what = f"the note beside the staged load {intent.txn_id}"
    document = decode_document(stored.data, what)
    try:
        if document["mode"] not in MODES:
            raise ValueError(f"mode {document['mode']!r}")
        options = LoadOptions(
            mode=cast(Mode, document["mode"]),
            branch=str(document["branch"]),
            from_=document["from"],
            on_error="quarantine" if document["quarantines"] else "fail",
            max_errors=document["max_errors"],
            quarantine=None if document["quarantine"] is None else Path(document["quarantine"]),
            if_commit=document["if_commit"],
        )
        splits = tuple(Split.from_json(split) for split in document["splits"])
        return StagedLoad(options, splits, document.get("input"), document.get("request"))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(what, f"{type(error).__name__}: {error}") from error


def _marker_key(intent: Intent, staged_on: Point) -> str:
    return f"{folder_of(intent.prefix, staged_on)}/{_MARKER}"
