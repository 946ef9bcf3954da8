"""What cleanup has made of a branch's old manifests, noted beside them.

Manifests that something still needs lie whole between stubs. Without the note every cleanup would have to read all of
them again, however old the branch is. It may be behind the truth, never ahead of it: it is written after the stubs.

A manifest only ever moves from a whole state to one that is left for its rows, and from there to a stub. So two notes
are merged by taking the later of these for each manifest, and a cleanup that was stalled does not undo what another
has noted: otherwise a manifest whose tables are gone would pass for a state that can be read.
"""

from dataclasses import dataclass

from omnigraph.errors import Damaged
from omnigraph.manifest.model.document import decode_document, encode_document


@dataclass(frozen=True, slots=True)
class StubIndex:
    """Below `below` everything is a stub, but for what is named here."""

    below: int = 1
    states: tuple[int, ...] = ()  # whole, with all that reading them takes
    rows: tuple[int, ...] = ()  # whole for the inline rows in them, which a tail names; their tables may be gone

    @property
    def whole(self) -> tuple[int, ...]:
        return tuple(sorted((*self.states, *self.rows)))

    def merge(self, other: "StubIndex") -> "StubIndex":
        """The later state of each manifest that either index knows."""
        states = [number for number in {*self.states, *other.states} if self._state(number) and other._state(number)]
        whole = [number for number in {*self.whole, *other.whole} if self._whole(number) and other._whole(number)]
        rows = {*whole}.difference(states)
        return StubIndex(max(self.below, other.below), tuple(sorted(states)), tuple(sorted(rows)))

    def _state(self, number: int) -> bool:
        return number >= self.below or number in self.states

    def _whole(self, number: int) -> bool:
        return self._state(number) or number in self.rows


def encode_stub_index(stubbed: StubIndex) -> bytes:
    return encode_document({"below": stubbed.below, "states": list(stubbed.states), "rows": list(stubbed.rows)})


def decode_stub_index(data: bytes, what: str) -> StubIndex:
    document = decode_document(data, what)
    try:
        below, states, rows = document["below"], document["states"], document["rows"]
        return StubIndex(int(below), tuple(int(number) for number in states), tuple(int(number) for number in rows))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(what, f"{type(error).__name__}: {error}") from error
