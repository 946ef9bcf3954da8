"""Maintenance, and looking back."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import omnigraph
from omnigraph.errors import CommitNotFound, OmnigraphError
from omnigraph.gc.cleanup import cleanup
from omnigraph.gc.retention import Retention
from omnigraph.graph.graph import Graph
from omnigraph.maintenance.background import fold_due
from support.whole import model as m
from support.whole.base import MAIN, Base, require
from support.whole.texts import different, exported, net


class Upkeep(Base):
    def do_optimize(self) -> None:
        self.chosen.optimize(self.branch)
        found = exported(self.other, self.branch)
        assert found == self.model(self.branch).plain(), different(found, self.model(self.branch).plain())

    def do_fold(self) -> None:
        fold_due(self.chosen.repository, self.branch)
        found = exported(self.chosen, self.branch)
        assert found == self.model(self.branch).plain(), different(found, self.model(self.branch).plain())

    def do_clean(self) -> None:
        keep = self.random.choice([1, 1, 2, 4])
        cleanup(self.chosen.repository, Retention(timedelta(0), keep), dry_run=False, floor=timedelta(0))
        self.cleaned = True
        # The fork point of a branch is kept as a state of that branch, not by the id that it has on another.
        self.passed |= set(self.commits).difference(*(ids[-keep:] for ids in self.own.values()))
        for id_ in list(self.commits):
            self._travel(self.random.choice(self.handles), id_)

    def do_reopen(self) -> None:
        """A new process' view: nothing is cached."""
        fresh = omnigraph.open(self.uri, self.options, settings=self.settings[1])
        self.handles[1].maintenance.close()
        self.handles = (self.handles[0], fresh)
        self.chosen, self.other = self.handles

    def do_verify(self) -> None:
        report = self.chosen.verify(full=True)
        assert report.ok, report.problems

    # History.

    def _travel(self, graph: Graph, id_: str) -> None:
        """What a commit said is what it says, unless cleanup was free to take it."""
        expected = self.commits[id_].model.plain()
        try:
            found = exported(graph, MAIN, id_)
        except CommitNotFound:
            assert id_ in self.expired, f"{id_} is gone"
            return
        assert found == expected, f"{id_}: {different(found, expected)}"

    def do_travel(self) -> None:
        for id_ in self.random.sample(list(self.commits), min(3, len(self.commits))):
            self._travel(self.chosen, id_)

    def do_changes(self) -> None:
        a, b = (self.random.choice(list(self.commits)) for _ in range(2))
        older, newer = self.commits[a].model, self.commits[b].model
        if repr(older.types) != repr(newer.types):
            with suppress(CommitNotFound):
                list(self.chosen.changes(a, b))
            return
        self.log.append(f"changes {a} {b}")
        try:
            found = sorted((c.type_name, c.id, c.operation) for c in self.chosen.changes(a, b))
        except CommitNotFound:
            assert {a, b} & self.expired, f"{a} or {b} is gone"
            return
        assert found == net(older, newer), f"{a} → {b}: {found} {net(older, newer)}"

    def do_feed(self) -> None:
        """The changes of a branch since one of its commits, one after the other, lead to its head."""
        own = self.own[self.branch]
        if not own:
            return
        start = self.random.choice(own)
        base, head = self.commits[start].model, self.model(self.branch)
        if repr(base.types) != repr(head.types):
            return
        state = {name: dict(table) for name, table in base.plain().items()}
        self.log.append(f"feed from {start}")
        try:
            for each in self.chosen.follow_changes(start=start, branch=self.branch):
                change = each.change
                table = state.setdefault(change.type_name, {})
                if change.after is None:
                    del table[change.id]
                else:
                    row = m.without_nulls(change.to_json()["after"])
                    row.pop("id")
                    table[change.id] = {{"src": "from", "dst": "to"}.get(k, k): v for k, v in row.items()}
        except OmnigraphError as error:
            require(start in self.expired or any(o in self.expired for o in own[own.index(start) :]), error)
            return
        types = [repr(self.commits[one].model.types) for one in own[own.index(start) :]]
        if len(set(types)) == 1:
            found = {name: table for name, table in state.items() if table}
            assert found == head.plain(), different(found, head.plain())

    def finish(self) -> None:
        for graph in self.handles:
            graph.maintenance.close()
        fresh = omnigraph.open(self.uri, self.options, settings=self.settings[0])
        for branch in self.heads:
            found = exported(fresh, branch)
            assert found == self.model(branch).plain(), f"{branch}: {different(found, self.model(branch).plain())}"
        for id_ in list(self.commits):
            self._travel(fresh, id_)
        report = fresh.verify(full=True)
        assert report.ok, report.problems
        assert set(fresh.branches.list()) == set(self.heads)
