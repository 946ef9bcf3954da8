"""What cleanup has made of a branch's old manifests, noted beside them.

Manifests that something still needs lie whole between stubs. Without the note every cleanup would have to read all of
them again, however old the branch is. It may be behind the truth, never ahead of it: it is written after the stubs.
"""

from dataclasses import dataclass

from omnigraph.errors import Damaged
from omnigraph.manifest.codec import decode_json, encode_json
from omnigraph.manifest.model import FORMAT


@dataclass(frozen=True, slots=True)
class Stubbed:
    """Below `below` everything is a stub, but for what is named here."""

    below: int = 1
    states: tuple[int, ...] = ()  # whole, with all that reading them takes
    rows: tuple[int, ...] = ()  # whole for the inline rows in them, which a tail names; their tables may be gone

    @property
    def whole(self) -> tuple[int, ...]:
        return tuple(sorted((*self.states, *self.rows)))


def encode_stubbed(stubbed: Stubbed) -> bytes:
    return encode_json(
        {"format": FORMAT, "below": stubbed.below, "states": list(stubbed.states), "rows": list(stubbed.rows)}
    )


def decode_stubbed(data: bytes, what: str) -> Stubbed:
    document = decode_json(data, what)
    try:
        below, states, rows = document["below"], document["states"], document["rows"]
        return Stubbed(int(below), tuple(int(number) for number in states), tuple(int(number) for number in rows))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(what, f"{type(error).__name__}: {error}") from error
