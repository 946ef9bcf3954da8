"""A walk along the commit path: what `make run` shows.

    python examples/commit_path.py [DIRECTORY]

Makes a small graph on the local disk and does with it what the design promises: atomic commits to
several tables, branches, time travel, writers that race, and a writer that is killed.
"""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import quote

import pyarrow as pa

import omnigraph
from omnigraph import (
    Append,
    Check,
    Cost,
    Delete,
    ExpectedVersionMismatch,
    Graph,
    GraphSnapshot,
    IdsAbsent,
    NodesExist,
    OmnigraphError,
    TableAction,
    Upsert,
)

PERSON, COMPANY, KNOWS, WORKS_AT = "node:Person", "node:Company", "edge:Knows", "edge:WorksAt"
WRITERS, COMMITS_EACH = 2, 10


def prop(name: str, type_: str = "String", nullable: bool = False) -> dict[str, object]:
    return {"id": name, "name": name, "column": name, "type": type_, "nullable": nullable}


CATALOG = {
    "types": [
        {"id": "1", "kind": "node", "name": "Person", "properties": [prop("name"), prop("age", "I32", nullable=True)]},
        {"id": "2", "kind": "node", "name": "Company", "properties": [prop("name")]},
        {"id": "3", "kind": "edge", "name": "Knows", "source": "Person", "target": "Person"},
        {"id": "4", "kind": "edge", "name": "WorksAt", "source": "Person", "target": "Company"},
    ]
}


def persons(**ages: int | None) -> pa.Table:
    return pa.table({"id": list(ages), "name": [name.capitalize() for name in ages], "age": list(ages.values())})


def edges(*ends: tuple[str, str]) -> pa.Table:
    sources, targets = [src for src, _ in ends], [dst for _, dst in ends]
    return pa.table({"id": [f"{s}-{t}" for s, t in ends], "src": sources, "dst": targets})


def befriend(new: str, friend: str) -> tuple[list[TableAction], list[Check]]:
    """One commit to two tables, and what must be true for it: nobody has the id, and the friend exists."""
    actions: list[TableAction] = [Append(PERSON, persons(**{new: None})), Append(KNOWS, edges((new, friend)))]
    return actions, [IdsAbsent(PERSON, frozenset({new})), NodesExist(PERSON, frozenset({friend}), KNOWS)]


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--writer"]:
        return writer(*arguments[1:])
    if arguments:
        root = Path(arguments[0])
        root.mkdir(parents=True, exist_ok=True)
    else:
        root = Path(tempfile.mkdtemp(prefix="omnigraph-"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # the children print too
    tour(root / "people")
    return 0


def tour(store: Path) -> None:
    costs: list[tuple[str, Cost]] = []

    title("1. A graph", "Four types. A type without rows has no table, so making a graph takes a handful of requests.")
    try:
        graph = omnigraph.init(store, schema=CATALOG, actor="ada")
    except OmnigraphError as error:
        sys.exit(f"error: {error}")
    costs.append(("init", graph.cost))
    print(f"   made {graph.uri}")

    title("2. One commit, several tables", "Rows of all tables appear together: one conditional put decides.")
    first = write(
        graph,
        costs,
        "first commit, 4 tables",
        "ada",
        [
            Append(PERSON, persons(ada=36, grace=45)),
            Append(COMPANY, pa.table({"id": ["acme"], "name": ["Acme"]})),
            Append(KNOWS, edges(("ada", "grace"))),
            Append(WORKS_AT, edges(("ada", "acme"))),
        ],
    )
    actions, checks = befriend("alan", "ada")
    write(graph, costs, "commit, 2 tables, 2 checks", "bob", actions, checks=checks)
    show_states([("main", graph.snapshot())])

    title("3. A branch", "A fork copies a list of version numbers, whatever the size. main does not notice.")
    costs.append(("branch create", graph.branches.create("what-if", actor="bob")))
    write(
        graph,
        costs,
        "commit on the new branch",
        "bob",
        [
            Upsert(PERSON, persons(ada=37, edsger=50)),
            Delete(WORKS_AT, ("ada-acme",)),
        ],
        branch="what-if",
    )
    show_states([("main", graph.snapshot()), ("what-if", graph.snapshot("what-if"))])

    title("4. Time travel", "A commit id says where the commit is: reading an old state is one request more.")
    then = graph.snapshot(at=first)
    costs.append(("snapshot of an old commit", then.cost))
    show_states([(f"at {first}", then), ("now", graph.snapshot())])

    title(
        "5. A strict writer loses", "It decided from what it saw, so it may not be committed on top of something newer."
    )
    held = graph.begin()
    write(graph, costs, "update of one row", "bob", [Upsert(PERSON, persons(grace=46))])
    try:
        graph.write([Upsert(PERSON, persons(grace=99))], txn=held, actor="ada")
    except ExpectedVersionMismatch as error:
        print(f"   {type(error).__name__}: {error}")

    title(f"6. {WRITERS} processes at once", f"{COMMITS_EACH} commits each to the same two tables, no lock anywhere.")
    before = graph.snapshot()
    before_commits = len(graph.commits(limit=None))
    race(store)
    after = graph.snapshot()
    committed = len(graph.commits(limit=None)) - before_commits
    print(f"   {committed} of {WRITERS * COMMITS_EACH} commits were made, in one line of history:")
    show_states([("before", before), ("after", after)])

    title("7. A writer is killed", "SIGKILL after its rows are on disk, before the put: garbage, never damage.")
    costs.append(("open before the crash", omnigraph.open(store).cost))
    killed_writer(store)
    again = omnigraph.open(store)
    costs.append(("open after the crash", again.cost))
    same = again.snapshot().commit_id == after.commit_id
    print(f"   main is still at {again.snapshot().commit_id}: {'nothing happened' if same else 'SOMETHING HAPPENED'}")

    title("8. The log", f"Newest first, without the {WRITERS * COMMITS_EACH} commits of the race.")
    log = [commit for commit in again.commits(limit=None) if commit.actor not in ("writer-1", "writer-2")]
    rows = [(c.id, c.actor or "-", c.kind, ", ".join(touched(c.touched))) for c in log]
    table(("commit", "actor", "kind", "touched"), rows)

    title("9. What it cost", "Requests to the store; stages are those that had to wait for one another.")
    table(("operation", "requests", "stages", "bytes"), [(name, c.requests, c.stages, c.bytes) for name, c in costs])

    title("Look around", "The graph is yours to keep:")
    command = quote(str(Path(sys.executable).parent / "omnigraph"))
    if not Path(sys.executable).parent.joinpath("omnigraph").exists():
        command = f"{quote(sys.executable)} -m omnigraph"
    at = quote(str(store))
    for words in (
        f"snapshot {at}",
        f"snapshot {at} --branch what-if",
        f"snapshot {at} --at {first}",
        f"commit list {at} --limit 5",
        f"commit show {first} --store {at} --json",
        f"branch create mine --store {at}",
        f"branch list {at}",
    ):
        print(f"   {command} {words}")


def write(
    graph: Graph,
    costs: list[tuple[str, Cost]],
    what: str,
    actor: str,
    actions: Sequence[TableAction],
    branch: str = "main",
    checks: Sequence[Check] = (),
) -> str:
    published = graph.write(actions, checks=checks, branch=branch, actor=actor)
    assert published is not None
    costs.append((what, published.cost))
    print(f"   {actor} committed {published.id}: {', '.join(touched(published.commit.touched))}")
    return published.id


def race(store: Path) -> None:
    children = [spawn(store, f"writer-{number}", "commit") for number in range(1, WRITERS + 1)]
    for child in children:
        if child.wait() != 0:
            sys.exit("error: a writer failed, see above")


def killed_writer(store: Path) -> None:
    child = spawn(store, "writer-0", "hang")
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    print(f"   the writer said: {line}")
    child.send_signal(signal.SIGKILL)
    print(f"   the writer ended with signal {-child.wait()}")


def spawn(store: Path, name: str, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--writer", str(store), name, what]
    return subprocess.Popen(command, stdout=subprocess.PIPE if what == "hang" else None, text=True)


def writer(store: str, name: str, what: str) -> int:
    """A process of its own: it commits, or it stops for ever where the put would come."""
    graph = omnigraph.open(store)
    if what == "hang":  # the last step before anything becomes visible
        graph.repository.manifests.create = hang  # type: ignore[method-assign,assignment]
    for number in range(COMMITS_EACH):
        actions, checks = befriend(f"{name}-{number}", "ada")
        graph.write(actions, checks=checks, actor=name)
    return 0


def hang(*_: object) -> None:
    print("my rows are on the disk, the put comes next", flush=True)
    while True:
        signal.pause()


def touched(changes: object) -> Iterable[str]:
    assert isinstance(changes, dict)
    for key, touch in changes.items():
        counts = (("+", touch.inserted), ("~", touch.updated), ("-", touch.deleted))
        yield f"{key.partition(':')[2]} " + " ".join(f"{sign}{count}" for sign, count in counts if count)


def show_states(states: Sequence[tuple[str, GraphSnapshot]]) -> None:
    """The rows of every type, one state beside the other."""
    headings = ["rows of", *(name for name, _ in states)]
    counts = [{entry.type_name: entry.rows for entry in snapshot.types} for _, snapshot in states]
    table(headings, [(name, *(count[name] for count in counts)) for name in counts[0]])


def title(text: str, explanation: str) -> None:
    print(f"\n{text}\n   {explanation}")


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    numeric = [all(isinstance(row[i], int) for row in rows) for i in range(len(headings))]
    for line in [list(headings), *cells]:
        padded = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, numeric, strict=True))
        print("   " + "  ".join(padded).rstrip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
