"""Make the graph that `test_older_formats.py` opens: everything that a release can leave on a store, in one graph.

    python tests/format/make_graph.py tests/format/data/format-1

writes `format-1.tar.xz`, the graph, and `format-1.json`, what every branch and commit of it must contain. It was run
with the last release that writes format 1 and is kept to show what is in the archive. A later format needs another
archive beside this one, made by the last release that writes it; an archive is never replaced.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import omnigraph
from omnigraph.errors import OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.manifest.intent.intent import StoredIntent
from omnigraph.manifest.settings import Settings
from omnigraph.pipeline.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.cleanup import clean

FIRST_SCHEMA = """
node Person {
    slug:  String @key
    name:  String? @index
    email: String? @unique
    age:   I32?
    @range(age, 0..150)
}
node Company { name: String @key }
node Doc { title: String @key  body: String? @index  meaning: Vector(3)? @index }
edge Knows: Person -> Person { since: Date?  @unique(src, dst) }
edge WorksAt: Person -> Company @card(0..1)
edge About: Doc -> Person
"""
SECOND_SCHEMA = """
node Person {
    slug:  String @key
    label: String? @index @rename_from("name")
    email: String? @unique
    age:   I64?
    team:  String @default("core")
    note:  String?
    @range(age, 0..150)
}
node Firm @rename_from("Company") { name: String @key }
node Doc { title: String @key  body: String? @index  meaning: Vector(3)? @index }
node Place { name: String @key }
edge Knows: Person -> Person { since: Date?  @unique(src, dst) }
edge WorksAt: Person -> Firm @card(0..1)
edge About: Doc -> Person
"""
QUERIES = {
    "foxes": 'query q() { match { $d: Doc  search($d.body, "fox") } return { $d.title } order { $d.title } }',
    "friends": (
        "query q() { match { $a: Person  $a knows $b } return { $a.slug as a, $b.slug as b } order { a, b } limit 50 }"
    ),
    "colleagues": (
        "query q() { match { $a: Person  $a worksAt $f } return { $f.name as firm, count($a) as people } "
        "order { firm } }"
    ),
}
INLINE = Settings(maintenance=0)
STAGED = Settings(maintenance=0, inline_rows=0)
THREADS = 6
GROUP_MIN = 3  # commits in one manifest, so that there is a first, a last and one between
ROUNDS_MAX = 200
PEOPLE = 14

Rows = dict[str, list[dict[str, Any]]]


def rows_of(graph: Graph, branch: str = "main", at: str | None = None) -> Rows:
    """Every row of a state by type, in the order of ids: what an export says."""
    written = io.BytesIO()
    graph.export(written, branch, at, engine="local")
    found: Rows = {}
    for line in written.getvalue().decode().splitlines():
        entity = json.loads(line)
        ends = {end: entity[end] for end in ("from", "to") if end in entity}
        found.setdefault(entity.get("type") or entity["edge"], []).append({**ends, **entity["data"]})
    return {name: sorted(found[name], key=lambda row: str(row["id"])) for name in sorted(found)}


class StopAt(Progress):
    """Ends a bulk load when it reaches a stage, as a process that is interrupted there."""

    def __init__(self, stage: str) -> None:
        super().__init__()
        self._stage = stage

    def stage(self, name: str, tasks: int | None = None) -> None:
        super().stage(name, tasks)
        if name == self._stage:
            raise KeyboardInterrupt


class Maker:
    """Builds the graph, and remembers what each state held at the moment when it was written."""

    def __init__(self, root: Path, inputs: Path) -> None:
        self.root, self.inputs = root, inputs
        self.graph = omnigraph.init(root, FIRST_SCHEMA, actor="ada", settings=INLINE)
        self.staging = omnigraph.open(root, settings=STAGED)
        self.seen: dict[str, Rows] = {}
        self.note()

    def note(self, branch: str = "main") -> str:
        """Remember the head of a branch; returns its commit id."""
        commit_id = self.graph.snapshot(branch).commit_id
        self.seen[commit_id] = rows_of(self.graph, branch)
        return commit_id

    def mutate(self, statements: str, branch: str = "main", *, staged: bool = False, **options: Any) -> str:
        graph = self.staging if staged else self.graph
        assert graph.mutate(f"query q() {{ {statements} }}", branch=branch, **options) is not None
        return self.note(branch)

    def load(self, name: str, lines: list[dict[str, Any]], branch: str = "main", **options: Any) -> None:
        path = self.inputs / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.staging.load(str(path), branch=branch, engine="local", **options)
        self.note(branch)

    def group(self, name: str) -> list[str]:
        """The ids of at least `GROUP_MIN` commits that share one manifest: threads write at once, until some meet."""
        for turn in range(ROUNDS_MAX):
            slugs = [f"{name}-{turn}-{number}" for number in range(THREADS)]
            barrier = threading.Barrier(THREADS)
            at_once([self._writer(barrier, slug) for slug in slugs])
            shared: dict[str, list[str]] = {}
            for commit in self.graph.commits(limit=THREADS):
                manifest, _, _ = commit.id.rpartition(".") if commit.id.count(".") == 2 else (commit.id, "", "")
                shared.setdefault(manifest, []).append(commit.id)
            self.note()
            found = max(shared.values(), key=len)
            if len(found) >= GROUP_MIN:
                return sorted(found, key=lambda commit_id: int(commit_id.rpartition(".")[2]))
        raise RuntimeError(f"No {GROUP_MIN} of {THREADS} writers met in {ROUNDS_MAX} rounds.")

    def _writer(self, barrier: threading.Barrier, slug: str) -> Callable[[], None]:
        text = (
            f'query q() {{ insert Person {{ slug: "{slug}", age: 7 }} insert Knows {{ from: "{slug}", to: "p00" }} }}'
        )

        def write() -> None:
            barrier.wait()
            self.graph.mutate(text, actor=slug)

        return write

    def interrupted_job(self, job_id: str, slugs: list[str]) -> None:
        """A bulk load that staged everything and never published it."""
        lines = [{"type": "Person", "data": {"slug": slug, "age": 50}} for slug in slugs]
        try:
            self.load(job_id, lines, job_id=job_id, actor="ada", progress=StopAt("publishing"))
        except KeyboardInterrupt:
            return
        raise RuntimeError(f"The job {job_id} was not interrupted.")


def at_once(writes: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=write) for write in writes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def person(number: int) -> dict[str, Any]:
    data = {
        "slug": f"p{number:02}",
        "name": f"Person {number}",
        "email": f"p{number:02}@example.org",
        "age": 20 + number,
    }
    return {"type": "Person", "data": data}


def doc(number: int) -> dict[str, Any]:
    body = ["the red fox", "a blue whale", "a fox and a whale", "nothing of the kind"][number % 4]
    meaning = [number / 8, 1 - number / 8, 0.5]
    return {"type": "Doc", "data": {"title": f"d{number}", "body": body, "meaning": meaning}}


def first_rows() -> list[dict[str, Any]]:
    people = [person(number) for number in range(PEOPLE)]
    firms = [{"type": "Company", "data": {"name": name}} for name in ("acme", "globex")]
    knows = [
        {"edge": "Knows", "from": f"p{n:02}", "to": f"p{n + 1:02}", "data": {"since": "2019-03-01"}} for n in range(12)
    ]
    works = [{"edge": "WorksAt", "from": f"p{n:02}", "to": ("acme", "globex")[n % 2]} for n in range(8)]
    about = [{"edge": "About", "from": f"d{n}", "to": f"p{n:02}"} for n in range(8)]
    return [*people, *firms, *[doc(number) for number in range(8)], *knows, *works, *about]


def make_old_history(maker: Maker) -> dict[str, Any]:
    """Commits of every kind, a tag that outlives the cleanup, then the cleanup: stubs and a fence on each branch."""
    graph = maker.graph
    maker.load("first", first_rows(), actor="ada")
    graph.optimize(actor="ada")
    maker.note()
    maker.mutate('update Person set { age: 99 } where slug = "p01"', actor="bob")
    maker.mutate('delete Person where slug = "p13"')
    maker.group("early")
    tagged = maker.mutate('insert Person { slug: "tagged", email: "tagged@example.org" }', txn_id="tagged-key")
    graph.tags.create("v1", tagged, actor="ada")
    graph.branches.create("merged", actor="bob")
    maker.mutate('insert Person { slug: "on-merged" }', "merged")
    maker.mutate('insert Doc { title: "staged-on-merged", body: "a fox" }', "merged", staged=True)
    maker.mutate('insert Person { slug: "beside-merged" }')
    graph.branches.merge("merged", actor="ada")
    maker.note()
    graph.branches.create("forward")
    maker.mutate('insert Person { slug: "on-forward" }', "forward")
    assert graph.branches.merge("forward", delete_branch=True).outcome == "fast_forward"
    maker.note()
    assert clean(graph, keep=2).manifests > 0
    maker.note()
    return {"tags": {"v1": tagged}}


def make_branches(maker: Maker) -> dict[str, Any]:
    """What is retained: forks from a head and from inside a group, deleted and recreated names, a schema change."""
    graph = maker.graph
    maker.mutate('insert Person { slug: "in-tail", email: "in-tail@example.org" }', txn_id="in-tail-key")
    graph.branches.create("open")
    maker.mutate('insert Person { slug: "on-open" } insert Knows { from: "on-open", to: "p00" }', "open")
    maker.mutate('update Person set { age: 3 } where slug = "p02"', "open", staged=True)
    group = maker.group("late")
    graph.tags.create("in-group", group[1])
    graph.branches.create("middle", from_=group[0])
    maker.mutate('insert Person { slug: "on-middle" }', "middle")
    maker.mutate(f'delete Person where slug = "{graph.commit(group[1]).actor}"')
    graph.branches.create("reused")
    maker.mutate('insert Person { slug: "first-life" }', "reused")
    graph.branches.delete("reused")
    graph.branches.create("reused")
    maker.mutate('insert Person { slug: "second-life" }', "reused")
    graph.branches.create("deleted")
    kept = maker.mutate('insert Person { slug: "on-deleted" }', "deleted")
    graph.tags.create("of-deleted", kept)
    graph.branches.delete("deleted")
    assert graph.schema.apply(SECOND_SCHEMA, actor="ada").commit is not None
    maker.note()
    maker.mutate('insert Place { name: "here" } insert Person { slug: "after", note: "new" }')
    slip = maker.mutate('insert Person { slug: "slip" }')
    assert graph.revert(slip) is not None
    maker.note()
    graph.branches.create("new-schema")
    maker.mutate('update Person set { team: "edge" } where slug = "p03"', "new-schema")
    return {"group": group, "tags": {"in-group": group[1], "of-deleted": kept}}


def make_jobs(maker: Maker) -> dict[str, str]:
    """Three bulk jobs without a commit: one that a fence honours, one that is only staged, one that is closed."""
    graph = maker.graph
    maker.interrupted_job("honoured", ["job-honoured-1", "job-honoured-2"])
    assert clean(graph, keep=100).jobs == ("load-honoured",)
    maker.mutate('insert Person { slug: "above-the-fence" }', staged=True)
    maker.interrupted_job("staged", ["job-staged-1", "job-staged-2"])
    maker.interrupted_job("closed", ["job-closed-1"])
    with unable_to_remove(graph):
        try:
            graph.recover(discard=["load-closed"])
        except InterruptedError:
            pass
    maker.mutate('insert Person { slug: "last" } insert WorksAt { from: "last", to: "acme" }')
    return {"honoured": "load-honoured", "staged": "load-staged", "closed": "load-closed"}


@contextmanager
def unable_to_remove(graph: Graph) -> Iterator[None]:
    """A process that is killed between closing an intent and removing it."""
    intents = graph.repository.intents
    remove = intents.remove

    def interrupted(seen: StoredIntent) -> bool:
        raise InterruptedError

    intents.remove = interrupted  # type: ignore[method-assign]
    try:
        yield
    finally:
        intents.remove = remove  # type: ignore[method-assign]


def remove_traces(root: Path, inputs: Path) -> None:
    """Replace what the archive would say about this machine: its name, its processes and its directories."""
    for path in (root / "__recovery").rglob("complete.json"):
        path.write_text(path.read_text().replace(str(inputs), "/data"))
    for path in (root / "__recovery").glob("*.json"):
        intent = json.loads(path.read_text())
        intent["owner"] |= {"host": "builder", "machine": "", "pid": 1, "started": 0}
        path.write_text(json.dumps(intent))


def copied(root: Path, act: Callable[[Graph], object]) -> Rows:
    """What main holds after something is done to a copy of the graph."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "graph"
        shutil.copytree(root, copy)
        graph = omnigraph.open(copy, settings=INLINE)
        act(graph)
        return rows_of(graph)


def merged(root: Path, branch: str) -> Rows:
    return copied(root, lambda graph: graph.branches.merge(branch))


def describe(maker: Maker) -> dict[str, Any]:
    """What a later release must find, as a fresh process of this one reads it."""
    graph = omnigraph.open(maker.root, settings=INLINE)
    branches, states, expired, log = {}, dict[str, Rows](), set[str](), {}
    for branch in sorted(graph.branches.list()):
        branches[branch] = graph.snapshot(branch).commit_id
        commits = graph.commits(branch, limit=None)
        log[branch] = [
            [commit.id, commit.kind, commit.parent, commit.merged_parent, commit.actor, commit.txn_id]
            for commit in commits
        ]
        for commit in commits:
            if commit.id not in states and commit.id not in expired:
                try:
                    states[commit.id] = rows_of(graph, branch, commit.id)
                except OmnigraphError:
                    expired.add(commit.id)
    for tag in graph.tags.list():
        states.setdefault(tag.commit_id, rows_of(graph, at=tag.commit_id))
        expired.discard(tag.commit_id)
    for commit_id, rows in states.items():
        assert maker.seen.get(commit_id, rows) == rows, f"{commit_id} does not read as it was written"
    assert states.keys() & maker.seen.keys(), "nothing was compared"
    assert expired, "the cleanup expired nothing"
    return {"branches": branches, "log": log, "states": states, "expired": sorted(expired)}


def describe_reads(graph: Graph) -> dict[str, Any]:
    """Time travel by time, queries that use indexes, and a feed that is followed from a cursor."""
    times = [commit.authored_at for commit in graph.commits(limit=8)]
    page = graph.poll_changes(start="in-group", limit=2)
    rest = graph.poll_changes(page.cursor, limit=1000)
    return {
        "times": [[time.isoformat(), graph.snapshot(at=time).commit_id] for time in times],
        "queries": {name: [QUERIES[name], graph.query(QUERIES[name]).rows] for name in QUERIES},
        "feed": {
            "cursor": page.cursor,
            "changes": [[c.commit.id, c.change.operation, c.change.type_name, c.change.id] for c in rest.changes],
        },
    }


def make(root: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as inputs:
        maker = Maker(root, Path(inputs))
        tags = make_old_history(maker)["tags"]
        made = make_branches(maker)
        jobs = make_jobs(maker)
        remove_traces(root, Path(inputs))
    graph = omnigraph.open(root, settings=INLINE)
    assert graph.verify(full=True).ok
    return {
        **describe(maker),
        **describe_reads(graph),
        "tags": {**tags, **made["tags"]},
        "group": made["group"],
        "jobs": jobs,
        "merges": {branch: merged(root, branch) for branch in ("open", "middle", "reused", "new-schema")},
        "completed": copied(root, lambda g: g.recover(complete=[jobs["staged"]])),
        "completed_honoured": copied(root, lambda g: g.recover(complete=[jobs["honoured"]])),
    }


def neutral(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "graph"
        expected = make(root)
        with tarfile.open(target.with_suffix(".tar.xz"), "w:xz") as archive:
            archive.add(root, "graph", filter=neutral)
    target.with_suffix(".json").write_text(lines_of(expected))


def lines_of(expected: dict[str, Any]) -> str:
    """JSON with a line for each entry of the outermost objects: small, and a difference can still be read."""
    parts = []
    for name, value in expected.items():
        if isinstance(value, dict):
            entries = [f"  {json.dumps(key)}: {json.dumps(value[key], default=str)}" for key in value]
            parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(entries) + "\n }")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value, default=str)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
