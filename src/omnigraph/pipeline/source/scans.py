"""Scans of one type in parts, and `(vertices, edges)` as DataFrames for graph libraries.

Parts may run on different machines and all read the same pinned state.

A `PinnedType` names the table version that is read and carries the inline rows of manifests, so that executors read
stored rows only, and all of them the same ones. It is small and can be pickled. Importing this needs no Spark.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, Protocol

from omnigraph.errors import BadRequest
from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.model.manifest import MAIN, CommitId
from omnigraph.manifest.repository import Repository, open_repository
from omnigraph.pipeline.spark.types import spark_type, type_of
from omnigraph.schema.catalog import Catalog, TypeDef
from omnigraph.storage.location import Location
from omnigraph.storage.table.align import align_table
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.read.partitions import fragment_batches, fragment_groups
from omnigraph.storage.table.tables import Tables, TableVersion

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


PART_ROWS = 1_000_000  # of one task; a fragment is never divided
TABLES_MAX = 16
OVERLAY = -1  # stands for the rows that ride in manifests where fragments are named: no fragment has this number


@dataclass(frozen=True, slots=True)
class PinnedType:
    """One type at one commit. `at` is None for a type that has no table; `overlay` lies on top of it."""

    location: Location = field(repr=False)
    definition: TypeDef
    commit_id: CommitId
    at: TableVersion | None
    overlay: Overlay = field(default=Overlay.EMPTY, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns as a caller names them: `id`, an edge's `src` and `dst`, then the properties."""
        return (*self.definition.physical_columns, *self.definition.by_name)


def pin(
    store: str,
    type_name: str,
    *,
    branch: str = MAIN,
    at: str | datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> PinnedType:
    """A type as it is now at the head of a branch, or was `at` a commit or a time."""
    return pin_head(open_repository(store, storage_options, read_only=True), type_name, branch=branch, at=at)


def pin_head(
    repository: Repository, type_name: str, *, branch: str = MAIN, at: str | datetime | None = None
) -> PinnedType:
    return pin_type(repository, repository.snapshot(branch, at), type_name)


def pin_type(repository: Repository, snapshot: Snapshot, type_name: str) -> PinnedType:
    """A type in a state that is pinned already. Tails are read here, by the driver, and by nobody after it."""
    definition = find_type(snapshot.catalog, type_name)
    at, overlay = repository.tables.resolve(snapshot.content(definition.table_key))
    return PinnedType(repository.location, definition, snapshot.commit_id, at, overlay)


def find_type(catalog: Catalog, name: str) -> TypeDef:
    found = catalog.by_name.get(name)
    if found is None:
        known = ", ".join(sorted(catalog.by_name)) or "none"
        raise BadRequest(f"The schema has no type {name!r}: its types are {known}.")
    return found


def fragment_tasks(pinned: PinnedType, rows: int = PART_ROWS) -> list[tuple[int, ...]]:
    """Groups of fragments, each about the work of one task; none for a type without rows."""
    groups = [] if pinned.at is None else fragment_groups(tables_at(pinned.location), pinned.at, rows)
    return [*groups, (OVERLAY,)] if pinned.overlay.ids else groups


def read_part(
    pinned: PinnedType, fragments: Sequence[int], names: Sequence[str], row_filter: str | None = None
) -> "Iterator[pa.RecordBatch]":
    """The rows of some fragments under the names and with the types of the schema; older rows lack new columns."""
    import pyarrow as pa

    columns = [pinned.definition.column(name) for name in names]
    for rows in read_columns(pinned, fragments, columns, row_filter):
        yield pa.RecordBatch.from_arrays([rows.column(column) for column in columns], names=list(names))


def read_columns(
    pinned: PinnedType, fragments: Sequence[int], columns: Sequence[str], row_filter: str | None = None
) -> "Iterator[pa.RecordBatch]":
    """As `read_part`, by the names of the table's columns, each of them once."""
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    tables, whole = tables_at(pinned.location), arrow_schema(pinned.definition)
    wanted = list(dict.fromkeys(columns)) or ["id"]
    shape = pa.schema([whole.field(name) for name in wanted])
    stored = [number for number in fragments if number != OVERLAY]
    if pinned.at is not None and stored:
        inside = [name for name in wanted if name in tables.open(pinned.at).schema.names]
        hidden = pa.array(sorted(pinned.overlay.hidden_ids), pa.string())
        asked = list(dict.fromkeys([*inside, *(["id"] if len(hidden) else [])])) or ["id"]
        for batch in fragment_batches(tables, pinned.at, stored, asked, row_filter, whole):
            yield from align_table(pa.table(_without_hidden(batch, hidden)), shape, drop_unknown=True).to_batches()
    if len(stored) < len(fragments):
        for batch in _overlay_batch(tables, pinned, whole, row_filter).select(wanted).to_batches():
            yield batch


def _without_hidden(batch: "pa.RecordBatch", hidden: "pa.Array[Any]") -> "pa.RecordBatch":
    """Without the stored rows that rows in manifests replace or remove."""
    import pyarrow.compute as pc

    if not len(hidden):
        return batch
    ids: Any = batch.column("id")
    return batch.filter(pc.invert(pc.is_in(ids, value_set=hidden.cast(ids.type))))


def _overlay_batch(tables: Tables, pinned: PinnedType, whole: "pa.Schema", row_filter: str | None) -> "pa.Table":
    """The rows that ride in manifests; the filter is Lance's here too, over a table of them alone."""
    rows = overlay_rows(pinned)
    if row_filter is None or not rows.num_rows:
        return rows
    return align_table(tables.scan(None, None, row_filter, Overlay.of(rows), whole), whole)


def overlay_rows(pinned: PinnedType) -> "pa.Table":
    """The rows that ride in manifests, in the columns of the schema: those written earlier may have others."""
    from omnigraph.schema.arrow import arrow_schema

    whole, rows = arrow_schema(pinned.definition), pinned.overlay.rows
    if rows is None:
        return whole.empty_table()
    return align_table(rows, whole, drop_unknown=True)


def tables_at(location: Location) -> Tables:
    """Kept for the tasks that a worker runs one after the other: they share handles and the store's client."""
    return _cached_tables(location.uri, tuple(sorted(location.options.items())), location.fsync)


@lru_cache(maxsize=TABLES_MAX)
def _cached_tables(uri: str, options: tuple[tuple[str, str], ...], fsync: bool) -> Tables:
    return Tables(Location(uri, dict(options), fsync))


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
