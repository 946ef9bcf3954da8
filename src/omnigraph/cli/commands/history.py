"""`commit`, `changes`: the history of a branch, differences between states, and the change feed."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from omnigraph.api.documents import changes_text
from omnigraph.api.models import CommitAnswer, CommitEntry, CommitGraphAnswer, CommitsAnswer, FeedAnswer
from omnigraph.cli.options import (
    CliSettings,
    CommandFunction,
    at_option,
    common_options,
    common_options_without_graph,
    pass_settings,
    store_argument,
)
from omnigraph.cli.output import Style, escape_control, format_fields, format_table, pluralize, write_text
from omnigraph.cli.render.commit import counts_text, touched_text

if TYPE_CHECKING:
    from omnigraph.api.interface import ChangesLike
    from omnigraph.diff.entity_changes import EntityChange
    from omnigraph.manifest.history.log_graph import LoggedCommit
    from omnigraph.manifest.model.manifest import Commit


LIMIT_DEFAULT = 50
LIMIT_MAX = 10**9
FILTERS = ("actor", "kind", "type")
POLL, BETWEEN = "poll", "between"
POLL_LIMIT = 1000
VALUE_LENGTH_MAX = 60
_FLAGS_WITH_VALUE = ("--store", "--server", "--graph", "--token", "--branch", "--as", "--storage-option")
_SIGNS = {"insert": "+", "update": "~", "delete": "-"}


@dataclass(frozen=True, slots=True)
class CommitFilter:
    """The values of `--filter`: a commit has one actor and one kind, but may touch several types."""

    actor: str | None = None
    kind: str | None = None
    types: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != CommitFilter()


@click.group()
@common_options
def commit() -> None:
    """List commits, and show single ones."""


def _parse_filters(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> CommitFilter:
    single: dict[str, str] = {}
    types: list[str] = []
    for text in values:
        key, equals, value = text.partition("=")
        if key not in FILTERS or not equals:
            valid = ", ".join(f"{name}=…" for name in FILTERS)
            raise click.BadParameter(f"{text!r} is not a filter: the valid ones are {valid}.")
        if key == "type":
            types.append(value)
        elif single.setdefault(key, value) != value:
            raise click.BadParameter(f"{key} is given twice with different values: no commit has both.")
    return CommitFilter(single.get("actor"), single.get("kind"), tuple(types))


@commit.command("list")
@store_argument
@click.option(
    "--filter",
    "matching",
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
    help="The most commits to list.",
)
@click.option("--all", "maintenance", is_flag=True, help="Include maintenance commits.")
@click.option("--draw", is_flag=True, help="Draw the commit graph of all branches, or of the one given by --branch.")
@click.option(
    "--graph",
    "graphs",
    metavar="[ID]",
    is_flag=False,
    flag_value="",
    multiple=True,
    help="The id of the graph on the server.  [default: default]  Without an ID, the same as --draw.",
)
@at_option
@common_options_without_graph
@pass_settings
def list_commits(
    settings: CliSettings,
    uri: str | None,
    matching: CommitFilter,
    limit: int,
    maintenance: bool,
    draw: bool,
    graphs: tuple[str, ...],
    at: str | None,
) -> None:
    """List a branch's commits, newest first, including those before the branch was forked."""
    draw, uri = _resolve_graph_flag(settings, uri, draw or "" in graphs, tuple(filter(None, graphs)))
    if draw:
        if matching or at is not None:
            raise click.UsageError("--graph draws every commit: leave out --filter and --at.")
        _draw_graph(settings, uri, limit, maintenance)
        return
    commits = settings.open_graph(uri, read_only=True).commits(
        settings.branch_or_main,
        limit + 1,
        matching.actor,
        kind=matching.kind,
        types=matching.types,
        maintenance=maintenance,
        at=at,
    )
    listed = commits[:limit]
    settings.output.data(CommitsAnswer.encode(commits=listed), lambda style: _commit_lines(listed, style))
    _note_rest(settings, len(commits), len(listed), limit)


def _resolve_graph_flag(
    settings: CliSettings, uri: str | None, draw: bool, ids: tuple[str, ...]
) -> tuple[bool, str | None]:
    """`--graph` alone draws; with a value, it is a graph of a server, or (as in older releases) the store to draw."""
    if not ids:
        return draw, uri
    graph = ids[-1]
    if settings.server is not None or (uri is None and settings.store is None and settings.server_url() is not None):
        settings.graph = graph
        return draw, uri
    if uri is not None:
        raise click.UsageError(f"The store is given twice, as {graph} and as {uri}: give it once.")
    return True, graph


def _draw_graph(settings: CliSettings, uri: str | None, limit: int, maintenance: bool) -> None:
    graph = settings.open_graph(uri, read_only=True)
    branches = None if settings.branch is None else [settings.branch]
    commits = graph.commit_graph(branches, limit + 1, maintenance=maintenance)
    listed = commits[:limit]
    settings.output.data(CommitGraphAnswer.encode(commits=listed), lambda style: _graph_lines(listed, style))
    _note_rest(settings, len(commits), len(listed), limit)


def _note_rest(settings: CliSettings, found: int, listed: int, limit: int) -> None:
    if found > listed:
        settings.output.note(f"There are older commits: list more with --limit N (now {limit}).")
    elif not listed:
        settings.output.note("No commit matches.")


@commit.command("show")
@click.argument("id_", metavar="ID")
@common_options
@pass_settings
def show_commit(settings: CliSettings, id_: str) -> None:
    """Show the commit ID, which may be a tag, of any branch."""
    document = CommitAnswer.encode(settings.open_graph(read_only=True).commit_details(id_))
    entry = document["commit"]
    fields = [(name, value) for name, value in entry.items() if name not in ("touched", "recovered")]
    fields += [(f"recovered {name}", value) for name, value in entry.get("recovered", {}).items()]
    rest = [(name, value) for name, value in document.items() if name != "commit"]
    fields += [(name, "yes" if value is True else "no" if value is False else value) for name, value in rest]
    fields += [(f"touched {key}", counts_text(counts)) for key, counts in entry["touched"].items()]
    settings.output.data(document, lambda _: format_fields(fields))


def _commit_lines(commits: list["Commit"], style: Style) -> Iterable[str]:
    if not commits:
        return ()
    entries = [CommitEntry.encode(commit) for commit in commits]
    rows = [(e["id"], e["authored_at"], e["actor"], e["kind"], touched_text(e["touched"]) or None) for e in entries]
    return format_table(style, ("COMMIT", "AUTHORED AT", "ACTOR", "KIND", "TOUCHED"), rows)


def _graph_lines(commits: "list[LoggedCommit]", style: Style) -> Iterable[str]:
    for lanes, logged in draw_commits(commits):
        if logged is None:
            yield lanes
            continue
        entry = CommitEntry.encode(logged.commit)
        facts = [entry["authored_at"], logged.branch, entry["kind"], entry["actor"], touched_text(entry["touched"])]
        text = "  ".join(escape_control(str(fact)) for fact in facts if fact)
        yield f"{lanes}  {style.heading(entry['id'])}  {text}"


_CHANGE_OPTIONS = (
    click.option(
        "--kind", "kinds", type=click.Choice(["node", "edge"]), multiple=True, callback=lambda _c, _p, v: v or None,
        help="Only these; may be repeated.",
    ),
    click.option(
        "--type", "types", metavar="TYPE", multiple=True, callback=lambda _c, _p, v: v or None,
        help="Only these types; may be repeated.",
    ),
    click.option(
        "--operation", "operations", type=click.Choice(["insert", "update", "delete"]), multiple=True,
        callback=lambda _c, _p, v: v or None, help="Only these; may be repeated.",
    ),
    click.option("--limit", type=click.IntRange(1, 10**9), metavar="N", help="The most changes to show; see --page."),
    click.option("--page", metavar="TOKEN", help="Continue after an earlier result, with the token that it printed."),
    click.option("--explain", is_flag=True, help="Also show how the changes were computed, and what was read."),
)  # fmt: skip


def change_options(command: CommandFunction) -> CommandFunction:
    """Add the flags that select changes."""
    for option in reversed(_CHANGE_OPTIONS):
        command = option(command)
    return command


@commit.command("changes")
@click.argument("id_", metavar="ID")
@change_options
@common_options
@pass_settings
def commit_changes(
    settings: CliSettings,
    id_: str,
    kinds: Sequence[str] | None,
    types: Sequence[str] | None,
    operations: Sequence[str] | None,
    limit: int | None,
    page: str | None,
    explain: bool,
) -> None:
    """Show the changes of the commit ID, compared to its parent."""
    graph = settings.open_graph(read_only=True)
    _write_changes(settings, graph.commit_changes(id_, kinds, types, operations, limit=limit, page=page), explain)


class _ChangesGroup(click.Group):
    """`changes A B` is short for `changes between A B`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        argument = _first_argument(args)
        if argument is not None and argument not in self.commands:
            args = [BETWEEN, *args]
        return super().parse_args(ctx, args)


def _first_argument(args: list[str]) -> str | None:
    """The first argument that is neither a flag nor a flag's value."""
    index = 0
    while index < len(args):
        if not args[index].startswith("-"):
            return args[index]
        index += 2 if args[index] in _FLAGS_WITH_VALUE else 1
    return None


@click.group(cls=_ChangesGroup)
@common_options
def changes() -> None:
    """Show changes: `changes A B` between two states, `changes poll` along a branch."""


@changes.command(BETWEEN)
@click.argument("a")
@click.argument("b")
@change_options
@common_options
@pass_settings
def between(
    settings: CliSettings,
    a: str,
    b: str,
    kinds: Sequence[str] | None,
    types: Sequence[str] | None,
    operations: Sequence[str] | None,
    limit: int | None,
    page: str | None,
    explain: bool,
) -> None:
    """Show the changes from A to B, each of them a commit, a branch, a tag or a time."""
    graph = settings.open_graph(read_only=True)
    found = graph.changes(a, b, kinds, types, operations, limit=limit, page=page, branch=settings.branch_or_main)
    _write_changes(settings, found, explain)


@changes.command(POLL)
@store_argument
@click.option("--cursor", metavar="CURSOR", help="Continue after this cursor, which an earlier result printed.")
@click.option("--start", metavar="now|beginning|COMMIT", help="Where to start without a cursor.  [default: now]")
@click.option(
    "--limit",
    type=click.IntRange(1, 10**6),
    metavar="N",
    default=POLL_LIMIT,
    show_default=True,
    help="The most changes to return.",
)
@common_options
@pass_settings
def poll(settings: CliSettings, uri: str | None, cursor: str | None, start: str | None, limit: int) -> None:
    """Show the next changes of a branch, commit by commit; a client that saves the cursor gets each exactly once."""
    page = settings.open_graph(uri, read_only=True).poll_changes(cursor, start, limit, settings.branch)
    if settings.json:
        write_text(json.dumps(FeedAnswer.encode(page)) + "\n")
        return
    for event in page:
        write_text(f"{event.commit.id} {_change_line(event.change)}\n")
    more = ", and more are available" if page.more else ""
    settings.output.note(f"{pluralize(len(page), 'change')}{more}; continue with --cursor {page.cursor}")


def _write_changes(settings: CliSettings, found: "ChangesLike", explain: bool) -> None:
    """Write changes as they are computed. Errors that can be found at once are raised before anything is written."""
    if settings.json:
        for piece in changes_text(found, explain=explain):
            write_text(piece)
        return
    number = 0
    for change in found:
        write_text(_change_line(change) + "\n")
        number += 1
    settings.output.note(f"{pluralize(number, 'change')} from {found.from_commit} to {found.to_commit}")
    if found.schema_changed:
        settings.output.note("The schema changed in between: changes are shown with the names of the later schema.")
    if found.next_page is not None:
        settings.output.note(f"There are more changes: continue with --page {found.next_page}")
    if explain:
        for line in _explain_lines(found):
            settings.output.note(line)


def _explain_lines(found: "ChangesLike") -> Iterable[str]:
    explained = found.explained
    commits = f" from {pluralize(explained.commits, 'commit')}" if explained.method == "composed" else ""
    yield f"{explained.method}{commits}: {explained.reason}"
    for read in explained.reads:
        pairs = "; ".join(f"{older or 'nothing'} with {newer or 'nothing'}" for older, newer in read.comparisons)
        yield f"{read.type_name}: compared {pairs}; {pluralize(read.rows, 'differing row')}"
    yield f"{found.cost.requests} requests, {found.cost.bytes:,} bytes"


def _change_line(change: "EntityChange") -> str:
    """`~ Person 'ada': age 36 → 37`."""
    document = change.to_json()
    before, after = document["before"] or {}, document["after"] or {}
    if change.operation == "update":
        details = [f"{name} {_value_text(before[name])} → {_value_text(after[name])}" for name in change.changed]
    else:
        image = (after or before).items()
        details = [f"{name} {_value_text(value)}" for name, value in image if name != "id" and value is not None]
    return escape_control(
        f"{_SIGNS[change.operation]} {change.type_name} {change.id!r}: {', '.join(details)}".removesuffix(": ")
    )


def _value_text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_LENGTH_MAX else text[:VALUE_LENGTH_MAX] + "…"


def draw_commits(commits: "Iterable[LoggedCommit]") -> "Iterator[tuple[str, LoggedCommit | None]]":
    """Draw commits, each before its parents. Yields a line for each commit, and lines without one for the edges."""
    lanes: list[str] = []  # the commit that each lane leads to, from left to right
    for logged in commits:
        commit_id = logged.commit.id
        if commit_id not in lanes:
            lanes.append(commit_id)
        lane = lanes.index(commit_id)
        for other in [column for column, leads_to in enumerate(lanes) if leads_to == commit_id][:0:-1]:
            yield _draw_join(lanes, lane, other), None
            del lanes[other]
        yield " ".join("*" if column == lane else "|" for column in range(len(lanes))), logged
        first, *merged = logged.parents or ("",)
        lanes[lane] = first
        for parent in merged:
            if parent in lanes:
                yield _draw_crossing(lanes, lane, lanes.index(parent)), None
            else:
                lanes.insert(lane + 1, parent)
                yield _draw_fork(lanes, lane), None
        if not first:
            del lanes[lane]


def _draw_join(lanes: list[str], lane: int, other: int) -> str:
    """Lane `other` ends in `lane`, to its left; the lanes behind it move."""
    cells = _cells(lanes)
    for column in range(other, len(lanes)):
        cells[2 * column - 1 : 2 * column + 1] = ["/", " "]
    for gap in range(2 * lane + 1, 2 * other, 2):
        cells[gap] = "_" if gap < 2 * other - 1 else "/"
    return "".join(cells).rstrip()


def _draw_fork(lanes: list[str], lane: int) -> str:
    """The lane right of `lane` is new, and the lanes behind it have moved."""
    cells = _cells(lanes)
    cells[2 * lane + 1 : 2 * lane + 3] = ["\\", " "]
    for column in range(lane + 2, len(lanes)):
        cells[2 * column - 1 : 2 * column + 1] = ["\\", " "]
    return "".join(cells).rstrip()


def _draw_crossing(lanes: list[str], lane: int, other: int) -> str:
    """The merged parent has a lane already."""
    cells = _cells(lanes)
    left, right = sorted((lane, other))
    end = 2 * right - 1 if other > lane else 2 * left + 1
    for gap in range(2 * left + 1, 2 * right, 2):
        cells[gap] = ("\\" if other > lane else "/") if gap == end else "_"
    return "".join(cells).rstrip()


def _cells(lanes: list[str]) -> list[str]:
    return list(" ".join("|" for _ in lanes))
