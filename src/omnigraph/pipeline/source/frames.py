"""DataFrames of a graph: `(vertices, edges)` as graph libraries want them."""

from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Protocol

from omnigraph.errors import BadRequest
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.model.manifest import MAIN
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.source.scans import find_type
from omnigraph.pipeline.spark.types import spark_type, type_of
from omnigraph.schema.catalog import TypeDef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class OpenGraph(Protocol):
    """An open graph, as `omnigraph.open` gives it."""

    @property
    def repository(self) -> Repository: ...


def graph_frames(
    spark: "SparkSession",
    graph: OpenGraph,
    *,
    branch: str = MAIN,
    at: str | datetime | None = None,
    node_types: Sequence[str] | None = None,
    edge_types: Sequence[str] | None = None,
    properties: Sequence[str] = (),
    qualified: bool = False,
) -> "tuple[DataFrame, DataFrame]":
    """Vertices `(id, type, …)` and edges `(src, dst, type, id, …)` of one commit, for GraphFrames and the like.

    All types unless some are named; edges come only between node types that come. `properties` are carried along,
    null in types that have none of that name. Ids are unique in their type only: where two of the types may share
    one, `qualified` makes them `Person:ada`, at the ends of edges too.
    """
    snapshot = graph.repository.snapshot(branch, at)
    nodes = _chosen(snapshot, "node", node_types)
    edges = _between(_chosen(snapshot, "edge", edge_types), {one.name for one in nodes}, named=edge_types is not None)
    _check_properties([*nodes, *edges], properties)
    frames = _Frames(spark, graph, snapshot, properties, qualified)
    vertices = frames.union([frames.nodes(one) for one in nodes], "node")
    return vertices, frames.union([frames.edges(one) for one in edges], "edge")


def read_type(
    spark: "SparkSession",
    graph: OpenGraph,
    type_name: str,
    *,
    branch: str = MAIN,
    at: str | datetime | None = None,
    columns: Sequence[str] | None = None,
) -> "DataFrame":
    """One type through the data source: what `spark.read.format("omnigraph")` gives with all options set."""
    from omnigraph.pipeline.source.datasource import STORAGE, OmnigraphDataSource

    spark.dataSource.register(OmnigraphDataSource)
    location = graph.repository.location
    options = {f"{STORAGE}{name}": value for name, value in location.options.items()}
    reader = spark.read.format(OmnigraphDataSource.name()).options(**options)
    reader = reader.option("store", location.uri).option("type", type_name).option("branch", branch)
    if at is not None:
        reader = reader.option("at", at if isinstance(at, str) else at.isoformat())
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    return reader.load()


class _Frames:
    def __init__(
        self,
        spark: "SparkSession",
        graph: OpenGraph,
        snapshot: Snapshot,
        properties: Sequence[str],
        qualified: bool,
    ) -> None:
        self._spark = spark
        self._graph = graph
        self._snapshot = snapshot
        self._properties = properties
        self._qualified = qualified

    def nodes(self, definition: TypeDef) -> "DataFrame":
        from pyspark.sql import functions as F  # noqa: N812

        frame = self._read(definition, ["id"])
        carried = [name for name in self._properties if name in definition.by_name]
        named = F.lit(definition.name).alias("type")
        return frame.select(self._end("id", definition.name), named, *carried)

    def edges(self, definition: TypeDef) -> "DataFrame":
        from pyspark.sql import functions as F  # noqa: N812

        frame = self._read(definition, ["id", "src", "dst"])
        ends = [self._end("src", str(definition.source)), self._end("dst", str(definition.target))]
        carried = [name for name in self._properties if name in definition.by_name]
        return frame.select(*ends, F.lit(definition.name).alias("type"), "id", *carried)

    def union(self, frames: "Sequence[DataFrame]", kind: str) -> "DataFrame":
        if frames:
            return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
        columns = "id string, type string" if kind == "node" else "src string, dst string, type string, id string"
        return self._spark.createDataFrame([], columns)

    def _read(self, definition: TypeDef, first: Sequence[str]) -> "DataFrame":
        columns = [*first, *(name for name in self._properties if name in definition.by_name)]
        at = self._snapshot.commit_id
        return read_type(self._spark, self._graph, definition.name, at=at, columns=columns)

    def _end(self, column: str, type_name: str):  # type: ignore[no-untyped-def]  # pyspark's Column, imported late
        from pyspark.sql import functions as F  # noqa: N812

        return F.concat(F.lit(f"{type_name}:"), F.col(column)).alias(column) if self._qualified else F.col(column)


def _chosen(snapshot: Snapshot, kind: str, names: Sequence[str] | None) -> list[TypeDef]:
    if names is None:
        return [definition for definition in snapshot.catalog.types if definition.kind == kind]
    found = [find_type(snapshot.catalog, name) for name in dict.fromkeys(names)]
    for definition in found:
        if definition.kind != kind:
            raise BadRequest(f"{definition.name} is no {kind} type: name it among the others.")
    return found


def _between(edges: Sequence[TypeDef], nodes: set[str], *, named: bool) -> list[TypeDef]:
    """The edge types with both ends there; one that was named and has not is a slip."""
    found = [one for one in edges if one.source in nodes and one.target in nodes]
    for one in edges if named else ():
        if one not in found:
            raise BadRequest(f"{one.name} goes from {one.source} to {one.target}: choose these node types too.")
    return found


def _check_properties(definitions: Sequence[TypeDef], properties: Sequence[str]) -> None:
    """One column has one type."""
    for name in properties:
        having = [one for one in definitions if name in one.by_name]
        if not having:
            raise BadRequest(f"No chosen type has a property {name!r}: see `schema show`.")
        for kind in ("node", "edge"):
            types = {one.name: spark_type(type_of(one, name)) for one in having if one.kind == kind}
            if len(set(types.values())) > 1:
                shown = ", ".join(f"{of} {type_.simpleString()}" for of, type_ in types.items())
                raise BadRequest(f"The property {name!r} has several types ({shown}): choose fewer types.")
