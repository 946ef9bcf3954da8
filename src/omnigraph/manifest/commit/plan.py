"""PublishPlan: all that one commit changes and all that it relied on, complete before the put."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from omnigraph.errors import BadRequest
from omnigraph.manifest.model.manifest import (
    Ancestry,
    BranchId,
    CommitId,
    Entry,
    Fence,
    FileRecord,
    InlineChange,
    Manifest,
    Point,
    Recovered,
    RowCounts,
    TableKey,
    TableRef,
    Token,
    TxnId,
)
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.table_content import Tail

if TYPE_CHECKING:
    import pyarrow as pa

    from omnigraph.manifest.commit.txn import WriteTxn
    from omnigraph.storage.table.tables import AppendedFragments, Tables

LABEL_LENGTH_MAX = 200


class _RowsAction:
    """Rows of one table, given as a table, or as an overlay by whoever planned it: then they are as their type wants
    them, and become a table when somebody asks for one."""

    __slots__ = ("_rows", "overlay", "table")

    def __init__(self, table: TableKey, rows: "pa.Table | Overlay") -> None:
        self.table = table
        self.overlay = rows if isinstance(rows, Overlay) else None
        self._rows = None if isinstance(rows, Overlay) else rows

    @property
    def rows(self) -> "pa.Table":
        rows = self._rows if self.overlay is None else self.overlay.rows
        assert rows is not None, "an action has rows"
        return rows

    @property
    def count(self) -> int:
        return self.rows.num_rows if self.overlay is None else len(self.overlay.ids)


class Append(_RowsAction):
    """New rows; that their ids are new is for a check (`IdsAbsent`) to see to.

    `fresh_ids`: they were minted by this write, so nobody else can have used them.
    """

    __slots__ = ("fresh_ids",)
    __match_args__ = ("table", "rows", "fresh_ids")

    def __init__(self, table: TableKey, rows: "pa.Table | Overlay", fresh_ids: bool = False) -> None:
        super().__init__(table, rows)
        self.fresh_ids = fresh_ids

    def with_rows(self, rows: "pa.Table") -> "Append":
        return Append(self.table, rows, self.fresh_ids)


class Upsert(_RowsAction):
    """Whole row images: they replace the rows with their ids, or are new."""

    __slots__ = ("known",)
    __match_args__ = ("table", "rows", "known")

    def __init__(self, table: TableKey, rows: "pa.Table | Overlay", known: frozenset[str] | None = None) -> None:
        super().__init__(table, rows)
        self.known = known

    def with_rows(self, rows: "pa.Table") -> "Upsert":
        return Upsert(self.table, rows, self.known)


@dataclass(frozen=True, slots=True)
class Delete:
    """`known`, here and in an upsert: which of its ids the base has, if whoever planned it has looked."""

    table: TableKey
    ids: tuple[str, ...]
    known: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Overwrite:
    """These rows instead of all that were there."""

    table: TableKey
    rows: "pa.Table"


@dataclass(frozen=True, slots=True, eq=False)
class Create:
    """A type's first table, perhaps without rows."""

    table: TableKey
    rows: "pa.Table"


@dataclass(frozen=True, slots=True)
class Drop:
    """The type's table is no longer part of the graph; its files stay until cleanup."""

    table: TableKey


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The same rows in other fragments (compaction, fold); content unchanged."""

    table: TableKey


@dataclass(frozen=True, slots=True)
class Index:
    """The same rows with more or other index segments; content unchanged."""

    table: TableKey


@dataclass(frozen=True, slots=True)
class Bulk:
    """Rows that many workers have written, more than a plan can hold: staged by the verb that plans it."""

    table: TableKey


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same rows in other columns, staged by the verb that plans it: no row changes, its schema does."""

    table: TableKey


@dataclass(frozen=True, slots=True)
class Move:
    """A renamed type: the table that was kept as `origin`, as it is, under another key."""

    table: TableKey
    origin: TableKey


TableAction: TypeAlias = Append | Upsert | Delete | Overwrite | Create | Drop | Rewrite | Index | Bulk | Reshape | Move


@dataclass(frozen=True, slots=True, eq=False)
class StagedTable:
    """The physical part of a table's actions: a detached version that nobody was told of yet.

    `whole-tail`: it contains all of `folded`, the tail that its base had.
    """

    at: TableVersion
    rows: int
    counts: RowCounts
    base: TableVersion | None  # the stored version that it was derived from
    folded: Tail = ()
    carryable: "AppendedFragments | None" = None  # appended fragments that may move to another version
    columns: str | None = None  # hash of the schema that its columns were made for; None: that of the manifest it is on
    files: Mapping[str, FileRecord] = field(default_factory=dict)  # that are new in it, by path below its directory


@dataclass(frozen=True, slots=True, eq=False)
class InlineTable:
    """A table's actions as rows that ride in the manifest: nothing is derived from a stored version.

    What they amount to (`counts`) was counted on content that `changed_at` names.
    """

    change: InlineChange
    overlay: Overlay  # the same, decoded
    counts: RowCounts
    changed_at: CommitId | None


class Check(Protocol):
    """What must be true of the graph for a write to be allowed; it says which tables it reads."""

    @property
    def reads(self) -> frozenset[TableKey]: ...

    def run(self, txn: "WriteTxn", tables: "Tables") -> None:
        """Raise `ConstraintViolation` if it does not hold in the transaction's base."""


class Guard(Protocol):
    """What a plan with an intent checks before every put at a new number (`intent-tokens`)."""

    def search(self, head: Manifest) -> Entry | None:
        """The entry, up to this head, that committed the transaction already; raises if it must not be put."""

    def check(self, head: Manifest) -> Entry | None:
        """The same and all that has to hold directly before a put on top of this head."""


class ConflictPolicy(Enum):
    """What losing the race means for a plan: the columns of the conflict table."""

    CONSTRUCTIVE = "constructive"
    STRICT = "strict"
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class Adopted:
    """A table of the branch that is merged, taken over by its reference: nothing of it is read or copied.

    `converted`: its rows had to be rewritten for the merged schema, so its content is new with this commit.
    """

    ref: TableRef
    converted: bool = False
    files: Mapping[str, FileRecord] = field(default_factory=dict)  # that were written to convert it


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge takes from the other branch: the place in its history, and whole tables."""

    ancestry: Ancestry
    adopted: Mapping[TableKey, Adopted] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataChange:
    """An ordinary commit: tables change together."""

    kind: str
    actions: tuple[TableAction, ...] = ()
    staged: Mapping[TableKey, StagedTable] = field(default_factory=dict)
    inline: Mapping[TableKey, InlineTable] = field(default_factory=dict)  # never beside `staged` rows of the same plan
    schema: str | None = None  # the new schema's hash, where it changes
    merged_parent: CommitId | None = None
    merged: Merged | None = None  # where there is a merged_parent
    # Tables that would be staged on another base, with the stored version that this was decided from (`rebase`).
    unstaged: Mapping[TableKey, TableVersion | None] = field(default_factory=dict)

    @property
    def row_counts(self) -> dict[TableKey, RowCounts]:
        """What becomes of the rows of each table, staged or inline."""
        return {key: one.counts for key, one in self.staged.items()} | {k: one.counts for k, one in self.inline.items()}

    @property
    def changes_rows(self) -> bool:
        """Whether any row changes."""
        for changed in (self.inline, self.staged):
            for one in changed.values():
                if one.counts:
                    return True
        return False

    @property
    def origins(self) -> dict[TableKey, TableKey]:
        """Where the base keeps the tables of renamed types, by the key that they get."""
        return {action.table: action.origin for action in self.actions if isinstance(action, Move)}


@dataclass(frozen=True, slots=True)
class RaiseFence:
    """Cleanup's mark in a branch: whoever staged before it must not trust what it staged."""

    oldest_retained: int
    honoured: tuple[Token, ...] = ()
    forgotten: frozenset[BranchId] = frozenset()  # dead and kept by nobody: no longer named as ancestors


@dataclass(frozen=True, slots=True)
class DiscardStarts:
    """Starts of a long write are given up: none of them may publish after this."""

    kind: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Nothing changes; whoever meets it leaves the next number to `txn_id` for a while (see `contention.py`)."""

    txn_id: TxnId
    wait_ms: int


@dataclass(frozen=True, slots=True)
class DeleteBranch:
    """The end of a branch, or of a branch id whose creator never finished."""


@dataclass(frozen=True, slots=True)
class CreateBranch:
    """Manifest 1: of `main` with its schema, of a branch as a copy of the fork point's state."""

    branch: str
    schema: str
    fork: Manifest | None = None


ManifestChange: TypeAlias = DataChange | RaiseFence | DiscardStarts | Reserve | DeleteBranch | CreateBranch


@dataclass(frozen=True, slots=True)
class EmptyBranch:
    """The base of a branch id's manifest 1: nothing is there yet."""

    branch: str
    branch_id: str

    @property
    def point(self) -> Point:
        return Point(self.branch_id, 0)


@dataclass(frozen=True, slots=True)
class PublishPlan:
    txn_id: TxnId  # minted once, kept across retries: how a lost answer is settled
    policy: ConflictPolicy
    change: ManifestChange
    actor: str | None = None
    checks: tuple[Check, ...] = ()  # what it relied on, to be validated again on another base
    read_rows: frozenset[TableKey] = frozenset()  # tables whose rows went into the plan (`replan-reads`)
    read_ids: Mapping[TableKey, frozenset[str]] = field(default_factory=dict)  # of those read by id alone, which ids
    if_commit: CommitId | None = None
    idempotent: bool = False  # the caller supplied txn_id: it may have landed in an earlier call
    intent: Token | None = None  # under which its work was staged: a fence that honours it leaves that alone
    guard: Guard | None = None  # of a plan with an intent
    recovered: Recovered | None = None  # whose long write this ends, where recovery does
    token: Token | None = None  # of the start of a long write that publishes it
    input: str | None = None  # of a long write: a digest of what it was given

    def __post_init__(self) -> None:
        if self.actor is not None:
            _require_label("An actor", self.actor)
        _require_label("A txn id", self.txn_id)

    @property
    def reads(self) -> frozenset[TableKey]:
        """Tables whose content it relied on."""
        return self.read_rows.union(*(check.reads for check in self.checks))

    @property
    def writes(self) -> frozenset[TableKey]:
        change = self.change
        if not isinstance(change, DataChange):
            return frozenset()
        adopted = () if change.merged is None else change.merged.adopted
        return frozenset([*(action.table for action in change.actions), *change.origins.values(), *adopted])

    def written_ids(self, table: TableKey) -> frozenset[str] | None:
        """The rows of a table that the plan writes or removes; None where it can't name them."""
        found: set[str] = set()
        for action in self.change.actions if isinstance(self.change, DataChange) else ():
            if action.table == table:
                match action:
                    case Append(overlay=Overlay() as known) | Upsert(overlay=Overlay() as known):
                        found |= known.ids
                    case Append(_, rows) | Upsert(_, rows) | Create(_, rows):
                        found.update(str(entity) for entity in rows.column("id").to_pylist())
                    case Delete(_, ids):
                        found.update(ids)
                    case _:
                        return None
        return frozenset(found)

    @property
    def refers_to_another_branch(self) -> bool:
        """`other-branch-after-base`: such a plan must look at that branch again after every fence it loses to."""
        return isinstance(self.change, DataChange) and self.change.merged is not None

    @property
    def staged(self) -> Mapping[TableKey, StagedTable]:
        return self.change.staged if isinstance(self.change, DataChange) else {}

    def with_staged(self, staged: Mapping[TableKey, StagedTable]) -> "PublishPlan":
        assert isinstance(self.change, DataChange)
        return replace(self, change=replace(self.change, staged=staged, inline={}))

    @property
    def inline(self) -> Mapping[TableKey, InlineTable]:
        return self.change.inline if isinstance(self.change, DataChange) else {}

    def with_inline(self, inline: Mapping[TableKey, InlineTable]) -> "PublishPlan":
        change = self.change
        assert isinstance(change, DataChange)
        given = (change.schema, change.merged_parent, change.merged, change.unstaged)
        return PublishPlan(  # by hand, since every small commit comes through here: `replace` takes its time
            self.txn_id,
            self.policy,
            DataChange(change.kind, change.actions, {}, inline, *given),
            self.actor,
            self.checks,
            self.read_rows,
            self.read_ids,
            self.if_commit,
            self.idempotent,
            self.intent,
            self.guard,
            self.recovered,
            self.token,
            self.input,
        )

    @property
    def changes_nothing(self) -> bool:
        """No row would change and no schema either: then there is no commit."""
        change = self.change
        return (
            isinstance(change, DataChange)
            and not change.changes_rows
            and self.policy is not ConflictPolicy.MAINTENANCE
            and change.schema is None
            and change.merged_parent is None
            and not any(isinstance(action, Drop | Create) for action in change.actions)
        )


def _require_label(what: str, text: str) -> None:
    if not (0 < len(text) <= LABEL_LENGTH_MAX and text.isprintable()):
        raise BadRequest(f"{what} has 1 to {LABEL_LENGTH_MAX} printable characters, unlike {text[:50]!r}.")


def fence_of(base: Manifest, raising: RaiseFence) -> Fence:
    """`fence-tokens`: every fence names the one before."""
    return Fence(base.fenced_at, raising.honoured)
