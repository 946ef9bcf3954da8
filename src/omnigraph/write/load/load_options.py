"""The options of a load as one value: made by the façade, checked once, and passed on unchanged."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from omnigraph.errors import BadRequest
from omnigraph.manifest.model.manifest import MAIN, CommitId, TxnId
from omnigraph.manifest.model.request_key import RequestKey, digest_of, request_key

Mode: TypeAlias = Literal["append", "merge", "overwrite"]
OnError: TypeAlias = Literal["fail", "quarantine"]

MODES: tuple[Mode, ...] = ("append", "merge", "overwrite")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What a load does with its input. On which engine it runs is not among it."""

    mode: Mode = "append"
    branch: str = MAIN
    from_: str | None = None  # the branch from which a missing `branch` is forked
    type_name: str | None = None  # of the rows of CSV and Parquet files whose names do not say it
    on_error: OnError = "fail"
    max_errors: int | None = None  # how many rows a quarantine may take before the load fails
    quarantine: Path | None = None  # the file for rejected rows; None: one beside the input
    job_id: str | None = None  # of a bulk load that can be started again
    actor: str | None = None
    if_commit: CommitId | None = None
    txn_id: TxnId | None = None

    @property
    def quarantines(self) -> bool:
        return self.on_error == "quarantine"

    def with_request(self, content: Callable[[], object]) -> "LoadOptions":
        """The same with what a caller's key is used for; `content` identifies the input. A job may be restarted by
        others than who began it, and compares its input itself."""
        if self.txn_id is None or isinstance(self.txn_id, RequestKey):
            return self
        if self.job_id is not None:
            return replace(self, txn_id=RequestKey(self.txn_id, self.actor, digest_of("job", self.job_id), anyone=True))
        given = (self.mode, self.branch, self.from_, self.type_name, self.on_error, self.max_errors)
        return replace(self, txn_id=request_key(self.txn_id, self.actor, "load", *given, content()))

    def check(self) -> None:
        """Raise BadRequest for values that no load has."""
        if self.mode not in MODES:
            raise BadRequest(f"Unknown load mode {self.mode!r}: use {', '.join(MODES)}.")
        if self.on_error not in ("fail", "quarantine"):
            raise BadRequest(f"Unknown on_error {self.on_error!r}: use fail or quarantine.")
        if self.max_errors is not None and self.max_errors < 0:
            raise BadRequest(f"max_errors is {self.max_errors}: give 0 or more.")
        if self.job_id is not None and self.txn_id is not None:
            raise BadRequest("A job id and a txn id were both given: a job has its own txn id, leave the other out.")
