"""Branches, tags, merges and reverts."""

from __future__ import annotations

from contextlib import suppress

from omnigraph.errors import BadRequest, CommitNotFound, ConflictError, ConstraintViolation
from support.whole import model as m
from support.whole.base import MAIN, Base, require
from support.whole.model import Model, Refused
from support.whole.texts import exported, parsed


class Branches(Base):
    def do_fork(self) -> None:
        if len(self.heads) > 3:
            return
        self.names += 1
        name = self.random.choice(["left", "right", f"b{self.names}"])
        if name in self.heads:
            return
        way = self.random.randrange(4)
        old = self.random.choice(list(self.commits))
        source = self.heads[self.branch]
        try:
            if way == 0 and self.tags:
                tag = self.random.choice(sorted(self.tags))
                source = self.tags[tag]
                self.chosen.branches.create(name, f"tag:{tag}")
            elif way == 1:
                source = old
                self.chosen.branches.create(name, old)
            elif way == 2 and self.commits[old].branch == self.branch and old in self.own[self.branch]:
                source = old
                self.chosen.branches.create(name, self.branch, at=old)
            else:
                self.chosen.branches.create(name, self.branch)
        except CommitNotFound:
            assert source in self.expired | self.dead, f"{source} is gone"
            return
        self.log.append(f"{name} from {source}")
        self.heads[name] = source
        self.own[name] = []
        self.branch = name

    def do_unfork(self) -> None:
        names = sorted(set(self.heads) - {MAIN})
        if names:
            name = self.random.choice(names)
            self.log.append(name)
            self.chosen.branches.delete(name)
            self.dead |= set(self.own[name])
            del self.heads[name], self.own[name]
            assert name not in self.other.branches.list()
            self.branch = MAIN

    def do_tag(self) -> None:
        self.names += 1
        id_ = self.random.choice([self.heads[self.branch], self.random.choice(list(self.commits))])
        try:
            self.chosen.tags.create(f"t{self.names}", id_)
        except CommitNotFound:
            assert id_ in self.expired | self.dead
            return
        self.log.append(f"t{self.names} is {id_}")
        self.tags[f"t{self.names}"] = id_

    def do_untag(self) -> None:
        if self.tags:
            name = self.random.choice(sorted(self.tags))
            self.chosen.tags.delete(name)
            del self.tags[name]

    def _bases(self, a: str, b: str) -> list[str]:
        common = self.commits[a].ancestors & self.commits[b].ancestors
        return [one for one in common if not any(one != c and one in self.commits[c].ancestors for c in common)]

    def do_merge(self) -> None:
        into = self.branch
        sources = sorted(set(self.heads) - {into})
        if not sources:
            return
        source = self.random.choice(sources)
        ours, theirs = self.heads[into], self.heads[source]
        bases = self._bases(ours, theirs)
        states = [self.commits[one].model for one in (*bases, ours, theirs)]
        exact = len(bases) == 1 and bases[0] not in self.expired and len({repr(s.types) for s in states}) == 1
        after: Model | None = None
        if exact:
            with suppress(Refused):
                after = m.three_way(*states)
        self.log.append(f"merge {source} ({theirs}) into {into} ({ours}), base {bases} {exact=}")
        try:
            result = self.chosen.branches.merge(source, into)
        except ConflictError as error:
            require(after is None, f"{error} {getattr(error, 'conflicts', '')}")
            self._unchanged(into)
            return
        if result.commit is None:
            assert theirs in self.commits[ours].ancestors or (after and after.plain() == states[1].plain()), result
            return
        if not exact:
            after = self._as_found(result.commit.id, into)
        assert after is not None, "a conflict went unseen"
        self._committed(into, result.commit.id, after, (ours, theirs))

    def _as_found(self, id_: str, branch: str) -> Model:
        """Where the model does not know: what is there, by the schema that is there."""
        found = exported(self.chosen, branch, id_)
        types = parsed(self.chosen.schema.show(branch, id_))
        model = Model(types, found)
        assert not m.violations(model), m.violations(model)
        return model

    def do_revert(self) -> None:
        own = [one for one in self.own[self.branch] if self.commits[one].parents]
        if not own:
            return
        id_ = self.random.choice(own)
        parent = self.commits[id_].parents[0]
        head = self.heads[self.branch]
        states = [self.commits[one].model for one in (id_, head, parent)]
        exact = len({repr(s.types) for s in states}) == 1
        after: Model | None = None
        if exact:
            with suppress(Refused):
                after = m.three_way(*states)
        self.log.append(f"revert {id_}")
        try:
            commit = self.chosen.revert(id_, self.branch)
        except (ConflictError, ConstraintViolation, BadRequest) as error:
            require(after is None, error)
            self._unchanged(self.branch)
            return
        except CommitNotFound:
            assert self.cleaned  # the state before it may be expired on its branch, and be read by another id yet
            return
        if commit is None:
            assert not exact or (after and after.plain() == states[1].plain())
            return
        if not exact:
            after = self._as_found(commit.id, self.branch)
        assert after is not None, "a conflict went unseen"
        self._committed(self.branch, commit.id, after)
