"""A graph on its store: the stamp, and everything of this package wired together."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from omnigraph.errors import (
    AlreadyExists,
    BadRequest,
    BranchNotFound,
    CommitNotFound,
    Damaged,
    NotAGraph,
    OmnigraphError,
    OutcomeUnknown,
    ReadOnly,
    TagNotFound,
    UnsupportedFormat,
)
from omnigraph.manifest.branch.branches import Branches
from omnigraph.manifest.branch.refs import Ref, Refs
from omnigraph.manifest.branch.tags import PREFIX as TAG_PREFIX
from omnigraph.manifest.branch.tags import Tag, Tags, check_tag_name, looks_like_time
from omnigraph.manifest.commit.contention import PublishPolicy
from omnigraph.manifest.commit.plan import ConflictPolicy, CreateBranch, EmptyBranch, PublishPlan
from omnigraph.manifest.commit.publish import Publisher
from omnigraph.manifest.commit.txn import Snapshot, WriteTxn
from omnigraph.manifest.history.history import NO_SUCH_COMMIT, state_at_commit, state_at_time
from omnigraph.manifest.intent.intent_store import Intents
from omnigraph.manifest.model.codec import encode_time
from omnigraph.manifest.model.document import decode_document, encode_document
from omnigraph.manifest.model.manifest import MAIN, BranchId, CommitId, Manifest, Point, Position
from omnigraph.manifest.model.paths import (
    STAMP,
    check_branch_name,
    commit_position,
    looks_like_commit_id,
    parse_branch_id,
    require_name,
)
from omnigraph.manifest.settings import Settings, settings_from
from omnigraph.manifest.store.clock_check import make_clock_check
from omnigraph.manifest.store.inline_rows import InlineRows
from omnigraph.manifest.store.manifest_store import Manifests, Schemas
from omnigraph.runtime import Runtime
from omnigraph.schema.catalog import Schema
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.object_store import ObjectStore, PutOutcome, StoredObject, open_store
from omnigraph.storage.table.tables import Tables
from omnigraph.threads import gather

INIT_LIVES_MAX = 64
NOWHERE = Position(2**40)  # more manifests than any branch has
STAMP_ATTEMPTS_MAX = 8


@dataclass(frozen=True, slots=True)
class Stamp:
    """What makes a prefix a graph: its format, its identity, and which branch id is `main`."""

    graph_id: str
    main_id: BranchId
    created_at: str

    def encoded(self) -> bytes:
        return encode_document({"graph_id": self.graph_id, "main": self.main_id, "created_at": self.created_at})


class Visibility(Protocol):
    """What of a graph somebody may know about. Names and ids of anything else are unknown, as if it did not exist."""

    def has_branch(self, name: str) -> bool: ...

    def require_branch(self, name: str) -> None: ...

    def has_position(self, branch_id: BranchId, position: Position) -> bool: ...


class Repository:
    """One open graph: what the layers above need of this one."""

    visibility: Visibility | None = None  # None where everything may be seen

    def __init__(
        self,
        store: ObjectStore,
        stamp: Stamp,
        *,
        runtime: Runtime,
        read_only: bool = False,
        policy: PublishPolicy | None = None,
        tables: Tables | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.location = store.location
        self.stamp = stamp
        self.runtime = runtime
        self.read_only = read_only
        self.store = store
        self.settings = settings_from() if settings is None else settings
        ahead_max_s = self.settings.clock_ahead_s if self.settings.maintenance else 0
        self.clock_check = make_clock_check(store, runtime, ahead_max_s)
        self.manifests = Manifests(store, clock=runtime.clock, clock_check=self.clock_check)
        self.schemas = Schemas(store)
        self.inline_rows = InlineRows(self.manifests)
        self.publisher = Publisher(self.manifests, self.schemas, self.inline_rows, runtime, policy, self.settings)
        self.refs = Refs(store, runtime)
        self.intents = Intents(store, runtime)
        self.tags = Tags(store, self.manifests, runtime)
        self.branches = Branches(
            stamp.main_id, self.refs, self.manifests, self.schemas, self.publisher, runtime, self.tags
        )
        self.tables = tables if tables is not None else Tables(store.location)
        self.tables.read_tail = self.inline_rows.overlay
        self.before_write: Callable[[Manifest], bool] | None = None  # may fold first; True if it did

    def limit_to(self, visibility: Visibility) -> "Repository":
        """The same graph for somebody who may not see all of it: this limits what names and ids lead to.

        What works on the graph itself (merges, maintenance) is not limited.
        """
        limited = copy(self)
        limited.visibility = visibility
        limited.intents = copy(self.intents)
        limited.intents.visible_branch = visibility.has_branch
        return limited

    def require_writable(self, verb: str) -> None:
        if self.read_only:
            raise ReadOnly(verb)

    def open_txn(self, branch: str = MAIN, *, confirmed: bool = True) -> WriteTxn:
        """Capture a write's base once, from a head that is confirmed in this call.

        Unconfirmed it is the newest that this process has seen, without a request: good enough to plan on, because
        the put finds out. What is refused on such a base must be asked again on a confirmed one (`confirmed-head`).
        """
        if self.clock_check is not None:
            self.clock_check.begin()
        head = None if confirmed else self.cached_head(branch)
        if head is None or not self.manifests.was_seen_lately(head):
            head = self.branches.find(branch).head
        return WriteTxn(head, self.schemas.read(head.schema))

    def cached_head(self, branch: str) -> Manifest | None:
        """The newest manifest of a branch that is in memory, without a request; None for a deleted branch."""
        if branch == MAIN:  # it always lives, under one id
            return self.manifests.cached_head(self.stamp.main_id)
        return self.branches.cached_head(branch)

    def snapshot(self, branch: str = MAIN, at: str | datetime | None = None) -> Snapshot:
        """Pin what a read sees: the newest commit of a branch, or an older state: of a commit, a tag, a time."""
        return self._snapshot_of(self.find_head(branch) if at is None else self._state_at(branch, at))

    def resolve(self, reference: str, branch: str = MAIN) -> Snapshot:
        """What a name stands for where it may be a branch too: a commit id, a branch, a tag, or a time on `branch`."""
        return self._snapshot_of(self.find_state(reference, branch))

    def find_state(self, reference: str, branch: str = MAIN) -> Manifest:
        """The manifest of `resolve`. A branch goes before a tag of the same name; `tag:NAME` is the tag."""
        require_name("A state", reference)
        if not looks_like_commit_id(reference) and not reference.startswith(TAG_PREFIX):
            try:
                return self.find_head(reference)
            except (BadRequest, BranchNotFound):
                if not looks_like_time(reference) and self._find_commit_id(reference) is None:
                    raise
        return self._state_at(branch, reference)

    def find_commit_id(self, reference: str) -> CommitId:
        """The commit that an id or a tag stands for."""
        commit = self._find_commit_id(reference)
        if commit is None:
            raise CommitNotFound(reference, "it is neither a commit id nor a tag, see `commit list` and `tag list`")
        return commit

    def _find_commit_id(self, reference: str) -> CommitId | None:
        """The id itself, or what a tag says; None for what may be a time."""
        require_name("A commit", reference)
        if looks_like_commit_id(reference):
            if not self.sees(reference):
                raise CommitNotFound(reference, NO_SUCH_COMMIT)
            return reference
        if reference.startswith(TAG_PREFIX):
            name = reference.removeprefix(TAG_PREFIX)
            if (tag := self._find_tag(name)) is None:
                raise TagNotFound(name)
            return tag.commit_id
        try:
            tag = self._find_tag(check_tag_name(reference))
        except BadRequest:
            return None
        return None if tag is None else tag.commit_id

    def _find_tag(self, name: str) -> Tag | None:
        tag = self.tags.find(name)
        if tag is None and self.visibility is not None:
            self.visibility.has_position(self.stamp.main_id, NOWHERE)  # it takes as long as for a hidden tag
        return tag if tag is not None and self.sees(tag.commit_id) else None

    def sees(self, commit: CommitId) -> bool:
        """Whether a commit may be named; if not everything may be seen, it also has to exist."""
        return self.visibility is None or self.visibility.has_position(*commit_position(commit))

    def sees_state(self, point: Point, commits: int | None) -> bool:
        """The same for the state after all or some commits of a manifest."""
        position = Position(point.manifest_version) if commits is None else Position(point.manifest_version, commits)
        return self.visibility is None or self.visibility.has_position(point.branch_id, position)

    def branch_names(self) -> list[str]:
        return self.branches.names(None if self.visibility is None else self.visibility.has_branch)

    def find_head(self, branch: str) -> Manifest:
        if self.visibility is not None:
            self.visibility.require_branch(check_branch_name(branch))
        return self.branches.find(branch).head

    def _state_at(self, branch: str, at: str | datetime) -> Manifest:
        commit = None if isinstance(at, datetime) else self._find_commit_id(at)
        if commit is not None:
            return state_at_commit(self.manifests, commit, self.tags)
        return state_at_time(self.manifests, self.find_head(branch), at, self.tags)

    def _snapshot_of(self, manifest: Manifest) -> Snapshot:
        return Snapshot(manifest, self.schemas.read(manifest.schema))


def init_repository(
    uri: str,
    schema: Schema,
    storage_options: Mapping[str, str] | None = None,
    *,
    actor: str | None = None,
    runtime: Runtime | None = None,
    policy: PublishPolicy | None = None,
    settings: Settings | None = None,
) -> Repository:
    """Make a graph. The stamp comes last and names main's branch id, so a crash leaves no graph.

    See `monotone-and-complete-listings`.
    """
    runtime = runtime or Runtime()
    location = parse_location(uri, storage_options)
    store = open_store(location, runtime)
    if store.get(STAMP) is not None:
        raise AlreadyExists(f"A graph in {location.uri}", "open it, or choose another place")
    stamp = Stamp(runtime.ids.short_id(), runtime.ids.short_id(), encode_time(runtime.clock.now()))
    repository = Repository(store, stamp, runtime=runtime, policy=policy, settings=settings)
    gather([lambda: _reserve_main(repository), lambda: repository.schemas.write(schema)])
    plan = PublishPlan(runtime.ids.txn_id(), ConflictPolicy.CONSTRUCTIVE, CreateBranch(MAIN, schema.hash), actor)
    repository.publisher.create_branch(EmptyBranch(MAIN, stamp.main_id), plan)
    _put_stamp(store, stamp, runtime)
    return repository


def open_repository(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    read_only: bool = False,
    runtime: Runtime | None = None,
    policy: PublishPolicy | None = None,
    settings: Settings | None = None,
) -> Repository:
    """Open a graph and look at the head of main: stamp, head, schema. Writes nothing, repairs nothing."""
    runtime = runtime or Runtime()
    location = parse_location(uri, storage_options)
    store = open_store(location, runtime, read_only=read_only)
    stamp = _read_stamp(store)
    repository = Repository(store, stamp, runtime=runtime, read_only=read_only, policy=policy, settings=settings)
    with suppress(Damaged, UnsupportedFormat):  # whoever reads main will be told; other branches are unharmed
        repository.snapshot()
    return repository


def _read_stamp(store: ObjectStore) -> Stamp:
    stored = store.get(STAMP)
    if stored is None:
        raise NotAGraph(store.location.uri)
    return _decode_stamp(stored.data, store.location.uri)


def _decode_stamp(data: bytes, uri: str) -> Stamp:
    document = decode_document(data, f"the graph in {uri}")
    try:
        return Stamp(str(document["graph_id"]), parse_branch_id(document["main"]), str(document["created_at"]))
    except (KeyError, ValueError) as error:
        raise Damaged(f"the stamp of {uri}", f"{type(error).__name__}: {error}") from error


def _put_stamp(store: ObjectStore, stamp: Stamp, runtime: Runtime) -> None:
    """Of two concurrent inits one makes the graph; a lost answer is settled by the graph id.

    From a lost answer on, a store that can't be asked is no failure: the graph may be there.
    """
    may_have_landed = False
    for attempt in range(STAMP_ATTEMPTS_MAX):
        stored: StoredObject | None = None
        try:
            if store.create(STAMP, stamp.encoded()).outcome is PutOutcome.CREATED:
                return
            may_have_landed = True
            stored = store.get(STAMP)
        except OmnigraphError:
            if not may_have_landed:
                raise
        if stored is not None:
            if _decode_stamp(stored.data, store.location.uri).graph_id == stamp.graph_id:
                return
            raise AlreadyExists(f"A graph in {store.location.uri}", "somebody else has just made one there")
        runtime.clock.sleep(runtime.jitter(0.05 * 2.0**attempt))
    raise OutcomeUnknown(stamp.graph_id, MAIN, 1)


def _reserve_main(repository: Repository) -> str:
    """A life of the name `main`; one that a crashed init took is left to cleanup."""
    for life in range(1, INIT_LIVES_MAX):
        if repository.refs.reserve(Ref(MAIN, life, repository.stamp.main_id, None)) is None:
            return repository.stamp.main_id
    raise AlreadyExists(f"{repository.location.uri} with {INIT_LIVES_MAX} unfinished graphs", "choose another place")
