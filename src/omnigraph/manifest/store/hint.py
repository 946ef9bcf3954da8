"""The hint beside a branch's manifests: a number that was the head once, written after the manifest of that number.

A hint whose checksum holds therefore proves that its number was used. The plain numbers that format 1 wrote prove
nothing: a flipped bit makes another number of them. They only say where to begin to look.
"""

from dataclasses import dataclass

from omnigraph.errors import Damaged, UnsupportedFormat
from omnigraph.manifest.model.document import decode_document, encode_document
from omnigraph.manifest.model.manifest import BranchId

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
