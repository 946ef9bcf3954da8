"""Migration plans: the ordered steps from the accepted schema to a wanted one, each supported or not, with a code.

Pure: a step that depends on rows names its requirement (`Step.requirement`), which write/migrate/ checks. Order, layout
and comments of a text are not changes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from omnigraph.schema.catalog import Catalog, Schema
from omnigraph.schema.definitions import InterfaceDef, SchemaValue, TypeDef
from omnigraph.schema.evolve.migration_step import DROPPED_EDGE_TYPE, DROPPED_NODE_TYPE, Step, type_steps
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.schema.types import PropertyType


@dataclass(frozen=True, slots=True)
class ColumnFill:
    """A column that the accepted schema's table lacks, and its values for existing rows.

    The values of another column, cast; or a default, in canonical form; or null.
    """

    column: str
    type: PropertyType
    source: str | None = None
    default: SchemaValue | None = None

    @property
    def is_null(self) -> bool:
        return self.source is None and self.default is None


@dataclass(frozen=True, slots=True)
class TypeChange:
    """A type that is kept, before and after the migration."""

    before: TypeDef
    after: TypeDef

    @property
    def renamed(self) -> bool:
        return self.before.table_key != self.after.table_key

    @property
    def drops_properties(self) -> bool:
        """Whether a property is dropped."""
        stay = {prop.id for prop in self.after.properties}
        return any(prop.id not in stay for prop in self.before.properties)


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """The steps from one schema to the other; without steps there is nothing to apply."""

    accepted: Schema
    wanted: Schema
    steps: tuple[Step, ...]
    kept_types: tuple[TypeChange, ...] = field(init=False, repr=False, compare=False)
    dropped: tuple[TypeDef, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kept = tuple(_kept_types(self.accepted.catalog, self.wanted.catalog))
        stay = {change.before.table_key for change in kept}
        dropped = tuple(entry for entry in self.accepted.catalog.types if entry.table_key not in stay)
        object.__setattr__(self, "kept_types", kept)
        object.__setattr__(self, "dropped", dropped)

    @property
    def supported(self) -> bool:
        return all(step.supported for step in self.steps)

    @property
    def step_count(self) -> int:
        return len(self.steps)

    def with_steps(self, steps: tuple[Step, ...]) -> "MigrationPlan":
        return replace(self, steps=steps)

    def to_json(self) -> dict[str, object]:
        return {
            "supported": self.supported,
            "step_count": self.step_count,
            "steps": [step.to_json() for step in self.steps],
        }


def plan_migration(accepted: Schema, wanted: str | Schema, name: str = "schema.pg") -> MigrationPlan:
    """The steps to a wanted schema: the text of one, or one that was compiled on top of the accepted one."""
    schema = compile_schema(wanted, accepted, name) if isinstance(wanted, str) else wanted
    return MigrationPlan(accepted, schema, tuple(_steps(accepted.catalog, schema.catalog)))


def column_fills(before: TypeDef, after: TypeDef) -> tuple[ColumnFill, ...]:
    """The columns that a table of `before` lacks, in the order of `after`.

    Also used for tables that a merge takes over with an older schema: properties are matched by column, then by id.
    """
    columns = {prop.column for prop in before.properties}
    by_id = {prop.id: prop for prop in before.properties if prop.column in after.retired_columns}
    found = []
    for prop in after.properties:
        if prop.column in columns:
            continue
        moved = by_id.get(prop.id)
        default = None if moved else prop.default
        found.append(ColumnFill(prop.column, prop.type, moved.column if moved else None, default))
    return tuple(found)


def _kept_types(accepted: Catalog, wanted: Catalog) -> Iterator[TypeChange]:
    by_id = {(entry.kind, entry.id): entry for entry in accepted.types}
    for entry in wanted.types:
        before = by_id.get((entry.kind, entry.id))
        if before is not None:
            yield TypeChange(before, entry)


def _steps(accepted: Catalog, wanted: Catalog) -> Iterator[Step]:
    """Dropped types, edges first; added types; then the changes of each, in the order of the wanted schema."""
    changes = list(_kept_types(accepted, wanted))
    stay = {change.before.table_key for change in changes}
    for entry in (*accepted.edges, *accepted.nodes):
        if entry.table_key not in stay:
            yield _drop_step(entry)
    old = {change.after.table_key for change in changes}
    for entry in wanted.types:
        if entry.table_key not in old:
            yield Step("add_type", entry.name, None, f"a new {entry.kind} type", after=entry.kind)
    names = {change.before.name: change.after.name for change in changes}
    ends = {
        change.before.id: (
            names.get(change.before.source or "", change.before.source),
            names.get(change.before.target or "", change.before.target),
        )
        for change in changes
    }
    changed: set[str] = set()
    for change in changes:
        steps = list(type_steps(change.before, change.after, ends))
        if steps:
            changed.update((*change.before.implements, *change.after.implements))
        yield from steps
    yield from _interfaces(accepted, wanted, changed)


def _drop_step(entry: TypeDef) -> Step:
    code = DROPPED_NODE_TYPE if entry.kind == "node" else DROPPED_EDGE_TYPE
    message = f"this {entry.kind} type is hidden at once, readable at older commits until cleanup"
    step = Step("drop_type", entry.name, None, message, code=code, before=entry.kind, table=entry.table_key)
    return replace(step, counts_rows=True)


def _interfaces(accepted: Catalog, wanted: Catalog, changed: set[str]) -> Iterator[Step]:
    """Changed interfaces without a changed type that implements them; they have no rows."""
    before = {entry.name: entry for entry in accepted.interfaces}
    after = {entry.name: entry for entry in wanted.interfaces}
    for name in [*after, *(name for name in before if name not in after)]:
        old, new = before.get(name), after.get(name)
        if name in changed or _content(old) == _content(new):
            continue
        verb = "is declared" if old is None else "is no longer declared" if new is None else "changes"
        yield Step("update_metadata", name, None, f"the interface {verb}")


def _content(interface: InterfaceDef | None) -> object:
    """The content of an interface, regardless of order."""
    if interface is None:
        return None
    rules = interface.rules
    return (
        {prop.name: prop for prop in interface.properties},
        rules.key,
        set(rules.unique),
        set(rules.ranges),
        set(rules.checks),
        interface.description,
        dict(interface.annotations),
    )
