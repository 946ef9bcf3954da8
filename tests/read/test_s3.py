"""The same on S3, and what a cold lookup costs there."""

from __future__ import annotations

import pytest

import omnigraph
from omnigraph.read.tables.read_cache import ReadCache
from omnigraph.storage import meter
from support.s3 import S3Location

from .graphs import KNOWS, MODES, PERSON, Data, bound, edge, graph_of, interpreted, person, reader_of, run

pytestmark = pytest.mark.s3

DATA: Data = {
    PERSON: [person(f"p{i:02}", age=i) for i in range(20)],
    KNOWS: [edge(f"p{i:02}", f"p{(i * 7 + 1) % 20:02}") for i in range(20)],
}
QUERY = 'match { $p: Person { slug: "p03" }  $p knows{1,2} $f  $f.age > 2 } return { $f.id as f, $f.age as age }'


def test_queries_answer_alike_on_s3(s3: S3Location) -> None:
    with graph_of(DATA, s3.uri, s3.options) as graph:
        expected = interpreted(bound(QUERY), DATA)
        assert expected
        for options in MODES.values():
            assert run(reader_of(graph, **options), QUERY).rows == expected


def test_a_cold_lookup_by_key_makes_few_requests_and_a_warm_one_none(s3: S3Location) -> None:
    with graph_of(DATA, s3.uri, s3.options):
        graph = omnigraph.open(s3.uri, s3.options)
        caches = ReadCache()
        text = 'match { $p: Person { slug: "p03" } } return { $p.age }'
        reader = reader_of(graph, caches=caches, resident_rows=0)
        with meter.operation("cold") as cold:
            assert run(reader, text).rows == [{"p.age": 3}]
        assert cold.cost.requests <= 12
        with meter.operation("all") as _:
            run(reader_of(graph, caches=caches, expand="csr"), text)
            run(reader_of(graph, caches=caches, expand="csr"), text)
        again = reader_of(graph, caches=caches)
        caches_before = caches.counts.misses
        with meter.operation("warm") as warm:
            for _ in range(3):
                assert run(again, text).rows == [{"p.age": 3}]
        assert warm.cost.requests <= 4
        assert caches.counts.misses - caches_before <= 2
