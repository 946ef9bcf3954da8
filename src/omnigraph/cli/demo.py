"""`demo`: build a sample graph and walk through the main job.

Every step is a command line that is printed and then run, in this process, so that what is shown is what a user gets.
"""

import io
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from importlib import resources
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnigraph.cli.options import SERVER_VARIABLE, STORE_VARIABLE, Settings, common_options, pass_settings
from omnigraph.cli.output import flush_stdout, paint_for, write_text
from omnigraph.errors import AlreadyExists, BadRequest, OmnigraphError

if TYPE_CHECKING:
    from omnigraph.read.search.embedding import Embedder

SCHEMA, DATA, QUERIES, STORE = "team.pg", "team.jsonl", "team.gq", "graph"
VECTOR_DIMENSION = 64  # of Note.vec
VECTOR_DIGITS = 6
PROVIDER_VARIABLE, MODEL_VARIABLE = "OMNIGRAPH_EMBED_PROVIDER", "OMNIGRAPH_EMBED_MODEL"
GO_ON = (
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
def demo(context: click.Context, settings: Settings, folder: str | None) -> None:
    """Build a sample graph in the directory PATH, or in a fresh one, and walk through what there is.

    Nothing outside that directory is touched, and no network is used: texts become vectors by an offline provider.
    """
    if settings.store is not None:
        raise click.UsageError("The demo makes a store of its own: give a directory as PATH.")
    place = _place(folder)
    said: io.StringIO | None = io.StringIO() if settings.json or settings.quiet else None
    with redirect_stdout(said) if said else _nothing(), _at_home_in(place):
        ran = _tour(_Steps(context.find_root().command), place)
    document = {"directory": str(place), "store": str(place / STORE), "commands": ran}
    settings.output.data(document, lambda _: ())


def _tour(step: "_Steps", place: Path) -> list[str]:
    step.say(f"Everything happens in {place}.")

    step.title("A schema", "Node and edge types, keys, constraints and indexes: a graph is made from a text file.")
    step.show(SCHEMA, 5, 11)
    step.run("init", "--schema", SCHEMA, STORE)

    step.title("A load", "Nodes and edges of all types from one file, checked together: one atomic commit.")
    step.show(DATA, 3, 5)
    step.run("load", "--data", DATA, "--as", "ada")
    loaded = step.head()

    step.title("Queries", "Patterns of nodes and edges; what follows a $ is a variable or a parameter.")
    step.show(QUERIES, 3, 11)
    step.query("friends", slug="ada")
    step.say("An optional parameter that is not given drops its filter; with it:")
    step.query("friends", slug="ada", min_age=35)
    step.say("Reachability in up to three hops, without those that are known already:")
    step.query("within_reach", slug="ada")
    step.say("Aggregates, grouped by the columns beside them:")
    step.query("notes_by_team")

    step.title("Search", "Full text and vectors, with the pattern as the filter; then both fused into one ranking.")
    step.query("find_words", words="lost commit")
    step.query("find_like", text="two texts that mean the same")
    step.query("find", text="what happens after a crash")

    step.title("Branches", "A branch copies nothing. What is written there is not seen on main.")
    step.run("branch", "create", "what-if")
    hired = {"slug": "ines", "name": "Ines", "team": "storage", "mentor": "ada", "since": "2026-01-05"}
    step.mutate("hire", "--branch", "what-if", "--as", "fay", **hired)
    step.query("friends", "--branch", "what-if", slug="ada")
    step.say("main still has the friends from above:")
    step.query("friends", slug="ada")

    step.title("Mutations", "Several statements, one commit; what breaks a constraint leaves nothing behind.")
    step.mutate("hire", **(hired | {"team": "sorting"}))
    step.say("The exit code was 5, and Ines is not there, although her own statement was fine.")
    step.mutate("promote", "--as", "fay", slug="bob")
    step.say("Deleting a node deletes its edges in the same commit:")
    step.mutate("leave", slug="chen")

    step.title(
        "Merging", "Row by row and property by property against the common ancestor; conflicts come all together."
    )
    step.run("changes", "between", "main", "what-if")
    step.run("branch", "merge", "what-if", "--dry-run")
    step.run("branch", "merge", "what-if", "--into", "main", "--delete-branch", "--as", "ada")
    step.query("friends", slug="ada")

    step.title("Time travel", "Every commit stays readable: by its id, a time, or a tag.")
    step.run("commit", "list", "--graph")
    step.run("tag", "create", "first-load", loaded)
    step.query("friends", slug="ada")
    step.query("friends", "--at", "first-load", slug="ada")

    step.title("A schema that changes", "A plan says what would happen; applying it is one commit.")
    wanted = (
        Path(SCHEMA)
        .read_text(encoding="utf-8")
        .replace("    slug: String @key\n", "    slug: String @key\n    city: String?\n", 1)
    )
    Path(SCHEMA).write_text(wanted, encoding="utf-8")
    step.run("schema", "plan", "--schema", SCHEMA)
    step.run("schema", "apply", "--schema", SCHEMA, "--as", "ada")

    step.title("Go on", "The files are yours to change.")
    step.say(*(f"  {line}" for line in _setting(place)), *(f"  {_line(words)}" for words in GO_ON), gap=False)
    return step.ran


class _Steps:
    """Runs command lines as a user would, and says so."""

    def __init__(self, root: click.Command) -> None:
        self._root = root
        self._numbers = count(1)
        self.ran: list[str] = []

    def title(self, text: str, explanation: str) -> None:
        heading = paint_for(sys.stdout).heading(f"{next(self._numbers)}. {text}")
        write_text(f"{heading}\n{explanation}\n\n")

    def say(self, *lines: str, gap: bool = True) -> None:
        write_text("".join(f"{line}\n" for line in lines) + ("\n" if gap else ""))

    def show(self, name: str, first: int, last: int) -> None:
        """Lines of one of the files, cut where they are long."""
        lines = Path(name).read_text(encoding="utf-8").splitlines()[first - 1 : last]
        self.say(
            f"{name}, from line {first}:", *(f"  | {line if len(line) < 100 else line[:99] + '…'}" for line in lines)
        )

    def query(self, name: str, /, *flags: str, **params: object) -> None:
        self._named("query", name, flags, params)

    def mutate(self, name: str, /, *flags: str, **params: object) -> None:
        self._named("mutate", name, flags, params)

    def run(self, *words: str) -> None:
        line = _line(words)
        write_text(f"{paint_for(sys.stdout).heading(f'$ {line}')}\n")
        self.ran.append(line)
        settings = Settings()
        try:
            with redirect_stderr(sys.stdout):  # in the order in which they come
                self._root.main(list(words), prog_name="omnigraph", standalone_mode=False, obj=settings)
        except OmnigraphError as error:
            with redirect_stderr(sys.stdout):
                settings.output.error(error)
        write_text("\n")
        flush_stdout()

    def head(self) -> str:
        """The newest commit of main."""
        return Settings().open_graph(read_only=True).snapshot().commit_id

    def _named(self, verb: str, name: str, flags: Sequence[str], params: dict[str, object]) -> None:
        given = ("--params", json.dumps(params)) if params else ()
        self.run(verb, name, "--query", QUERIES, *given, *flags)


def _place(folder: str | None) -> Path:
    """The directory to work in, with the demo's files in it."""
    from omnigraph.read.search.embedding import OfflineEmbedder

    place = Path(tempfile.mkdtemp(prefix="omnigraph-demo-") if folder is None else folder).absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name in (STORE, SCHEMA, DATA, QUERIES):
            if (place / name).exists():
                raise AlreadyExists(str(place / name), "choose another directory, or delete it first")
        sources = resources.files("omnigraph.cli") / "demo_data"
        for name in (SCHEMA, QUERIES):
            (place / name).write_bytes((sources / name).read_bytes())
        lines = (sources / DATA).read_text(encoding="utf-8").splitlines()
        (place / DATA).write_text("".join(_embedded(line, OfflineEmbedder()) for line in lines), encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"{place} can't be written to ({error.strerror}): choose another directory.") from error
    return place


def _embedded(line: str, embedder: "Embedder") -> str:
    """A line of the load with the vector of its text: a load calls no provider, it takes what it is given."""
    entity: dict[str, Any] = json.loads(line)
    if entity.get("type") == "Note":
        (vector,) = embedder.embed([entity["data"]["text"]], VECTOR_DIMENSION)
        entity["data"]["vec"] = [round(number, VECTOR_DIGITS) for number in vector]
    return json.dumps(entity, ensure_ascii=False, separators=(",", ":")) + "\n"


@contextmanager
def _at_home_in(place: Path) -> Iterator[None]:
    """The working directory and the environment that the printed commands need."""
    names = (STORE_VARIABLE, SERVER_VARIABLE, PROVIDER_VARIABLE, MODEL_VARIABLE)
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ |= {STORE_VARIABLE: STORE, PROVIDER_VARIABLE: "offline"}
    try:
        with chdir(place):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _setting(place: Path) -> list[str]:
    lines = [f"cd {shlex.quote(str(place))}", f"export {STORE_VARIABLE}={STORE} {PROVIDER_VARIABLE}=offline"]
    if shutil.which("omnigraph") is None:
        lines.append(f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH")
    return lines


def _line(words: Sequence[str]) -> str:
    return f"omnigraph {shlex.join(words)}"
