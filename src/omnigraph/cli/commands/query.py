"""`query`, `mutate`: run a query of a text. `lint`: check all queries without running them."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from omnigraph.api.models import LintFinding, QueryHead, WriteAnswer
from omnigraph.cli.inputs import NamedSource, ParamsType, read_source
from omnigraph.cli.options import (
    CliSettings,
    CommandFunction,
    at_option,
    common_options,
    if_commit_option,
    pass_settings,
    txn_id_option,
)
from omnigraph.cli.output import Style, escape_control, excerpt_lines, pluralize
from omnigraph.cli.progress import progress_bar
from omnigraph.cli.render.commit import commit_sentence
from omnigraph.cli.render.formats import FORMATS, write_result
from omnigraph.engine import ENGINES, Engine
from omnigraph.pipeline.progress import Progress

if TYPE_CHECKING:
    from omnigraph.query.lint import LintIssue
    from omnigraph.schema.catalog import Catalog

NO_PARAMS: Mapping[str, Any] = {}


def query_options(command: CommandFunction) -> CommandFunction:
    """The flags of reads and mutations: the text, the name of a query in it, and its parameters."""
    for option in (
        click.option(
            "--params", type=ParamsType(), default=NO_PARAMS, help="The parameters, as a JSON object; @- is stdin."
        ),
        click.option("-e", "text", metavar="GQ", help="The text itself: 'query q() { match { … } return { … } }'."),
        click.option("--query", "path", metavar="FILE", help="A file of queries, .gq; - is stdin."),
        click.argument("name", required=False),
    ):
        command = option(command)
    return command


@click.command()
@query_options
@at_option
@click.option("--format", "format_", type=click.Choice(FORMATS), help="How to print rows.  [default: table]")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    help="Where to run: auto uses Spark for queries that are too large for this process.",
)
@click.option("--master", metavar="URL", help="The Spark master of --engine spark.  [default: a local session]")
@click.option("--explain", is_flag=True, help="Run the query and print its plan, with estimated and actual rows.")
@common_options
@pass_settings
def query(
    settings: CliSettings,
    name: str | None,
    path: str | None,
    text: str | None,
    params: Mapping[str, Any],
    at: str | None,
    format_: str | None,
    engine: str,
    master: str | None,
    explain: bool,
) -> None:
    """Run the read query NAME of a text; NAME is optional if there is only one.

    The formats: an aligned table; json, one document; jsonl, one object per line; csv; kv, one "column: value" per
    line. Values are complete and exact in all formats except table and kv.
    """
    format_ = _resolve_format(settings, format_)
    source, name = _select_query(name, path, text)
    graph = settings.open_graph(read_only=True)
    progress, quiet = Progress(), settings.quiet or settings.json
    with source.relabel_errors(), progress_bar("Running", name, quiet=quiet, progress=progress):
        result = graph.query(
            source.text,
            name,
            params,
            settings.branch_or_main,
            at,
            explain=explain,
            engine=cast(Engine, engine),
            master=master,
            on_start=progress.stage,
        )
    head = QueryHead.encode(result, query=name, branch=settings.branch_or_main)
    if explain and format_ != "json":
        settings.output.data({}, lambda _: map(escape_control, str(result.plan).split("\n")))
        return
    if explain and result.plan is not None:
        head["plan"] = result.plan.to_json()
    rows = write_result(format_, result, head)
    if format_ in ("table", "kv"):
        settings.output.note(f"{pluralize(rows, 'row')} at commit {result.commit_id}")


@click.command()
@query_options
@if_commit_option
@txn_id_option
@common_options
@pass_settings
def mutate(
    settings: CliSettings,
    name: str | None,
    path: str | None,
    text: str | None,
    params: Mapping[str, Any],
    if_commit: str | None,
    txn_id: str | None,
) -> None:
    """Run the mutation NAME of a text as one atomic commit; NAME is optional if there is only one."""
    from omnigraph.storage import meter

    source, name = _select_query(name, path, text)
    graph = settings.open_graph()
    with source.relabel_errors(), meter.operation("mutate") as operation:
        commit = graph.mutate(
            source.text,
            name,
            params,
            settings.branch_or_main,
            settings.actor,
            if_commit=if_commit,
            txn_id=txn_id,
        )
    cost = operation.cost if commit is None else commit.cost
    settings.output.done(WriteAnswer.encode(commit=commit, cost=cost), commit_sentence(commit, cost))


@click.command()
@click.argument("path", metavar="FILE")
@click.option("--schema", "schema_path", metavar="FILE", help="The schema to check against, a .pg file.")
@at_option
@common_options
@pass_settings
def lint(settings: CliSettings, path: str, schema_path: str | None, at: str | None) -> int:
    """Check every query of FILE against a schema file or a graph (--store), without running them.

    Exits with 1 if there are errors, and with 0 if there are only warnings.
    """
    from omnigraph.query.lint import lint as lint_queries

    if schema_path is not None and (settings.store is not None or settings.server is not None):
        given = "--store" if settings.store is not None else "--server"
        raise click.UsageError(f"Both --schema and {given} are given: check against one of them.")
    if schema_path is not None and at is not None:
        raise click.UsageError("Both --schema and --at are given: --at applies to a graph.")
    source = read_source(path)
    issues = lint_queries(source.text, _load_catalog(settings, schema_path, at), source.name)
    settings.output.data([LintFinding.encode(issue) for issue in issues], lambda style: _lint_lines(issues, style))
    errors = sum(issue.severity == "error" for issue in issues)
    warnings = len(issues) - errors
    settings.output.note(f"{source.name}: {pluralize(errors, 'error')}, {pluralize(warnings, 'warning')}")
    return 1 if errors else 0


def _resolve_format(settings: CliSettings, format_: str | None) -> str:
    """`--json` and `--format json` are the same."""
    if settings.json and format_ not in (None, "json"):
        raise click.UsageError(f"Both --json and --format {format_} are given: choose one of them.")
    settings.json = settings.json or format_ == "json"
    return "json" if settings.json else format_ or "table"


def _select_query(name: str | None, path: str | None, text: str | None) -> tuple[NamedSource, str]:
    """The text, and the name of the query in it. Errors in them are reported before a store is opened."""
    from omnigraph.query.compile import choose_query
    from omnigraph.query.parser import parse

    if (path is None) == (text is None):
        raise click.UsageError("Give the text of the query: either --query FILE or -e 'query …'.")
    source = NamedSource(text, "-e") if text is not None else read_source(path or "")
    return source, choose_query(parse(source.text, source.name), name).name


def _load_catalog(settings: CliSettings, schema_path: str | None, at: str | None) -> "Catalog":
    from omnigraph.schema.lang.compile import compile_schema

    if schema_path is None:
        text = settings.open_graph(read_only=True).schema.show(settings.branch_or_main, at)
        return compile_schema(text).catalog
    schema = read_source(schema_path)
    return compile_schema(schema.text, name=schema.name).catalog


def _lint_lines(issues: Iterable["LintIssue"], style: Style) -> Iterable[str]:
    for issue in issues:
        text = escape_control(str(issue))
        yield style.error(text) if issue.severity == "error" else text
        yield from excerpt_lines(issue.excerpt)
