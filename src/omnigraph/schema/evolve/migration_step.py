"""The steps of a schema change as values, and the steps between two versions of one type.

A step says what changes, whether it is supported, and what must hold for the rows. Properties are followed by their
ids, not by their names.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from omnigraph.schema.constraints import Cardinality, CheckPattern, Constraint, Range, Unique, type_constraints
from omnigraph.schema.definitions import EdgeCount, PatternCheck, Property, Rules, TypeDef, ValueRange
from omnigraph.schema.types import Enumeration, Scalar

StepKind: TypeAlias = Literal[
    "add_type",
    "drop_type",
    "rename_type",
    "add_property",
    "drop_property",
    "rename_property",
    "change_property",
    "extend_enum",
    "add_constraint",
    "drop_constraint",
    "change_card",
    "update_metadata",
]

DROPPED_NODE_TYPE = "OG-DS-102"
DROPPED_EDGE_TYPE = "OG-DS-103"
DROPPED_PROPERTY = "OG-DS-104"
REQUIRED_WITHOUT_DEFAULT = "OG-MF-103"
NULLS_EXIST = "OG-MF-104"
OTHER_TYPE = "OG-MF-106"
KEY_CHANGES = "OG-MF-107"
ENDS_CHANGE = "OG-MF-108"
ROWS_BREAK_IT = "OG-MF-109"


@dataclass(frozen=True, slots=True)
class NoRows:
    """The type must have no rows."""

    code: str


@dataclass(frozen=True, slots=True)
class NoNulls:
    """No row may have null in this column of the accepted schema's table."""

    column: str
    code: str = NULLS_EXIST


@dataclass(frozen=True, slots=True)
class ConstraintHolds:
    """All rows must satisfy this constraint of the wanted schema."""

    constraint: Constraint
    code: str = ROWS_BREAK_IT


Requirement: TypeAlias = NoRows | NoNulls | ConstraintHolds


@dataclass(frozen=True, slots=True)
class Step:
    """One change. `type_name` is the name in the wanted schema, in the accepted one for a drop.

    `requirement` is about the rows of `table`, in the accepted schema; `code` is that of a refusal or a drop.
    """

    kind: StepKind
    type_name: str
    property_name: str | None
    message: str
    supported: bool = True
    code: str | None = None
    before: str | None = None
    after: str | None = None
    requirement: Requirement | None = None
    table: str | None = None
    counts_rows: bool = False  # the step affects all rows of the type
    count: int | None = None  # of the rows in the message

    def refuse(self, code: str, message: str, count: int | None = None) -> "Step":
        return replace(self, supported=False, code=code, message=message, count=count)

    @property
    def subject(self) -> str:
        return self.type_name if self.property_name is None else f"{self.type_name}.{self.property_name}"

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "type_name": self.type_name,
            "property_name": self.property_name,
            "supported": self.supported,
            "code": self.code,
            "message": self.message,
            "before": self.before,
            "after": self.after,
            "count": self.count,
        }


# Each value of the first type is one of the second, and integers have the same text in both.
WIDENINGS = frozenset({("I32", "I64"), ("U32", "U64"), ("U32", "I64"), ("F32", "F64")})
_ANY = EdgeCount(0, None)


def type_steps(before: TypeDef, after: TypeDef, ends: Mapping[str, tuple[str | None, str | None]]) -> Iterator[Step]:
    """The steps of a type that is kept; `ends` are the accepted ends under their wanted names, by type id."""
    return _Difference(before, after, ends).steps()


class _Difference:
    def __init__(self, before: TypeDef, after: TypeDef, ends: Mapping[str, tuple[str | None, str | None]]) -> None:
        self.before, self.after = before, after
        self.ends = ends.get(before.id, (before.source, before.target))
        self.known = {prop.id: prop for prop in before.properties}
        now = {prop.id: prop.name for prop in after.properties}
        self.names = {prop.name: now.get(prop.id, prop.name) for prop in before.properties}  # old to new
        self.constraints = type_constraints(after)

    def steps(self) -> Iterator[Step]:
        if self.before.name != self.after.name:
            message = f"{self.before.name} is renamed to {self.after.name}, with its rows"
            yield self.step("rename_type", None, message, before=self.before.name, after=self.after.name)
        yield from self.property_changes()
        for prop in self.after.properties:
            if prop.id in self.known:
                yield from self.property(self.known[prop.id], prop)
        yield from self.edge_ends()
        yield from self.rules(_rename_rules(self.before.rules, self.names), self.after.rules)
        yield from self.card(self.before.cardinality or _ANY, self.after.cardinality or _ANY)
        yield from self.metadata(None, _metadata(self.before), _metadata(self.after))

    def property_changes(self) -> Iterator[Step]:
        stay = {prop.id for prop in self.after.properties}
        for prop in self.after.properties:
            if prop.id in self.known and self.known[prop.id].name != prop.name:
                old = self.known[prop.id].name
                message = f"{old} is renamed to {prop.name}, with its values"
                yield self.step("rename_property", prop.name, message, before=old, after=prop.name)
        for prop in self.before.properties:
            if prop.id not in stay:
                message = "hidden at once, readable at older commits until cleanup"
                yield self.step("drop_property", prop.name, message, code=DROPPED_PROPERTY, before=_type_text(prop))
        for prop in self.after.properties:
            if prop.id not in self.known:
                yield self.added(prop)

    def added(self, prop: Property) -> Step:
        step = self.step("add_property", prop.name, "null in existing rows", after=_type_text(prop))
        if prop.default is not None:
            return replace(step, message=f"{_literal(prop.default)} in existing rows", counts_rows=True)
        if prop.nullable:
            return step
        message = "required, which needs a @default if there are rows"
        return replace(step, message=message, requirement=NoRows(REQUIRED_WITHOUT_DEFAULT))

    def property(self, before: Property, after: Property) -> Iterator[Step]:
        yield from self.property_type(before, after)
        if before.nullable != after.nullable:
            step = self.step("change_property", after.name, "may be null from now on", before="required", after="?")
            if not after.nullable:
                step = replace(step, message="required from now on", before="?", after="required")
                step = replace(step, requirement=NoNulls(before.column))
            yield step
        if not _same(before.default, after.default):
            old, new = (None if value is None else _literal(value) for value in (before.default, after.default))
            message = "the default of new rows; existing rows are unchanged"
            yield self.step(
                "change_property",
                after.name,
                message,
                before=_annotation_text("default", old),
                after=_annotation_text("default", new),
            )
        yield from self.indexing(before, after)
        old_source = None if before.embed is None else self.names.get(before.embed.source, before.embed.source)
        new_source = None if after.embed is None else after.embed.source
        if old_source != new_source:
            message = "existing vectors stay; embed fills the missing ones"
            old, new = (None if text is None else json.dumps(text) for text in (old_source, new_source))
            yield self.step(
                "change_property",
                after.name,
                message,
                before=_annotation_text("embed", old),
                after=_annotation_text("embed", new),
            )
        yield from self.metadata(after.name, _metadata(before), _metadata(after))

    def property_type(self, before: Property, after: Property) -> Iterator[Step]:
        old, new = before.type, after.type
        if isinstance(old, Enumeration) and isinstance(new, Enumeration):
            more = [value for value in new.values if value not in old.values]
            gone = [value for value in old.values if value not in new.values]
            if more and not gone:
                yield self.step(
                    "extend_enum", after.name, f"also takes {', '.join(more)}", before=str(old), after=str(new)
                )
            if not gone:
                return
            message = f"an enum is not narrowed: keep {', '.join(gone)}, or add another property"
        elif old == new:
            return
        else:
            message = f"{old} does not become {new}: add another property, fill it, and drop this one"
        step = self.step("change_property", after.name, message, before=str(old), after=str(new))
        if not (isinstance(old, Scalar) and isinstance(new, Scalar) and (old.name, new.name) in WIDENINGS):
            yield step.refuse(OTHER_TYPE, message)
            return
        step = replace(step, message=f"widened: the values are written as {new}, no other column is touched")
        floating_key = new.name == "F64" and before.name in self.before.key  # its text, and so the id, would change
        yield replace(step, requirement=NoRows(KEY_CHANGES)) if floating_key else step

    def indexing(self, before: Property, after: Property) -> Iterator[Step]:
        old, new = _index(before), _index(after)
        if old == new:
            return
        if old is not None:
            yield self.step("drop_constraint", after.name, "no longer indexed", before=old)
        if new is not None:
            yield self.step("add_constraint", after.name, "indexed, existing rows too", after=new)

    def edge_ends(self) -> Iterator[Step]:
        for name, old, new in zip(("src", "dst"), self.ends, (self.after.source, self.after.target), strict=True):
            if old != new:
                message = f"an edge type with rows keeps its ends: declare another edge type for {new}"
                step = self.step("change_property", name, message, before=old, after=new)
                yield replace(step, requirement=NoRows(ENDS_CHANGE))

    def rules(self, before: Rules, after: Rules) -> Iterator[Step]:
        added = list(self.added_rules(before, after))
        if before.key != after.key and before.key:
            message = "ids are derived from the key: it can change only while there are no rows"
            step = self.step("drop_constraint", _single(before.key), message, before=_rule_text("key", before.key))
            yield replace(step, requirement=NoRows(KEY_CHANGES))
        unique = {frozenset(group) for group in after.unique}
        gone = [(group, _rule_text("unique", group)) for group in before.unique if frozenset(group) not in unique]
        gone += [((entry.property,), _range_text(entry)) for entry in before.ranges if entry not in after.ranges]
        gone += [((check.property,), _check_text(check)) for check in before.checks if check not in after.checks]
        for names, text in gone:
            yield self.step("drop_constraint", _single(names), "no longer required of rows", before=text)
        yield from added

    def added_rules(self, before: Rules, after: Rules) -> Iterator[Step]:
        if before.key != after.key and after.key:
            message = "ids are derived from the key: it can change only while there are no rows"
            step = self.step("add_constraint", _single(after.key), message, after=_rule_text("key", after.key))
            yield replace(step, requirement=NoRows(KEY_CHANGES))
        known = {frozenset(group) for group in before.unique}
        for constraint in self.constraints:
            match constraint:
                case Unique(properties=names) if frozenset(names) not in known:
                    text = _rule_text("unique", names)
                case Range(properties=(name,), low=low, high=high) if ValueRange(name, low, high) not in before.ranges:
                    text = _range_text(ValueRange(name, low, high))
                case CheckPattern(properties=(name,), pattern=p) if PatternCheck(name, p) not in before.checks:
                    text = _check_text(PatternCheck(name, p))
                case _:
                    continue
            yield self.constraint_step("add_constraint", constraint, "required of every row", after=text)

    def card(self, before: EdgeCount, after: EdgeCount) -> Iterator[Step]:
        if before == after:
            return
        texts = {"before": f"@card({before})", "after": f"@card({after})"}
        wider = after.minimum <= before.minimum and _limit(after) >= _limit(before)
        if wider:
            yield self.step("change_card", None, "allows all that was allowed", **texts)
            return
        (constraint,) = [entry for entry in self.constraints if isinstance(entry, Cardinality)]
        yield self.constraint_step("change_card", constraint, "required of every node with such edges", **texts)

    def metadata(self, name: str | None, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Step]:
        for aspect in before:
            if before[aspect] != after[aspect]:
                old, new = (None if not value else _literal(value) for value in (before[aspect], after[aspect]))
                yield self.step("update_metadata", name, f"the {aspect} changes", before=old, after=new)

    def constraint_step(self, kind: StepKind, constraint: Constraint, message: str, **texts: str) -> Step:
        step = self.step(kind, _single(constraint.properties) if kind == "add_constraint" else None, message, **texts)
        return replace(step, requirement=ConstraintHolds(constraint))

    def step(
        self,
        kind: StepKind,
        name: str | None,
        message: str,
        *,
        code: str | None = None,
        before: str | None = None,
        after: str | None = None,
    ) -> Step:
        return Step(
            kind, self.after.name, name, message, code=code, before=before, after=after, table=self.before.table_key
        )


def _single(names: tuple[str, ...]) -> str | None:
    """The name, if there is only one."""
    return names[0] if len(names) == 1 else None


def _rename_rules(rules: Rules, names: Mapping[str, str]) -> Rules:
    """The rules with renamed properties."""

    def now(name: str) -> str:
        return names.get(name, name)

    return Rules(
        tuple(map(now, rules.key)),
        tuple(tuple(map(now, group)) for group in rules.unique),
        tuple(replace(entry, property=now(entry.property)) for entry in rules.ranges),
        tuple(replace(entry, property=now(entry.property)) for entry in rules.checks),
    )


def _metadata(declared: TypeDef | Property) -> dict[str, Any]:
    """Descriptive metadata without effect."""
    about: dict[str, Any] = {"description": declared.description, "annotations": dict(declared.annotations)}
    if isinstance(declared, TypeDef):
        about["interfaces"] = sorted(declared.implements)
    return about


def _index(prop: Property) -> str | None:
    if not prop.indexed:
        return None
    return "@index" if prop.metric is None else f'@index(metric="{prop.metric}")'


def _limit(count: EdgeCount) -> float:
    return float("inf") if count.maximum is None else count.maximum


def _type_text(prop: Property) -> str:
    return f"{prop.type}{'?' if prop.nullable else ''}"


def _annotation_text(name: str, argument: str | None) -> str | None:
    return None if argument is None else f"@{name}({argument})"


def _rule_text(rule: str, names: tuple[str, ...]) -> str:
    return f"@{rule}({', '.join(names)})"


def _range_text(entry: ValueRange) -> str:
    return f"@range({entry.property}, {entry})"


def _check_text(entry: PatternCheck) -> str:
    return f"@check({entry.property}, {_literal(entry.pattern)})"


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=list)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other
