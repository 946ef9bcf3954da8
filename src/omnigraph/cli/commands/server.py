"""`jobs`: the long work of a server."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from omnigraph.api.models import iso_time
from omnigraph.api.wire_model import Document
from omnigraph.cli.options import Settings, common_options, pass_settings
from omnigraph.cli.output import Paint, fields, table

if TYPE_CHECKING:
    from omnigraph.remote.server_queries import RemoteJobs, ServerJob


@click.group()
@common_options
def jobs() -> None:
    """Jobs of a server: list, show, cancel. Unfinished bulk writes of a store are listed by `recover`."""


@jobs.command("list")
@common_options
@pass_settings
def list_(settings: Settings) -> None:
    """List the jobs on the graph, the oldest first: your own, or everybody's for who may maintain it."""
    found = _jobs(settings).list()
    settings.output.data({"jobs": [_document(job) for job in found]}, lambda paint: _lines(found, paint))


@jobs.command()
@click.argument("id_", metavar="ID")
@common_options
@pass_settings
def show(settings: Settings, id_: str) -> None:
    """Show how far the job ID is, and what became of it."""
    _print(settings, _jobs(settings).show(id_))


@jobs.command()
@click.argument("id_", metavar="ID")
@common_options
@pass_settings
def cancel(settings: Settings, id_: str) -> None:
    """End the job ID at its next step. What it has committed stays."""
    _print(settings, _jobs(settings).cancel(id_))


def _jobs(settings: Settings) -> "RemoteJobs":
    from omnigraph.remote.graph import RemoteGraph

    if settings.server_url() is None:
        raise click.UsageError("Jobs are of a server: give --server URL; `recover` lists unfinished writes of a store.")
    graph = settings.open_graph()
    assert isinstance(graph, RemoteGraph), "a server was named"
    return graph.jobs


def _document(job: "ServerJob") -> Document:
    times = {name: None if (at := getattr(job, name)) is None else iso_time(at) for name in _TIMES}
    plain = {name: getattr(job, name) for name in ("progress", "result", "error", "files")}
    return {"id": job.id, "kind": job.kind, "state": job.state, "actor": job.actor, **times, **plain}


_TIMES = ("created_at", "started_at", "ended_at")


def _print(settings: Settings, job: "ServerJob") -> None:
    document = _document(job)
    told: dict[str, Any] = {name: document[name] for name in ("id", "kind", "state", "actor", *_TIMES)}
    progress = document["progress"]
    told["progress"] = f"{progress['stage']} {progress['done']}/{progress['tasks'] or '?'}".strip()
    if job.error is not None:
        told["error"] = job.error["error"]
    settings.output.data(document, lambda _: fields(told.items()))


def _lines(found: "list[ServerJob]", paint: Paint) -> Iterable[str]:
    if not found:
        return ()
    rows = [(job.id, job.kind, job.state, job.actor, iso_time(job.created_at)) for job in found]
    return table(paint, ("JOB", "KIND", "STATE", "ACTOR", "CREATED AT"), rows)
