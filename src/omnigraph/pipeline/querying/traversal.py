"""Traversals as joins: the pairs of vertices that one connects, and for bounds of hops those within reach.

`Traverse` says what is reported. In terms of distance: from `s`, a vertex `t` at distance `d` is reported if
`min <= d <= max` and it is not `s`; a self-loop of `t` is taken one hop later, so it reports `t` at `d = min - 1` too.
That is the same read from either end, so the search starts where rows are.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from omnigraph.pipeline.querying.scan import Frames, Held, Stored
from omnigraph.query.ir import Traverse

_FROM, _VIA, _TO = "s", "u", "w"


def arcs(frames: Frames, step: Traverse, near: str, far: str, backward: bool) -> DataFrame:
    """The edges as (near, far), parallel ones too; undirected ones both ways."""
    columns = [(Stored("dst" if backward else "src"), near), (Stored("src" if backward else "dst"), far)]
    one_way = frames.of(step.edge, columns)
    if not step.undirected:
        return one_way
    return one_way.unionAll(one_way.select(sf.col(far).alias(near), sf.col(near).alias(far)))


def within_reach(
    frames: Frames, held: Held, step: Traverse, starts: DataFrame, near: str, far: str, backward: bool
) -> DataFrame:
    """The pairs (near, far) that the traversal reports, each once; `starts` has the near ends, each once.

    One round a hop: the vertices first reached in it are those next to the last round's that no round has had. Each
    round's result is kept, or a round would repeat all before it.
    """
    hops = held.keep(arcs(frames, step, _VIA, _TO, backward))
    loops = hops.where(sf.col(_VIA) == sf.col(_TO)).select(sf.col(_TO)).distinct()
    frontier = starts.select(sf.col(near).alias(_FROM), sf.col(near).alias(_TO))
    rounds: list[DataFrame] = [frontier]
    found: list[DataFrame] = []
    while True:
        distance = len(rounds) - 1
        if distance == step.min_hops - 1:
            looping = loops if not backward else loops.withColumnRenamed(_TO, _FROM)
            found.append(frontier.join(looping, on=_FROM if backward else _TO, how="left_semi").select(_FROM, _TO))
        if distance >= step.min_hops:
            found.append(frontier.select(_FROM, _TO))
        is_last = distance + 1 == step.max_hops
        if distance == step.max_hops or (distance > 0 and not is_last and frontier.isEmpty()):
            break
        onward = frontier.withColumnRenamed(_TO, _VIA).join(hops, on=_VIA).select(_FROM, _TO).distinct()
        frontier = onward.join(_together(rounds), on=[_FROM, _TO], how="left_anti")
        rounds.append(frontier if is_last else held.settle(frontier))
        frontier = rounds[-1]
    pairs = _together(found or [frontier])  # none: it is empty by now
    return pairs.select(sf.col(_FROM).alias(near), sf.col(_TO).alias(far))


def _together(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionAll(other), frames)
