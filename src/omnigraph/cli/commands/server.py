"""`serve`, `token`, `jobs`: run a server, manage its access tokens and its jobs."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnigraph.api.models import iso_time
from omnigraph.api.wire_model import Document
from omnigraph.cli.options import (
    DEFAULT_GRAPH,
    CliSettings,
    common_options,
    common_options_without_graph,
    pass_settings,
    store_argument,
)
from omnigraph.cli.output import Style, format_fields, format_table
from omnigraph.errors import BadRequest
from omnigraph.runtime import SystemClock

if TYPE_CHECKING:
    from omnigraph.remote.server_queries import RemoteJobs, ServerJob
    from omnigraph.server.auth.tokens import StoredToken

TOKENS_VARIABLE = "OMNIGRAPH_TOKENS"
_GRAPH = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})=(.+)\Z", re.DOTALL)
_JOB_TIMES = ("created_at", "started_at", "ended_at")


def _parse_graphs(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    graphs: dict[str, str] = {}
    for text in values:
        match = _GRAPH.match(text)
        if match is None:
            raise click.BadParameter(f"{text!r} is not of the form NAME=URI, NAME of letters, digits and . _ -")
        name, uri = match.groups()
        if graphs.setdefault(name, uri) != uri:
            raise click.BadParameter(f"the graph {name} is given twice.")
    return graphs


@click.command()
@store_argument
@click.option(
    "--graph", "graphs", metavar="NAME=URI", multiple=True, callback=_parse_graphs, help="A graph; may be repeated."
)
@click.option("--bind", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Where to listen.")
@click.option(
    "--tokens", type=click.Path(path_type=Path), metavar="FILE", help="The access tokens; see `omnigraph token`."
)
@click.option("--queries", type=click.Path(path_type=Path), metavar="DIR", help="Stored queries: .gq files.")
@click.option("--unauthenticated", is_flag=True, help="Allow other than loopback addresses without tokens.")
@click.option("--no-spark", is_flag=True, help="Reject requests for Spark, and run everything in this process.")
@click.option("--read-only", is_flag=True, help="Reject every write, whatever a token allows.")
@click.option(
    "--grace",
    metavar="SECONDS",
    type=click.IntRange(0, 3600),
    default=30,
    show_default=True,
    help="The time that requests in flight have to complete after a signal; a second signal ends them.",
)
@click.option(
    "--max-connections",
    metavar="N",
    type=click.IntRange(1, 1_000_000),
    default=4096,
    show_default=True,
    help="Connections of all peers; at most half of the files that the process may open.",
)
@click.option(
    "--max-connections-per-peer",
    metavar="N",
    type=click.IntRange(1, 1_000_000),
    default=1024,
    show_default=True,
    help="Connections from one address. A reverse proxy is one address: allow it as many as it opens.",
)
@common_options_without_graph
@pass_settings
def serve(
    settings: CliSettings,
    uri: str | None,
    graphs: dict[str, str],
    bind: str,
    tokens: Path | None,
    queries: Path | None,
    unauthenticated: bool,
    no_spark: bool,
    read_only: bool,
    grace: int,
    max_connections: int,
    max_connections_per_peer: int,
) -> None:
    """Serve graphs over HTTP until a signal stops it: one with --store, or several with --graph NAME=URI.

    A graph that can't be opened is reported, and opened again at the next request for it; the others are served.
    """
    try:
        from omnigraph.server.run import parse_bind
        from omnigraph.server.run import serve as run_server
        from omnigraph.server.settings import GraphSource, Limits, ServerSettings
    except ModuleNotFoundError as error:
        raise BadRequest(f"The server needs {error.name}: pip install 'omnigraph[server]'.") from error

    if graphs and (settings.store is not None or uri is not None):
        raise click.UsageError("Give one graph with --store, or several with --graph NAME=URI, not both.")
    uris = graphs or {DEFAULT_GRAPH: settings.store_uri(uri)}
    sources = {name: GraphSource(graph_uri, settings.storage_options, read_only) for name, graph_uri in uris.items()}
    limits = Limits(connections=max_connections, connections_per_peer=max_connections_per_peer)
    server_settings = ServerSettings(tokens, queries, limits, spark=not no_spark, grace_s=grace)
    run_server(sources, server_settings, parse_bind(bind), unauthenticated=unauthenticated)


_token_file_option = click.option(
    "--tokens",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"The token file of the server.  [default: ${TOKENS_VARIABLE}]",
)


def _token_file(path: Path | None) -> Path:
    chosen = path or os.environ.get(TOKENS_VARIABLE)
    if not chosen:
        raise click.UsageError(f"No token file is given: use --tokens FILE, or set ${TOKENS_VARIABLE}.")
    return Path(chosen)


@click.group()
@common_options
def token() -> None:
    """Create, list and revoke the access tokens of a server."""


@token.command("create")
@click.argument("owner", metavar="ACTOR")  # the name `actor` belongs to --as
@click.option(
    "--grant",
    "grants",
    metavar="ROLE[@GRAPH[:BRANCH]]",
    multiple=True,
    required=True,
    help="read, write or admin, on graphs and branches by name or pattern; may be repeated.",
)
@_token_file_option
@common_options
@pass_settings
def create_token(settings: CliSettings, owner: str, grants: tuple[str, ...], path: Path | None) -> None:
    """Create a token for ACTOR and print it. Only its hash is stored, so it can't be shown again."""
    from omnigraph.server.auth import tokens

    created, text = tokens.create_token(
        _token_file(path), owner, [tokens.parse_grant(grant) for grant in grants], SystemClock().now()
    )
    settings.output.data({"token": text, **created.to_json()}, lambda _: (text,))
    settings.output.note(f"Token {created.id} of {created.actor}: save it, it can't be shown again.")


@token.command("list")
@_token_file_option
@common_options
@pass_settings
def list_tokens(settings: CliSettings, path: Path | None) -> None:
    """List the tokens' ids, actors and grants."""
    from omnigraph.server.auth.tokens import read_tokens

    stored = read_tokens(_token_file(path))
    settings.output.data({"tokens": [entry.to_json() for entry in stored]}, lambda style: _token_lines(stored, style))


@token.command()
@click.argument("id_", metavar="ID")
@_token_file_option
@common_options
@pass_settings
def revoke(settings: CliSettings, id_: str, path: Path | None) -> None:
    """Revoke the token ID: the next request with it is rejected."""
    from omnigraph.server.auth.tokens import revoke_token

    revoked = revoke_token(_token_file(path), id_)
    settings.output.done(revoked.to_json(), f"Revoked token {revoked.id} of {revoked.actor}.")


def _token_lines(stored: "Iterable[StoredToken]", style: Style) -> Iterable[str]:
    rows = [(entry.id, entry.actor, entry.created_at, ", ".join(map(str, entry.grants))) for entry in stored]
    return format_table(style, ("TOKEN", "ACTOR", "CREATED AT", "GRANTS"), rows) if rows else ()


@click.group()
@common_options
def jobs() -> None:
    """List, show and cancel jobs of a server. `recover` lists the unfinished bulk writes of a store."""


@jobs.command("list")
@common_options
@pass_settings
def list_jobs(settings: CliSettings) -> None:
    """List the graph's jobs, oldest first: your own, or everybody's if you may maintain the graph."""
    found = _server_jobs(settings).list()
    settings.output.data({"jobs": [_job_document(job) for job in found]}, lambda style: _job_lines(found, style))


@jobs.command("show")
@click.argument("id_", metavar="ID")
@common_options
@pass_settings
def show_job(settings: CliSettings, id_: str) -> None:
    """Show the progress and the result of the job ID."""
    _print_job(settings, _server_jobs(settings).show(id_))


@jobs.command("cancel")
@click.argument("id_", metavar="ID")
@common_options
@pass_settings
def cancel_job(settings: CliSettings, id_: str) -> None:
    """Cancel the job ID at its next step. What it has committed stays."""
    _print_job(settings, _server_jobs(settings).cancel(id_))


def _server_jobs(settings: CliSettings) -> "RemoteJobs":
    from omnigraph.remote.graph import RemoteGraph

    if settings.server_url() is None:
        raise click.UsageError(
            "Only servers have jobs: give --server URL. `recover` lists a store's unfinished writes."
        )
    graph = settings.open_graph()
    assert isinstance(graph, RemoteGraph), "a server was named"
    return graph.jobs


def _job_document(job: "ServerJob") -> Document:
    times = {name: None if (time := getattr(job, name)) is None else iso_time(time) for name in _JOB_TIMES}
    rest = {name: getattr(job, name) for name in ("progress", "result", "error", "files")}
    return {"id": job.id, "kind": job.kind, "state": job.state, "actor": job.actor, **times, **rest}


def _print_job(settings: CliSettings, job: "ServerJob") -> None:
    document = _job_document(job)
    fields: dict[str, Any] = {name: document[name] for name in ("id", "kind", "state", "actor", *_JOB_TIMES)}
    progress = document["progress"]
    fields["progress"] = f"{progress['stage']} {progress['done']}/{progress['tasks'] or '?'}".strip()
    if job.error is not None:
        fields["error"] = job.error["error"]
    settings.output.data(document, lambda _: format_fields(fields.items()))


def _job_lines(found: "list[ServerJob]", style: Style) -> Iterable[str]:
    if not found:
        return ()
    rows = [(job.id, job.kind, job.state, job.actor, iso_time(job.created_at)) for job in found]
    return format_table(style, ("JOB", "KIND", "STATE", "ACTOR", "CREATED AT"), rows)
