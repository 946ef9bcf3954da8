"""A graph on a server: the interface of `Graph`, each verb one request or a few."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from omnigraph.api.models import MergeAnswer, SchemaStep, TypeEntry
from omnigraph.errors import BadRequest, OmnigraphError
from omnigraph.remote.bulk import RemoteBulk, RemoteMaintenance
from omnigraph.remote.history import RemoteHistory, RemoteTags
from omnigraph.remote.server_queries import RemoteJobs, RemoteQueries
from omnigraph.remote.session import Session, refuse_actor, refuse_spark
from omnigraph.remote.transport import HttpRequest, JsonResponse, Transport, quote_segment
from omnigraph.remote.wire.decode import cost_in_header, decode_cost, decode_plan
from omnigraph.remote.wire.values import wire_params, wire_time
from omnigraph.schema.evolve.migration import MigrationPlan, plan_migration
from omnigraph.schema.evolve.migration_step import Step
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.meter import Cost

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from omnigraph.api.interface import GraphLike
    from omnigraph.engine import Engine
    from omnigraph.graph.graph import Graph, TypeSummary
    from omnigraph.manifest.commit.publish import PublishedCommit
    from omnigraph.manifest.model.manifest import CommitId, TxnId
    from omnigraph.merge.merge import MergeResult
    from omnigraph.read.explain import QueryPlan
    from omnigraph.read.result import QueryResult
    from omnigraph.schema.catalog import TypeDef
    from omnigraph.schema.evolve.migration import MigrationPlan
    from omnigraph.write.commit import OnConflict
    from omnigraph.write.migrate.migrate import SchemaApplied


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """What a server said of a state: later commits do not show in it."""

    branch: str
    commit_id: str
    manifest_version: int
    types: "list[TypeSummary]"
    session: Session = field(repr=False)
    cost: Cost = field(default_factory=Cost)

    def to_arrow(self, table_key: str, columns: Sequence[str] | None = None, filter: str | None = None) -> "pa.Table":
        """The rows of one type, such as `node:Person`."""
        if filter is not None:
            raise BadRequest("A server takes no filter that is spelled out for the store: run a query instead.")
        table = self._read(table_key)
        return table if columns is None else table.select(list(columns))

    def lookup(self, table_key: str, ids: Iterable[str], columns: Sequence[str] | None = None) -> "pa.Table":
        """The rows of one type that have these ids. All rows are sent: for a few, a query is better."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self._read(table_key)
        wanted: Any = pa.array(list(dict.fromkeys(ids)), pa.string())
        mask: Any = pc.is_in(table.column("id"), value_set=wanted)
        found = table.filter(mask)
        return found if columns is None else found.select(list(columns))

    def _read(self, table_key: str) -> "pa.Table":
        """As an export has them, under the names of the store's columns."""
        import pyarrow.parquet as pq

        from omnigraph.read.export.export_formats import file_columns
        from omnigraph.schema.arrow import arrow_schema

        definition = self._definition(table_key)
        document = {
            "branch": self.branch,
            "at": self.commit_id,
            "types": [definition.name],
            "format": "parquet",
        }
        request = HttpRequest("POST", f"{self.session.base}/export", document=document)
        with self.session.transport.stream(request) as response:
            data = b"".join(self.session.transport.pieces(response))
        table = pq.read_table(io.BytesIO(data))
        stored = {shown.name: shown.column for shown in file_columns(definition)}
        return table.rename_columns([stored[name] for name in table.column_names]).cast(arrow_schema(definition))

    def _definition(self, table_key: str) -> "TypeDef":
        catalog = self.session.schema_at(self.commit_id, self.branch).catalog
        found = next((entry for entry in catalog.types if entry.table_key == table_key), None)
        if found is None:
            keys = ", ".join(entry.table_key for entry in catalog.types)
            raise BadRequest(f"The schema has no table {table_key!r}: its tables are {keys}.")
        return found


def _decode_snapshot(session: Session, answer: JsonResponse) -> RemoteSnapshot:
    document = answer.document
    types = [TypeEntry.decode(entry) for entry in document["types"]]
    cost = cost_in_header(answer.headers.get("omnigraph-cost"))
    return RemoteSnapshot(document["branch"], document["commit_id"], document["manifest_version"], types, session, cost)


MAIN = "main"


class RemoteBranches:
    """`g.branches`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def create(
        self,
        name: str,
        from_: str = MAIN,
        at: str | datetime | None = None,
        *,
        actor: str | None = None,
        txn_id: "TxnId | None" = None,
    ) -> Cost:
        refuse_actor(actor)
        document = {"name": name, "from": from_, "at": wire_time(at)}
        write = self._session.name_request(name, txn_id)
        return decode_cost(self._session.write("POST", "/branches", document, write).document["cost"])

    def delete(self, name: str, *, actor: str | None = None, txn_id: "TxnId | None" = None) -> Cost:
        refuse_actor(actor)
        write = self._session.name_request(name, txn_id)
        return decode_cost(
            self._session.write("DELETE", f"/branches/{quote_segment(name)}", None, write).document["cost"]
        )

    def merge(
        self,
        source: str,
        into: str = MAIN,
        delete_branch: bool = False,
        dry_run: bool = False,
        *,
        actor: str | None = None,
        if_commit: "CommitId | None" = None,
        txn_id: "TxnId | None" = None,
        engine: "Engine" = "auto",
        spark: "SparkSession | None" = None,
        master: str | None = None,
    ) -> "MergeResult":
        refuse_actor(actor)
        refuse_spark(spark, master)
        document = {
            "source": source,
            "into": into,
            "delete_branch": delete_branch,
            "dry_run": dry_run,
            "engine": engine,
        }
        write = self._session.commit_request(into, txn_id)
        answer = self._session.write("POST", "/branches/merge", document, write, if_commit=if_commit)
        commit = self._session.commit_in(answer.document, write.txn_id)
        result: MergeResult = MergeAnswer.decode(answer.document, commit=commit)
        return result

    def list(self) -> list[str]:
        names: list[str] = self._session.get("/branches").document["branches"]
        return names


class RemoteSchema:
    """`g.schema`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def show(self, branch: str = MAIN, at: str | datetime | None = None) -> str:
        return str(self._session.get("/schema", {"branch": branch, "at": wire_time(at)}).document["schema"])

    def plan(self, text: str, branch: str = MAIN, *, name: str = "schema.pg") -> "MigrationPlan":

        text = _text(text, "schema", ".pg")
        document = {"schema": text, "branch": branch, "name": name}
        answer = self._session.post("/schema/plan", document, text).document
        return _migration_plan(self.show(branch), text, name, answer)

    def apply(
        self,
        text: str,
        allow_data_loss: bool = False,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        if_commit: "CommitId | None" = None,
        txn_id: "TxnId | None" = None,
        name: str = "schema.pg",
    ) -> "SchemaApplied":
        from omnigraph.write.migrate.migrate import SchemaApplied

        refuse_actor(actor)
        text = _text(text, "schema", ".pg")
        write = self._session.commit_request(branch, txn_id)
        document = {"schema": text, "branch": branch, "name": name, "allow_data_loss": allow_data_loss}
        answer = self._session.write("POST", "/schema/apply", document, write, if_commit=if_commit, text=text).document
        commit = self._session.commit_in(answer, write.txn_id)
        before = self.show(branch) if commit is None else self.show(branch, commit.commit.parent)
        return SchemaApplied(_migration_plan(before, text, name, answer), commit, decode_cost(answer["cost"]))


class RemoteGraph(RemoteHistory, RemoteBulk, RemoteMaintenance):
    """A graph on a server. Usable from threads; `close` gives back its connections, as `with` does."""

    def __init__(self, transport: Transport, graph: str) -> None:
        self._session = Session(transport, graph)
        self.cost = Cost()  # of opening it: nothing is asked before it is used
        self.branches = RemoteBranches(self._session)
        self.schema = RemoteSchema(self._session)
        self.tags = RemoteTags(self._session)
        self.jobs = RemoteJobs(self._session)  # these two are of servers only
        self.queries = RemoteQueries(self._session)

    def __enter__(self) -> "RemoteGraph":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._session.transport.close()

    def server_version(self) -> dict[str, Any]:
        """What the server runs: its release, the format it speaks, its libraries."""
        found: dict[str, Any] = self._session.transport.call(HttpRequest("GET", "/healthz")).document
        return {name: value for name, value in found.items() if name != "status"}

    @property
    def uri(self) -> str:
        return self._session.uri

    def snapshot(self, branch: str = MAIN, at: str | datetime | None = None) -> RemoteSnapshot:
        answer = self._session.get("/snapshot", {"branch": branch, "at": wire_time(at)})
        return _decode_snapshot(self._session, answer)

    def query(
        self,
        gq: str,
        name: str | None = None,
        params: Mapping[str, object] | None = None,
        branch: str = MAIN,
        at: str | datetime | None = None,
        *,
        explain: bool = False,
        engine: "Engine" = "auto",
        spark: "SparkSession | None" = None,
        master: str | None = None,
        on_start: Callable[[str], None] | None = None,
    ) -> "QueryResult":
        """Run a read query there; its rows come as Arrow, so that they have their types here."""
        refuse_spark(spark, master)
        document: dict[str, Any] = {
            "query": _text(gq, "query", ".gq"),
            "name": name,
            "params": wire_params(params),
            "branch": branch,
            "at": wire_time(at),
            "engine": engine,
        }
        result = self._session.rows("/query", document, branch, document["query"])
        if explain:
            result.plan = self._plan({**document, "at": result.commit_id})
        return result

    def _plan(self, document: Mapping[str, Any]) -> "QueryPlan":
        """Of the same state: it is run again, because a stream of rows has no place for its plan."""
        answer = self._session.post("/query", {**document, "explain": True}, document["query"])
        return decode_plan(answer.document["plan"])

    def mutate(
        self,
        gq: str,
        name: str | None = None,
        params: Mapping[str, object] | None = None,
        branch: str = MAIN,
        actor: str | None = None,
        if_commit: "CommitId | None" = None,
        on_conflict: "OnConflict" = "retry",
        *,
        txn_id: "TxnId | None" = None,
    ) -> "PublishedCommit | None":
        refuse_actor(actor)
        document = {
            "query": _text(gq, "query", ".gq"),
            "name": name,
            "params": wire_params(params),
            "branch": branch,
            "on_conflict": on_conflict,
        }
        write = self._session.commit_request(branch, txn_id)
        answer = self._session.write("POST", "/mutate", document, write, if_commit=if_commit, text=gq).document
        return self._session.commit_in(answer, write.txn_id)


def _text(text: object, what: str, ending: str) -> str:
    if not isinstance(text, str):
        raise BadRequest(f"A {what} is text, not {type(text).__name__}: give what a {ending} file holds.")
    return text


if TYPE_CHECKING:

    def _one_protocol(embedded: Graph, remote: RemoteGraph) -> tuple[GraphLike, GraphLike]:
        """Fails to type-check as soon as one of the two is not what the protocol says."""
        return embedded, remote


def _migration_plan(accepted: str, wanted: str, name: str, document: Mapping[str, Any]) -> MigrationPlan:
    """What lies between the two texts, with what the server found out about the rows."""
    before = compile_schema(accepted)
    try:
        plan = plan_migration(before, wanted, name)
    except OmnigraphError:  # it was read with more history than a text has, such as renames that are done
        return MigrationPlan(before, compile_schema(wanted, name=name), _decode_steps(document["steps"]))
    return plan.with_steps(_with_server_steps(plan.steps, document["steps"]))


def _with_server_steps(steps: Sequence[Step], found: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    same = [(step.kind, step.type_name, step.property_name) for step in steps] == [
        (entry["kind"], entry["type_name"], entry["property_name"]) for entry in found
    ]
    if not same:  # the schema changed between two requests: the server's answer counts
        return _decode_steps(found)
    return tuple(replace(step, **SchemaStep.arguments(entry)) for step, entry in zip(steps, found, strict=True))


def _decode_steps(steps: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    return tuple(SchemaStep.decode(entry) for entry in steps)
