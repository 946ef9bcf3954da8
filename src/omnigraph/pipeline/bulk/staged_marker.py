"""The marker `complete.json` of a load that is fully staged, with the options to publish it.

With it another process can make the commit without the input (`recover.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from omnigraph.errors import Damaged
from omnigraph.manifest.intent.intent import Intent
from omnigraph.manifest.model.document import decode_document, encode_document
from omnigraph.manifest.model.manifest import Point
from omnigraph.pipeline.bulk.job import BulkJob
from omnigraph.pipeline.bulk.resume import folder_of
from omnigraph.storage.objects.object_store import ObjectStore
from omnigraph.write.load.input.input_splits import Split
from omnigraph.write.load.load_options import MODES, LoadOptions, Mode

_NAME = "complete.json"


@dataclass(frozen=True, slots=True)
class StagedLoad:
    """A fully staged load: everything that its commit needs but the input."""

    options: LoadOptions
    splits: tuple[Split, ...]
    input: str | None = None  # a digest of the input


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
    }
    store.put(f"{job.folder}/{_NAME}", encode_document(document))


def is_complete(store: ObjectStore, intent: Intent, staged_on: Point) -> bool:
    return store.head(_key(intent, staged_on)) is not None


def read_staged_load(store: ObjectStore, intent: Intent, staged_on: Point) -> StagedLoad | None:
    """None unless everything was staged on that base."""
    stored = store.get(_key(intent, staged_on))
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
        return StagedLoad(options, splits, document.get("input"))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(what, f"{type(error).__name__}: {error}") from error


def _key(intent: Intent, staged_on: Point) -> str:
    return f"{folder_of(intent.prefix, staged_on)}/{_NAME}"
