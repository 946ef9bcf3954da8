"""Who is there: every branch that ever was, the jobs that are under way. What a cleanup looks at, twice."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from omnigraph.manifest.branch.refs import Ref
from omnigraph.manifest.intent.intent_store import SeenIntent
from omnigraph.manifest.model.manifest import BranchId, Manifest, Point, Token
from omnigraph.manifest.repository import Repository
from omnigraph.storage.util.parallel import gather


@dataclass(frozen=True)
class Census:
    """All lives of all branch names, by their newest manifest, confirmed."""

    heads: Mapping[BranchId, Manifest] = field(default_factory=dict)  # of the living
    graves: Mapping[BranchId, Manifest] = field(default_factory=dict)  # the tombstones of the dead
    unfinished: tuple[Point, ...] = ()  # where refs were forked that have no manifest 1 yet: pins


@dataclass(frozen=True)
class Jobs:
    """The intents, by what becomes of them."""

    honoured: tuple[SeenIntent, ...] = ()
    expired: tuple[SeenIntent, ...] = ()  # dead for longer than anybody waits: to be discarded
    closed: tuple[SeenIntent, ...] = ()  # whose discard has begun and not ended
    ended: tuple[SeenIntent, ...] = ()  # of which only the object is left, for longer than anybody waits

    @property
    def to_end(self) -> tuple[SeenIntent, ...]:
        return (*self.expired, *self.closed)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """What a fence honours: every start of every job that is honoured."""
        return tuple(sorted({token for seen in self.honoured for token in seen.intent.tokens}))


@dataclass(frozen=True)
class Spared:
    """What honoured intents name: tables whose unreferenced files stay, and what their jobs need to be resumed.

    Not by time: the clock of a store may step back while a job stages.
    """

    tables: frozenset[str] | None = frozenset()  # None: all, for an intent that does not name its own (format 1)
    prefixes: frozenset[str] = frozenset()

    @staticmethod
    def by(honoured: Iterable[SeenIntent]) -> "Spared":
        tables: frozenset[str] | None = frozenset()
        prefixes = set()
        for seen in honoured:
            named = seen.intent.tables
            tables = None if tables is None or named is None else tables | named
            prefixes.add(seen.intent.prefix)
        return Spared(tables, frozenset(prefixes))

    def has_table(self, table_id: str) -> bool:
        return self.tables is None or table_id in self.tables

    def has_key(self, key: str) -> bool:
        return any(key.startswith(f"{prefix}/") for prefix in self.prefixes)


def take_census(repository: Repository) -> Census:
    """From a fresh listing of refs. A head that can't be read ends it: what that needs is not known."""
    refs, manifests = repository.refs, repository.manifests
    lives = [(name, life) for name, newest in refs.all_names().items() for life in range(1, newest.life + 1)]
    found: list[Ref] = gather([partial(refs.read, name, life) for name, life in lives])
    heads: dict[BranchId, Manifest] = {}
    graves: dict[BranchId, Manifest] = {}
    unfinished: list[Point] = []
    for ref, head in zip(found, gather([partial(manifests.read_head, ref.branch_id) for ref in found]), strict=True):
        if head is None:
            unfinished.extend([] if ref.fork is None else [ref.fork])
        else:
            (heads if head.tombstone is None else graves)[ref.branch_id] = head
    return Census(heads, graves, tuple(unfinished))


def list_jobs(repository: Repository, ttl: timedelta) -> Jobs:
    """A dead intent is honoured until it has been dead for `ttl`; one that somebody works on, or may, always."""
    seen = repository.intents.list()
    open_ = [one for one in seen if not one.closed]
    expired = [one for one in open_ if one.age >= ttl and repository.intents.is_abandoned(one)]
    honoured = [one for one in open_ if one not in expired]
    return Jobs(
        tuple(honoured),
        tuple(expired),
        tuple(one for one in seen if one.closed and not one.ended),
        tuple(one for one in seen if one.ended and one.age >= ttl),
    )
