"""Analyses on Spark, for graphs that one machine can't hold: rounds of joins over vertex numbers.

A vertex's number follows from its fragment and its row there, so that executors number vertices independently. Ids are
joined once, to number the ends of edges; the rounds move numbers only. Every round is checkpointed, or the plan of the
next one would contain all rounds before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from omnigraph.manifest.commit.txn import Snapshot
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.analytics.spec import VALUE_NAMES, AnalysisSpec
from omnigraph.pipeline.source.scans import (
    OVERLAY,
    PART_ROWS,
    PinnedType,
    fragment_tasks,
    overlay_rows,
    pin_type,
    read_part,
)
from omnigraph.pipeline.spark.runner import translate_error
from omnigraph.pipeline.spark.session import create_second_session
from omnigraph.storage.table.write.column_updates import ROW_ADDRESS, addressed_batches, fragment_sizes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS_A_PART = 1_000_000  # of numbers, in one task of a round
_NODES = "number long, kind int, id string"


@dataclass(frozen=True, slots=True)
class SparkResult:
    """A frame with a value for every vertex: number, kind, id, value."""

    frame: "DataFrame"
    types: tuple[str, ...]
    vertices: int
    edges: int
    iterations: int | None = None
    converged: bool | None = None

    def rows(self, limit: int | None, spec: AnalysisSpec) -> "pa.Table":
        """As `LocalResult.rows`."""
        from pyspark.sql import functions as F  # noqa: N812

        kinds = F.array(*map(F.lit, self.types))
        value = F.col("value")
        order = value.asc() if spec.algorithm == "components" else value.desc()
        named = self.frame.select(
            F.element_at(kinds, F.col("kind") + 1).alias("type"), "id", value.alias(VALUE_NAMES[spec.algorithm])
        )
        ordered = named.withColumnRenamed(VALUE_NAMES[spec.algorithm], "value").orderBy(order, "type", "id")
        shown = (ordered if limit is None else ordered.limit(limit)).withColumnRenamed(
            "value", VALUE_NAMES[spec.algorithm]
        )
        with translate_errors("analyze"):
            table: pa.Table = shown.toArrow()
        return table

    def of_type(self, type_name: str) -> "DataFrame":
        """The ids of a type, and their values."""
        return self.frame.where(self.frame.kind == self.types.index(type_name)).select("id", "value")


def answer(spark: "SparkSession", repository: Repository, snapshot: Snapshot, spec: AnalysisSpec) -> SparkResult:
    from pyspark.sql import functions as F  # noqa: N812

    with translate_errors("analyze"):
        spark = _tuned(spark, snapshot, spec)
        vertices = [pin_type(repository, snapshot, definition.name) for definition in spec.vertices]
        names = tuple(definition.name for definition in spec.vertices)
        nodes = materialize(_nodes(spark, vertices))
        links = [
            _links(spark, nodes, pin_type(repository, snapshot, edge.name), names.index(edge.source or ""),
                   names.index(edge.target or ""))
            for edge in spec.edges
        ]  # fmt: skip
        edges = materialize(reduce(lambda one, other: one.unionByName(other), links))
        counted, edge_count = nodes.count(), edges.count()
        if spec.direction == "in":
            edges = edges.select(F.col("t").alias("s"), F.col("s").alias("t"))
        values, rounds, converged = _values(nodes, edges, counted, spec, names)
        frame = materialize(nodes.join(values, "number", "left").select("number", "kind", "id", "value"))
    return SparkResult(frame, names, counted, edge_count, rounds, converged)


def _values(
    nodes: "DataFrame", edges: "DataFrame", count: int, spec: AnalysisSpec, names: Sequence[str]
) -> "tuple[DataFrame, int | None, bool | None]":
    from pyspark.sql import functions as F  # noqa: N812

    match spec.algorithm:
        case "pagerank":
            if spec.direction == "both":
                edges = edges.unionByName(_reversed(edges.where("s <> t")))
            return _pagerank(nodes, edges, count, spec)
        case "components":
            return _named(nodes, _components(nodes, edges), spec, names), None, None
        case "degrees":
            ends = edges.select(F.col("s").alias("number"))
            if spec.direction == "both":
                ends = ends.union(edges.select(F.col("t").alias("number")))
            counts = ends.groupBy("number").agg(F.count("*").alias("value"))
        case "triangles":
            counts = _triangles(edges)
    with_all = nodes.select("number").join(counts, "number", "left")
    return with_all.select("number", F.coalesce("value", F.lit(0)).cast("long").alias("value")), None, None


def _pagerank(nodes: "DataFrame", edges: "DataFrame", count: int, spec: AnalysisSpec) -> "tuple[DataFrame, int, bool]":
    """From the node table outwards, so that vertices that no edge leads to stay."""
    from pyspark.sql import functions as F  # noqa: N812

    leaving = edges.groupBy("s").agg(F.count("*").alias("leaving"))
    weights = edges.groupBy("s", "t").agg(F.count("*").alias("times")).join(leaving, "s")
    links = materialize(weights.select("s", "t", (F.col("times") / F.col("leaving")).alias("share")))
    flagged = nodes.select("number").join(leaving, nodes.number == leaving.s, "left")
    ranks = materialize(
        flagged.select("number", F.col("leaving").isNull().alias("dead_end"), F.lit(1.0 / max(count, 1)).alias("rank"))
    )
    damping, lost = spec.damping, _sums(ranks, F.when(F.col("dead_end"), F.col("rank")))[0]
    for number in range(1, spec.iterations + 1):
        arriving = (
            links.join(ranks, links.s == ranks.number)
            .groupBy("t")
            .agg(F.sum(F.col("rank") * F.col("share")).alias("arriving"))
        )
        base = damping * lost / max(count, 1) + (1.0 - damping) / max(count, 1)
        moved = ranks.join(arriving, ranks.number == arriving.t, "left").select(
            "number",
            "dead_end",
            F.col("rank").alias("before"),
            (F.coalesce("arriving", F.lit(0.0)) * damping + base).alias("rank"),
        )
        ranks = materialize(moved)
        change, lost = _sums(ranks, F.abs(F.col("rank") - F.col("before")), F.when(F.col("dead_end"), F.col("rank")))
        if change < spec.tolerance or not count:
            return ranks.select("number", F.col("rank").alias("value")), number, True
    return ranks.select("number", F.col("rank").alias("value")), spec.iterations, False


def _components(nodes: "DataFrame", edges: "DataFrame") -> "DataFrame":
    """The smallest number that each vertex is connected with, in the rounds of `analytics_local.components`."""
    from pyspark.sql import functions as F  # noqa: N812

    both = materialize(edges.unionByName(_reversed(edges)).where("s <> t").distinct())
    parents = materialize(nodes.select("number", F.col("number").alias("parent")))
    while True:
        above = parents.select(F.col("number").alias("parent"), F.col("parent").alias("above"))
        known = materialize(parents.join(above, "parent"))  # number, parent, above
        ends = both.join(known.select(F.col("number").alias("t"), "above"), "t").join(
            known.select(F.col("number").alias("s"), "parent"), "s"
        )
        offers = (
            ends.select(F.col("parent").alias("number"), F.col("above").alias("offer"))
            .union(ends.select(F.col("s").alias("number"), F.col("above").alias("offer")))
            .union(known.select("number", F.col("above").alias("offer")))
        )
        best = offers.groupBy("number").agg(F.min("offer").alias("offer"))
        hooked = parents.join(best, "number", "left").select(
            "number", F.col("parent").alias("before"), F.least("parent", F.coalesce("offer", "parent")).alias("parent")
        )
        parents = materialize(hooked)
        if parents.where("before <> parent").isEmpty():
            return parents.select("number", "parent")
        parents = parents.select("number", "parent")


def _named(nodes: "DataFrame", parents: "DataFrame", spec: AnalysisSpec, names: Sequence[str]) -> "DataFrame":
    """Components by the smallest id in them, or by its place among those of all components."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    smallest = (
        nodes.join(parents, "number")
        .groupBy("parent")
        .agg(F.min(F.struct("id", "kind")).alias("first"))
        .select("parent", "first.id", "first.kind")
    )
    if spec.numbered:
        place = F.row_number().over(Window.orderBy("id", "kind")) - 1
        labels = smallest.select("parent", place.cast("long").alias("value"))
    elif len(names) > 1:
        kind = F.element_at(F.array(*map(F.lit, names)), F.col("kind") + 1)
        labels = smallest.select("parent", F.concat(kind, F.lit(":"), F.col("id")).alias("value"))
    else:
        labels = smallest.select("parent", F.col("id").alias("value"))
    return parents.join(labels, "parent").select("number", "value")


def _triangles(edges: "DataFrame") -> "DataFrame":
    """Each edge from the end with fewer neighbours; two that leave one vertex and a third that closes them."""
    from pyspark.sql import functions as F  # noqa: N812

    pairs = materialize(
        edges.where("s <> t").select(F.least("s", "t").alias("a"), F.greatest("s", "t").alias("b")).distinct()
    )
    degrees = materialize(
        pairs.select(F.col("a").alias("v"))
        .union(pairs.select(F.col("b").alias("v")))
        .groupBy("v")
        .agg(F.count("*").alias("degree"))
    )
    one, other = degrees.toDF("a", "degree_a"), degrees.toDF("b", "degree_b")
    turned = (F.col("degree_a") > F.col("degree_b")) | (
        (F.col("degree_a") == F.col("degree_b")) & (F.col("a") > F.col("b"))
    )
    leading = materialize(
        pairs.join(one, "a")
        .join(other, "b")
        .select(F.when(turned, F.col("b")).otherwise(F.col("a")).alias("x"),
                F.when(turned, F.col("a")).otherwise(F.col("b")).alias("y"))
    )  # fmt: skip
    second = leading.select("x", F.col("y").alias("z"))
    wedges = leading.join(second, "x").where("y < z")
    closed = materialize(wedges.join(pairs.select(F.col("a").alias("y"), F.col("b").alias("z")), ["y", "z"]))
    corners = closed.select(F.explode(F.array("x", "y", "z")).alias("number"))
    return corners.groupBy("number").agg(F.count("*").alias("value"))


# Reading


def _nodes(spark: "SparkSession", pinned: Sequence[PinnedType]) -> "DataFrame":
    """Every vertex: its number, the number of its type, its id."""
    starts: list[dict[int, int]] = []
    total = 0
    for one in pinned:
        own: dict[int, int] = {}
        for fragment, rows in () if one.at is None else fragment_sizes(one.location, one.at).items():
            own[fragment] = total
            total += rows
        own[OVERLAY] = total
        total += overlay_rows(one).num_rows
        starts.append(own)
    parts = [(kind, list(group)) for kind, one in enumerate(pinned) for group in fragment_tasks(one, PART_ROWS)]
    if not parts:
        return spark.createDataFrame([], _NODES)
    listed = spark.createDataFrame(parts, "kind int, fragments array<int>").repartition(len(parts))
    return listed.mapInArrow(partial(_read_nodes, list(pinned), starts), _NODES)


def _read_nodes(
    pinned: Sequence[PinnedType], starts: Sequence[Mapping[int, int]], batches: "Iterator[pa.RecordBatch]"
) -> "Iterator[pa.RecordBatch]":
    import numpy as np
    import pyarrow as pa

    for kind, fragments in _listed(batches):
        for addresses, ids in _addressed(pinned[kind], fragments):
            places, inverse = np.unique(addresses >> 32, return_inverse=True)
            before = np.array([starts[kind][int(place)] for place in places], np.int64)
            numbers = before[inverse] + (addresses & 0xFFFFFFFF)
            kinds = pa.array(np.full(len(numbers), kind, np.int32))
            yield pa.RecordBatch.from_arrays(
                [pa.array(numbers), kinds, ids.cast(pa.string())], names=["number", "kind", "id"]
            )


def _addressed(pinned: PinnedType, fragments: Sequence[int]) -> Iterator[tuple[Any, Any]]:
    """Where rows are, and their ids; those that ride in manifests are in a fragment of their own."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    stored = [number for number in fragments if number != OVERLAY]
    hidden = pa.array(sorted(pinned.overlay.hidden_ids), pa.string())
    if pinned.at is not None and stored:
        for rows in addressed_batches(pinned.location, pinned.at, ["id"], stored):
            ids: Any = rows.column("id")
            if len(hidden):
                rows = rows.filter(pc.invert(pc.is_in(ids, value_set=hidden.cast(ids.type))))
            yield np.asarray(rows.column(ROW_ADDRESS), np.uint64).astype(np.int64), rows.column("id")
    if len(stored) < len(fragments):
        ids = overlay_rows(pinned).column("id").combine_chunks()
        yield (OVERLAY << 32) + np.arange(len(ids)), ids


def _links(spark: "SparkSession", nodes: "DataFrame", pinned: PinnedType, source: int, target: int) -> "DataFrame":
    """The edges of a type by the numbers of their ends."""
    from pyspark.sql import functions as F  # noqa: N812

    groups = fragment_tasks(pinned, PART_ROWS)
    if not groups:
        return spark.createDataFrame([], "s long, t long")
    listed = spark.createDataFrame([(0, list(group)) for group in groups], "kind int, fragments array<int>")
    ends = listed.repartition(len(groups)).mapInArrow(partial(_read_ends, pinned), "src string, dst string")
    sources = nodes.where(nodes.kind == source).select(F.col("id").alias("src"), F.col("number").alias("s"))
    targets = nodes.where(nodes.kind == target).select(F.col("id").alias("dst"), F.col("number").alias("t"))
    return ends.join(sources, "src").join(targets, "dst").select("s", "t")


def _read_ends(pinned: PinnedType, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    for _, fragments in _listed(batches):
        yield from read_part(pinned, fragments, ["src", "dst"])


def _listed(batches: "Iterator[pa.RecordBatch]") -> Iterator[tuple[int, list[int]]]:
    for batch in batches:
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


# Helpers


def _tuned(spark: "SparkSession", snapshot: Snapshot, spec: AnalysisSpec) -> "SparkSession":
    """A session on the same executors for rounds of equal joins.

    Every round has the sizes of the first, so adaptive planning gains nothing, and frames stay partitioned by vertex
    number. The caller's settings are not changed.
    """
    refs = [snapshot.table(key) for key in spec.tables]
    rows = sum(ref.rows for ref in refs if ref is not None)
    parallelism = int(spark.sparkContext.defaultParallelism)
    own = create_second_session(spark)
    own.conf.set("spark.sql.adaptive.enabled", "false")
    own.conf.set(
        "spark.sql.shuffle.partitions", str(min(max(1, rows // 10_000), max(parallelism, rows // ROWS_A_PART)))
    )
    return own


def materialize(frame: "DataFrame") -> "DataFrame":
    """Compute a frame now and cut its plan; in the cluster's checkpoint directory, if it has one."""
    context = frame.sparkSession.sparkContext
    return frame.checkpoint() if context.getCheckpointDir() else frame.localCheckpoint()


@contextmanager
def translate_errors(stage: str) -> Iterator[None]:
    """Raise Spark's failures as errors of this package."""
    try:
        yield
    except Exception as error:
        translated = translate_error(error, stage)
        if translated is error:
            raise
        raise translated from error


def _reversed(edges: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    return edges.select(F.col("t").alias("s"), F.col("s").alias("t"))


def _sums(frame: "DataFrame", *columns: "Column") -> list[float]:
    from pyspark.sql import functions as F  # noqa: N812

    row: Any = frame.agg(*(F.sum(column) for column in columns)).first()
    return [float(value or 0.0) for value in row]
