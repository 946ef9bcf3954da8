"""What a merge would do, worked out in full before anything is written.

A table that only one side changed is taken as that side has it. One that both changed is merged row by row. Which is
which, and most of the time everything else, is told by the two heads and their base: no table is opened.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TypeAlias

from omnigraph.diff.graph_state import GraphState, TypeId, TypeState, same_content, state_of, type_id_of
from omnigraph.errors import MergeConflict
from omnigraph.manifest.commit.plan import Adopted
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.ancestry import contains_commit
from omnigraph.manifest.model.manifest import Manifest, TableKey, TableRef
from omnigraph.manifest.repository import Repository
from omnigraph.merge.align_tables import align_table, align_table_with_delta, fits
from omnigraph.merge.constraints import MergeStates, find_graph_conflicts
from omnigraph.merge.row_merge import DELETE_VS_UPDATE, MergedRows
from omnigraph.merge.table_merge import ContestedTable, merge_table, merge_table_on, read_changes
from omnigraph.merge.virtual_base import find_base_state
from omnigraph.schema.catalog import Catalog, Schema
from omnigraph.schema.definitions import TypeDef
from omnigraph.schema.evolve.schema_merge import merge_schemas, renamed_tables
from omnigraph.storage.table.tables import Tables, TableVersion
from omnigraph.storage.util.parallel import gather
from omnigraph.storage.util.runner import Runner
from omnigraph.write.delta import TableDelta

CHANGED_ROWS_LOCAL_MAX = 1_000_000  # of both sides of one type; more are decided by tasks

ChooseMergeRunner: TypeAlias = Callable[[int], Runner | None]  # changed rows → where to decide about them; None is here


class MergeOutcome(StrEnum):
    UP_TO_DATE = "already_up_to_date"
    FAST_FORWARD = "fast_forward"
    MERGED = "merged"


@dataclass(frozen=True, slots=True, eq=False)
class MergePlan:
    """A merge of `source` that is ready to be staged, or can't be made."""

    outcome: MergeOutcome
    source: Manifest
    schema: Schema
    adopted: Mapping[TableKey, Adopted] = field(default_factory=dict)
    deltas: Mapping[TableKey, TableDelta] = field(default_factory=dict)
    dropped: tuple[TableKey, ...] = ()
    moved: Mapping[TableKey, TableKey] = field(default_factory=dict)  # of renamed types: new key → old key
    reads: frozenset[TableKey] = frozenset()  # tables whose content the decision rests on, besides those it writes
    conflicts: tuple[MergeConflict, ...] = ()

    def unstaged_tables(self, target: Manifest) -> dict[TableKey, TableVersion | None]:
        """Tables that the target keeps under another schema, with the stored version for which that was decided.

        One that is still without a stored version, as it is in the source, gets the columns of the new schema when it
        is folded. Folded before the merge, it has those of the old one.
        """
        if target.schema == self.schema.hash:
            return {}
        new_keys = {old: new for new, old in self.moved.items()}
        kept = {new_keys.get(key, key): ref.stored for key, ref in target.tables.items() if key not in self.dropped}
        return {key: at for key, at in kept.items() if key not in self.adopted and key not in self.deltas}


def plan_merge(repository: Repository, txn: WriteTxn, source: Manifest, choose: ChooseMergeRunner) -> MergePlan:
    """Decide what merging `source` into the transaction's base means."""
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
    """`changed-at`: the same commits last changed all tables, so there is nothing to bring, whatever the histories."""
    if target.schema != source.schema or target.tables.keys() != source.tables.keys():
        return False
    return all(ref.changed_at == source.tables[key].changed_at for key, ref in target.tables.items())


def _fast_forward(txn: WriteTxn, source: Manifest, schema: Schema) -> MergePlan:
    """`merge-replans`: all that the target says is in the source already, so the source's tables are the result.

    A table that says the same in both stays as the target has it, which may have been compacted or indexed since.
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
        contests: list[ContestedTable] = []
        for definition in self.schema.catalog.types:
            chosen = self._choose_side(definition)
            if isinstance(chosen, ContestedTable):
                contests.append(chosen)
            elif chosen is not None and chosen.ref is not None:
                taken[type_id_of(definition)] = chosen
        decided = dict(zip((one.wanted.table_key for one in contests), self._merge_contested(contests), strict=True))
        deltas = {key: _delta(key, one) for key, one in decided.items()}
        adopted = self._adopt(taken, contests, deltas)
        moved = _renamed(self.txn.base, self.txn.catalog, self.schema.catalog)
        dropped = self._dropped()
        after = self._merged_state(adopted, dropped, moved)
        by_id = {type_id_of(definition): definition.table_key for definition in self.schema.catalog.types}
        theirs = frozenset(by_id[type_id] for type_id, one in taken.items() if one is self.theirs.of(type_id))
        merging = MergeStates(self.base, self.ours, self.theirs, after, theirs & adopted.keys(), deltas)
        conflicts = [conflict for one in decided.values() for conflict in one.conflicts]
        conflicts += self._dropped_while_changed()
        conflicts += find_graph_conflicts(self.repository.tables, merging)
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
        """The side whose table is taken, or a contest between the two."""
        type_id = type_id_of(definition)
        base, ours, theirs = self.base.of(type_id), self.ours.of(type_id), self.theirs.of(type_id)
        if ours is None or theirs is None:
            return ours or theirs
        if same_content(ours, theirs):
            return ours if fits(ours, definition) or not fits(theirs, definition) else theirs
        if same_content(base, theirs):
            return ours
        return theirs if same_content(base, ours) else ContestedTable(definition, base, ours, theirs)

    def _merge_contested(self, contests: list[ContestedTable]) -> list[MergedRows]:
        """Small contests side by side in this process, large ones one after another on their runner."""
        tables, location = self.repository.tables, self.repository.location
        sizes = gather([partial(max_changed_rows, tables, contest) for contest in contests])
        runners = [self.choose(changed) for changed in sizes]
        here = gather(
            [
                partial(merge_table, tables, contest)
                for contest, runner in zip(contests, runners, strict=True)
                if runner is None
            ]
        )
        local = iter(here)
        return [
            next(local) if runner is None else merge_table_on(runner, location, contest.without_tails(tables), changed)
            for contest, runner, changed in zip(contests, runners, sizes, strict=True)
        ]

    def _adopt(
        self, taken: Mapping[TypeId, TypeState], contests: list[ContestedTable], deltas: Mapping[TableKey, TableDelta]
    ) -> dict[TableKey, Adopted]:
        """Tables that are not as the target has them, by reference; those of the narrower schema are widened."""
        tables, ids = self.repository.tables, self.repository.runtime.ids
        adopted: dict[TableKey, Adopted] = {}
        by_id = {type_id_of(definition): definition for definition in self.schema.catalog.types}
        for type_id, state in taken.items():
            wanted = by_id[type_id]
            stays = state.ref == self._own_ref(type_id) and fits(state, wanted)
            if not stays:
                adopted[wanted.table_key] = align_table(tables, ids, state, wanted, self.schema.hash)
        for contest in contests:
            wanted, key = contest.wanted, contest.wanted.table_key
            if contest.ours.definition.table_key != key or not fits(contest.ours, wanted):
                adopted[key] = align_table_with_delta(tables, ids, contest.ours, wanted, self.schema.hash, deltas[key])
        return adopted

    def _own_ref(self, type_id: TypeId) -> TableRef | None:
        state = self.ours.of(type_id)
        return None if state is None else state.ref

    def _dropped(self) -> tuple[TableKey, ...]:
        """Tables of the target's types that the merged schema does not have, though another type may have the name."""
        kept = {type_id_of(definition) for definition in self.schema.catalog.types}
        return tuple(
            state.definition.table_key
            for type_id, state in self.ours.types.items()
            if state.ref is not None and type_id not in kept
        )

    def _dropped_while_changed(self) -> list[MergeConflict]:
        """Types that one side dropped and the other one wrote to: neither may silently win.

        To have removed rows is to agree, and what comes to nothing was not written: that takes a look at the rows.
        """
        kept = {type_id_of(definition) for definition in self.schema.catalog.types}
        found = []
        for type_id, base in self.base.types.items():
            sides = [side.of(type_id) for side in (self.ours, self.theirs)]
            changed = next((one for one in sides if one is not None and not same_content(base, one)), None)
            if type_id not in kept and changed is not None and self._has_written_rows(base, changed):
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
        """The state that would be published, but for the deltas."""
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
    """The target's tables of types that go on under another name, new key to old."""
    return {new: old for old, new in renamed_tables(before, after).items() if old in target.tables}


def max_changed_rows(tables: Tables, contest: ContestedTable) -> int:
    """How many rows a contest is about: exactly only where it may be many, because telling takes some reading."""
    states = [state for state in (contest.base, contest.ours, contest.theirs) if state is not None]
    rows = sum(state.ref.rows for state in states if state.ref is not None)
    if rows <= CHANGED_ROWS_LOCAL_MAX:
        return rows
    older = None if contest.base is None else contest.base.content
    return sum(max(tables.differing_rows(older, side.content)) for side in (contest.ours, contest.theirs))


def _delta(key: TableKey, decided: MergedRows) -> TableDelta:
    return TableDelta(key, decided.rows, frozenset(decided.removed), decided.before)


def _neighbour_tables(catalog: Catalog, keys: Iterable[TableKey]) -> frozenset[TableKey]:
    """The tables that those of a merge must fit: ends of their edges, and edges at their nodes."""
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
    """Where the schema changes, every row that comes meanwhile would have to be judged by the new one."""
    return frozenset(key for catalog in catalogs for key in catalog.by_key)
