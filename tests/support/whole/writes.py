"""Writes, one by one and many at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from omnigraph.errors import BadRequest, ConstraintViolation
from omnigraph.gc.cleanup import cleanup
from omnigraph.gc.retention import Retention
from omnigraph.maintenance.background import fold_due
from support.whole import model as m
from support.whole.base import PEOPLE, WORDS, Base, require
from support.whole.model import Model, Prop, Refused, Type
from support.whole.texts import literal, printed, query, replayed


class Writes(Base):
    def _value(self, prop: Prop) -> Any:
        if not prop.required and self.random.random() < 0.2:
            return None
        if prop.annotation == "@unique":
            return self.random.randrange(12)
        if prop.type == "Date":
            return f"2026-01-0{self.random.randrange(1, 5)}"
        if prop.type == "[String]":
            return self.random.choices(["a", "b", "c"], k=self.random.randrange(3))
        return self.random.choice(WORDS) if prop.type == "String" else self.random.randrange(4)

    def _values(self, props: tuple[Prop, ...], share: float = 0.6) -> dict[str, Any]:
        return {p.name: self._value(p) for p in props if p.required or self.random.random() < share}

    def _end(self, model: Model, name: str) -> str:
        there = sorted(id_ for id_ in model.table(name) if not id_.startswith(m.FRESH))
        return self.random.choice(there) if there and self.random.random() < 0.95 else "nobody"

    def _insert(self, model: Model) -> tuple[str, Model]:
        one = self.random.choice(model.types)
        if one.ends is not None:
            values = self._values(one.props)
            ends = {end: self._end(model, at) for end, at in zip(("from", "to"), one.ends, strict=True)}
            return f"insert {one.name} {{ {printed(one, {**ends, **values})} }}", m.insert(
                model, one.name, {**ends, **values}
            )
        values = self._values(one.free)
        if one.key is not None:
            values = {one.key: self.random.choice(PEOPLE), **values}
        return f"insert {one.name} {{ {printed(one, values)} }}", m.insert(model, one.name, values)

    def _where(self, model: Model, one: Type) -> tuple[str, Any]:
        """A column and a value that some row may have."""
        if one.ends is not None and self.random.random() < 0.6:
            end = self.random.choice(["from", "to"])
            return end, self._end(model, one.ends[0 if end == "from" else 1])
        if not one.props:
            return "from", self._end(model, one.ends[0] if one.ends else "")
        prop = self.random.choice([prop for prop in one.props if prop.type[0] != "["])
        if prop.name == one.key:
            return prop.name, self.random.choice(PEOPLE)
        return prop.name, self._value(replace(prop, required=True))

    def _update(self, model: Model) -> tuple[str, Model]:
        one = self.random.choice([one for one in model.types if one.free])
        column, value = self._where(model, one)
        prop = self.random.choice(one.free)
        values = {prop.name: self._value(prop)}
        text = f"update {one.name} set {{ {printed(one, values)} }} where {column} = {literal(value)}"
        return text, m.update(model, one.name, column, value, values)

    def _delete(self, model: Model) -> tuple[str, Model]:
        one = self.random.choice(model.types)
        column, value = self._where(model, one)
        text = f"delete {one.name} where {column} = {literal(value)}"
        return text, m.delete(model, one.name, column, value)

    def _mutation(self, model: Model) -> tuple[str, Model | None]:
        """Its text, and what it makes of a state; None if it must be refused."""
        texts: list[str] = []
        verbs = (
            [self._delete] if self.random.random() < 0.25 else [self._insert, self._insert, self._insert, self._update]
        )
        for _ in range(self.random.choice([1, 1, 1, 2, 3, 7])):
            text, model = self.random.choice(verbs)(model)
            texts.append(text)
        return "\n".join(texts), None if m.violations(model) else model

    def do_mutate(self) -> None:
        before = self.model(self.branch)
        text, after = self._mutation(before)
        self.log.append(text)
        try:
            commit = self.chosen.mutate(query(text), branch=self.branch)
        except ConstraintViolation as error:
            require(after is None, error)
            self._unchanged(self.branch)
            return
        assert after is not None, "a violated constraint went unseen"
        if commit is None:
            assert after.plain() == before.plain(), "a mutation made no commit"
            self._unchanged(self.branch)
        else:
            self._committed(self.branch, commit.id, after)

    def do_load(self) -> None:
        before = self.model(self.branch)
        mode = self.random.choice(["append", "merge", "merge", "overwrite"])
        entities: list[tuple[str, str | None, dict[str, Any]]] = []
        lines: list[dict[str, Any]] = []
        for _ in range(self.random.choice([1, 2, 5, 12])):
            one = self.random.choice(before.types)
            values = self._values(one.free)
            id_: str | None = None
            if one.key is not None:
                values = {one.key: f"{self.random.choice('pq')}{self.random.randrange(9)}", **values}
            elif self.random.random() < 0.5:
                id_ = f"{one.name[0]}{self.random.randrange(5)}"
            data = {**values} if id_ is None else {"id": id_, **values}
            if one.ends is not None:
                ends = {end: self._end(before, at) for end, at in zip(("from", "to"), one.ends, strict=True)}
                values = {**values, **ends}
                lines.append({"edge": one.name, **ends, "data": data})
            else:
                lines.append({"type": one.name, "data": data})
            entities.append((one.name, id_, values))
        after: Model | None
        try:
            after = m.checked(m.load(before, mode, entities))
        except Refused:
            after = None
        self.log.append(f"load {mode} {json.dumps(lines)}")
        try:
            commit = self.chosen.load(lines, mode=mode, branch=self.branch, engine="local").commit  # type: ignore[arg-type]
        except (ConstraintViolation, BadRequest) as error:
            require(after is None, error)
            self._unchanged(self.branch)
            return
        assert after is not None, "a violated constraint went unseen"
        if commit is None:
            assert after.plain() == before.plain(), "a load made no commit"
        else:
            self._committed(self.branch, commit.id, after)

    def do_together(self) -> None:
        """Several threads write at once: some order explains everything that they were told."""
        self._together(())

    def do_beside(self) -> None:
        """The same, while others keep the branch well."""
        mine, yours = self.handles
        branch = self.branch
        span = Retention(timedelta(0), 10_000)
        jobs: list[Callable[[], object]] = [
            lambda: mine.optimize(branch),
            lambda: yours.optimize(branch),
            lambda: fold_due(mine.repository, branch),
            lambda: fold_due(yours.repository, branch),
            lambda: cleanup(mine.repository, span, dry_run=False, floor=timedelta(0)),
            lambda: cleanup(yours.repository, span, dry_run=False, floor=timedelta(0)),
        ]
        self.passed |= self.dead  # nothing is kept of a branch that is gone
        self.cleaned = True
        self._together(self.random.sample(jobs, 2))

    def _together(self, jobs: Sequence[Callable[[], object]]) -> None:
        before, branch = self.model(self.branch), self.branch
        one_of = [self._insert, self._insert, self._update, self._delete]
        texts = [self.random.choice(one_of)(before)[0] for _ in range(self.random.choice([3, 6]))]
        self.log += texts
        writes = [
            partial(self.handles[(place // 3) % 2].mutate, query(text), branch=branch)
            for place, text in enumerate(texts)
        ]
        answers = at_once([*writes, *jobs])
        for answer in answers:
            allowed = not isinstance(answer, BaseException) or isinstance(answer, ConstraintViolation)
            assert allowed, repr(answer)
        landed = {answer.id: text for text, answer in zip(texts, answers, strict=False) if hasattr(answer, "id")}
        states = self._explained(branch, landed)
        for text, answer in zip(texts, answers, strict=False):
            ends = [replayed(text, state) for state in states]
            if answer is None:
                assert any(end.plain() == state.plain() for end, state in zip(ends, states, strict=True)), text
            elif isinstance(answer, BaseException):
                require(any(m.violations(end) for end in ends), answer)

    def _explained(self, branch: str, landed: Mapping[str, str]) -> list[Model]:
        """Every state that there was, one after the other: each commit did to the one before it what it says."""
        listed = [commit.id for commit in self.other.commits(branch, limit=len(landed) + 1)]
        new = listed[: listed.index(self.heads[branch])] if self.heads[branch] in listed else listed
        assert sorted(new) == sorted(landed)
        states = [self.model(branch)]
        for id_ in reversed(new):
            after = replayed(landed[id_], states[-1])
            assert not m.violations(after), f"{id_} violates {m.violations(after)}"
            self._committed(branch, id_, after)
            states.append(self.model(branch))
        return states


def at_once(calls: Sequence[Callable[[], object]]) -> list[Any]:
    """What each answered, or its error."""
    answers: list[Any] = [None] * len(calls)

    def ask(place: int) -> None:
        try:
            answers[place] = calls[place]()
        except BaseException as error:
            answers[place] = error

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
