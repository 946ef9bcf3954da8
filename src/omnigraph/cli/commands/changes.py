"""`changes`: what differs between two states, and the feed of a branch."""

import json
from collections.abc import Sequence

import click

from omnigraph.api.models import FeedAnswer
from omnigraph.cli.options import Settings, common_options, pass_settings, store_argument
from omnigraph.cli.output import counted, write_text
from omnigraph.cli.render.changes import change_line, change_options, write_changes

POLL, BETWEEN = "poll", "between"
POLL_LIMIT = 1000
_WITH_VALUE = ("--store", "--server", "--graph", "--token", "--branch", "--as", "--storage-option")


class _Changes(click.Group):
    """`changes A B` is `changes between A B`: the word may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        word = _first_word(args)
        if word is not None and word not in self.commands:
            args = [BETWEEN, *args]
        return super().parse_args(ctx, args)


def _first_word(args: list[str]) -> str | None:
    """The first argument that is neither a flag nor a flag's value."""
    place = 0
    while place < len(args):
        if not args[place].startswith("-"):
            return args[place]
        place += 2 if args[place] in _WITH_VALUE else 1
    return None


@click.group(cls=_Changes)
@common_options
def changes() -> None:
    """Changes: `changes A B` between two states, `changes poll` along a branch."""


@changes.command(BETWEEN)
@click.argument("a")
@click.argument("b")
@change_options
@common_options
@pass_settings
def between(
    settings: Settings,
    a: str,
    b: str,
    kinds: Sequence[str] | None,
    types: Sequence[str] | None,
    operations: Sequence[str] | None,
    limit: int | None,
    page: str | None,
    explain: bool,
) -> None:
    """Show what differs from A to B, each a commit, a branch, a tag or a time."""
    graph = settings.open_graph(read_only=True)
    found = graph.changes(a, b, kinds, types, operations, limit=limit, page=page, branch=settings.branch_or_main)
    write_changes(settings, found, explain)


@changes.command(POLL)
@store_argument
@click.option("--cursor", metavar="CURSOR", help="Go on behind this place, which an earlier answer gave.")
@click.option("--start", metavar="now|beginning|COMMIT", help="Where to begin without a cursor.  [default: now]")
@click.option(
    "--limit",
    type=click.IntRange(1, 10**6),
    metavar="N",
    default=POLL_LIMIT,
    show_default=True,
    help="At most so many changes.",
)
@common_options
@pass_settings
def poll(settings: Settings, place: str | None, cursor: str | None, start: str | None, limit: int) -> None:
    """Show the next changes of a branch, commit by commit, each exactly once for whoever stores the cursor."""
    page = settings.open_graph(place, read_only=True).poll_changes(cursor, start, limit, settings.branch)
    if settings.json:
        write_text(json.dumps(FeedAnswer.encode(page)) + "\n")
        return
    for told in page:
        write_text(f"{told.commit.id} {change_line(told.change)}\n")
    more = ", and there are more already" if page.more else ""
    settings.output.note(f"{counted(len(page), 'change')}{more}; go on with --cursor {page.cursor}")
