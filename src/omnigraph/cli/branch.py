"""`branch`: create, list, delete."""

from typing import TYPE_CHECKING

import click

from omnigraph.cli.common import Settings, common_options, pass_settings, store_argument
from omnigraph.cli.output import Document, cost_document

if TYPE_CHECKING:
    from omnigraph.storage.meter import Cost


@click.group()
@common_options
def branch() -> None:
    """Branches: create, list, delete."""


@branch.command()
@click.argument("name")
@click.option("--from", "source", metavar="BRANCH", help="The branch to fork.  [default: --branch, or main]")
@common_options
@pass_settings
def create(settings: Settings, name: str, source: str | None) -> None:
    """Fork a branch called NAME. Nothing is copied, whatever the size of the graph."""
    source = settings.branch_or_main if source is None else source
    cost = settings.open_graph().branches.create(name, source, actor=settings.actor)
    settings.output.done(_document(name, cost), f"Created branch {name} from {source} in {cost.requests} requests.")


@branch.command("list")
@store_argument
@common_options
@pass_settings
def list_(settings: Settings, place: str | None) -> None:
    """List the branches, main included."""
    names = settings.open_graph(place, read_only=True).branches.list()
    settings.output.data({"branches": names}, lambda _: names)


@branch.command()
@click.argument("name")
@common_options
@pass_settings
def delete(settings: Settings, name: str) -> None:
    """Delete the branch NAME. Its commits stay readable by their ids until a cleanup."""
    cost = settings.open_graph().branches.delete(name, actor=settings.actor)
    settings.output.done(_document(name, cost), f"Deleted branch {name} in {cost.requests} requests.")


def _document(name: str, cost: "Cost") -> Document:
    return {"branch": name, "cost": cost_document(cost)}
