"""What finding changes costs on S3, counted in a proxy before it: as much as has changed, not as much as there is."""

from __future__ import annotations

import pyarrow as pa
import pytest

import omnigraph
from omnigraph.manifest.commit.plan import Append, Upsert
from support.history import compact
from support.proxy import Proxy
from support.s3 import S3Location

pytestmark = pytest.mark.s3

REQUESTS_MAX = 24
BYTES_MAX = 200_000
WORD = "node:Word"


def words(*ids: str, text: str | None = None) -> pa.Table:
    return pa.table({"id": ids, "text": [text or f"the text of word {id_}, which is not short at all" for id_ in ids]})


@pytest.mark.parametrize("rows", [1_000, 100_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_the_changes_of_a_one_row_commit_cost_the_same_however_large_the_table_is(
    s3_proxied: S3Location, proxy: Proxy, rows: int
) -> None:
    graph = omnigraph.init(
        s3_proxied.uri, "node Word { text: String }  node Other { text: String }", s3_proxied.options
    )
    ids = [f"w{n:07}" for n in range(rows)]
    graph.write([Append(WORD, words(*ids))])
    changed = graph.write([Upsert(WORD, words(ids[rows // 2], text="new"))])
    assert changed is not None
    reader = omnigraph.open(s3_proxied.uri, s3_proxied.options, read_only=True)

    with proxy.recording() as log:
        (change,) = reader.commit_changes(changed.id)

    assert (change.operation, change.id) == ("update", ids[rows // 2])
    assert len(log) <= REQUESTS_MAX, log.describe()
    assert sum(request.response_bytes for request in log) <= BYTES_MAX, log.describe()


def test_what_maintenance_rewrote_since_is_not_read(s3_proxied: S3Location, proxy: Proxy) -> None:
    graph = omnigraph.init(s3_proxied.uri, "node Word { text: String }", s3_proxied.options)
    ids = [f"w{n:07}" for n in range(20_000)]
    first = graph.write([Append(WORD, words(*ids))])
    compact(graph, WORD)
    graph.write([Upsert(WORD, words(ids[7], text="new"))])
    assert first is not None
    reader = omnigraph.open(s3_proxied.uri, s3_proxied.options, read_only=True)

    with proxy.recording() as log:
        (change,) = reader.changes(first.id, "main")

    assert change.id == ids[7]
    assert sum(request.response_bytes for request in log) <= BYTES_MAX, log.describe()
