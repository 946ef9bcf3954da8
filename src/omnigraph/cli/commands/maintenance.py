"""`optimize`, `cleanup`, `verify`, `recover`: maintain the files of a graph."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import click

from omnigraph.api.job_models import CleanupAnswer, OptimizeAnswer, RecoverAnswer, VerifyAnswer
from omnigraph.api.models import iso_time
from omnigraph.cli.options import CliSettings, common_options, pass_settings, store_argument
from omnigraph.cli.output import Style, escape_control, format_fields, format_table, pluralize
from omnigraph.cli.progress import progress_bar
from omnigraph.cli.render.commit import cost_text
from omnigraph.engine import ENGINES, Engine

if TYPE_CHECKING:
    from omnigraph.gc.cleanup import Cleaned
    from omnigraph.gc.recovery import Recovery
    from omnigraph.maintenance.report import OptimizeResult, TypeReport
    from omnigraph.verify.verify import VerifyReport

EXIT_DAMAGED = EXIT_UNRESOLVED = 1
KEEP_MAX = 10**9
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_RECOVERED = {
    "completed": "Completed {txn_id} as {commit_id} on {branch}.",
    "discarded": "Discarded {txn_id}, recorded as {commit_id} on {branch}.",
    "landed": "{txn_id} was already committed as {commit_id} on {branch}: deleted its intent.",
}


@click.command()
@store_argument
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only these types; may be repeated.")
@click.option("--engine", type=click.Choice(ENGINES), default="auto", help="Where to run: auto decides by size.")
@click.option("--master", metavar="URL", help="The Spark master of --engine spark.  [default: a local session]")
@common_options
@pass_settings
def optimize(settings: CliSettings, uri: str | None, types: tuple[str, ...], engine: str, master: str | None) -> None:
    """Store the graph as if it had just been loaded: fold small commits, compact fragments, update indexes.

    Query results do not change, and concurrent writes do not fail because of it.
    """
    graph = settings.open_graph(uri)
    with progress_bar("Optimizing", settings.branch_or_main, quiet=settings.quiet or settings.json):
        result = graph.optimize(
            settings.branch_or_main, types or None, cast(Engine, engine), master=master, actor=settings.actor
        )
    settings.output.done(OptimizeAnswer.encode(result), _optimize_text(result))


def _optimize_text(result: "OptimizeResult") -> str:
    """A summary, and a line for each type that was changed or has work pending."""
    cost = f"({cost_text(result.cost)})"
    if result.commit is None:
        head = f"Nothing to optimize on {result.branch} {cost}."
    else:
        head = f"Optimized {result.branch} as {result.commit.id} {cost}."
    reports = [report for report in result.types.values() if report.did_something or report.pending]
    return "\n".join([head, *(escape_control(line) for report in reports for line in _type_lines(report))])


def _type_lines(report: "TypeReport") -> list[str]:
    name = report.table_key.partition(":")[2]
    done = []
    if report.folded_commits:
        done.append(f"folded {pluralize(report.folded_rows, 'row')} of {pluralize(report.folded_commits, 'commit')}")
    if report.compacted:
        done.append(f"compacted {pluralize(report.fragments_before, 'fragment')} to {report.fragments_after}")
    if report.built:
        done.append(f"built {', '.join(report.built)}")
    if report.extended:
        done.append(f"extended {', '.join(report.extended)}")
    if report.adjacency:
        done.append("saved its adjacency")
    lines = [f"  {name}: {'; '.join(done)}"] if done else []
    return lines + [f"  {name}: pending: {reason}" for reason in report.pending]


def _parse_span(_context: click.Context, _parameter: click.Parameter, text: str) -> timedelta:
    from omnigraph.errors import BadRequest
    from omnigraph.gc.retention import parse_span

    try:
        return parse_span(text)
    except BadRequest as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@store_argument
@click.option(
    "--older-than",
    metavar="SPAN",
    default="7d",
    show_default=True,
    callback=_parse_span,
    help="Keep all states of this time span, such as 12h or 7d.",
)
@click.option(
    "--keep",
    type=click.IntRange(1, KEEP_MAX),
    metavar="N",
    default=10,
    show_default=True,
    help="Keep the last N commits of every branch, whatever their age.",
)
@click.option(
    "--intent-ttl",
    metavar="SPAN",
    default="7d",
    show_default=True,
    callback=_parse_span,
    help="Discard jobs that have been dead for longer.",
)
@click.option("--confirm", is_flag=True, help="Delete. Without this, only show what would be deleted.")
@common_options
@pass_settings
def cleanup(
    settings: CliSettings, uri: str | None, older_than: timedelta, keep: int, intent_ttl: timedelta, confirm: bool
) -> None:
    """Expire old history on all branches, and delete files that no retained state, tag or running job needs."""
    graph = settings.open_graph(uri, read_only=not confirm)
    result = graph.cleanup(older_than, keep, not confirm, intent_ttl=intent_ttl, actor=settings.actor)
    settings.output.data(CleanupAnswer.encode(result), lambda _: _cleanup_lines(result))
    if result.dry_run:
        settings.output.note("Nothing was changed: run it again with --confirm to delete.")


def _cleanup_lines(result: "Cleaned") -> Iterable[str]:
    deleted = f"{pluralize(result.files, 'file')} ({size_text(result.bytes)})"
    states = pluralize(result.manifests, "state")
    would = result.dry_run
    yield f"Would delete {deleted} and expire {states}." if would else f"Deleted {deleted} and expired {states}."
    young = f", {result.young_files:,} of them too recent to delete" if result.young_files else ""
    kept = f"{pluralize(result.kept_files, 'file')} ({size_text(result.kept_bytes)}{young})"
    yield f"Would keep {kept}." if would else f"Kept {kept}."
    if result.jobs:
        yield f"{pluralize(len(result.jobs), 'job')} running or resumable: {escape_control(', '.join(result.jobs))}."
    if result.discarded:
        verb, jobs = "Would discard" if would else "Discarded", pluralize(len(result.discarded), "dead job")
        yield f"{verb} {jobs}: {escape_control(', '.join(result.discarded))}."


def size_text(size: int) -> str:
    """`0 B`, `1.5 MiB`."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_SIZE_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_SIZE_UNITS[unit]}"


@click.command()
@store_argument
@click.option("--full", is_flag=True, help="Check everything instead of samples: reads the whole graph.")
@click.option("--seed", type=int, default=0, show_default=True, help="The random seed of the samples.")
@common_options
@pass_settings
def verify(settings: CliSettings, uri: str | None, full: bool, seed: int) -> int:
    """Check that all stored data exists, can be read and is consistent, on --branch or on all branches.

    Changes nothing, and may run concurrently with any other command. Exits with 1 if anything is damaged.
    """
    report = settings.open_graph(uri, read_only=True).verify(settings.branch, full=full, seed=seed)
    settings.output.data(VerifyAnswer.encode(report), lambda style: _verify_lines(report, style, quiet=settings.quiet))
    return 0 if report.ok else EXIT_DAMAGED


def _verify_lines(report: "VerifyReport", style: Style, *, quiet: bool) -> Iterable[str]:
    for problem in report.problems:
        name = style.error("damage:") if problem.severity == "damage" else "notice:"
        yield f"{name} {escape_control(problem.sentence)}"
    if report.more:
        yield f"{style.error('damage:')} {report.more:,} more problems are not listed."
    if quiet:
        return
    checked = report.checked
    yield from format_fields(
        [
            ("branches", f"{checked.branches:,}" + (f" ({', '.join(report.branches)})" if report.branches else "")),
            ("manifests", f"{checked.manifests:,}, with the tables of {checked.states:,} states"),
            ("tables", f"{checked.table_versions:,} versions, {checked.files:,} files, {checked.fragments:,} read"),
            *_checksum_fields(report),
            (
                "rows",
                f"{checked.rows:,} with {checked.ends:,} ends, {checked.tail_entries:,} small commits in tails",
            ),
            (
                "indexes",
                f"{checked.indexes:,} with {checked.lookups:,} lookups, {checked.unindexed_rows:,} rows not indexed",
            ),
            ("tags, intents", f"{checked.tags:,}, {checked.intents:,}"),
        ]
    )
    yield _verify_sentence(report)


def _checksum_fields(report: "VerifyReport") -> Iterator[tuple[str, str]]:
    """Only a full verification compares files with their recorded checksums."""
    if report.full:
        checked = report.checked
        yield "checksums", f"{checked.files_compared:,} files compared, {checked.files_not_recorded:,} not recorded"


def _verify_sentence(report: "VerifyReport") -> str:
    scope = "in full" if report.full else "by samples (--full checks everything)"
    requests = pluralize(report.cost.requests, "request")
    problems = "no damage" if report.ok else pluralize(len(report.damage) + report.more, "problem")
    return f"Checked {scope} in {requests}: {problems}."


@click.command()
@store_argument
@click.option("--complete", "to_complete", metavar="TXN", multiple=True, help="Commit what this dead job staged.")
@click.option("--discard", "to_discard", metavar="TXN", multiple=True, help="Discard this dead job and its files.")
@click.option(
    "--all", "everything", is_flag=True, help="Complete every dead job whose data is all staged, discard the others."
)
@common_options
@pass_settings
def recover(
    settings: CliSettings,
    uri: str | None,
    to_complete: tuple[str, ...],
    to_discard: tuple[str, ...],
    everything: bool,
) -> int:
    """List unfinished bulk jobs; complete or discard those whose process is dead.

    A job is dead if its process has not refreshed it for 15 minutes, or is known to have exited. A released job,
    which may be resumed, is ended only by its name; a running one never. Without an option, nothing is changed.
    """
    if everything and (to_complete or to_discard):
        raise click.UsageError("--all ends every dead job: leave out --complete and --discard.")
    writes = bool(everything or to_complete or to_discard)
    graph = settings.open_graph(uri, read_only=not writes)
    recovery = graph.recover(to_complete, to_discard, all=everything)
    settings.output.data(RecoverAnswer.encode(recovery), lambda style: _recover_lines(recovery, style))
    if not recovery.jobs and not writes:
        settings.output.note("There are no unfinished jobs.")
    return EXIT_UNRESOLVED if recovery.left else 0


def _recover_lines(recovery: "Recovery", style: Style) -> Iterable[str]:
    for job in RecoverAnswer.encode(recovery)["ended"]:
        yield escape_control(_RECOVERED[job["outcome"]].format(**{**job, "commit_id": job["commit_id"] or "nothing"}))
    for txn_id, reason in recovery.left.items():
        yield escape_control(f"{txn_id} was not ended: {reason}")
    if recovery.jobs:
        rows = [
            (
                job.txn_id,
                job.kind,
                job.branch,
                job.actor,
                f"{job.state}, can be completed" if job.can_complete else job.state,
                iso_time(job.since),
                f"{job.host}:{job.pid}",
            )
            for job in recovery.jobs
        ]
        yield from format_table(style, ("JOB", "KIND", "BRANCH", "ACTOR", "STATE", "SINCE", "PROCESS"), rows)
