"""`demo`: create a sample graph and walk through the main commands.

Every step is a command line that is printed and then run, in this process: the output is what a user would get.
"""

import io
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from importlib import resources
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnigraph.cli.options import SERVER_VARIABLE, STORE_VARIABLE, CliSettings, common_options, pass_settings
from omnigraph.cli.output import flush_stdout, style_for, write_text
from omnigraph.errors import AlreadyExists, BadRequest, OmnigraphError

if TYPE_CHECKING:
    from omnigraph.read.search.embedding import Embedder

SCHEMA, DATA, QUERIES, STORE = "team.pg", "team.jsonl", "team.gq", "graph"
VECTOR_DIMENSION = 64  # of Note.vec
VECTOR_DIGITS = 6
PROVIDER_VARIABLE, MODEL_VARIABLE = "OMNIGRAPH_EMBED_PROVIDER", "OMNIGRAPH_EMBED_MODEL"
NEXT = (
    ("query", "find", "--query", QUERIES, "--params", '{"text": "crash"}'),
    ("query", "person", "--query", QUERIES, "--params", '{"slug": "ada"}', "--json"),
    ("query", "-e", 'query ops() { match { $p: Person { role: "ops" } } return { $p.name, $p.age } }'),
    ("lint", QUERIES, "--schema", SCHEMA),
    ("export", "--type", "Person"),
    ("snapshot",),
)


@click.command()
@click.argument("folder", required=False, metavar="[PATH]")
@common_options
@pass_settings
@click.pass_context
def demo(context: click.Context, settings: CliSettings, folder: str | None) -> None:
    """Create a sample graph in the directory PATH, or in a new one, and walk through the main commands.

    Nothing outside that directory is written, and no network is used: vectors are computed by an offline provider.
    """
    if settings.store is not None:
        raise click.UsageError("The demo creates its own store: give a directory as PATH.")
    directory = _prepare_directory(folder)
    hidden = redirect_stdout(io.StringIO()) if settings.json or settings.quiet else nullcontext()
    with hidden, _environment(directory):
        commands = _run_tour(_Tour(context.find_root().command), directory)
    document = {"directory": str(directory), "store": str(directory / STORE), "commands": commands}
    settings.output.data(document, lambda _: ())


def _run_tour(step: "_Tour", directory: Path) -> list[str]:
    step.say(f"Everything happens in {directory}.")
    first_load = _show_basics(step)
    _show_queries(step)
    _show_writes(step)
    _show_history(step, first_load)
    step.title("Continue", "The files are yours to change.")
    step.say(*(f"  {line}" for line in _setup_lines(directory)), *(f"  {_line(words)}" for words in NEXT), gap=False)
    return step.commands


def _show_basics(step: "_Tour") -> str:
    """Returns the id of the load's commit."""
    step.title("A schema", "Node and edge types, keys, constraints and indexes: a graph is created from a text file.")
    step.show(SCHEMA, 5, 11)
    step.run("init", "--schema", SCHEMA, STORE)

    step.title("A load", "Nodes and edges of all types from one file, checked together: one atomic commit.")
    step.show(DATA, 3, 5)
    step.run("load", "--data", DATA, "--as", "ada")
    return step.head()


def _show_queries(step: "_Tour") -> None:
    step.title("Queries", "Patterns of nodes and edges; $ starts the name of a variable or a parameter.")
    step.show(QUERIES, 3, 11)
    step.query("friends", slug="ada")
    step.say("Without a value, an optional parameter drops its filter; with one:")
    step.query("friends", slug="ada", min_age=35)
    step.say("Reachability in up to three hops, without those that are known already:")
    step.query("within_reach", slug="ada")
    step.say("Aggregates, grouped by the other columns:")
    step.query("notes_by_team")

    step.title("Search", "Full text and vectors, with the pattern as the filter; then both fused into one ranking.")
    step.query("find_words", words="lost commit")
    step.query("find_like", text="two texts that mean the same")
    step.query("find", text="what happens after a crash")


def _show_writes(step: "_Tour") -> None:
    step.title("Branches", "A branch copies nothing. Its writes are not visible on main.")
    step.run("branch", "create", "what-if")
    hired = {"slug": "ines", "name": "Ines", "team": "storage", "mentor": "ada", "since": "2026-01-05"}
    step.mutate("hire", "--branch", "what-if", "--as", "fay", **hired)
    step.query("friends", "--branch", "what-if", slug="ada")
    step.say("main still has the friends from above:")
    step.query("friends", slug="ada")

    step.title("Mutations", "Several statements, one commit; a constraint violation leaves nothing behind.")
    step.mutate("hire", **(hired | {"team": "sorting"}))
    step.say("The exit code was 5, and Ines was not inserted, although her own statement was valid.")
    step.mutate("promote", "--as", "fay", slug="bob")
    step.say("Deleting a node deletes its edges in the same commit:")
    step.mutate("leave", slug="chen")

    step.title(
        "Merging",
        "Row by row and property by property against the common ancestor; all conflicts are reported.",
    )
    step.run("changes", "between", "main", "what-if")
    step.run("branch", "merge", "what-if", "--dry-run")
    step.run("branch", "merge", "what-if", "--into", "main", "--delete-branch", "--as", "ada")
    step.query("friends", slug="ada")


def _show_history(step: "_Tour", first_load: str) -> None:
    step.title("Time travel", "Every commit stays readable: by its id, a time, or a tag.")
    step.run("commit", "list", "--graph")
    step.run("tag", "create", "first-load", first_load)
    step.query("friends", slug="ada")
    step.query("friends", "--at", "first-load", slug="ada")

    step.title("Schema changes", "A plan shows the steps; applying it is one commit.")
    key = "    slug: String @key\n"
    schema = Path(SCHEMA).read_text(encoding="utf-8").replace(key, f"{key}    city: String?\n", 1)
    Path(SCHEMA).write_text(schema, encoding="utf-8")
    step.run("schema", "plan", "--schema", SCHEMA)
    step.run("schema", "apply", "--schema", SCHEMA, "--as", "ada")


class _Tour:
    """Prints texts and command lines, and runs these as a user would."""

    def __init__(self, root: click.Command) -> None:
        self._root = root
        self._numbers = count(1)
        self.commands: list[str] = []

    def title(self, text: str, explanation: str) -> None:
        heading = style_for(sys.stdout).heading(f"{next(self._numbers)}. {text}")
        write_text(f"{heading}\n{explanation}\n\n")

    def say(self, *lines: str, gap: bool = True) -> None:
        write_text("".join(f"{line}\n" for line in lines) + ("\n" if gap else ""))

    def show(self, name: str, first: int, last: int) -> None:
        """Print lines of one of the files, truncated if they are long."""
        lines = Path(name).read_text(encoding="utf-8").splitlines()[first - 1 : last]
        self.say(
            f"{name}, from line {first}:", *(f"  | {line if len(line) < 100 else line[:99] + '…'}" for line in lines)
        )

    def query(self, name: str, /, *flags: str, **params: object) -> None:
        self._run_named("query", name, flags, params)

    def mutate(self, name: str, /, *flags: str, **params: object) -> None:
        self._run_named("mutate", name, flags, params)

    def run(self, *words: str) -> None:
        line = _line(words)
        write_text(f"{style_for(sys.stdout).heading(f'$ {line}')}\n")
        self.commands.append(line)
        settings = CliSettings()
        try:
            with redirect_stderr(sys.stdout):  # keeps both streams in order
                self._root.main(list(words), prog_name="omnigraph", standalone_mode=False, obj=settings)
        except OmnigraphError as error:
            with redirect_stderr(sys.stdout):
                settings.output.error(error)
        write_text("\n")
        flush_stdout()

    def head(self) -> str:
        """The newest commit of main."""
        return CliSettings().open_graph(read_only=True).snapshot().commit_id

    def _run_named(self, command: str, name: str, flags: Sequence[str], params: dict[str, object]) -> None:
        given = ("--params", json.dumps(params)) if params else ()
        self.run(command, name, "--query", QUERIES, *given, *flags)


def _prepare_directory(folder: str | None) -> Path:
    """Create the directory with the demo's files."""
    from omnigraph.read.search.embedding import OfflineEmbedder

    directory = Path(tempfile.mkdtemp(prefix="omnigraph-demo-") if folder is None else folder).absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in (STORE, SCHEMA, DATA, QUERIES):
            if (directory / name).exists():
                raise AlreadyExists(str(directory / name), "choose another directory, or delete it first")
        sources = resources.files("omnigraph.cli") / "demo_data"
        for name in (SCHEMA, QUERIES):
            (directory / name).write_bytes((sources / name).read_bytes())
        lines = (sources / DATA).read_text(encoding="utf-8").splitlines()
        (directory / DATA).write_text("".join(_add_vector(line, OfflineEmbedder()) for line in lines), encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"{directory} can't be written to ({error.strerror}): choose another directory.") from error
    return directory


def _add_vector(line: str, embedder: "Embedder") -> str:
    """Add the vector of a note's text to its line: a load does not call a provider."""
    entity: dict[str, Any] = json.loads(line)
    if entity.get("type") == "Note":
        (vector,) = embedder.embed([entity["data"]["text"]], VECTOR_DIMENSION)
        entity["data"]["vec"] = [round(number, VECTOR_DIGITS) for number in vector]
    return json.dumps(entity, ensure_ascii=False, separators=(",", ":")) + "\n"


@contextmanager
def _environment(directory: Path) -> Iterator[None]:
    """Set the working directory and the environment variables that the printed commands need."""
    names = (STORE_VARIABLE, SERVER_VARIABLE, PROVIDER_VARIABLE, MODEL_VARIABLE)
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ |= {STORE_VARIABLE: STORE, PROVIDER_VARIABLE: "offline"}
    try:
        with chdir(directory):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _setup_lines(directory: Path) -> list[str]:
    lines = [f"cd {shlex.quote(str(directory))}", f"export {STORE_VARIABLE}={STORE} {PROVIDER_VARIABLE}=offline"]
    if shutil.which("omnigraph") is None:
        lines.append(f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH")
    return lines


def _line(words: Sequence[str]) -> str:
    return f"omnigraph {shlex.join(words)}"
