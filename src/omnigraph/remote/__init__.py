"""A graph on a server, with the interface of the embedded one: `connect`.

graph.py           RemoteGraph: queries, mutations, branches, the schema, snapshots
history.py         commits, changes, the feed, tags, revert
changes.py         changes as a stream, and long JSON documents read incrementally
bulk.py            load and export; optimize, cleanup, verify, recover, analyze, embed
server_queries.py  jobs and stored queries
session.py         a graph on a server: addresses, write ids, jobs, schemas
transport.py       requests: retries, lost responses, errors
wire/              encoding and decoding of what is sent
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnigraph.remote.graph import RemoteGraph
    from omnigraph.runtime import Runtime

TOKEN_VARIABLE = "OMNIGRAPH_TOKEN"
DEFAULT_GRAPH = "default"


def connect(
    url: str,
    graph: str = DEFAULT_GRAPH,
    token: str | None = None,
    *,
    timeout: float | None = None,
    retry: float | None = None,
    runtime: "Runtime | None" = None,
) -> "RemoteGraph":
    """A graph that a server serves. Nothing is asked until it is used.

    Without a `token` the one in `$OMNIGRAPH_TOKEN` counts, if there is one. `timeout` is how long, in seconds, to wait
    for a sign of life of an answer; `retry` for how long to go on asking a server that refuses for now or is away.
    """
    from omnigraph.errors import BadRequest

    try:
        from omnigraph.remote.graph import RemoteGraph
        from omnigraph.remote.transport import RESPONSE_TIMEOUT_S, RETRY_TIME_S, Transport

        chosen = os.environ.get(TOKEN_VARIABLE) or None if token is None else token
        transport = Transport(
            url,
            chosen,
            timeout_s=RESPONSE_TIMEOUT_S if timeout is None else timeout,
            retry_s=RETRY_TIME_S if retry is None else retry,
            runtime=runtime,
        )
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise BadRequest("A server is asked with httpx, which is not installed: install omnigraph[server].") from error
    return RemoteGraph(transport, graph)
