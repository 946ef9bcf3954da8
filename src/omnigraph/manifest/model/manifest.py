"""Manifests and what is in them: frozen values.

A manifest is self-contained: the whole table map, so that opening a graph is one small read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from omnigraph.storage.table.file_records import FileRecord as FileRecord
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.table_content import TableContent, Tail, VersionWithTail

TableKey: TypeAlias = str  # "node:Person"
BranchId: TypeAlias = str
CommitId: TypeAlias = str  # "<branch id>.<manifest version>[.<n>]": says where the commit is
TxnId: TypeAlias = str

Token: TypeAlias = str  # of one start of a long write: what it stages is recognised by it
MAIN = "main"
WHOLE = 1 << 31  # more commits than any manifest has


class Position(NamedTuple):
    """A place in the history of one branch: every manifest before `number`, and this many commits of that one.

    Positions compare in that order. All of a manifest is `WHOLE`, however many commits it has, so that one place has
    one position only.
    """

    number: int
    commits: int = WHOLE

    @property
    def is_whole(self) -> bool:
        return self.commits == WHOLE


Ancestry: TypeAlias = Mapping[BranchId, Position]  # a version vector: what each branch has contributed
NOTHING = Position(0)


class FreshTxnId(str):
    """A transaction id that was made for one write, after its maker had seen the commit `seen`.

    What landed before that commit can't carry it, so it is looked for behind it only: nowhere, where that is the head.
    That it is used for the first time would not be enough: a request may be held up on its way for longer than its own
    repetition takes to land.
    """

    __slots__ = ("seen",)
    seen: CommitId

    def __new__(cls, txn_id: str, seen: CommitId) -> "FreshTxnId":
        made = super().__new__(cls, txn_id)
        made.seen = seen
        return made

    def __getnewargs__(self) -> tuple[str, CommitId]:  # type: ignore[override]  # how it is made again, in pickles too
        return str(self), self.seen


class CommitClass(StrEnum):
    LOGICAL = "logical"  # changes what the graph says
    MAINTENANCE = "maintenance"  # changes how it is stored; nobody's parent


@dataclass(frozen=True, slots=True)
class RowCounts:
    """How many rows of one table a commit changed."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def __bool__(self) -> bool:
        return bool(self.inserted or self.updated or self.deleted)


@dataclass(frozen=True, slots=True)
class Point:
    """One manifest of one branch."""

    branch_id: BranchId
    manifest_version: int


@dataclass(frozen=True, slots=True)
class TableRef:
    """One type's table as a manifest names it: a detached Lance version, and the rows on top.

    `stored` is None while all rows that the type ever had ride in manifests. `rows` counts what is visible.
    """

    stored: TableVersion | None
    rows: int
    changed_at: CommitId  # the commit that last changed the content; compared for equality only
    tail: Tail = ()  # manifests whose inline rows are newer than the stored version, oldest first
    removed_at: CommitId | None = None  # the commit that last removed rows, compared and copied like changed_at
    columns: str | None = None  # hash of the schema that the columns of `stored` were made for; None where nothing is

    @property
    def content(self) -> TableContent | None:
        """What a read of the table is to be given."""
        return VersionWithTail(self.stored, self.tail) if self.tail else self.stored


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a commit by recovery did to a long write that its owner had left, and whose that was."""

    txn_id: TxnId
    kind: str
    actor: str | None
    outcome: str  # "completed" or "discarded"


@dataclass(frozen=True, slots=True)
class Commit:
    id: CommitId
    txn_id: TxnId
    parent: CommitId | None
    merged_parent: CommitId | None
    actor: str | None
    authored_at: datetime
    kind: str
    commit_class: CommitClass
    touched: Mapping[TableKey, RowCounts] = field(default_factory=dict)
    recovered: Recovered | None = None
    token: Token | None = None  # of a long write: the start of it that published this
    input: str | None = None  # of a long write: a digest of what it was given
    request: str | None = None  # of a write under an idempotency key: a digest of the request


Files: TypeAlias = Mapping[str, Mapping[str, FileRecord]]  # table id → path below its directory → record
NO_FILES: Files = {}


@dataclass(frozen=True, slots=True)
class InlineChange:
    """Rows of one table that ride in the manifest: Arrow IPC bytes, and deleted ids.

    `new`: no row had one of their ids, so whoever folds them need not look for rows that they replace.
    """

    upserts: bytes | None = None
    deletes: tuple[str, ...] = ()
    new: bool = False


@dataclass(frozen=True, slots=True)
class Fence:
    """A cleanup passed here: what was staged before it may be gone, unless its token is honoured."""

    previous: int  # number of the fence before this one on the branch; 0 for none
    honoured: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Reservation:
    """A writer that keeps losing asks the others for this much time; they may ignore it."""

    txn_id: TxnId  # of the write that wants to get through
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The branch ends here; a writer that still holds it loses its race cleanly."""

    txn_id: TxnId
    actor: str | None
    request: str | None = None  # as in a commit


@dataclass(frozen=True, slots=True)
class Manifest:
    branch: str
    branch_id: BranchId
    manifest_version: int
    schema: str
    logical_head: CommitId
    authored_at: datetime  # of its newest commit, or of the fork point; never falls along a branch
    ancestry: Ancestry
    fenced_at: int = 0  # number of the newest fence on this branch; 0 for none
    oldest_retained: int = 1
    commits: tuple[Commit, ...] = ()
    tables: Mapping[TableKey, TableRef] = field(default_factory=dict)
    inline: tuple[Mapping[TableKey, InlineChange], ...] = ()
    fork: Point | None = None
    fence: Fence | None = None
    reservation: Reservation | None = None
    tombstone: Tombstone | None = None
    discards: tuple[Token, ...] = ()  # starts of a long write that were given up: none of them may publish after this
    files: Files = field(default_factory=dict)  # table files that came with this manifest
    point: Point = field(init=False, repr=False, compare=False)  # made once: everything asks for it

    def __post_init__(self) -> None:
        object.__setattr__(self, "point", Point(self.branch_id, self.manifest_version))

    def changed_at(self, key: TableKey) -> CommitId | None:
        """`changed-at`: the commit that last changed the rows of a type; a type without a table has none."""
        ref = self.tables.get(key)
        return None if ref is None else ref.changed_at


@dataclass(frozen=True, slots=True)
class Stub:
    """What cleanup leaves of an expired manifest: its number stays taken, its txn ids findable."""

    branch: str
    branch_id: BranchId
    manifest_version: int
    authored_at: datetime
    ancestry: Ancestry
    commits: tuple[Commit, ...] = ()
    fork: Point | None = None
    tombstone: Tombstone | None = None
    was_fence: bool = False
    discards: tuple[Token, ...] = ()
    files: Files = field(default_factory=dict)


Entry: TypeAlias = Manifest | Stub


def stub_of(manifest: Manifest) -> Stub:
    """`unique-numbers`: a number is used once, for ever; an expired manifest keeps it as this."""
    return Stub(
        manifest.branch,
        manifest.branch_id,
        manifest.manifest_version,
        manifest.authored_at,
        manifest.ancestry,
        manifest.commits,
        manifest.fork,
        manifest.tombstone,
        manifest.fence is not None,
        manifest.discards,
        manifest.files,
    )


def txn_ids(entry: Entry) -> frozenset[TxnId]:
    """Whose put this was: the transactions that the object at this number carries."""
    own = {commit.txn_id for commit in entry.commits}
    return frozenset(own | {entry.tombstone.txn_id} if entry.tombstone else own)


def is_committed(entry: Entry, manifest: Manifest) -> bool:
    """Whether the entry under a manifest's number contains its transactions. The first manifest of a branch has none.

    With a supplied txn id it may be an earlier call's entry, which staged other files: then those count.
    """
    if entry is manifest:
        return True
    own = txn_ids(manifest)
    return (bool(own) and own <= txn_ids(entry)) or _is_same_first_manifest(entry, manifest)


def _is_same_first_manifest(entry: Entry, manifest: Manifest) -> bool:
    """Only its creator, who generated the branch id, ever puts a living manifest 1."""
    return manifest.manifest_version == 1 and entry.tombstone is None and manifest.tombstone is None
