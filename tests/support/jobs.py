"""What tests of long writes share: what a job has left on the store, what it may publish."""

from __future__ import annotations

from typing import Any

import pytest

from omnigraph.manifest.intent.intent import CLOSED, Intent, State, decode_intent
from omnigraph.manifest.model.manifest import Manifest, TxnId
from omnigraph.manifest.model.paths import RECOVERY, intent_key, intent_txn
from omnigraph.manifest.repository import Repository
from omnigraph.manifest.store.manifest_store import Manifests


def left_over(repository: Repository) -> list[str]:
    """Keys of open intents and of what jobs keep to be resumed by; an ended intent's object stays for a while."""
    store, found = repository.store, []
    for listed in store.list(RECOVERY):
        txn_id = intent_txn(listed.key)
        stored = None if txn_id is None else store.get(listed.key)
        ended = stored is not None and decode_intent(stored.data, str(txn_id)).state is State.FINISHED
        if not ended and not listed.key.endswith("_clock"):
            found.append(listed.key)
    return found


def refusing_unnamed_tables(patch: pytest.MonkeyPatch) -> None:
    """From now on no load puts a manifest with a table that its intent does not name (`intent-tokens`).

    Cleanup spares what an honoured intent names, so that every other table may be swept before the put.
    """
    create = Manifests.create

    def checked(self: Manifests, manifest: Manifest) -> Any:
        for commit in manifest.commits:
            intent = None if commit.token is None else _intent(self, commit.txn_id)
            if intent is None or intent.state in CLOSED or commit.token not in intent.tokens:
                continue  # it is not of a long write, or of a start that was discarded, whose number is taken
            touched = [manifest.tables.get(key) for key in commit.touched]
            staged = {ref.stored.table_id for ref in touched if ref is not None and ref.stored is not None}
            unnamed = staged - (staged if intent.tables is None else intent.tables)
            assert not unnamed, f"{unnamed} were staged by {commit.txn_id}, whose intent does not name them"
        return create(self, manifest)

    patch.setattr(Manifests, "create", checked)


def _intent(manifests: Manifests, txn_id: TxnId) -> Intent | None:
    stored = manifests._store.get(intent_key(txn_id))
    return None if stored is None else decode_intent(stored.data, txn_id)
