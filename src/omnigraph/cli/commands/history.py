"""`commit`: the history of a branch, single commits, and what they changed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from omnigraph.api.models import CommitAnswer, CommitEntry, CommitGraphAnswer, CommitsAnswer
from omnigraph.cli.options import (
    Settings,
    at_option,
    common_options,
    common_options_but_graph,
    pass_settings,
    store_argument,
)
from omnigraph.cli.output import Paint, fields, printable, table
from omnigraph.cli.render.changes import change_options, write_changes
from omnigraph.cli.render.commit import counts_text, touched_text
from omnigraph.cli.render.log_graph import draw

if TYPE_CHECKING:
    from omnigraph.manifest.history.log_graph import LoggedCommit
    from omnigraph.manifest.model.manifest import Commit

LIMIT_DEFAULT = 50
LIMIT_MAX = 10**9
FILTERS = ("actor", "kind", "type")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `--filter` said: a commit has one actor and one kind, but may touch many types."""

    actor: str | None = None
    kind: str | None = None
    types: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Wanted()


@click.group()
@common_options
def commit() -> None:
    """Commits: the history of a branch, and single ones."""


def _parse_filters(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> Wanted:
    single: dict[str, str] = {}
    types: list[str] = []
    for text in values:
        key, equals, value = text.partition("=")
        if key not in FILTERS or not equals:
            valid = ", ".join(f"{name}=…" for name in FILTERS)
            raise click.BadParameter(f"{text!r} is no filter: the valid ones are {valid}.")
        if key == "type":
            types.append(value)
        elif single.setdefault(key, value) != value:
            raise click.BadParameter(f"{key} is given twice with different values: no commit has both.")
    return Wanted(single.get("actor"), single.get("kind"), tuple(types))


@commit.command("list")
@store_argument
@click.option(
    "--filter",
    "wanted",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_parse_filters,
    help="Only these: actor=NAME, kind=KIND, type=TYPE; may be repeated.",
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
@click.option("--draw", is_flag=True, help="Draw all branches, or the one of --branch, through their merges.")
@click.option(
    "--graph",
    "graphs",
    metavar="[ID]",
    is_flag=False,
    flag_value="",
    multiple=True,
    help="Which graph of the server.  [default: default]  Without an ID, the same as --draw.",
)
@at_option
@common_options_but_graph
@pass_settings
def list_(
    settings: Settings,
    place: str | None,
    wanted: Wanted,
    limit: int,
    maintenance: bool,
    draw: bool,
    graphs: tuple[str, ...],
    at: str | None,
) -> None:
    """List a branch's commits, newest first, on through the point where it was forked."""
    draw, place = _drawn(settings, place, draw or "" in graphs, tuple(filter(None, graphs)))
    if draw:
        if wanted or at is not None:
            raise click.UsageError("--graph draws every commit: leave out --filter and --at.")
        _list_graph(settings, place, limit, maintenance)
        return
    found = settings.open_graph(place, read_only=True).commits(
        settings.branch_or_main,
        limit + 1,
        wanted.actor,
        kind=wanted.kind,
        types=wanted.types,
        maintenance=maintenance,
        at=at,
    )
    shown = found[:limit]
    settings.output.data(CommitsAnswer.encode(commits=shown), lambda paint: _lines(shown, paint))
    _note_rest(settings, len(found), len(shown), limit)


def _drawn(settings: Settings, place: str | None, draw: bool, named: tuple[str, ...]) -> tuple[bool, str | None]:
    """What `--graph` says: alone, to draw; with a value, which graph of a server, or as before which store to draw."""
    if not named:
        return draw, place
    graph = named[-1]
    if settings.server is not None or (place is None and settings.store is None and settings.server_url() is not None):
        settings.graph = graph
        return draw, place
    if place is not None:
        raise click.UsageError(f"The store is named twice, as {graph} and as {place}: name it once.")
    return True, graph


def _list_graph(settings: Settings, place: str | None, limit: int, maintenance: bool) -> None:
    graph = settings.open_graph(place, read_only=True)
    branches = None if settings.branch is None else [settings.branch]
    found = graph.commit_graph(branches, limit + 1, maintenance=maintenance)
    shown = found[:limit]
    settings.output.data(CommitGraphAnswer.encode(commits=shown), lambda paint: _drawing(shown, paint))
    _note_rest(settings, len(found), len(shown), limit)


def _note_rest(settings: Settings, found: int, shown: int, limit: int) -> None:
    if found > shown:
        settings.output.note(f"There are older ones: see more with --limit N (now {limit}).")
    elif not shown:
        settings.output.note("No commit matches.")


@commit.command()
@click.argument("id_", metavar="ID")
@common_options
@pass_settings
def show(settings: Settings, id_: str) -> None:
    """Show the commit ID, which may be a tag, on whatever branch it is."""
    details = settings.open_graph(read_only=True).commit_details(id_)
    whole = CommitAnswer.encode(details)
    document, place = whole["commit"], {name: value for name, value in whole.items() if name != "commit"}
    plain = [(name, value) for name, value in document.items() if name not in ("touched", "recovered")]
    plain += [(f"recovered {name}", value) for name, value in document.get("recovered", {}).items()]
    told = [(name, "yes" if value is True else "no" if value is False else value) for name, value in place.items()]
    touched = [(f"touched {key}", counts_text(counts)) for key, counts in document["touched"].items()]
    settings.output.data(whole, lambda _: fields([*plain, *told, *touched]))


@commit.command()
@click.argument("id_", metavar="ID")
@change_options
@common_options
@pass_settings
def changes(
    settings: Settings,
    id_: str,
    kinds: Sequence[str] | None,
    types: Sequence[str] | None,
    operations: Sequence[str] | None,
    limit: int | None,
    page: str | None,
    explain: bool,
) -> None:
    """Show what the commit ID changed, against the state that it was made on."""
    graph = settings.open_graph(read_only=True)
    found = graph.commit_changes(id_, kinds, types, operations, limit=limit, page=page)
    write_changes(settings, found, explain)


def _lines(commits: list["Commit"], paint: Paint) -> Iterable[str]:
    if not commits:
        return ()
    documents = [CommitEntry.encode(entry) for entry in commits]
    rows = [(d["id"], d["authored_at"], d["actor"], d["kind"], touched_text(d["touched"]) or None) for d in documents]
    return table(paint, ("COMMIT", "AUTHORED AT", "ACTOR", "KIND", "TOUCHED"), rows)


def _drawing(commits: "list[LoggedCommit]", paint: Paint) -> Iterable[str]:
    for drawn, logged in draw(commits):
        if logged is None:
            yield drawn
            continue
        entry = CommitEntry.encode(logged.commit)
        facts = [entry["authored_at"], logged.branch, entry["kind"], entry["actor"], touched_text(entry["touched"])]
        text = "  ".join(printable(str(fact)) for fact in facts if fact)
        yield f"{drawn}  {paint.heading(entry['id'])}  {text}"
