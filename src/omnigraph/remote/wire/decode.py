"""What the wire models can't decode alone: commits of this client's own writes, costs in a header, tables."""

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from omnigraph.api.models import CommitEntry, CostEntry, PlanStepEntry
from omnigraph.api.wire_model import Document
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.model.manifest import Commit, CommitClass
from omnigraph.storage.meter import Cost

if TYPE_CHECKING:
    from omnigraph.read.explain import ExecutedStep, QueryPlan

MAINTENANCE_KINDS = ("fold", "optimize", "cleanup", "recovery")

ReadCommit = Callable[[str], Commit]


def decode_cost(document: Document) -> Cost:
    cost: Cost = CostEntry.decode(document)
    return cost


def cost_in_header(header: str | None) -> Cost:
    """`requests=3, stages=2, bytes=10, retries=0`."""
    pairs = (part.split("=", 1) for part in (header or "").replace(" ", "").split(",") if "=" in part)
    found = {name: int(value) for name, value in pairs if value.isascii() and value.isdigit()}
    return decode_cost(dict.fromkeys(("requests", "stages", "bytes", "retries"), 0) | found)


class WrittenCommit(Commit):
    """A commit that a write has just made. The response lacks its time, which is requested on first use."""

    __slots__ = ("_when",)
    _when: Any  # a time, or a function that reads it

    @property
    def authored_at(self) -> datetime:
        if not isinstance(self._when, datetime):
            object.__setattr__(self, "_when", self._when())
        found: datetime = self._when
        return found

    @authored_at.setter
    def authored_at(self, value: Any) -> None:
        object.__setattr__(self, "_when", value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Commit):
            return NotImplemented
        return all(getattr(self, entry.name) == getattr(other, entry.name) for entry in fields(Commit))

    __hash__ = None  # type: ignore[assignment]  # as the class above, which has a dict inside

    def __repr__(self) -> str:
        return f"<commit {self.id} by {self.actor}: {self.kind}>"


def decode_commit(made: Document, cost: Cost, txn_id: str, read: ReadCommit) -> PublishedCommit:
    """A commit in the response to the write that made it; `read` reads one by its id."""
    is_maintenance = made["kind"] in MAINTENANCE_KINDS
    concluded: dict[str, Any] = {
        "txn_id": txn_id,
        "merged_parent": made.get("merged_parent"),
        "authored_at": lambda: read(made["id"]).authored_at,
        "commit_class": CommitClass.MAINTENANCE if is_maintenance else CommitClass.LOGICAL,
    }
    commit = WrittenCommit(**CommitEntry.arguments(made, without=concluded), **concluded)
    return PublishedCommit(commit, made["branch"], made["manifest_version"], cost)


def decode_write(document: Document, txn_id: str, read: ReadCommit) -> PublishedCommit | None:
    """The commit of a response that has a commit and a cost."""
    made = document["commit"]
    return None if made is None else decode_commit(made, decode_cost(document["cost"]), txn_id, read)


def decode_plan(steps: list[Document]) -> "QueryPlan":
    from omnigraph.read.explain import QueryPlan

    return QueryPlan([_decode_step(step) for step in steps])


def _decode_step(document: Document) -> "ExecutedStep":
    nested = [_decode_step(one) for one in document.get("inside", ())]
    step: ExecutedStep = PlanStepEntry.decode(document, nested=nested)
    return step
