"""A graph on a server: the interface of `Graph`, each verb one request or a few."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from omnigraph.api.models import MergeAnswer
from omnigraph.errors import BadRequest
from omnigraph.remote.bulk import RemoteBulk
from omnigraph.remote.history import RemoteHistory, RemoteTags
from omnigraph.remote.maintenance import RemoteMaintenance
from omnigraph.remote.server_queries import RemoteJobs, RemoteQueries
from omnigraph.remote.session import Session, refuse_actor, refuse_spark
from omnigraph.remote.snapshots import RemoteSnapshot, snapshot_of
from omnigraph.remote.transport import Ask, Transport, segment
from omnigraph.remote.wire.decode import decode_cost, decode_plan
from omnigraph.remote.wire.values import wire_params, wire_time
from omnigraph.storage.meter import Cost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from omnigraph.api.interface import GraphLike
    from omnigraph.engine import Engine
    from omnigraph.graph.graph import Graph
    from omnigraph.manifest.commit.publish import PublishedCommit
    from omnigraph.manifest.model.manifest import CommitId, TxnId
    from omnigraph.merge.merge import MergeResult
    from omnigraph.read.explain import QueryPlan
    from omnigraph.read.result import QueryResult
    from omnigraph.schema.evolve.migration import MigrationPlan
    from omnigraph.write.commit import OnConflict
    from omnigraph.write.migrate.migrate import SchemaApplied

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
        write = self._session.an_act(name, txn_id)
        return decode_cost(self._session.write("POST", "/branches", document, write).document["cost"])

    def delete(self, name: str, *, actor: str | None = None, txn_id: "TxnId | None" = None) -> Cost:
        refuse_actor(actor)
        write = self._session.an_act(name, txn_id)
        return decode_cost(self._session.write("DELETE", f"/branches/{segment(name)}", None, write).document["cost"])

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
        write = self._session.a_write(into, txn_id)
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
        from omnigraph.remote.migration import plan_of

        text = _text(text, "schema", ".pg")
        document = {"schema": text, "branch": branch, "name": name}
        answer = self._session.post("/schema/plan", document, text).document
        return plan_of(self.show(branch), text, name, answer)

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
        from omnigraph.remote.migration import plan_of
        from omnigraph.write.migrate.migrate import SchemaApplied

        refuse_actor(actor)
        text = _text(text, "schema", ".pg")
        write = self._session.a_write(branch, txn_id)
        document = {"schema": text, "branch": branch, "name": name, "allow_data_loss": allow_data_loss}
        answer = self._session.write("POST", "/schema/apply", document, write, if_commit=if_commit, text=text).document
        commit = self._session.commit_in(answer, write.txn_id)
        before = self.show(branch) if commit is None else self.show(branch, commit.commit.parent)
        return SchemaApplied(plan_of(before, text, name, answer), commit, decode_cost(answer["cost"]))


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
        found: dict[str, Any] = self._session.transport.call(Ask("GET", "/healthz")).document
        return {name: value for name, value in found.items() if name != "status"}

    @property
    def uri(self) -> str:
        return self._session.uri

    def snapshot(self, branch: str = MAIN, at: str | datetime | None = None) -> RemoteSnapshot:
        answer = self._session.get("/snapshot", {"branch": branch, "at": wire_time(at)})
        return snapshot_of(self._session, answer)

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
        write = self._session.a_write(branch, txn_id)
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
