"""The steps of a schema change as values: what changes, whether it can be, and what rows have to say about it."""

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from omnigraph.schema.constraints import Constraint

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
    """All rows must fulfil this constraint of the wanted schema."""

    constraint: Constraint
    code: str = ROWS_BREAK_IT


Requirement: TypeAlias = NoRows | NoNulls | ConstraintHolds


@dataclass(frozen=True, slots=True)
class Step:
    """One change. `type_name` is the wanted schema's name, or the accepted one's of what goes.

    `table` is the table of the accepted schema whose rows `needs` is about; `code` is a refusal's, or that of a drop.
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
    counts_rows: bool = False  # all rows of the type are concerned
    count: int | None = None  # rows that the message speaks of

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
