"""`tag`: names for commits. `revert`: undo one."""

import click

from omnigraph.api.models import TagAnswer, TagEntry, WriteAnswer
from omnigraph.cli.options import (
    Settings,
    common_options,
    if_commit_option,
    pass_settings,
    store_argument,
    txn_id_option,
)
from omnigraph.cli.output import table
from omnigraph.cli.render.commit import commit_sentence


@click.group()
@common_options
def tag() -> None:
    """Tags: names for commits, which protect them from cleanup."""


@tag.command()
@click.argument("name")
@click.argument("commit", required=False)
@txn_id_option
@common_options
@pass_settings
def create(settings: Settings, name: str, commit: str | None, txn_id: str | None) -> None:
    """Call COMMIT by NAME; without COMMIT, the newest one of the branch."""
    made = settings.open_graph().tags.create(
        name, commit, branch=settings.branch_or_main, actor=settings.actor, txn_id=txn_id
    )
    settings.output.done(TagAnswer.encode(tag=made), f"Tagged {made.commit_id} as {made.name}.")


@tag.command("list")
@store_argument
@common_options
@pass_settings
def list_(settings: Settings, place: str | None) -> None:
    """List all tags by name."""
    documents = [TagEntry.encode(entry) for entry in settings.open_graph(place, read_only=True).tags.list()]
    rows = [(entry["name"], entry["commit_id"], entry["created_at"], entry["actor"]) for entry in documents]
    settings.output.data(
        {"tags": documents}, lambda paint: table(paint, ("TAG", "COMMIT", "CREATED AT", "ACTOR"), rows) if rows else ()
    )


@tag.command()
@click.argument("name")
@common_options
@pass_settings
def delete(settings: Settings, name: str) -> None:
    """Remove the tag NAME. Its commit stays until a cleanup that no other tag or rule keeps it from."""
    settings.open_graph().tags.delete(name)
    settings.output.done({"tag": name}, f"Deleted tag {name}.")


@click.command()
@click.argument("commit")
@if_commit_option
@txn_id_option
@common_options
@pass_settings
def revert(settings: Settings, commit: str, if_commit: str | None, txn_id: str | None) -> None:
    """Undo COMMIT by a new commit; what later ones changed of it is a conflict, and nothing is written."""
    from omnigraph.storage import meter

    graph = settings.open_graph()
    with meter.operation("revert") as operation:
        made = graph.revert(commit, settings.branch_or_main, actor=settings.actor, if_commit=if_commit, txn_id=txn_id)
    cost = operation.cost if made is None else made.cost
    settings.output.done(WriteAnswer.encode(commit=made, cost=cost), commit_sentence(made, cost))
