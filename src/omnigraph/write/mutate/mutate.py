"""Mutations: a bound query becomes the delta of one commit, planned again from the new head whenever that is asked.

Statements run one after another against a draft of each table; nothing is written before all of them, and everything
that the schema demands, have passed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from omnigraph.errors import Violation
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import MAIN, CommitId, TableKey, TxnId
from omnigraph.manifest.repository import Repository
from omnigraph.query.ir import Assign, Constant, DeleteRows, InsertRow, Literal, MutationQuery, UpdateRows
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.constraints import Required, Unique, type_constraints
from omnigraph.schema.identity import id_of
from omnigraph.storage.table.tables import Tables
from omnigraph.storage.util.parallel import gather
from omnigraph.write.commit import Changes, OnConflict, Planner, commit_changes
from omnigraph.write.delta import Delta, TableDelta
from omnigraph.write.mutate.table_buffer import Draft
from omnigraph.write.validate.graph_checks import UniqueInGraph
from omnigraph.write.validate.lookups import PrefetchedRows
from omnigraph.write.validate.row_images import (
    RowImage,
    assign,
    default_of,
    defaults_of,
    equal_values,
    set_null,
    stale_vectors,
)
from omnigraph.write.validate.validate import checks_for, constraints_for, unique_checks

NODES_MAX = 10_000  # whose edges are asked for at once
ASKED_AHEAD_MAX = 1_000  # rows whose unique values are asked for together with their ids

Prepare: TypeAlias = Callable[[WriteTxn], MutationQuery]


def mutate(
    repository: Repository,
    query: MutationQuery | Prepare,
    *,
    branch: str = MAIN,
    txn: WriteTxn | None = None,
    actor: str | None = None,
    if_commit: CommitId | None = None,
    txn_id: TxnId | None = None,
    on_conflict: OnConflict = "retry",
) -> PublishedCommit | None:
    """Run a bound mutation as one atomic commit; None where it changes nothing.

    `query` may be a function that compiles and binds against the transaction's schema: it is called again when the
    schema has changed under the write. A query that is given bound belongs to the schema it was compiled for.
    """
    return commit_changes(
        repository,
        mutation_planner(repository, query),
        branch=branch,
        txn=txn,
        kind="mutation",
        actor=actor,
        if_commit=if_commit,
        txn_id=txn_id,
        on_conflict=on_conflict,
    )


def mutation_planner(repository: Repository, query: MutationQuery | Prepare) -> Planner:
    """What the query changes, as a function of the base. Fresh ids are minted once, however often it is planned."""
    fresh: dict[int, str] = {}

    def plan(txn: WriteTxn) -> Changes:
        bound = query(txn) if callable(query) else query
        run = _Run(txn, repository.tables, lambda number: fresh.setdefault(number, repository.runtime.ids.txn_id()))
        return run.changes(bound)

    return plan


@dataclass(frozen=True, slots=True)
class _New:
    """What an insert says: its values by property and by column, and of a keyed row the id, if the key is whole."""

    definition: TypeDef
    given: dict[str, Any]
    values: RowImage
    entity: str | None


class _Run:
    """One execution of a query's statements on one base."""

    def __init__(self, txn: WriteTxn, tables: Tables, fresh_id: Callable[[int], str]) -> None:
        self._txn = txn
        self._tables = tables
        self._fresh_id = fresh_id
        self._drafts: dict[TableKey, Draft] = {}
        self._new: dict[int, _New] = {}  # by the number of their statement
        self._violations: list[Violation] = []
        self._answers = PrefetchedRows()

    def changes(self, query: MutationQuery) -> Changes:
        self._look_up_keys(query)
        for number, statement in enumerate(query.statements):
            match statement:
                case InsertRow():
                    self._insert(statement, number)
                case UpdateRows():
                    self._update(statement)
                case DeleteRows():
                    self._delete(statement)
        delta = Delta.of([draft.delta() for draft in self._drafts.values()])
        read = {key: draft.ids_read for key, draft in self._drafts.items() if draft.rows_were_read}
        by_id = {key: frozenset(ids) for key, ids in read.items() if ids is not None}
        checks = checks_for(self._txn, delta, self._violations, self._answers)
        return Changes(delta.actions(), checks, frozenset(read), by_id)

    def _draft(self, key: TableKey) -> Draft:
        if key not in self._drafts:
            self._drafts[key] = Draft(self._txn, self._tables, key)
        return self._drafts[key]

    # insert

    def _look_up_keys(self, query: MutationQuery) -> None:
        """The stored rows of all keyed inserts at once, and whether their unique values are taken."""
        wanted: dict[TableKey, dict[str, list[RowImage]]] = {}
        for number, statement in enumerate(query.statements):
            if isinstance(statement, InsertRow):
                new = self._new[number] = _new(self._txn.catalog.type_of(statement.table_key), statement)
                if new.entity is not None:
                    wanted.setdefault(statement.table_key, {}).setdefault(new.entity, []).append(new.values)
        if wanted:
            gather([partial(self._look_up, self._draft(key), written) for key, written in wanted.items()])

    def _look_up(self, draft: Draft, written: dict[str, list[RowImage]]) -> None:
        """Stored rows with these ids; with them, in one question, what validation will ask if they are new."""
        asked = self._asked_of_unique(draft, written)
        if not asked or draft.content is None:
            draft.look_up(written.keys())
            return
        found = draft.look_up_with(written.keys(), [check.lookup_values for check in asked])
        for check in asked:
            self._answers.add(draft.content, check.columns, check.lookup_values, found)

    def _asked_of_unique(self, draft: Draft, written: dict[str, list[RowImage]]) -> list[UniqueInGraph]:
        """What has to be asked of stored rows before others with these values are written, and may be asked ahead."""
        constraints = constraints_for(self._txn).between_rows(draft.key)
        uniques = [one for one in constraints if isinstance(one, Unique)]
        if draft.content is None or not uniques or len(written) > ASKED_AHEAD_MAX:
            return []
        from omnigraph.schema.arrow import arrow_rows

        rows: list[RowImage] = [{"id": entity, **defaults_of(draft.definition)} for entity in written]
        for row, several in zip(rows, written.values(), strict=True):
            for values in several:
                row |= values
        delta = TableDelta(draft.key, arrow_rows(draft.definition, rows))
        checks = [check for constraint in uniques for check in unique_checks(constraint, delta, self._answers)]
        return [check for check in checks if check.lookup_values]

    def _insert(self, statement: InsertRow, number: int) -> None:
        draft, new = self._draft(statement.table_key), self._new[number]
        definition, values, entity = new.definition, new.values, new.entity
        if not definition.key:
            ends = {"src": _value(statement.source), "dst": _value(statement.target)} if statement.source else {}
            row = {"id": self._fresh_id(number), **ends, **defaults_of(definition), **values}
            draft.put(row, fresh_id=True)
            return
        if entity is None:
            self._violations += _missing_key(definition, new.given)
            return
        stored = draft.row(entity)
        if stored is None:
            draft.put({"id": entity, **defaults_of(definition), **values}, fresh_id=False)
            return
        stale = {
            vector: None for source, vector in stale_vectors(definition, new.given) if stored[source] != values[source]
        }
        draft.put({**stored, **stale, **values}, fresh_id=False)

    # update

    def _update(self, statement: UpdateRows) -> None:
        draft = self._draft(statement.table_key)
        definition, given = draft.definition, _given(statement.assignments)
        rows = draft.select(statement.where)
        if not rows.num_rows:
            return
        values = {definition.column(name): value for name, value in given.items()}
        written = assign(rows, values)
        for source, vector in stale_vectors(definition, given):
            written = set_null(written, vector, _differs(rows.column(source), written.column(source)))
        draft.put_all(written)

    # delete

    def _delete(self, statement: DeleteRows) -> None:
        removed = self._draft(statement.table_key).select_to_remove(statement.where)
        endpoints = constraints_for(self._txn).referring_to(statement.table_key)
        columns: dict[TableKey, list[str]] = {}
        for endpoint in endpoints:
            columns.setdefault(endpoint.table_key, []).append(endpoint.columns[0])
        gather([partial(self._remove_edges, self._draft(key), names, removed) for key, names in columns.items()])

    def _remove_edges(self, draft: Draft, columns: list[str], nodes: frozenset[str]) -> None:
        """Edges at nodes that go. The table counts as read even without any: one that comes meanwhile must go too."""
        draft.reads_all()
        every = sorted(nodes) if draft.content is not None else []
        for start in range(0, len(every), NODES_MAX):
            ends = [{column: every[start : start + NODES_MAX]} for column in columns]
            draft.remove(self._tables.find_rows(draft.content, draft.definition.physical_columns, *ends))


def _new(definition: TypeDef, statement: InsertRow) -> _New:
    given = _given(statement.assignments)
    columns = definition.columns
    values = {columns[name]: value for name, value in given.items()}
    return _New(definition, given, values, _key_id(definition, given) if definition.key else None)


def _given(assignments: tuple[Assign, ...]) -> dict[str, Any]:
    """The values that a statement names, by property."""
    return {assign.column.name: _value(assign.value) for assign in assignments}


def _value(constant: Constant | None) -> Any:
    assert isinstance(constant, Literal), f"{constant} was not bound"
    return constant.value


def _key_id(definition: TypeDef, given: dict[str, Any]) -> str | None:
    """The id of a keyed row; None where a part of the key is missing."""
    values = {name: given.get(name, default_of(definition.by_name[name])) for name in definition.key}
    return None if None in values.values() else id_of(definition, values)


def _missing_key(definition: TypeDef, given: dict[str, Any]) -> list[Violation]:
    """Without its key a row has no id to name it by."""
    missing = [name for name in definition.key if given.get(name, default_of(definition.by_name[name])) is None]
    return [
        Violation(
            constraint.name, definition.name, name, (), f"has no {name}, a part of its key", f"give {name} a value"
        )
        for constraint in type_constraints(definition)
        if isinstance(constraint, Required) and (name := constraint.properties[0]) in missing
    ]


def _differs(left: Any, right: Any) -> Any:
    import pyarrow.compute as pc

    return pc.invert(equal_values(left, right))
