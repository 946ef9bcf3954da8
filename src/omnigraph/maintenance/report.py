"""What a maintenance run did to each type, and what is still pending."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.storage.meter import Cost


@dataclass(frozen=True, slots=True)
class TypeReport:
    """One type. `folded_rows` counts rows of small commits, written or removed, that are now in the table."""

    table_key: TableKey
    folded_commits: int = 0  # manifests whose rows were folded
    folded_rows: int = 0
    fragments_before: int = 0
    fragments_after: int = 0
    compacted: int = 0  # fragments that were rewritten
    built: tuple[str, ...] = ()  # indexes that had no rows before
    extended: tuple[str, ...] = ()
    adjacency: bool = False  # written
    pending: tuple[str, ...] = ()

    @property
    def did_something(self) -> bool:
        return bool(self.folded_commits or self.compacted or self.built or self.extended or self.adjacency)


@dataclass(frozen=True, slots=True)
class OptimizeResult:
    """What `optimize` did; `commit` is None if no table needed a new version."""

    branch: str
    commit: PublishedCommit | None
    types: Mapping[TableKey, TypeReport] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
