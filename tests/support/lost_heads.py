"""Stores that lose the newest manifests of a branch, as a restored old copy or a lifecycle rule makes them."""

from __future__ import annotations

from collections.abc import Sequence

from omnigraph.graph.graph import Graph
from omnigraph.manifest.model.manifest import MAIN, Point
from omnigraph.manifest.model.paths import hint_key, manifest_folder, manifest_key, manifest_number
from omnigraph.storage.objects.object_store import ObjectStore


def branch_id_of(graph: Graph, branch: str = MAIN) -> str:
    return graph.repository.branches.find(branch).head.branch_id


def numbers(store: ObjectStore, branch_id: str) -> list[int]:
    listed = (manifest_number(listed.key) for listed in store.list(manifest_folder(branch_id)))
    return sorted(number for number in listed if number is not None)


def lose_newest(store: ObjectStore, branch_id: str, count: int) -> dict[str, bytes]:
    """Delete the newest manifests of a branch; answers what was lost, for `bring_back`."""
    return lose(store, branch_id, numbers(store, branch_id)[-count:])


def lose(store: ObjectStore, branch_id: str, lost: Sequence[int]) -> dict[str, bytes]:
    content: dict[str, bytes] = {}
    for number in lost:
        key = manifest_key(Point(branch_id, number))
        stored = store.get(key)
        assert stored is not None
        content[key] = stored.data
        store.delete(key)
    return content


def bring_back(store: ObjectStore, content: dict[str, bytes]) -> None:
    for key, data in content.items():
        store.put(key, data)


def lose_hint(store: ObjectStore, branch_id: str) -> None:
    store.delete(hint_key(branch_id))
