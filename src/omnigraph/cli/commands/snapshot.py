"""`snapshot`: what is there. `version`: what runs here."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from omnigraph.api.documents import version_document
from omnigraph.api.models import SnapshotAnswer
from omnigraph.cli.options import Settings, at_option, common_options, pass_settings, store_argument
from omnigraph.cli.output import Paint, fields, table

if TYPE_CHECKING:
    from omnigraph.api.interface import SnapshotLike


@click.command()
@store_argument
@at_option
@common_options
@pass_settings
def snapshot(settings: Settings, place: str | None, at: str | None) -> None:
    """Show a branch's state: its commit, and the rows of every type."""
    graph = settings.open_graph(place, read_only=True)
    pinned = graph.snapshot(settings.branch_or_main, at)
    settings.output.data(SnapshotAnswer.encode(pinned), lambda paint: _lines(pinned, paint))


@click.command()
@common_options
@pass_settings
def version(settings: Settings) -> None:
    """Show the release, its format, and its libraries; with --server those of the server."""
    document = version_document() if settings.server is None else settings.server_version()
    lines = [("omnigraph", document["release"]), ("format", document["format_version"]), *document["libraries"].items()]
    settings.output.data(document, lambda _: fields(lines))


def _lines(pinned: "SnapshotLike", paint: Paint) -> Iterable[str]:
    head = [("branch", pinned.branch), ("commit", pinned.commit_id), ("manifest", pinned.manifest_version)]
    yield from fields(head)
    yield ""
    rows = [(entry.type_name, entry.kind, entry.rows, entry.changed_at) for entry in pinned.types]
    yield from table(paint, ("TYPE", "KIND", "ROWS", "CHANGED AT"), rows)
