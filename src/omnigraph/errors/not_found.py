"""What was asked for by a name, and is not there, or not in that form."""

from collections.abc import Mapping
from typing import Any

from omnigraph.errors.base import BadRequest, NotFound


class SchemaChangeRefused(BadRequest):
    """A schema can't be reached from the accepted one, or not with the rows that are there. Nothing was written.

    `plan` is the whole plan as plain data, `refused` the steps that can't be: what, why, code.
    """

    def __init__(self, plan: Mapping[str, Any], refused: tuple[tuple[str, str, str | None], ...]) -> None:
        super().__init__(plan, refused)
        self.plan, self.refused = plan, refused

    @property
    def details(self) -> dict[str, Any]:
        return {**self.plan, "applied": False}

    def __str__(self) -> str:
        what, why, code = self.refused[0]
        others = sum(not step["supported"] for step in self.plan["steps"]) - 1  # with those that single rows hinder
        more = f" (and {others} more step{'s' if others > 1 else ''})" if others else ""
        return f"The schema can't be applied, {what}: {why} [{code}]{more}. Nothing was changed, see `schema plan`."


class NotAGraph(NotFound):
    """The store holds no graph. Check the URI, or make one with `init`."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.uri = uri

    def __str__(self) -> str:
        return f"{self.uri} holds no graph: check the URI, or make a graph there with init."


class BranchNotFound(NotFound):
    """No such branch, or it was deleted while the call ran."""

    fields = ("branch",)

    def __init__(self, branch: str) -> None:
        super().__init__(branch)
        self.branch = branch

    def __str__(self) -> str:
        return f"There is no branch {self.branch!r}: see `branch list`, or make it with `branch create`."


class CommitNotFound(NotFound):
    """No such commit is readable: unknown, malformed, or expired by cleanup."""

    fields = ("reference", "reason")

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(reference, reason)
        self.reference, self.reason = reference, reason

    def __str__(self) -> str:
        return f"{self.reference} can't be read: {self.reason}."


class TagNotFound(NotFound):
    """No commit has that name."""

    fields = ("tag",)

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.tag = tag

    def __str__(self) -> str:
        return f"There is no tag {self.tag!r}: see `tag list`, or make it with `tag create`."


class CursorRefused(BadRequest):
    """A cursor of the change feed that does not belong to what is asked. Begin again."""

    fields = ("reason", "remedy")

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return f"The cursor can't be used because {self.reason}: {self.remedy}."


class CursorExpired(NotFound):
    """The change feed has a gap: cleanup has expired what comes next. Begin again from a baseline."""

    def __init__(self, branch: str, commit: str, baseline: str | None) -> None:
        super().__init__(branch, commit, baseline)
        self.branch, self.commit, self.baseline = branch, commit, baseline

    @property
    def details(self) -> dict[str, Any]:
        return {"branch": self.branch, "commit": self.commit, "baseline": self.baseline}

    def __str__(self) -> str:
        again = (
            f"poll `--start now`, and take an export of {self.branch!r} as the new baseline"
            if self.baseline is None
            else f"take `export --at {self.baseline}` as the new baseline and go on with `--start {self.baseline}`"
        )
        return (
            f"The feed of {self.branch!r} can't go on here, because cleanup has expired the states around commit "
            f"{self.commit}: {again}."
        )
