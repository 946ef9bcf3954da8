"""The note beside a staged load that says that all of it is staged, and how it is to be published.

With it another process can make the commit without the input (`complete.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from omnigraph.errors import Damaged
from omnigraph.manifest.intent.intent import Intent
from omnigraph.manifest.model.document import decode_document, encode_document
from omnigraph.manifest.model.manifest import CommitId, Point
from omnigraph.pipeline.bulk.job import BulkJob
from omnigraph.pipeline.bulk.resume import folder_of
from omnigraph.storage.objects.object_store import ObjectStore
from omnigraph.write.load.input.input_splits import Split
from omnigraph.write.load.load_modes import MODES, Mode

_NAME = "complete.json"


@dataclass(frozen=True, slots=True)
class Manner:
    """What a load was asked to do, apart from its input."""

    mode: Mode
    branch: str
    from_: str | None
    if_commit: CommitId | None
    quarantines: bool
    max_errors: int | None
    quarantine: Path | None
    splits: tuple[Split, ...]
    input: str | None = None  # a digest of what it was given


def note_complete(store: ObjectStore, job: BulkJob, manner: Manner) -> None:
    """To be put after the answers of all splits."""
    document = {
        "mode": manner.mode,
        "branch": manner.branch,
        "from": manner.from_,
        "if_commit": manner.if_commit,
        "quarantines": manner.quarantines,
        "max_errors": manner.max_errors,
        "quarantine": None if manner.quarantine is None else str(manner.quarantine),
        "splits": [split.to_json() for split in manner.splits],
        "input": manner.input,
    }
    store.put(f"{job.folder}/{_NAME}", encode_document(document))


def is_complete(store: ObjectStore, intent: Intent, staged_on: Point) -> bool:
    return store.head(_key(intent, staged_on)) is not None


def read_manner(store: ObjectStore, intent: Intent, staged_on: Point) -> Manner | None:
    """None where not everything was staged on that base."""
    stored = store.get(_key(intent, staged_on))
    if stored is None:
        return None
    what = f"the note beside the staged load {intent.txn_id}"
    document = decode_document(stored.data, what)
    try:
        if document["mode"] not in MODES:
            raise ValueError(f"mode {document['mode']!r}")
        return Manner(
            cast(Mode, document["mode"]),
            str(document["branch"]),
            document["from"],
            document["if_commit"],
            bool(document["quarantines"]),
            document["max_errors"],
            None if document["quarantine"] is None else Path(document["quarantine"]),
            tuple(Split.from_json(split) for split in document["splits"]),
            document.get("input"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(what, f"{type(error).__name__}: {error}") from error


def _key(intent: Intent, staged_on: Point) -> str:
    return f"{folder_of(intent.prefix, staged_on)}/{_NAME}"
