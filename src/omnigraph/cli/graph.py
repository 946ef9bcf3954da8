"""`snapshot`: what is there. `version`: what runs here."""

import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING

import click

from omnigraph.cli.common import Settings, at_option, common_options, pass_settings, store_argument
from omnigraph.cli.output import Document, Paint, fields, table

if TYPE_CHECKING:
    from omnigraph.graph import GraphSnapshot

LIBRARIES = ("pylance", "pyarrow", "duckdb", "obstore", "click")


@click.command()
@store_argument
@at_option
@common_options
@pass_settings
def snapshot(settings: Settings, place: str | None, at: str | None) -> None:
    """Show a branch's state: its commit, and the rows of every type."""
    graph = settings.open_graph(place, read_only=True)
    pinned = graph.snapshot(settings.branch_or_main, at)
    settings.output.data(_document(pinned), lambda paint: _lines(pinned, paint))


@click.command()
@common_options
@pass_settings
def version(settings: Settings) -> None:
    """Show the release, its format, and its libraries."""
    from omnigraph import __version__
    from omnigraph.manifest.model import FORMAT

    libraries = {"python": platform.python_version()} | {name: _installed(name) for name in LIBRARIES}
    document = {"release": __version__, "format_version": FORMAT, "libraries": libraries}
    lines = [("omnigraph", __version__), ("format", FORMAT), *libraries.items()]
    settings.output.data(document, lambda _: fields(lines))


def _document(pinned: "GraphSnapshot") -> Document:
    return {
        "branch": pinned.branch,
        "commit_id": pinned.commit_id,
        "manifest_version": pinned.manifest_version,
        "types": [
            {"type_name": entry.type_name, "kind": entry.kind, "rows": entry.rows, "changed_at": entry.changed_at}
            for entry in pinned.types
        ],
    }


def _lines(pinned: "GraphSnapshot", paint: Paint) -> Iterable[str]:
    head = [("branch", pinned.branch), ("commit", pinned.commit_id), ("manifest", pinned.manifest_version)]
    yield from fields(head)
    yield ""
    rows = [(entry.type_name, entry.kind, entry.rows, entry.changed_at) for entry in pinned.types]
    yield from table(paint, ("TYPE", "KIND", "ROWS", "CHANGED AT"), rows)


def _installed(name: str) -> str | None:
    """From the package's metadata: importing it would cost a second."""
    try:
        return installed_version(name)
    except PackageNotFoundError:
        return None
