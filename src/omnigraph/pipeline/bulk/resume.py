"""A bulk load that can be gone on with: what its intent says about it, and what is left of an earlier run."""

import hashlib
import re
from base64 import b32encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from omnigraph.errors import BadRequest, Damaged
from omnigraph.manifest.intents import HeldIntent
from omnigraph.manifest.keys import recovery_folder
from omnigraph.manifest.model import Manifest, Point, TableKey, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.txn import WriteTxn
from omnigraph.pipeline.bulk.job import BulkJob, SplitResult
from omnigraph.pipeline.bulk.settle import Settled
from omnigraph.runtime import SHORT_ID_LENGTH
from omnigraph.storage.fragments import Target
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.parallel import gather
from omnigraph.write.modes import Mode
from omnigraph.write.parsed import Minter
from omnigraph.write.splits import Split

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


@dataclass(frozen=True, slots=True)
class Details:
    """What an intent keeps of a load: enough to tell whether another run may go on with it, and how."""

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
    def from_json(document: Mapping[str, Any], what: str) -> "Details":
        try:
            branch_id, number = document["staged_on"]
            return Details(
                str(document["fingerprint"]),
                str(document["salt"]),
                int(document["milliseconds"]),
                int(document["split_bytes"]),
                Point(str(branch_id), int(number)),
                None if document.get("target") is None else str(document["target"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(what, f"{type(error).__name__}: {error}") from error


def txn_of_job(job_id: str) -> TxnId:
    """The transaction of a job: the same each time it is started, so that it lands once."""
    if not _JOB_ID.match(job_id):
        raise BadRequest(
            f"{job_id[:50]!r} can't be a job id: take up to 100 letters, digits, dots, hyphens and underscores."
        )
    return f"load-{job_id}"


def fingerprint_of(files: Sequence[tuple[str, int, str]], mode: Mode, branch: str, type_name: str | None) -> str:
    """What makes two runs the same load: files (path, size, tag or time), mode and branch."""
    text = repr((sorted(files), mode, branch, type_name))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def job_for(
    repository: Repository,
    held: HeldIntent,
    details: Details,
    txn: WriteTxn,
    mode: Mode,
    options: Mapping[str, str],
    settled: Settled | None = None,
) -> BulkJob:
    """What tasks are told when the input is staged on this base."""
    point = txn.base.point
    keys = [definition.table_key for definition in txn.catalog.types]
    target = partial(_target, settled or Settled(repository), txn, mode, details.salt)
    return BulkJob(
        repository.location,
        txn.catalog,
        mode,
        dict(zip(keys, gather([partial(target, key) for key in keys]), strict=True)),
        Minter(details.milliseconds, details.salt),
        f"{recovery_folder(held.txn_id)}/{point.branch_id}-{point.manifest_version}",
        options,
    )


def _target(settled: Settled, txn: WriteTxn, mode: Mode, salt: str, key: TableKey) -> Target:
    """Where rows of a type go. A merge looks at all rows there are, whoever settles them, now or in a later run."""
    ref, fresh = txn.table(key), _fresh_table_id(salt, txn.base.point, key)
    at = settled.base(txn, key, fresh) if mode == "merge" else None if ref is None else ref.stored
    return Target(fresh) if at is None else Target(at.table_id, at.table_version)


def staged_before(repository: Repository, details: Details) -> WriteTxn | None:
    """The base on which an earlier run staged; None where it is no longer there."""
    entry = repository.manifests.read(details.staged_on)
    return WriteTxn(entry, repository.schemas.read(entry.schema)) if isinstance(entry, Manifest) else None


def finished_splits(store: ObjectStore, job: BulkJob, splits: Sequence[Split]) -> dict[int, SplitResult]:
    """Splits that an earlier run has staged completely."""
    wanted = {job.result_key(split.number): split.number for split in splits}
    there = [listed.key for listed in store.list(job.folder) if listed.key in wanted]
    stored = gather([lambda key=key: store.get(key) for key in there])  # type: ignore[misc]
    return {
        wanted[key]: SplitResult.decoded(one.data) for key, one in zip(there, stored, strict=True) if one is not None
    }


def forget(store: ObjectStore, txn_id: TxnId) -> None:
    """Remove what was kept to resume by; fragments are left to cleanup."""
    keys = [listed.key for listed in store.list(recovery_folder(txn_id))]
    gather([lambda key=key: store.delete(key) for key in keys])  # type: ignore[misc]


def staged_on(details: Details, txn: WriteTxn) -> Details:
    return replace(details, staged_on=txn.base.point)


def _fresh_table_id(salt: str, point: Point, key: TableKey) -> str:
    """An id that nobody else takes, and that every task and every run of this pass derives alike."""
    digest = hashlib.blake2b(f"{salt} {point.branch_id} {point.manifest_version} {key}".encode(), digest_size=10)
    return b32encode(digest.digest()).decode("ascii").lower()[:SHORT_ID_LENGTH]
