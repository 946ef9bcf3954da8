"""What a table contains: a stored version, perhaps with inline rows of small commits on top, its tail.

A `VersionWithTail` only names those commits. `Tables` reads them when needed, through the function it was given: code
that passes a content on need not know about tails.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.overlay import Overlay


@dataclass(frozen=True, slots=True)
class TailEntry:
    """Rows of one table in one manifest.

    `table_key` is the key that the table had then: a rename does not change it. `commits` limits the rows to the first
    commits of a group that shares the manifest; None means all. `size` is their size there, in bytes.
    """

    branch_id: str
    manifest_version: int
    table_key: str
    size: int = 0
    commits: int | None = None


Tail: TypeAlias = tuple[TailEntry, ...]  # oldest first


@dataclass(frozen=True, slots=True)
class VersionWithTail:
    """A stored version, or none yet, with a tail on top, and on that rows that are not committed yet."""

    stored: TableVersion | None
    tail: Tail
    pending: Overlay = Overlay.EMPTY

    def __str__(self) -> str:
        return f"{self.stored or 'no table'} with {len(self.tail)} small commits on top"


TableContent: TypeAlias = TableVersion | VersionWithTail


class TailReader(Protocol):
    """Reads the rows that a tail names, as one overlay."""

    def __call__(self, tail: Tail) -> Overlay: ...


def make_content(stored: TableVersion | None, tail: Tail, pending: Overlay = Overlay.EMPTY) -> TableContent | None:
    """The plain version if nothing lies on top; None if there is nothing at all."""
    return VersionWithTail(stored, tail, pending) if tail or not pending.is_empty else stored
