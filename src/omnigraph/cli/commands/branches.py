"""`branch`, `tag`, `revert`: fork, merge and delete branches, name commits, undo one."""

from typing import TYPE_CHECKING

import click

from omnigraph.api.models import BranchAnswer, MergeAnswer, TagAnswer, TagEntry, WriteAnswer
from omnigraph.cli.options import (
    CliSettings,
    at_option,
    common_options,
    if_commit_option,
    pass_settings,
    store_argument,
    txn_id_option,
)
from omnigraph.cli.output import escape_control, format_table, pluralize
from omnigraph.cli.render.commit import commit_sentence, cost_text, counts_text
from omnigraph.engine import ENGINES, Engine

if TYPE_CHECKING:
    from omnigraph.merge.merge import MergeResult

_OUTCOMES = {"already_up_to_date": "already up to date", "fast_forward": "fast-forward", "merged": "merged"}


@click.group()
@common_options
def branch() -> None:
    """Create, list, delete and merge branches."""


@branch.command("create")
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
def create_branch(settings: CliSettings, name: str, source: str | None, at: str | None, txn_id: str | None) -> None:
    """Fork a branch called NAME. No data is copied, whatever the size of the graph."""
    source = settings.branch_or_main if source is None else source
    cost = settings.open_graph().branches.create(name, source, at, actor=settings.actor, txn_id=txn_id)
    settings.output.done(
        BranchAnswer.encode(branch=name, cost=cost),
        f"Created branch {name} from {source} in {pluralize(cost.requests, 'request')}.",
    )


@branch.command("list")
@store_argument
@common_options
@pass_settings
def list_branches(settings: CliSettings, uri: str | None) -> None:
    """List the branches, including main."""
    names = settings.open_graph(uri, read_only=True).branches.list()
    settings.output.data({"branches": names}, lambda _: names)


@branch.command("delete")
@click.argument("name")
@txn_id_option
@common_options
@pass_settings
def delete_branch(settings: CliSettings, name: str, txn_id: str | None) -> None:
    """Delete the branch NAME. Its commits stay readable by their ids until a cleanup."""
    cost = settings.open_graph().branches.delete(name, actor=settings.actor, txn_id=txn_id)
    settings.output.done(
        BranchAnswer.encode(branch=name, cost=cost), f"Deleted branch {name} in {pluralize(cost.requests, 'request')}."
    )


@branch.command()
@click.argument("source", metavar="SRC")
@click.option("--into", metavar="BRANCH", help="The branch to merge into.  [default: --branch, or main]")
@click.option("--delete-branch", is_flag=True, help="Delete SRC afterwards, unless it has new commits.")
@click.option("--dry-run", is_flag=True, help="Show the result, including conflicts, without changing anything.")
@click.option("--engine", type=click.Choice(ENGINES), default="auto", help="Where rows are merged.")
@if_commit_option
@txn_id_option
@common_options
@pass_settings
def merge(
    settings: CliSettings,
    source: str,
    into: str | None,
    delete_branch: bool,
    dry_run: bool,
    engine: Engine,
    if_commit: str | None,
    txn_id: str | None,
) -> None:
    """Merge the branch SRC into another, as one commit. If there are conflicts, lists them and changes nothing."""
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
    text = "\n".join(escape_control(line) for line in _merge_lines(result))
    settings.output.done(MergeAnswer.encode(result), text)


def _merge_lines(result: "MergeResult") -> list[str]:
    """`Merged agent/42 into main (fast-forward) as aaaaaaaaaaaaa.7: Person +2 (3 requests in 3 stages).`"""
    pair = f"{result.source} into {result.into}"
    outcome = _OUTCOMES[result.outcome.value]
    cost = f"({cost_text(result.cost)})"
    lines = [f"  {conflict.kind}: {conflict.message}" for conflict in result.conflicts]
    if result.conflicts:
        head = f"Merging {pair} would fail with {pluralize(len(lines), 'conflict')} {cost}:"
    elif result.outcome.value == "already_up_to_date":
        head = f"{result.into} is {outcome} with {result.source}."
    elif result.commit is None:
        article = "a " if outcome == "fast-forward" else ""
        head = f"Merging {pair} would be {article}{outcome}: {_merged_rows_text(result)} {cost}."
    else:
        head = f"Merged {pair} ({outcome}) as {result.commit.id}: {_merged_rows_text(result)} {cost}."
    after = [f"Deleted branch {result.source}."] if result.deleted else []
    if result.not_deleted is not None:
        after = [f"The branch {result.source} was not deleted ({result.not_deleted})."]
    return [head, *lines, *after]


def _merged_rows_text(result: "MergeResult") -> str:
    """`Person +2, Knows`: a type without counts was adopted as it is, with the same number of rows."""
    counts = {key.partition(":")[2]: touch for key, touch in MergeAnswer.encode(result)["types"].items()}
    return ", ".join(f"{name} {counts_text(touch)}".strip() for name, touch in sorted(counts.items())) or "no rows"


@click.group()
@common_options
def tag() -> None:
    """Name commits, which also protects them from cleanup."""


@tag.command("create")
@click.argument("name")
@click.argument("commit", required=False)
@txn_id_option
@common_options
@pass_settings
def create_tag(settings: CliSettings, name: str, commit: str | None, txn_id: str | None) -> None:
    """Tag COMMIT as NAME; without COMMIT, the newest one of the branch."""
    created = settings.open_graph().tags.create(
        name, commit, branch=settings.branch_or_main, actor=settings.actor, txn_id=txn_id
    )
    settings.output.done(TagAnswer.encode(tag=created), f"Tagged {created.commit_id} as {created.name}.")


@tag.command("list")
@store_argument
@common_options
@pass_settings
def list_tags(settings: CliSettings, uri: str | None) -> None:
    """List all tags by name."""
    documents = [TagEntry.encode(entry) for entry in settings.open_graph(uri, read_only=True).tags.list()]
    rows = [(entry["name"], entry["commit_id"], entry["created_at"], entry["actor"]) for entry in documents]
    headings = ("TAG", "COMMIT", "CREATED AT", "ACTOR")
    settings.output.data({"tags": documents}, lambda style: format_table(style, headings, rows) if rows else ())


@tag.command("delete")
@click.argument("name")
@common_options
@pass_settings
def delete_tag(settings: CliSettings, name: str) -> None:
    """Delete the tag NAME. A cleanup may then expire its commit, unless another tag or rule retains it."""
    settings.open_graph().tags.delete(name)
    settings.output.done({"tag": name}, f"Deleted tag {name}.")


@click.command()
@click.argument("commit")
@if_commit_option
@txn_id_option
@common_options
@pass_settings
def revert(settings: CliSettings, commit: str, if_commit: str | None, txn_id: str | None) -> None:
    """Undo COMMIT with a new commit. If later commits changed the same data, fails with conflicts."""
    from omnigraph.storage import meter

    graph = settings.open_graph()
    with meter.operation("revert") as operation:
        made = graph.revert(commit, settings.branch_or_main, actor=settings.actor, if_commit=if_commit, txn_id=txn_id)
    cost = operation.cost if made is None else made.cost
    settings.output.done(WriteAnswer.encode(commit=made, cost=cost), commit_sentence(made, cost))
