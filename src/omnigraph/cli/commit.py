"""`commit`: the history of a branch, and single commits."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from omnigraph.cli.common import Settings, common_options, pass_settings, store_argument
from omnigraph.cli.output import Document, Paint, fields, iso_time, table
from omnigraph.cli.published import counts_text, touched_text

if TYPE_CHECKING:
    from omnigraph.manifest.model import Commit

LIMIT_DEFAULT = 50
LIMIT_MAX = 10**9
FILTERS = ("actor",)


@click.group()
@common_options
def commit() -> None:
    """Commits: the history of a branch, and single ones."""


def _parse_filters(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    filters: dict[str, str] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if key not in FILTERS or not equals:
            valid = ", ".join(f"{name}=…" for name in FILTERS)
            raise click.BadParameter(f"{text!r} is no filter: the valid ones are {valid}.")
        if filters.setdefault(key, value) != value:
            raise click.BadParameter(f"{key} is given twice with different values: no commit has both.")
    return filters


@commit.command("list")
@store_argument
@click.option(
    "--filter", "filters", metavar="KEY=VALUE", multiple=True, callback=_parse_filters, help="Only these: actor=NAME."
)
@click.option(
    "--limit",
    type=click.IntRange(0, LIMIT_MAX),
    metavar="N",
    default=LIMIT_DEFAULT,
    show_default=True,
    help="At most so many.",
)
@click.option("--all", "maintenance", is_flag=True, help="Maintenance commits too.")
@common_options
@pass_settings
def list_(settings: Settings, place: str | None, filters: dict[str, str], limit: int, maintenance: bool) -> None:
    """List a branch's commits, newest first, on through the point where it was forked."""
    graph = settings.open_graph(place, read_only=True)
    found = graph.commits(settings.branch_or_main, limit + 1, filters.get("actor"), maintenance=maintenance)
    shown, more = found[:limit], len(found) > limit
    settings.output.data({"commits": [_document(entry) for entry in shown]}, lambda paint: _lines(shown, paint))
    if more:
        settings.output.note(f"There are older ones: see more with --limit N (now {limit}).")
    elif not shown:
        settings.output.note("No commit matches.")


@commit.command()
@click.argument("id_", metavar="ID")
@common_options
@pass_settings
def show(settings: Settings, id_: str) -> None:
    """Show the commit ID, on whatever branch it is."""
    found = settings.open_graph(read_only=True).commit(id_)
    document = _document(found)
    plain = [(name, value) for name, value in document.items() if name != "touched"]
    touched = [(f"touched {key}", counts_text(counts)) for key, counts in document["touched"].items()]
    settings.output.data({"commit": document}, lambda _: fields([*plain, *touched]))


def _document(entry: "Commit") -> Document:
    from omnigraph.manifest.codec import touch_to_json

    return {
        "id": entry.id,
        "parent": entry.parent,
        "merged_parent": entry.merged_parent,
        "actor": entry.actor,
        "authored_at": iso_time(entry.authored_at),
        "kind": entry.kind,
        "class": entry.commit_class.value,
        "touched": {key: touch_to_json(touch) for key, touch in entry.touched.items()},
    }


def _lines(commits: list["Commit"], paint: Paint) -> Iterable[str]:
    if not commits:
        return ()
    documents = [_document(entry) for entry in commits]
    rows = [(d["id"], d["authored_at"], d["actor"], d["kind"], touched_text(d["touched"]) or None) for d in documents]
    return table(paint, ("COMMIT", "AUTHORED AT", "ACTOR", "KIND", "TOUCHED"), rows)
