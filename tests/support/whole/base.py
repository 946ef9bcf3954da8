"""What a driver knows of the graph, and how it compares."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import omnigraph
from omnigraph.graph.graph import Graph
from omnigraph.manifest.settings import Settings
from support.whole import model as m
from support.whole.model import Model, Prop, Type
from support.whole.texts import different, exported, text, unique_of

MAIN = "main"
PEOPLE = [f"p{n}" for n in range(6)]
WORDS = ["red fox", "blue whale", "red whale", "green fox runs", "blue"]
NAMES = ["extra", "more", "third"]  # few, so that a name comes back after it was dropped

START = Model(
    (
        Type(
            "Person",
            (
                Prop("slug", "String", True, "@key"),
                Prop("age", "I32"),
                Prop("bio", "String", False, "@index"),
                Prop("code", "I32", False, "@unique"),
            ),
            key="slug",
            unique=(),
        ),
        Type(
            "Note",
            (
                Prop("text", "String", True, "@index"),
                Prop("rank", "I32"),
                Prop("day", "Date", False, "@index"),
                Prop("tags", "[String]"),
            ),
        ),
        Type("Knows", (Prop("since", "I32"),), ends=("Person", "Person"), unique=(("src", "dst"),)),
        Type("Boss", (), ends=("Person", "Person"), card=1),
        Type("About", (Prop("weight", "I32"),), ends=("Note", "Person")),
    )
)


def require(kept: object, why: object) -> None:
    """An assertion for where an error is looked at."""
    if not kept:
        raise AssertionError(why)


@dataclass(frozen=True)
class Step:
    verb: str
    seed: int


@dataclass(frozen=True)
class Committed:
    """A commit that the model remembers."""

    id: str
    model: Model
    branch: str
    parents: tuple[str, ...]
    ancestors: frozenset[str]


class Base:
    def __init__(self, uri: str, options: Mapping[str, str], settings: tuple[Settings, Settings]) -> None:
        start = replace(START, types=tuple(unique_of(one) for one in START.types))
        first = omnigraph.init(uri, text(start), options, settings=settings[0])
        self.handles = (first, omnigraph.open(uri, options, settings=settings[1]))
        self.uri, self.options, self.settings = uri, options, settings
        self.commits: dict[str, Committed] = {}
        self.heads: dict[str, str] = {}
        self.own: dict[str, list[str]] = {MAIN: []}  # commits that were made on each living branch, oldest first
        self.tags: dict[str, str] = {}
        self.passed: set[str] = set()  # commits that cleanup keeps for nothing but a tag
        self.dead: set[str] = set()  # commits of branches that were deleted
        self.cleaned = False
        self.names = 0
        self.log: list[str] = []
        self._remember(MAIN, first.snapshot().commit_id, start, ())
        self._fill(first, start)

    def _fill(self, graph: Graph, start: Model) -> None:
        """With something to write about, or most of what follows would be refused."""
        people = [("Person", None, {"slug": name, "bio": WORDS[n], "code": n}) for n, name in enumerate(PEOPLE[:4])]
        notes = [("Note", f"N{n}", {"text": WORDS[n], "rank": n}) for n in range(2)]
        lines = [
            {"type": name, "data": {**values, **({"id": id_} if id_ else {})}}
            for name, id_, values in [*people, *notes]
        ]
        commit = graph.load(lines).commit
        assert commit is not None
        self._remember(MAIN, commit.id, m.load(start, "append", [*people, *notes]), (self.heads[MAIN],))

    # What is known.

    def _remember(self, branch: str, id_: str, model: Model, parents: tuple[str, ...]) -> None:
        ancestors = frozenset({id_}).union(*(self.commits[p].ancestors for p in parents))
        self.commits[id_] = Committed(id_, model, branch, parents, ancestors)
        self.heads[branch] = id_
        self.own.setdefault(branch, []).append(id_)

    @property
    def expired(self) -> set[str]:
        return self.passed - set(self.tags.values())

    def model(self, branch: str) -> Model:
        return self.commits[self.heads[branch]].model

    def _committed(self, branch: str, id_: str, expected: Model, parents: tuple[str, ...] | None = None) -> None:
        """A commit was acknowledged: both handles see exactly what it should have made."""
        assert id_ not in self.commits, f"the id {id_} was used before"
        found = exported(self.chosen, branch, id_)
        expected = m.settle_fresh(expected, found)
        assert found == expected.plain(), f"{id_}: {different(found, expected.plain())}"
        self._remember(branch, id_, expected, parents or (self.heads[branch],))

    def _unchanged(self, branch: str) -> None:
        assert self.other.snapshot(branch).commit_id == self.heads[branch]

    # The run.

    def run(self, step: Step) -> None:
        self.random = random.Random(step.seed)
        self.chosen, self.other = self.random.sample(self.handles, 2)
        self.branch = self.random.choice(sorted(self.heads)) if self.random.random() < 0.6 else MAIN
        self.log.append(f"{step.verb} on {self.branch} by {self.handles.index(self.chosen)}")
        getattr(self, f"do_{step.verb}")()
        self._look(self.other)

    def _look(self, graph: Graph) -> None:
        """At the head of the branch, in one of several ways."""
        model, branch = self.model(self.branch), self.branch
        way = self.random.randrange(4)
        snapshot = graph.snapshot(branch)
        assert snapshot.commit_id == self.heads[branch]
        counts = {summary.type_name: summary.rows for summary in snapshot.types}
        assert counts == {one.name: len(model.table(one.name)) for one in model.types}
        if way == 0:
            found = exported(graph, branch)
            assert found == model.plain(), different(found, model.plain())
        elif way == 1:
            self._ask_edges(graph, model)
        elif way == 2:
            self._ask_text(graph, model)
        else:
            for one in model.types:
                kind = "node" if one.ends is None else "edge"
                ids = [*sorted(model.table(one.name))[:3], "nobody"]
                rows = snapshot.lookup(f"{kind}:{one.name}", ids, ["id"]).to_pylist()
                assert sorted(row["id"] for row in rows) == sorted(set(ids) - {"nobody"})

    def _ask_edges(self, graph: Graph, model: Model) -> None:
        for one in model.types:
            if one.ends is not None and model.named(one.ends[0]) and model.named(one.ends[1]):
                verb = one.name[0].lower() + one.name[1:]
                asked = f"query q() {{ match {{ $a: {one.ends[0]} $a {verb} $b }} return {{ $a.id, $b.id as other }} }}"
                found = {tuple(row.values()) for row in graph.query(asked, branch=self.branch).rows}
                assert found == {(row["from"], row["to"]) for row in model.table(one.name).values()}, one.name

    def _ask_text(self, graph: Graph, model: Model) -> None:
        for one in model.types:
            for prop in one.props:
                if prop.type == "String" and prop.annotation == "@index" and one.ends is None:
                    word = self.random.choice(["red", "whale", "fox"])
                    pattern = f'$a: {one.name} search($a.{prop.name}, "{word}")'
                    asked = f"query q() {{ match {{ {pattern} }} return {{ $a.id }} }}"
                    found = sorted(row["a.id"] for row in graph.query(asked, branch=self.branch).rows)
                    wanted = [i for i, row in model.table(one.name).items() if word in row.get(prop.name, "").split()]
                    assert found == sorted(wanted), f"{one.name}.{prop.name} {word}"
