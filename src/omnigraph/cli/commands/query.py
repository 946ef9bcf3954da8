"""`query`, `mutate`: run a query of a text. `lint`: check all queries without running them.

All formats of results except json are streamed batch by batch, so that memory does not grow with the rows. A json
document is written when it is complete, so that an error while reading leaves stdout empty.
"""

import json
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import click

from omnigraph.api.documents import finite
from omnigraph.api.models import LintFinding, QueryHead, WriteAnswer
from omnigraph.api.wire_model import Document
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
from omnigraph.cli.output import (
    Style,
    escape_control,
    excerpt_lines,
    pluralize,
    style_for,
    supports_unicode,
    write_text,
)
from omnigraph.cli.progress import progress_bar
from omnigraph.cli.render.commit import commit_sentence
from omnigraph.engine import ENGINES, Engine
from omnigraph.pipeline.progress import Progress

if TYPE_CHECKING:
    from omnigraph.query.lint import LintIssue
    from omnigraph.schema.catalog import Catalog


FORMATS = ("table", "json", "jsonl", "csv", "kv")
TABLE_ROWS_MEASURED = 10_000  # determine the column widths; longer values further down overflow
COLUMN_WIDTH_MIN = 4
GAP = "  "

ResultRow: TypeAlias = Mapping[str, Any]
EncodeValue: TypeAlias = Callable[[Any], str]


class StreamedResult(Protocol):
    """The part of a query's result that is printed."""

    @property
    def columns(self) -> list[str]: ...
    def json_batches(self) -> Iterator[list[dict[str, Any]]]: ...


def write_result(format_: str, result: StreamedResult, head: Document) -> int:
    """Print all rows and return their number. `head` has the fields of a json document that precede the rows."""
    batches = _CountingBatches(result.json_batches())
    match format_:
        case "json":
            _write_json(head, batches)
        case "jsonl":
            _write_batches(batches, _encoder((",", ":")))
        case "csv":
            _write_csv(result.columns, batches)
        case "kv":
            _write_kv(result.columns, batches)
        case _:
            _write_table(result.columns, batches)
    return batches.rows


class _CountingBatches:
    """Batches, and the number of rows read so far."""

    def __init__(self, batches: Iterable[list[dict[str, Any]]]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        for batch in self._batches:
            self.rows += len(batch)
            yield batch


def _encoder(separators: tuple[str, str] | None = None) -> EncodeValue:
    """A JSON encoder for stdout's encoding. JSON has no infinity, to which a sum may overflow: it becomes null."""
    unicode = supports_unicode(sys.stdout)
    dumps = json.JSONEncoder(ensure_ascii=not unicode, separators=separators, allow_nan=False).encode

    def encode(value: Any) -> str:
        if type(value) is int:
            return str(value)
        try:
            return dumps(value)
        except ValueError:
            return dumps(finite(value))

    return encode


def _write_json(head: Document, batches: Iterable[list[dict[str, Any]]]) -> None:
    encode = _encoder()
    first, between, last = ("\n    ", ",\n    ", "\n  ") if sys.stdout.isatty() else ("", ", ", "")
    start, comma, end = ("{\n  ", ",\n  ", "\n}\n") if sys.stdout.isatty() else ("{", ", ", "}\n")
    texts = [between.join(encode(row) for row in batch) for batch in batches if batch]
    fields = [f"{encode(name)}: {encode(value)}" for name, value in head.items()]
    write_text(f'{start}{comma.join(fields)}{comma}"rows": [')
    for number, text in enumerate(texts):
        write_text(between if number else first)
        write_text(text)
    write_text(f"{last if texts else ''}]{end}")


def _write_batches(batches: Iterable[list[dict[str, Any]]], line: Callable[[ResultRow], str]) -> None:
    for batch in batches:
        write_text("".join(f"{line(row)}\n" for row in batch))


def _write_csv(columns: Sequence[str], batches: Iterable[list[dict[str, Any]]]) -> None:
    """CSV after RFC 4180, with line feeds: null is an empty field, an empty text is two quotes."""
    encode = _encoder()
    needs_quotes = re.compile(r'[,"\r\n]').search

    def cell(value: Any) -> str:
        if value is None:
            return ""
        text = value if isinstance(value, str) else encode(value)
        if not text or needs_quotes(text):
            doubled = text.replace('"', '""')
            return f'"{doubled}"'
        return text

    write_text(",".join(map(cell, columns)) + "\n")
    _write_batches(batches, lambda row: ",".join(map(cell, row.values())))


def _write_kv(columns: Sequence[str], batches: Iterable[list[dict[str, Any]]]) -> None:
    """`name: value` lines, with an empty line between rows."""
    encode = _encoder()
    names = {name: escape_control(name) for name in columns}
    rows = 0

    def lines(row: ResultRow) -> str:
        nonlocal rows
        rows += 1
        pairs = (f"{names[name]}: {_value_text(value, encode)}" for name, value in row.items())
        return ("\n" if rows > 1 else "") + "\n".join(pairs)

    _write_batches(batches, lines)


def _write_table(columns: Sequence[str], batches: Iterable[list[dict[str, Any]]]) -> None:
    """Aligned columns, numbers to the right; truncated to the width of a terminal if stdout is one."""
    encode = _encoder()
    rows = chain.from_iterable(batches)
    measured = list(islice(rows, TABLE_ROWS_MEASURED))
    right = [_all_numbers(row[name] for row in measured) for name in columns]
    cells = [[_table_cell(row[name], encode) for name in columns] for row in measured]
    headings = [escape_control(name) for name in columns]
    widths = [max(map(_width, column)) for column in zip(headings, *cells, strict=True)]
    truncate = sys.stdout.isatty()
    if truncate:
        widths = _fit_widths(widths, shutil.get_terminal_size().columns)

    def line(values: Sequence[str]) -> str:
        if truncate:
            values = [_truncate(value, width) for value, width in zip(values, widths, strict=True)]
        columns = zip(values, widths, right, strict=True)
        return GAP.join(_pad(value, width, to_right) for value, width, to_right in columns).rstrip()

    write_text(style_for(sys.stdout).heading(line(headings)) + "\n")
    write_text("".join(f"{line(values)}\n" for values in cells))
    while more := list(islice(rows, TABLE_ROWS_MEASURED)):
        write_text("".join(f"{line([_table_cell(row[name], encode) for name in columns])}\n" for row in more))


def _all_numbers(values: Iterable[Any]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present)


def _table_cell(value: Any, encode: EncodeValue) -> str:
    return "-" if value is None else _value_text(value, encode)


def _value_text(value: Any, encode: EncodeValue) -> str:
    return escape_control(value if isinstance(value, str) else encode(value))


def _fit_widths(widths: Sequence[int], total: int) -> list[int]:
    """Shrink the widest columns until all fit into `total`, but none below the minimum."""
    total -= len(GAP) * (len(widths) - 1)
    width_max = max(widths)
    while width_max > COLUMN_WIDTH_MIN and sum(min(width, width_max) for width in widths) > total:
        width_max -= 1
    return [min(width, width_max) for width in widths]


def _truncate(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    prefix, used = [], 1  # for the ellipsis
    for character in text:
        used += _width(character)
        if used > width:
            break
        prefix.append(character)
    return "".join(prefix) + "…"


def _pad(text: str, width: int, to_right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if to_right else text + space


def _width(text: str) -> int:
    """The width in terminal cells: a Chinese character takes two, a combining accent none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)


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
