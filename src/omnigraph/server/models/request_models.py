"""Requests as OpenAPI describes them. They are strict: unknown members are refused, and no value is converted."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from omnigraph.engine import Engine

BranchName = Annotated[str, Field(min_length=1, max_length=200, description="A branch.", examples=["main", "agent/42"])]
Reference = Annotated[
    str, Field(min_length=1, max_length=300, description="A commit id, a tag, or a time such as 2026-01-31T12:00Z.")
]
SourceText = Annotated[str, Field(max_length=4_000_000)]
Names = Annotated[list[Annotated[str, Field(min_length=1, max_length=300)]], Field(max_length=1000)]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class QueryRequest(Request):
    query: SourceText = Field(description="The text of a .gq file.")
    name: str | None = Field(None, max_length=300, description="Which query of the text; needed if there are several.")
    params: dict[str, Any] = Field(default_factory=dict, description="Values of the query's parameters.")
    branch: BranchName = "main"
    at: Reference | None = None
    engine: Engine = "auto"
    explain: bool = False


class MutateRequest(Request):
    query: SourceText = Field(description="The text of a .gq file.")
    name: str | None = Field(None, max_length=300)
    params: dict[str, Any] = Field(default_factory=dict)
    branch: BranchName = "main"
    at: None = None
    on_conflict: Literal["retry", "fail"] = "retry"


class StoredRequest(Request):
    params: dict[str, Any] = Field(default_factory=dict)
    branch: BranchName = "main"
    at: Reference | None = None


class ExportRequest(Request):
    branch: BranchName = "main"
    at: Reference | None = None
    types: Names | None = None
    format: Literal["jsonl", "csv", "parquet"] = "jsonl"
    directory: bool = Field(False, description="A tar with the files of a directory, instead of one file.")
    engine: Engine = "auto"


class LintRequest(Request):
    query: SourceText
    name: str = Field("query", max_length=300, description="The name of the text in the findings.")
    branch: BranchName = "main"
    at: Reference | None = None


class BranchRequest(Request):
    name: BranchName
    from_: Annotated[str, Field(alias="from", min_length=1, max_length=300)] = "main"
    at: Reference | None = None


class MergeRequest(Request):
    source: BranchName
    into: BranchName = "main"
    delete_branch: bool = False
    dry_run: bool = False
    engine: Engine = "auto"


class TagRequest(Request):
    name: Annotated[str, Field(min_length=1, max_length=300)]
    commit: Reference | None = None
    branch: BranchName = "main"


class RevertRequest(Request):
    commit: Reference
    branch: BranchName = "main"


class SchemaPlanRequest(Request):
    schema_: Annotated[SourceText, Field(alias="schema", description="The wanted schema, the text of a .pg file.")]
    branch: BranchName = "main"
    name: str = Field("schema.pg", max_length=300, description="The name of the text in errors.")


class SchemaApplyRequest(SchemaPlanRequest):
    allow_data_loss: bool = False


class OptimizeRequest(Request):
    branch: BranchName = "main"
    types: Names | None = None
    engine: Engine = "auto"


class CleanupRequest(Request):
    older_than: Annotated[str, Field(max_length=50)] = "7d"
    keep: int = Field(10, ge=1, le=10**9)
    intent_ttl: Annotated[str, Field(max_length=50)] = "7d"
    confirm: bool = Field(
        False, description="Without this, nothing is changed: the response says what would be deleted."
    )


class VerifyRequest(Request):
    branch: BranchName | None = None
    full: bool = False
    seed: int = Field(0, ge=-(2**62), le=2**62)


class RecoverRequest(Request):
    complete: Names = Field(default_factory=list)
    discard: Names = Field(default_factory=list)
    all: bool = False


class AnalyzeRequest(Request):
    algorithm: Literal["pagerank", "components", "degrees", "triangles"]
    edges: Names | None = None
    write: str | None = Field(None, max_length=600, description="TYPE.PROPERTY: give every row its value.")
    direction: Literal["out", "in", "both"] | None = None
    damping: float = Field(0.85, strict=False)
    tolerance: float = Field(1e-6, strict=False)
    iterations: int = Field(100, ge=1, le=100_000)
    limit: int | None = Field(20, ge=0, le=1_000_000)
    branch: BranchName = "main"
    at: Reference | None = None
    engine: Engine = "auto"


class EmbedRequest(Request):
    type: str | None = Field(None, max_length=300)
    property: str | None = Field(None, max_length=300)
    branch: BranchName = "main"
    batch: int = Field(128, ge=1, le=10_000)
    commit_every: int | None = Field(100, ge=1, le=10**6, description="Batches in a commit; null for one at the end.")
    rate_limit: float | None = Field(None, gt=0, strict=False)
    concurrency: int = Field(4, ge=1, le=64)
    dry_run: bool = False
    price_per_1k: float | None = Field(None, ge=0, strict=False)
