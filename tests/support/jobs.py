"""What tests of long writes share: what a job has left on the store."""

from __future__ import annotations

from omnigraph.manifest.intent import State, decode_intent
from omnigraph.manifest.keys import RECOVERY, intent_txn
from omnigraph.manifest.repository import Repository


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
