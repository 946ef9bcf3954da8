"""`load`, `export`, `analyze`, `embed`: commands over many rows, which can run on Spark."""

import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from omnigraph.api.models import SINGLE_FILE, AnalyzeAnswer, EmbedSummary, ExportAnswer, LoadAnswer
from omnigraph.cli.inputs import STDIN
from omnigraph.cli.options import (
    CliSettings,
    at_option,
    common_options,
    if_commit_option,
    pass_settings,
    store_argument,
    txn_id_option,
)
from omnigraph.cli.output import Style, escape_control, format_table, pluralize, style_for, write_bytes
from omnigraph.cli.progress import progress_bar
from omnigraph.cli.render.commit import commit_sentence
from omnigraph.engine import ENGINES, Engine
from omnigraph.errors import BadRequest
from omnigraph.pipeline.progress import Progress

if TYPE_CHECKING:
    from omnigraph.pipeline.embedding.embed import EmbedResult
    from omnigraph.write.load.load import LoadResult

DATA_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".parquet", ".gz")
MODES = ("append", "merge", "overwrite")
EXPORT_FORMATS = ("jsonl", "parquet", "csv")
ALGORITHMS = ("pagerank", "components", "degrees", "triangles")
FAILURES_SHOWN_MAX = 5

master_option = click.option(
    "--master", metavar="URL", help="The Spark master of --engine spark.  [default: a local session]"
)


@click.command()
@click.argument("more", nargs=-1, metavar="[PATH]... [STORE]")
@click.option(
    "--data",
    "paths",
    metavar="PATH",
    multiple=True,
    required=True,
    help="What to load: .jsonl, .csv (also .gz) and .parquet files, globs, directories, URIs; - is NDJSON on stdin; "
    "may be repeated.",
)
@click.option(
    "--type", "type_name", metavar="TYPE", help="The type of CSV and Parquet rows whose file is not named after a type."
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="append",
    show_default=True,
    help="append rejects existing ids, merge updates them, overwrite replaces the types in the input.",
)
@click.option("--from", "base", metavar="BRANCH", help="Fork --branch from this one first, if it does not exist.")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    help="Where to run: auto uses Spark above 100,000 rows or 64 MiB.",
)
@click.option("--master", metavar="URL", help="The Spark master of a large load.  [default: a local session]")
@click.option("--job-id", metavar="ID", help="A name for a large load; use it again to resume the load after a crash.")
@click.option(
    "--on-error",
    type=click.Choice(("fail", "quarantine")),
    default="fail",
    show_default=True,
    help="quarantine writes rejected rows to a file and loads the rest.",
)
@click.option("--max-errors", type=click.IntRange(0), metavar="N", help="Of quarantine: fail if it has more rows.")
@if_commit_option
@txn_id_option
@common_options
@pass_settings
def load(
    settings: CliSettings,
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

    Arguments after the options are more files if they have a suffix of one (.jsonl, .csv, .parquet), as a shell expands
    them from a pattern; another one is the store, unless --store names it.
    """
    paths, uri = _split_paths_and_store(settings, paths, more)
    if max_errors is not None and on_error == "fail":
        raise click.UsageError("--max-errors limits the rows of --on-error quarantine: give that too.")
    if STDIN in paths and on_error == "quarantine":
        raise click.UsageError("Input from stdin can't be quarantined: save it to a file and load that.")
    graph = settings.open_graph(uri)
    progress, quiet = Progress(), settings.quiet or settings.json
    with _spool_stdin(paths) as sources, progress_bar("Loading", _size_text(sources), quiet=quiet, progress=progress):
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
    for note in _load_notes(result):
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
    help="The format of the files in a directory; a single file's suffix determines its format.  [default: jsonl]",
)
@click.option(
    "--engine", type=click.Choice(ENGINES), default="auto", help="Where to run: auto uses Spark above a million rows."
)
@master_option
@click.option("--overwrite", is_flag=True, help="Replace an existing export in the directory.")
@at_option
@common_options
@pass_settings
def export(
    settings: CliSettings,
    uri: str | None,
    types: tuple[str, ...],
    out: str | None,
    format_: str | None,
    engine: str,
    master: str | None,
    overwrite: bool,
    at: str | None,
) -> None:
    """Write nodes and edges, sorted by type and id. Loading the export gives the same graph."""
    if out in (None, STDIN) and format_ not in (None, "jsonl"):
        raise click.UsageError(f"--format {format_} needs --out: a directory, or a file that ends with .{format_}.")
    graph = settings.open_graph(uri, read_only=True)
    dest: Any = _StdoutWriter() if out in (None, STDIN) else out
    progress, quiet = Progress(), settings.quiet or settings.json or dest is not out
    with progress_bar("Exporting", out or "", quiet=quiet, progress=progress):
        result = graph.export(
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
        files = f" in {pluralize(result.files, 'file')}" if result.files > 1 else ""
        document = ExportAnswer.encode(result, out=str(out), **({} if format_ is not None else SINGLE_FILE))
        settings.output.done(document, f"Wrote {pluralize(result.rows, 'row')} to {out}{files}.")


class _StdoutWriter:
    """Stdout as the binary file that an export writes to; its errors are `OutputLost`."""

    def write(self, data: bytes) -> int:
        write_bytes(data)
        return len(data)


def _split_paths_and_store(
    settings: CliSettings, paths: Sequence[str], more: Sequence[str]
) -> tuple[tuple[str, ...], str | None]:
    if settings.store is not None or settings.server is not None:
        return (*paths, *more), None
    files = tuple(text for text in more if text.endswith(DATA_SUFFIXES))
    others = [text for text in more if text not in files]
    if len(others) > 1:
        raise click.UsageError(f"{others[0]} and {others[1]} can't both be the store: give files with --data.")
    return (*paths, *files), others[0] if others else None


@contextmanager
def _spool_stdin(paths: Sequence[str]) -> Iterator[list[str]]:
    """Copy stdin to a file: a load may read its input more than once, and reports line numbers."""
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


def _size_text(paths: Sequence[str]) -> str:
    files = [Path(path) for path in paths]
    sizes = [file.stat().st_size for file in files if file.is_file()]
    return f"{pluralize(len(paths), 'path')}, {sum(sizes) / 2**20:.1f} MiB"


def _load_notes(result: "LoadResult") -> Iterator[str]:
    yield from result.reports
    if result.rejected:
        yield f"{pluralize(result.rejected, 'row')} rejected: see {result.quarantine}."
    if result.summary:
        yield from format_table(style_for(sys.stderr), ("type", "reason", "rows"), result.summary)


@click.command()
@click.argument("algorithm", type=click.Choice(ALGORITHMS))
@store_argument
@click.option(
    "--edge", "edges", metavar="TYPE", multiple=True, help="Only these edges; may be repeated.  [default: all]"
)
@click.option("--write", metavar="TYPE.PROPERTY", help="Store the value of every row of TYPE, as one commit.")
@click.option(
    "--direction",
    type=click.Choice(("out", "in", "both")),
    help="The direction in which edges are followed or counted.  [default: out for pagerank, else both]",
)
@click.option(
    "--damping", type=float, default=0.85, show_default=True, help="Of pagerank: the probability of following an edge."
)
@click.option(
    "--tolerance", type=float, default=1e-6, show_default=True, help="Of pagerank: the change at which to stop."
)
@click.option("--iterations", type=int, default=100, show_default=True, help="Of pagerank: the most iterations.")
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="The number of rows to print.")
@click.option("--engine", type=click.Choice(ENGINES), default="auto", help="Where to run: auto decides by size.")
@master_option
@at_option
@if_commit_option
@txn_id_option
@common_options
@pass_settings
def analyze(
    settings: CliSettings,
    /,
    algorithm: str,
    uri: str | None,
    edges: tuple[str, ...],
    write: str | None,
    at: str | None,
    if_commit: str | None,
    txn_id: str | None,
    **options: Any,
) -> None:
    """Compute ALGORITHM over nodes and edges; print the first rows, and with --write store all values.

    A component is identified by its smallest id, or by a number if --write names an integer property.
    With --at, an older state is analysed, and its values are written to the rows that still exist.
    """
    if write is None and (if_commit is not None or txn_id is not None):
        raise click.UsageError("--if-commit and --txn-id are options of a commit: give --write too.")
    graph = settings.open_graph(uri, read_only=write is None)
    with progress_bar("Analysing", algorithm, quiet=settings.quiet or settings.json):
        analysis = graph.analyze(
            cast(Any, algorithm),
            edges or None,
            write,
            branch=settings.branch_or_main,
            at=at,
            actor=settings.actor,
            if_commit=if_commit,
            txn_id=txn_id,
            **options,
        )
    rows = analysis.table.to_pylist()
    document = AnalyzeAnswer.encode(analysis, rows=rows)

    def lines(style: Style) -> Iterable[str]:
        return format_table(style, analysis.table.column_names, [list(row.values()) for row in rows])

    settings.output.data(document, lines)
    size = f"{pluralize(analysis.vertices, 'node')} and {pluralize(analysis.edges, 'edge')}"
    settings.output.note(f"{size} at commit {analysis.commit_id}, {analysis.engine}")
    if analysis.converged is False:
        settings.output.note(
            f"Not converged after {analysis.iterations} iterations: increase --iterations or --tolerance."
        )
    if write is not None:
        settings.output.note(commit_sentence(analysis.commit, analysis.cost))


@click.command()
@store_argument
@click.option("--type", "type_", metavar="TYPE", help="Only the vectors of this type.")
@click.option("--property", "property_", metavar="NAME", help="Only the vectors of this property.")
@click.option("--batch", type=int, default=128, show_default=True, help="The number of texts in a request.")
@click.option(
    "--commit-every",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    metavar="N",
    help="The number of batches in a commit.",
)
@click.option(
    "--one-commit",
    is_flag=True,
    help="Commit once, at the end; an interruption then loses all computed vectors.",
)
@click.option("--rate-limit", type=float, metavar="N", help="The most requests in a minute.")
@click.option("--concurrency", type=int, default=4, show_default=True, help="The number of concurrent requests.")
@click.option("--dry-run", is_flag=True, help="Print an estimate, without sending requests.")
@click.option("--price-per-1k", type=float, metavar="PRICE", help="The price of 1,000 tokens, to estimate the cost.")
@click.option("--engine", type=click.Choice(("local", "spark")), default="local", help="Where requests are sent from.")
@master_option
@common_options
@pass_settings
def embed(
    settings: CliSettings,
    /,
    uri: str | None,
    type_: str | None,
    property_: str | None,
    commit_every: int,
    one_commit: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Compute the vectors declared with @embed for all rows that have a text but no vector.

    $OMNIGRAPH_EMBED_PROVIDER and its related variables choose the provider. Every commit saves progress: the next run
    continues where an interrupted one ended.
    """
    graph = settings.open_graph(uri, read_only=dry_run)
    with progress_bar("Embedding", settings.branch_or_main, quiet=settings.quiet or settings.json):
        result = graph.embed(
            type_,
            property_,
            settings.branch_or_main,
            commit_every=None if one_commit else commit_every,
            dry_run=dry_run,
            actor=settings.actor,
            **options,
        )
    settings.output.data(EmbedSummary.encode(result), lambda style: _embed_lines(result, style))
    if not dry_run:
        settings.output.note(_embed_sentence(result))
    for row, reason in result.refused[:FAILURES_SHOWN_MAX]:
        settings.output.note(escape_control(f"{row}: {reason}"))
    if result.refused:
        raise BadRequest(f"{pluralize(len(result.refused), 'row')} without a vector: the provider refused their texts.")
    return 0


def _embed_lines(result: "EmbedResult", style: Style) -> Iterable[str]:
    headings = ["property", "rows", "without text", "characters", "tokens", "requests"]
    rows = [
        [
            f"{estimate.type_name}.{estimate.property_name}",
            estimate.rows,
            estimate.skipped,
            estimate.characters,
            estimate.tokens,
            estimate.requests,
        ]
        for estimate in result.estimates
    ]
    yield from format_table(style, headings, rows)
    if result.price is not None:
        yield f"about {result.price:.4g} for {result.model}"


def _embed_sentence(result: "EmbedResult") -> str:
    if not result.rows:
        return "Every text has its vector: nothing to do."
    commits = pluralize(len(result.commits), "commit")
    return f"Embedded {pluralize(result.embedded, 'row')} with {result.model} in {commits}."
