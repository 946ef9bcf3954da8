"""Finding the highest number of a branch: with a listing, or from a hint with steps that double.

The hint beside a branch's manifests is a number that was the head once, written after the manifest of that number. A
hint whose checksum holds therefore proves that its number was used. The plain numbers that format 1 wrote prove
nothing, since a flipped bit makes another number of them: they only say where to begin to look.
"""

from dataclasses import dataclass

from omnigraph.errors import Damaged, UnsupportedFormat
from omnigraph.manifest.model.document import decode_document, encode_document
from omnigraph.manifest.model.manifest import BranchId, Point
from omnigraph.manifest.model.paths import hint_key, manifest_folder, manifest_key, manifest_number
from omnigraph.storage.objects.object_store import ObjectStore
from omnigraph.threads import gather

_NUMBER_MAX = 2**63


@dataclass(frozen=True, slots=True)
class Hint:
    number: int
    is_proof: bool  # whether the number has a checksum that holds


def encode_hint(branch_id: BranchId, number: int) -> bytes:
    return encode_document({"branch_id": branch_id, "manifest_version": number})


def decode_hint(data: bytes, branch_id: BranchId) -> Hint | None:
    """What a stored hint says; None for one that can't be used, which is as good as none."""
    if data.isdigit():
        return _hint(int(data), is_proof=False) if len(data) < 20 else None
    try:
        document = decode_document(data, f"the hint of branch id {branch_id}")
    except (Damaged, UnsupportedFormat):
        return None
    if document.get("branch_id") != branch_id:
        return None
    return _hint(document.get("manifest_version"), is_proof="checksum" in document)


def _hint(number: object, *, is_proof: bool) -> Hint | None:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < _NUMBER_MAX:
        return None
    return Hint(number, is_proof)


def read_hint(store: ObjectStore, branch_id: BranchId) -> Hint | None:
    stored = store.get(hint_key(branch_id))
    return None if stored is None else decode_hint(stored.data, branch_id)


class HeadSearch:
    """What a store says of the numbers of each branch."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lists_in_name_order = store.location.lists_in_name_order
        self.hints_above: dict[BranchId, int] = {}  # hints that prove a higher number than was found

    def exists(self, branch_id: BranchId, number: int) -> bool:
        return self._store.head(manifest_key(Point(branch_id, number))) is not None

    def find_highest(self, branch_id: BranchId, known: int | None) -> int | None:
        """The highest number; a process that knows none of the branch has the hint read beside the listing."""
        if not self._lists_in_name_order:
            return self._gallop(branch_id, known or 0)
        if known is not None:
            return self.highest_number(branch_id)
        hint: Hint | None = None

        def note_hint() -> None:
            nonlocal hint
            hint = read_hint(self._store, branch_id)

        number, _ = gather([lambda: self.highest_number(branch_id), note_hint])
        if hint is not None and hint.number > (number or 0) and self.exists(branch_id, hint.number):
            return self.highest_number(branch_id)  # it was written after the listing
        self._compare_hint(branch_id, hint, number)
        return number

    def highest_number(self, branch_id: BranchId) -> int | None:
        if self._lists_in_name_order:
            for listed in self._store.list(manifest_folder(branch_id)):
                number = manifest_number(listed.key)
                if number is not None:
                    return number
            return None
        return self._gallop(branch_id)

    def _gallop(self, branch_id: BranchId, at_least: int = 0) -> int | None:
        """Steps that double from the hint on, then halving: some requests whatever the depth."""
        hint = read_hint(self._store, branch_id)
        starts = sorted({hint.number if hint else 0, at_least, 1} - {0}, reverse=True)
        low = next((start for start in starts if self.exists(branch_id, start)), None)
        if low is None:
            return None
        step = 1
        while self.exists(branch_id, low + step):
            low, step = low + step, step * 2
        high = low + step  # missing
        while high - low > 1:
            middle = (low + high) // 2
            if self.exists(branch_id, middle):
                low = middle
            else:
                high = middle
        self._compare_hint(branch_id, hint, low)
        return low

    def _compare_hint(self, branch_id: BranchId, hint: Hint | None, found: int | None) -> None:
        """Remember a hint whose number is missing, with nothing above it: it was written after that manifest."""
        if hint is not None and hint.is_proof and found is not None and hint.number > found:
            self.hints_above[branch_id] = hint.number
        else:
            self.hints_above.pop(branch_id, None)
