"""The plan of a three-way merge, complete before anything is written.

A table that only one side changed is taken from that side. A table that both changed is merged row by row. Usually
the two heads and their base decide everything else, and no table is opened.

`manifest/branch/merge_base.py` finds the positions of the merge base. After a criss-cross (two branches were merged
into each other) there are several, and none of them alone is what both sides started from. They are merged first, in
a fixed order, into a virtual base that exists in memory only, as in a recursive merge. Where the bases conflict with
each other, their own base counts: either the sides agree by now, or the conflict is real.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TypeAlias

from omnigraph.diff.graph_state import GraphState, TypeId, TypeState, same_content, state_of, type_id_of
from omnigraph.errors import MergeConflict, SchemasDiverged
from omnigraph.manifest.branch.merge_base import find_bases
from omnigraph.manifest.commit.plan import Adopted
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.ancestry import all_ancestors, contains_commit
from omnigraph.manifest.model.manifest import Manifest, TableKey, TableRef
from omnigraph.manifest.repository import Repository
from omnigraph.merge.constraints import MergeStates, find_graph_conflicts
from omnigraph.merge.row_merge import DELETE_VS_UPDATE, MergedRows
from omnigraph.merge.table_merge import ContestedTable, merge_changes, merge_table, merge_table_on, read_changes
from omnigraph.runtime import IdSource
from omnigraph.schema.catalog import Catalog, Schema
from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.evolve.migration import column_fills
from omnigraph.schema.evolve.schema_merge import merge_schemas, renamed_tables
from omnigraph.storage.table.overlay import Overlay, with_ids
from omnigraph.storage.table.tables import DetachedVersion, Tables, TableVersion
from omnigraph.storage.util.runner import Runner
from omnigraph.threads import gather
from omnigraph.write.delta import TableDelta
from omnigraph.write.migrate.reshape import add_missing_columns

CHANGED_ROWS_LOCAL_MAX = 1_000_000  # of both sides of one type; more are merged by tasks

ChooseMergeRunner: TypeAlias = Callable[[int], Runner | None]  # by the number of changed rows; None: in this process


class MergeOutcome(StrEnum):
    UP_TO_DATE = "already_up_to_date"
    FAST_FORWARD = "fast_forward"
    MERGED = "merged"


@dataclass(frozen=True, slots=True, eq=False)
class MergePlan:
    """A merge of `source` that is ready to be staged, or has conflicts."""

    outcome: MergeOutcome
    source: Manifest
    schema: Schema
    adopted: Mapping[TableKey, Adopted] = field(default_factory=dict)
    deltas: Mapping[TableKey, TableDelta] = field(default_factory=dict)
    dropped: tuple[TableKey, ...] = ()
    moved: Mapping[TableKey, TableKey] = field(default_factory=dict)  # of renamed types: new key → old key
    reads: frozenset[TableKey] = frozenset()  # tables whose content the plan depends on, besides those it writes
    conflicts: tuple[MergeConflict, ...] = ()

    def unstaged_tables(self, target: Manifest) -> dict[TableKey, TableVersion | None]:
        """Tables that the target keeps under another schema, with the stored version for which that was planned.

        One without a stored version gets the columns of the new schema when it is folded. If it is folded before the
        merge, it has those of the old schema.
        """
        if target.schema == self.schema.hash:
            return {}
        new_keys = {old: new for new, old in self.moved.items()}
        remaining = {
            new_keys.get(key, key): ref.stored for key, ref in target.tables.items() if key not in self.dropped
        }
        return {key: at for key, at in remaining.items() if key not in self.adopted and key not in self.deltas}


def plan_merge(repository: Repository, txn: WriteTxn, source: Manifest, choose: ChooseMergeRunner) -> MergePlan:
    """Plan a merge of `source` into the base of the transaction."""
    target, theirs = txn.base, repository.schemas.read(source.schema)
    if contains_commit(target.ancestry, source.logical_head) or _has_same_content(target, source):
        return MergePlan(MergeOutcome.UP_TO_DATE, source, txn.schema)
    if contains_commit(source.ancestry, target.logical_head):
        return _fast_forward(txn, source, theirs)
    ours_state, theirs_state = state_of(target, txn.schema), state_of(source, theirs)
    base = find_base_state(repository, target, source)
    schema = merge_schemas(base.schema, txn.schema, theirs)
    return _ThreeWay(repository, txn, source, base, ours_state, theirs_state, schema, choose).plan()


def _has_same_content(target: Manifest, source: Manifest) -> bool:
    """`changed-at`: the same commits last changed all tables, so there is nothing to merge, whatever the histories."""
    if target.schema != source.schema or target.tables.keys() != source.tables.keys():
        return False
    return all(ref.changed_at == source.tables[key].changed_at for key, ref in target.tables.items())


def _fast_forward(txn: WriteTxn, source: Manifest, schema: Schema) -> MergePlan:
    """`merge-replans`: the source contains all commits of the target, so the source's tables are the result.

    A table with the same content in both stays as the target has it, since it may have been compacted or indexed.
    """
    target = txn.base
    same_schema = target.schema == source.schema
    adopted = {
        key: Adopted(ref)
        for key, ref in source.tables.items()
        for own in (target.tables.get(key),)
        if own is None or own.changed_at != ref.changed_at or not (same_schema or own == ref)
    }
    moved = _renamed(target, txn.catalog, schema.catalog)
    dropped = tuple(key for key in target.tables if key not in {*source.tables, *moved.values()})
    reads = (
        _neighbour_tables(schema.catalog, adopted.keys()) if same_schema else _all_tables(txn.catalog, schema.catalog)
    )
    return MergePlan(MergeOutcome.FAST_FORWARD, source, schema, adopted, dropped=dropped, moved=moved, reads=reads)


@dataclass(frozen=True, slots=True, eq=False)
class _ThreeWay:
    repository: Repository
    txn: WriteTxn
    source: Manifest
    base: GraphState
    ours: GraphState
    theirs: GraphState
    schema: Schema
    choose: ChooseMergeRunner

    def plan(self) -> MergePlan:
        taken: dict[TypeId, TypeState] = {}
        contested: list[ContestedTable] = []
        for definition in self.schema.catalog.types:
            chosen = self._choose_side(definition)
            if isinstance(chosen, ContestedTable):
                contested.append(chosen)
            elif chosen is not None and chosen.ref is not None:
                taken[type_id_of(definition)] = chosen
        merged = dict(zip((one.wanted.table_key for one in contested), self._merge_contested(contested), strict=True))
        deltas = {key: one.delta(key) for key, one in merged.items()}
        adopted = self._adopt(taken, contested, deltas)
        moved = _renamed(self.txn.base, self.txn.catalog, self.schema.catalog)
        dropped = self._dropped()
        after = self._merged_state(adopted, dropped, moved)
        by_id = {type_id_of(definition): definition.table_key for definition in self.schema.catalog.types}
        theirs = frozenset(by_id[type_id] for type_id, one in taken.items() if one is self.theirs.of(type_id))
        states = MergeStates(self.base, self.ours, self.theirs, after, theirs & adopted.keys(), deltas)
        conflicts = [conflict for one in merged.values() for conflict in one.conflicts]
        conflicts += self._dropped_while_changed()
        conflicts += find_graph_conflicts(self.repository.tables, states)
        written = {key: one for key, one in deltas.items() if key not in adopted and not one.is_empty}
        return MergePlan(
            MergeOutcome.MERGED,
            self.source,
            self.schema,
            adopted,
            written,
            dropped,
            moved,
            self._reads(frozenset([*adopted, *deltas])),
            tuple(conflicts),
        )

    def _choose_side(self, definition: TypeDef) -> TypeState | ContestedTable | None:
        """The side whose table is taken, or a contested table if both changed it."""
        type_id = type_id_of(definition)
        base, ours, theirs = self.base.of(type_id), self.ours.of(type_id), self.theirs.of(type_id)
        if ours is None or theirs is None:
            return ours or theirs
        if same_content(ours, theirs):
            return ours if _fits(ours, definition) or not _fits(theirs, definition) else theirs
        if same_content(base, theirs):
            return ours
        return theirs if same_content(base, ours) else ContestedTable(definition, base, ours, theirs)

    def _merge_contested(self, contested: list[ContestedTable]) -> list[MergedRows]:
        """Merge small tables concurrently in this process, large ones one after another on their runner."""
        tables, location = self.repository.tables, self.repository.location
        sizes = gather([partial(max_changed_rows, tables, table) for table in contested])
        runners = [self.choose(changed) for changed in sizes]
        here = gather(
            [
                partial(merge_table, tables, table)
                for table, runner in zip(contested, runners, strict=True)
                if runner is None
            ]
        )
        local = iter(here)
        return [
            next(local) if runner is None else merge_table_on(runner, location, table.without_tails(tables), changed)
            for table, runner, changed in zip(contested, runners, sizes, strict=True)
        ]

    def _adopt(
        self, taken: Mapping[TypeId, TypeState], contested: list[ContestedTable], deltas: Mapping[TableKey, TableDelta]
    ) -> dict[TableKey, Adopted]:
        """Take over, by reference, tables that differ from the target's; those of a narrower schema are widened."""
        tables, ids = self.repository.tables, self.repository.runtime.ids
        adopted: dict[TableKey, Adopted] = {}
        by_id = {type_id_of(definition): definition for definition in self.schema.catalog.types}
        for type_id, state in taken.items():
            wanted = by_id[type_id]
            stays = state.ref == self._own_ref(type_id) and _fits(state, wanted)
            if not stays:
                adopted[wanted.table_key] = _widen(tables, ids, state, wanted, self.schema.hash)
        for table in contested:
            wanted, key = table.wanted, table.wanted.table_key
            if table.ours.definition.table_key != key or not _fits(table.ours, wanted):
                adopted[key] = _widen_with_delta(tables, ids, table.ours, wanted, self.schema.hash, deltas[key])
        return adopted

    def _own_ref(self, type_id: TypeId) -> TableRef | None:
        state = self.ours.of(type_id)
        return None if state is None else state.ref

    def _dropped(self) -> tuple[TableKey, ...]:
        """Tables of the target's types that the merged schema does not have, though another type may have the name."""
        remaining = {type_id_of(definition) for definition in self.schema.catalog.types}
        return tuple(
            state.definition.table_key
            for type_id, state in self.ours.types.items()
            if state.ref is not None and type_id not in remaining
        )

    def _dropped_while_changed(self) -> list[MergeConflict]:
        """Types that one side dropped and the other one wrote to: neither side may silently win.

        Deleting rows agrees with the drop, and rows that were inserted and deleted again do not count, so the rows are
        read.
        """
        remaining = {type_id_of(definition) for definition in self.schema.catalog.types}
        found = []
        for type_id, base in self.base.types.items():
            sides = [side.of(type_id) for side in (self.ours, self.theirs)]
            changed = next((one for one in sides if one is not None and not same_content(base, one)), None)
            if type_id not in remaining and changed is not None and self._has_written_rows(base, changed):
                name, kind = changed.definition.name, changed.definition.kind
                message = f"one side dropped the {kind} type {name} and the other one changed its rows"
                found.append(MergeConflict(kind, name, "", DELETE_VS_UPDATE, message))
        return found

    def _has_written_rows(self, base: TypeState, side: TypeState) -> bool:
        return read_changes(self.repository.tables, base, side, side.definition).after.num_rows > 0

    def _merged_state(
        self,
        adopted: Mapping[TableKey, Adopted],
        dropped: tuple[TableKey, ...],
        moved: Mapping[TableKey, TableKey],
    ) -> WriteTxn:
        """The state that would be published, without the deltas."""
        own = self.txn.base.tables
        tables = {key: ref for key, ref in own.items() if key not in {*dropped, *moved.values()}}
        tables |= {key: own[old] for key, old in moved.items()}
        tables |= {key: one.ref for key, one in adopted.items()}
        return WriteTxn(replace(self.txn.base, tables=tables, schema=self.schema.hash), self.schema)

    def _reads(self, changed: frozenset[TableKey]) -> frozenset[TableKey]:
        if self.schema.hash != self.txn.schema.hash:
            return _all_tables(self.txn.catalog, self.schema.catalog)
        return changed | _neighbour_tables(self.schema.catalog, changed)


def _renamed(target: Manifest, before: Catalog, after: Catalog) -> dict[TableKey, TableKey]:
    """The target's tables of renamed types, new key to old key."""
    return {new: old for old, new in renamed_tables(before, after).items() if old in target.tables}


def max_changed_rows(tables: Tables, table: ContestedTable) -> int:
    """An upper bound of the changed rows of both sides; only for large tables it takes some reads and is close."""
    states = [state for state in (table.base, table.ours, table.theirs) if state is not None]
    rows = sum(state.ref.rows for state in states if state.ref is not None)
    if rows <= CHANGED_ROWS_LOCAL_MAX:
        return rows
    older = None if table.base is None else table.base.content
    return sum(max(tables.differing_rows(older, side.content)) for side in (table.ours, table.theirs))


def _neighbour_tables(catalog: Catalog, keys: Iterable[TableKey]) -> frozenset[TableKey]:
    """The tables that refer to these or are referred to by them: end nodes of edges, and edges at nodes."""
    chosen = frozenset(keys)
    found: set[TableKey] = set()
    for edge in catalog.edges:
        ends = {f"node:{edge.source}", f"node:{edge.target}"}
        if edge.table_key in chosen:
            found |= ends
        if ends & chosen:
            found.add(edge.table_key)
    return frozenset(found)


def _all_tables(*catalogs: Catalog) -> frozenset[TableKey]:
    """What a merge reads that changes the schema: rows written meanwhile would have to be checked by the new one."""
    return frozenset(key for catalog in catalogs for key in catalog.by_key)


# Tables of the narrower schema get empty columns without touching a data file. Columns are written only where rows get
# values that they never had, a default or a wider type, as `schema apply` does it.


def _fits(state: TypeState, wanted: TypeDef) -> bool:
    """Whether the table can stay as it is, by the definitions alone."""
    return state.definition == wanted or not column_fills(state.definition, wanted)


def _widen(tables: Tables, ids: IdSource, state: TypeState, wanted: TypeDef, schema: str) -> Adopted:
    """The state's table with the columns of the wanted definition, which is that of the schema.

    A table that fits keeps its tail, and the schema that is recorded for its columns.
    """
    ref = state.ref
    assert ref is not None, "a type without a table has nothing to widen"
    if _fits(state, wanted):
        return Adopted(ref)
    made = add_missing_columns(tables, _fold_tail(tables, ids, state), state.definition, wanted)
    files = tables.new_files(ref.stored, made.at)
    return Adopted(replace(ref, stored=made.at, tail=(), columns=schema), made.has_new_values, files)


def _widen_with_delta(
    tables: Tables, ids: IdSource, state: TypeState, wanted: TypeDef, schema: str, delta: TableDelta
) -> Adopted:
    """As `_widen`, with a delta applied on top, which has the wanted columns already."""
    if delta.is_empty:
        return _widen(tables, ids, state, wanted, schema)
    assert state.ref is not None, "a type without a table has nothing to widen"
    at = add_missing_columns(tables, _fold_tail(tables, ids, state), state.definition, wanted).at
    staged: DetachedVersion | None = None
    if delta.removed:
        staged = tables.delete(at, delta.removed)
    if delta.rows.num_rows:
        staged = tables.upsert(at if staged is None else staged.at, delta.rows)
    assert staged is not None
    files = tables.new_files(state.ref.stored, staged.at)
    ref = replace(state.ref, stored=staged.at, tail=(), rows=staged.rows, columns=schema)
    return Adopted(ref, converted=True, files=files)


def _fold_tail(tables: Tables, ids: IdSource, state: TypeState) -> TableVersion:
    """A stored version with all rows of the state."""
    from omnigraph.schema.arrow import arrow_schema

    assert state.content is not None
    return tables.fold_tail(state.content, ids.short_id(), arrow_schema(state.definition)).at


def find_base_state(repository: Repository, ours: Manifest, theirs: Manifest) -> GraphState:
    """The common base of two confirmed heads: the state of a commit, or a virtual one."""
    manifests = repository.manifests
    heads = (ours.branch_id, theirs.branch_id)

    def load(manifest: Manifest) -> GraphState:
        return state_of(manifest, repository.schemas.read(manifest.schema))

    def base_of(one: GraphState, other: GraphState) -> GraphState:
        return combine(load(base) for base in find_bases(manifests, one.ancestry, other.ancestry, heads))

    def combine(bases: Iterable[GraphState]) -> GraphState:
        whole, *others = bases
        for another in others:
            whole = _merge_states(repository.tables, base_of(whole, another), whole, another)
        return whole

    return combine(load(base) for base in find_bases(manifests, ours.ancestry, theirs.ancestry, heads))


def _merge_states(tables: Tables, base: GraphState, one: GraphState, other: GraphState) -> GraphState:
    schema = _merge_schemas(base.schema, one.schema, other.schema)
    types = {}
    for definition in schema.catalog.types:
        type_id = type_id_of(definition)
        was, left, right = base.of(type_id), one.of(type_id), other.of(type_id)
        if right is None or same_content(was, right) or same_content(left, right):
            types[type_id] = left or right
        elif left is None or same_content(was, left):
            types[type_id] = right
        else:
            types[type_id] = _merge_contested(tables, ContestedTable(definition, was, left, right))
    known = {type_id: state for type_id, state in types.items() if state is not None}
    return GraphState(schema, all_ancestors(one.ancestry, other.ancestry), known)


def _merge_contested(tables: Tables, table: ContestedTable) -> TypeState:
    """The left table with the changes of the right one on top; conflicting rows are as in their base."""
    wanted = table.wanted
    left = read_changes(tables, table.base, table.ours, wanted)
    right = read_changes(tables, table.base, table.theirs, wanted)
    merged = merge_changes(left, right, wanted)
    conflicting = [conflict.entity_id for conflict in merged.conflicts]
    overlay = table.ours.overlay.compose(Overlay.of(merged.rows, merged.removed))
    overlay = overlay.compose(Overlay.of(with_ids(right.before, conflicting), conflicting))
    return TypeState(table.ours.definition, table.ours.ref, overlay, virtual=True)


def _merge_schemas(base: Schema, one: Schema, other: Schema) -> Schema:
    try:
        return merge_schemas(base, one, other)
    except SchemasDiverged:
        return base  # the sides have to agree on a schema, or the merge is refused
