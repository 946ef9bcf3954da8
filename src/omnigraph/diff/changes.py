"""All changes between two states of the graph, by entity: inserts, updates and deletes.

Between a commit and one of its descendants the changes of the logical commits in between are composed, so that what
maintenance rewrote is not read at all. Where that is not possible (neither is an ancestor of the other, or cleanup has
expired a commit in between), the two versions of each table are compared directly, and `explained` says so.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from omnigraph.cancellation import checkpoint
from omnigraph.diff.cursor import decode_token, encode_token, fingerprint
from omnigraph.diff.entity_changes import (
    KINDS,
    OPERATIONS,
    ChangeOperation,
    ChangePosition,
    EntityChange,
    entity_changes,
    parse_position,
)
from omnigraph.diff.graph_state import TypeState, state_of
from omnigraph.diff.lineage import find_lineage, same_state
from omnigraph.diff.type_diff import TypeHistory, net_difference, pair_types, type_histories
from omnigraph.errors import BadRequest, CommitNotFound, ConflictError
from omnigraph.manifest.branch.merge_base import find_bases
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.history.history import is_partial, require_retained, state_at_commit, state_before
from omnigraph.manifest.model.manifest import MAIN, CommitId, Manifest, Point
from omnigraph.manifest.model.paths import commit_id, parse_branch_id
from omnigraph.manifest.repository import Repository
from omnigraph.schema.catalog import Catalog
from omnigraph.schema.definitions import Kind
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.storage.table.diff.row_diff import Difference

PAGE = "page token"
_ORDER = {kind: number for number, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class Filters:
    """Which changes to return; None means all."""

    kinds: frozenset[Kind] | None = None
    types: frozenset[str] | None = None
    operations: frozenset[ChangeOperation] | None = None

    @staticmethod
    def of(
        kinds: Iterable[str] | None = None, types: Iterable[str] | None = None, operations: Iterable[str] | None = None
    ) -> "Filters":
        """Check the names, so that a typo does not look like a graph without changes."""
        kinds, operations = (
            given if isinstance(given, str) or given is None else tuple(given) for given in (kinds, operations)
        )
        for what, given, known in (("kind", kinds, KINDS), ("operation", operations, OPERATIONS)):
            unknown = [value for value in given or () if value not in known]
            if isinstance(given, str) or unknown:
                wrong = given if isinstance(given, str) else unknown[0]
                raise BadRequest(f"Unknown {what} {wrong!r}: use a list of {', '.join(known)}.")
        if isinstance(types, str):
            raise BadRequest(f"types must be a list of names: use [{types!r}].")
        return Filters(
            None if kinds is None else frozenset(kind for kind in KINDS if kind in kinds),
            None if types is None else frozenset(types),
            None if operations is None else frozenset(verb for verb in OPERATIONS if verb in operations),
        )

    def want(self, history: TypeHistory) -> bool:
        """Whether the type is selected, by a name that it has or had."""
        definition = history.definition
        if self.kinds is not None and definition.kind not in self.kinds:
            return False
        names = {state.definition.name for state in history.states if state is not None}
        return self.types is None or bool(self.types & names)

    def to_json(self) -> list[Any]:
        return [None if some is None else sorted(some) for some in (self.kinds, self.types, self.operations)]


@dataclass(frozen=True, slots=True)
class TypeRead:
    """What was compared to find the changes of one type, and how many rows differed."""

    type_name: str
    comparisons: tuple[tuple[str | None, str | None], ...]  # table versions
    rows: int


@dataclass(frozen=True, slots=True)
class Explained:
    """How the changes were found so far: by composing commits, or by a direct comparison, and why."""

    method: str  # "composed" or "direct"
    reason: str
    commits: int = 0  # logical commits in between, where they were composed
    reads: tuple[TypeRead, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The types to compare, in order, and whether to swap before and after."""

    histories: tuple[TypeHistory, ...]
    explained: Explained
    backwards: bool = False


@dataclass
class GraphChanges:
    """The changes between two states, in the order of kind, type and id; read type by type while they are iterated.

    Each iteration starts from the beginning. With a `limit` it stops there; `next_page` continues it (None at the end).
    """

    repository: Repository = field(repr=False)
    older: Snapshot = field(repr=False)
    newer: Snapshot = field(repr=False)
    filters: Filters = field(default_factory=Filters)
    request: str = ""  # the states as requested: a page token is valid for these only
    limit: int | None = None
    after: ChangePosition | None = None
    next_page: str | None = None
    explained: Explained = field(default_factory=lambda: Explained("direct", "nothing was compared yet"))
    cost: Cost = field(default_factory=Cost)

    @property
    def from_commit(self) -> CommitId:
        return self.older.commit_id

    @property
    def to_commit(self) -> CommitId:
        return self.newer.commit_id

    @property
    def schema_changed(self) -> bool:
        """Whether the two states have different schemas: changes have the names of the newer one."""
        return self.older.manifest.schema != self.newer.manifest.schema

    def __iter__(self) -> Iterator[EntityChange]:
        self.next_page = None
        changes = self._all()
        if self.limit is None:
            yield from changes
            return
        last: EntityChange | None = None
        for change in islice(changes, self.limit):
            yield change
            last = change
        if last is not None and next(changes, None) is not None:
            self.next_page = self._token(last)

    def _all(self) -> Iterator[EntityChange]:
        with meter.operation("changes") as operation:
            plan = plan_changes(self.repository, self.older, self.newer, self.filters)
        self.explained, self.cost = plan.explained, operation.cost
        for history, after_id in _types_after(plan.histories, self.after):
            checkpoint()
            definition = history.definition
            with meter.operation("changes") as operation:
                found = net_difference(self.repository.tables, history)
            self.cost += operation.cost
            self._record_read(history, found)
            if plan.backwards:
                found = Difference(found.after, found.before)
            for change in entity_changes(found, definition, after_id):
                if self.filters.operations is None or change.operation in self.filters.operations:
                    yield change

    def _record_read(self, history: TypeHistory, found: Difference) -> None:
        pairs = tuple((_version(older), _version(newer)) for older, newer in history.comparisons())
        read = TypeRead(history.definition.name, pairs, found.before.num_rows + found.after.num_rows)
        self.explained = replace(self.explained, reads=(*self.explained.reads, read))

    def _token(self, last: EntityChange) -> str:
        return encode_token(
            PAGE,
            {
                "a": _encode_point(self.older.manifest),
                "b": _encode_point(self.newer.manifest),
                "f": fingerprint(self.request, self.filters.to_json()),
                "p": [*last.position],
            },
        )


def plan_changes(repository: Repository, older: Snapshot, newer: Snapshot, filters: Filters) -> ChangePlan:
    """How the two states are connected, and which types to compare."""
    lineage = find_lineage(repository.manifests, older.manifest, newer.manifest)
    backwards = lineage.obstacle is not None and not same_state(older.manifest, newer.manifest)
    if backwards:
        other_way = find_lineage(repository.manifests, newer.manifest, older.manifest)
        backwards = other_way.obstacle is None
        lineage = other_way if backwards else lineage
    if lineage.obstacle is None:
        states = [state_of(state, repository.schemas.read(state.schema)) for state in lineage.states]
        histories = type_histories(states)
        explained = Explained("composed", "one state is an ancestor of the other", lineage.commits)
    else:
        was, now = state_of(older.manifest, older.schema), state_of(newer.manifest, newer.schema)
        histories = pair_types(was, now, _common_catalog(repository, older, newer))
        explained = Explained("direct", f"{lineage.obstacle}, so table versions are compared directly")
    _require_known_types(filters, histories)
    wanted = [history for history in histories if filters.want(history) and history.comparisons()]
    return ChangePlan(tuple(sorted(wanted, key=partial(_sort_key, backwards=backwards))), explained, backwards)


def _sort_key(history: TypeHistory, backwards: bool) -> tuple[int, str, bool, str]:
    """By kind and name; of several types with one name, dropped ones come first."""
    definition, stays = history.definition, history.states[0 if backwards else -1] is not None
    return _ORDER[definition.kind], definition.name, stays, definition.id


def _types_after(
    histories: Iterable[TypeHistory], after: ChangePosition | None
) -> Iterator[tuple[TypeHistory, str | None]]:
    """The types from a position on; for the first one, also the id after which to continue."""
    reached = after is None
    for history in histories:
        definition, after_id = history.definition, None
        if not reached and after is not None:
            kind, type_name, type_id, entity = after
            here, place = (
                (_ORDER[definition.kind], definition.name),
                (_ORDER["node" if kind == "node" else "edge"], type_name),
            )
            if here < place or (here == place and definition.id != type_id):
                continue
            reached, after_id = True, entity if here == place else None
        yield history, after_id


def changes_between(
    repository: Repository,
    a: str,
    b: str,
    filters: Filters,
    limit: int | None = None,
    page: str | None = None,
    branch: str = MAIN,
) -> GraphChanges:
    """The changes from `a` to `b`, each a commit, a branch, a tag or a time on `branch`.

    A page continues where the last one ended, with the states of the first one.
    """
    check_limit(limit)
    request = f"{branch} {a} {b}"
    if page is not None:
        return _read_page(repository, page, filters, request, limit)
    with meter.operation("changes") as operation:
        older, newer = repository.resolve(a, branch), repository.resolve(b, branch)
    return GraphChanges(repository, older, newer, filters, request, limit, cost=operation.cost)


def changes_of_commit(
    repository: Repository, commit: CommitId, filters: Filters, limit: int | None = None, page: str | None = None
) -> GraphChanges:
    """What one commit changed, compared with its parent state; a maintenance commit changed nothing."""
    check_limit(limit)
    if page is not None:
        return _read_page(repository, page, filters, commit, limit)
    with meter.operation("changes") as operation:
        before, after = states_of_commit(repository, commit)
    return GraphChanges(repository, before, after, filters, commit, limit, cost=operation.cost)


def states_of_commit(repository: Repository, commit: CommitId) -> tuple[Snapshot, Snapshot]:
    """The states before and after a commit; for the first commit of the graph, its own state twice."""
    manifests, tags = repository.manifests, repository.tags
    after, before = state_at_commit(manifests, commit, tags), state_before(manifests, commit, tags)
    return snapshot_of(repository, after if before is None else before), snapshot_of(repository, after)


def _read_page(repository: Repository, page: str, filters: Filters, request: str, limit: int | None) -> GraphChanges:
    remedy = "request the first page again"
    fields = decode_token(PAGE, page, remedy)
    if fields.get("f") != fingerprint(request, filters.to_json()):
        raise BadRequest(f"This page token was given for other states or filters: use the same ones, or {remedy}.")
    try:  # clients may send anything
        points, after = [_decode_point(fields[side]) for side in ("a", "b")], parse_position(fields["p"])
    except (IndexError, KeyError, TypeError, ValueError):
        raise BadRequest(f"Invalid {PAGE}: {remedy}.") from None
    with meter.operation("changes") as operation:
        older, newer = (_state_at(repository, *point) for point in points)
    return GraphChanges(repository, older, newer, filters, request, limit, after, cost=operation.cost)


def _encode_point(state: Manifest) -> list[Any]:
    """The point of a state: a manifest, and the number of its commits if it is inside a group."""
    point = [state.branch_id, state.manifest_version]
    return [*point, len(state.commits)] if is_partial(state) else point


def _decode_point(stored: list[Any]) -> tuple[Point, int | None]:
    branch_id, *numbers = stored
    version, *commits = (number for number in numbers if type(number) is int and 0 < number < 2**63)
    return Point(parse_branch_id(branch_id), version), commits[0] if commits else None


def _state_at(repository: Repository, point: Point, commits: int | None) -> Snapshot:
    name = commit_id(point)
    entry = repository.manifests.read(point)
    count = None if entry is None else commits or len(entry.commits) or None
    if entry is None or (commits or 0) > len(entry.commits) or not repository.sees_state(point, count):
        raise CommitNotFound(name, "it is not there")
    if commits is not None:
        last = entry.commits[commits - 1].id
        return snapshot_of(repository, state_at_commit(repository.manifests, last, repository.tags))
    return snapshot_of(repository, require_retained(repository.manifests, entry, name, repository.tags))


def snapshot_of(repository: Repository, manifest: Manifest) -> Snapshot:
    return Snapshot(manifest, repository.schemas.read(manifest.schema))


def _common_catalog(repository: Repository, older: Snapshot, newer: Snapshot) -> Catalog | None:
    """The catalog of a common ancestor; for equal schemas, their own."""
    if older.manifest.schema == newer.manifest.schema:
        return older.catalog
    try:
        bases = find_bases(repository.manifests, older.manifest.ancestry, newer.manifest.ancestry)
    except ConflictError:
        return None
    return repository.schemas.read(bases[0].schema).catalog


def _version(state: TypeState | None) -> str | None:
    return None if state is None or state.content is None else str(state.content)


def _require_known_types(filters: Filters, histories: Iterable[TypeHistory]) -> None:
    known = {state.definition.name for history in histories for state in history.states if state is not None}
    unknown = sorted((filters.types or frozenset()) - known)
    if unknown:
        raise BadRequest(f"The schema has no type {unknown[0]!r}: see `schema show`.")


def check_limit(limit: int | None) -> None:
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BadRequest(f"A limit of {limit!r} is invalid: use a whole number, 1 or more.")
