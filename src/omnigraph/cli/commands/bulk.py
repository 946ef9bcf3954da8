"""`load`: many entities in one commit. `export`: all of them as lines that load again."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from omnigraph.api.models import SINGLE_FILE, ExportAnswer, LoadAnswer
from omnigraph.cli.inputs import STDIN
from omnigraph.cli.options import (
    Settings,
    at_option,
    common_options,
    if_commit_option,
    pass_settings,
    store_argument,
    txn_id_option,
)
from omnigraph.cli.output import counted, paint_for, table, write_bytes
from omnigraph.cli.progress import working
from omnigraph.cli.render.commit import commit_sentence
from omnigraph.engine import ENGINES, Engine
from omnigraph.errors import BadRequest
from omnigraph.pipeline.progress import Progress

if TYPE_CHECKING:
    from omnigraph.write.load.load import LoadResult

DATA_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".parquet", ".gz")
MODES = ("append", "merge", "overwrite")
EXPORT_FORMATS = ("jsonl", "parquet", "csv")


@click.command()
@click.argument("more", nargs=-1, metavar="[PATH]... [STORE]")
@click.option(
    "--data",
    "paths",
    metavar="PATH",
    multiple=True,
    required=True,
    help="What to load: .jsonl, .csv (also .gz) and .parquet files, globs, directories, URIs; - is NDJSON on stdin. "
    "May be repeated.",
)
@click.option(
    "--type", "type_name", metavar="TYPE", help="Of the rows of CSV and Parquet files that are not named after theirs."
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="append",
    show_default=True,
    help="append refuses ids that exist, merge updates them, overwrite replaces the types that are named.",
)
@click.option("--from", "base", metavar="BRANCH", help="Fork --branch from this one first, if it does not exist.")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    help="Where to run: auto takes Spark above 100,000 rows or 64 MiB.",
)
@click.option("--master", metavar="URL", help="The Spark master of a large load.  [default: a local session]")
@click.option(
    "--job-id", metavar="ID", help="A name for a large load: started again with it after a crash, it goes on."
)
@click.option(
    "--on-error",
    type=click.Choice(("fail", "quarantine")),
    default="fail",
    show_default=True,
    help="quarantine writes what is refused to a file and loads the rest.",
)
@click.option("--max-errors", type=click.IntRange(0), metavar="N", help="Fail after all if more rows are refused.")
@if_commit_option
@txn_id_option
@common_options
@pass_settings
def load(
    settings: Settings,
    more: tuple[str, ...],
    paths: tuple[str, ...],
    type_name: str | None,
    mode: str,
    base: str | None,
    engine: str,
    master: str | None,
    job_id: str | None,
    on_error: str,
    max_errors: int | None,
    if_commit: str | None,
    txn_id: str | None,
) -> None:
    """Load nodes and edges as one atomic commit.

    Arguments behind the options are further files if they end like one (.jsonl, .csv, .parquet), as a shell makes them
    from a pattern; one that does not is the store, unless --store names it.
    """
    paths, place = _paths_and_store(settings, paths, more)
    if max_errors is not None and on_error == "fail":
        raise click.UsageError("--max-errors bounds what --on-error quarantine leaves out: give that too.")
    if STDIN in paths and on_error == "quarantine":
        raise click.UsageError("What comes from stdin can't be quarantined: save it to a file and load that.")
    graph = settings.open_graph(place)
    progress, quiet = Progress(), settings.quiet or settings.json
    with _spooled(paths) as sources, working("Loading", _size(sources), quiet=quiet, progress=progress):
        result = graph.load(
            sources,
            cast(Literal["append", "merge", "overwrite"], mode),
            settings.branch_or_main,
            cast(Engine, engine),
            on_error=cast(Literal["fail", "quarantine"], on_error),
            from_=base,
            type=type_name,
            master=master,
            job_id=job_id,
            progress=progress,
            max_errors=max_errors,
            actor=settings.actor,
            if_commit=if_commit,
            txn_id=txn_id,
        )
    settings.output.done(LoadAnswer.encode(result), commit_sentence(result.commit, result.cost))
    for note in _notes(result):
        settings.output.note(note)


@click.command()
@store_argument
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only this type; may be repeated.")
@click.option(
    "--out",
    metavar="PATH",
    help="Write to this file (gzipped if it ends with .gz), or with --format to this directory or URI.  "
    "[default: stdout]",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(EXPORT_FORMATS),
    help="Of the files of a directory; a file's is in its name.  [default: jsonl]",
)
@click.option(
    "--engine", type=click.Choice(ENGINES), default="auto", help="Where to run: auto takes Spark above a million rows."
)
@click.option("--master", metavar="URL", help="The Spark master of --engine spark.  [default: a local session]")
@click.option("--overwrite", is_flag=True, help="Replace an export that is in the directory.")
@at_option
@common_options
@pass_settings
def export(
    settings: Settings,
    place: str | None,
    types: tuple[str, ...],
    out: str | None,
    format_: str | None,
    engine: str,
    master: str | None,
    overwrite: bool,
    at: str | None,
) -> None:
    """Write nodes and edges by type and id: loading that gives the same graph."""
    if out in (None, STDIN) and format_ not in (None, "jsonl"):
        raise click.UsageError(f"--format {format_} needs --out: a directory, or a file that ends with .{format_}.")
    graph = settings.open_graph(place, read_only=True)
    dest: Any = _Stdout() if out in (None, STDIN) else out
    progress = Progress()
    with working("Exporting", out or "", quiet=settings.quiet or settings.json or dest is not out, progress=progress):
        done = graph.export(
            dest,
            settings.branch_or_main,
            at,
            types or None,
            cast(Engine, engine),
            format=cast(Literal["jsonl", "csv", "parquet"] | None, format_),
            overwrite=overwrite,
            master=master,
            progress=progress,
        )
    if dest is out:
        files = f" in {counted(done.files, 'file')}" if done.files > 1 else ""
        document = ExportAnswer.encode(done, out=str(out), **({} if format_ is not None else SINGLE_FILE))
        settings.output.done(document, f"Wrote {counted(done.rows, 'row')} to {out}{files}.")


class _Stdout:
    """A file as far as an export needs one, whose failures are those of the answer."""

    def write(self, data: bytes) -> int:
        write_bytes(data)
        return len(data)


def _paths_and_store(
    settings: Settings, paths: Sequence[str], more: Sequence[str]
) -> tuple[tuple[str, ...], str | None]:
    if settings.store is not None or settings.server is not None:
        return (*paths, *more), None
    files = tuple(text for text in more if text.endswith(DATA_SUFFIXES))
    others = [text for text in more if text not in files]
    if len(others) > 1:
        raise click.UsageError(f"{others[0]} and {others[1]} can't both be the store: give files with --data.")
    return (*paths, *files), others[0] if others else None


@contextmanager
def _spooled(paths: Sequence[str]) -> Iterator[list[str]]:
    """The paths, with stdin as a file: a load reads from the start, and names the lines."""
    if STDIN not in paths:
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="omnigraph-") as folder:
        file = Path(folder) / "stdin.jsonl"
        try:
            with file.open("wb") as spool:
                copyfileobj(sys.stdin.buffer, spool)
        except OSError as error:
            raise BadRequest(f"stdin can't be read ({error.strerror}): save it to a file and load that.") from error
        yield [str(file) if path == STDIN else path for path in paths]


def _size(paths: Sequence[str]) -> str:
    files = [Path(path) for path in paths]
    sizes = [file.stat().st_size for file in files if file.is_file()]
    return f"{counted(len(paths), 'path')}, {sum(sizes) / 2**20:.1f} MiB"


def _notes(result: "LoadResult") -> Iterator[str]:
    yield from result.reports
    if result.rejected:
        yield f"{counted(result.rejected, 'row')} left out: see {result.quarantine}."
    if result.summary:
        yield from table(paint_for(sys.stderr), ("type", "reason", "rows"), result.summary)
