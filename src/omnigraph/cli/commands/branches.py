"""`branch`: create, list, delete, merge."""

import click

from omnigraph.api.models import BranchAnswer, MergeAnswer
from omnigraph.cli.options import (
    Settings,
    at_option,
    common_options,
    if_commit_option,
    pass_settings,
    store_argument,
    txn_id_option,
)
from omnigraph.cli.output import counted
from omnigraph.cli.render.merge import merge_text
from omnigraph.engine import ENGINES, Engine


@click.group()
@common_options
def branch() -> None:
    """Branches: create, list, delete, merge."""


@branch.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    metavar="BRANCH|COMMIT|TAG",
    help="The branch, or the older state, to fork.  [default: --branch, or main]",
)
@at_option
@txn_id_option
@common_options
@pass_settings
def create(settings: Settings, name: str, source: str | None, at: str | None, txn_id: str | None) -> None:
    """Fork a branch called NAME. Nothing is copied, whatever the size of the graph."""
    source = settings.branch_or_main if source is None else source
    cost = settings.open_graph().branches.create(name, source, at, actor=settings.actor, txn_id=txn_id)
    settings.output.done(
        BranchAnswer.encode(branch=name, cost=cost),
        f"Created branch {name} from {source} in {counted(cost.requests, 'request')}.",
    )


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
@txn_id_option
@common_options
@pass_settings
def delete(settings: Settings, name: str, txn_id: str | None) -> None:
    """Delete the branch NAME. Its commits stay readable by their ids until a cleanup."""
    cost = settings.open_graph().branches.delete(name, actor=settings.actor, txn_id=txn_id)
    settings.output.done(
        BranchAnswer.encode(branch=name, cost=cost), f"Deleted branch {name} in {counted(cost.requests, 'request')}."
    )


@branch.command()
@click.argument("source", metavar="SRC")
@click.option("--into", metavar="BRANCH", help="The branch to merge into.  [default: --branch, or main]")
@click.option("--delete-branch", is_flag=True, help="Delete SRC afterwards, unless it has moved on.")
@click.option("--dry-run", is_flag=True, help="Show what would happen, conflicts included, and change nothing.")
@click.option("--engine", type=click.Choice(ENGINES), default="auto", help="Where rows are decided.")
@if_commit_option
@txn_id_option
@common_options
@pass_settings
def merge(
    settings: Settings,
    source: str,
    into: str | None,
    delete_branch: bool,
    dry_run: bool,
    engine: Engine,
    if_commit: str | None,
    txn_id: str | None,
) -> None:
    """Merge the branch SRC into another, as one commit; conflicts are listed, and nothing changes."""
    into = settings.branch_or_main if into is None else into
    result = settings.open_graph(read_only=dry_run).branches.merge(
        source,
        into,
        delete_branch,
        dry_run,
        actor=settings.actor,
        if_commit=if_commit,
        txn_id=txn_id,
        engine=engine,
    )
    settings.output.done(MergeAnswer.encode(result), merge_text(result))
