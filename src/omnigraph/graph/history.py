"""Methods of the façade for history: commits, changes, the feed, tags, revert."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from omnigraph.errors import AlreadyExists, BadRequest, BranchNotFound
from omnigraph.manifest.branch.tags import Tag, check_tag_name
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.history.history import entry_point, find_commit, read_log
from omnigraph.manifest.history.log_graph import LoggedCommit, read_log_graph
from omnigraph.manifest.model.manifest import MAIN, Commit, CommitId, Entry, Manifest, Point, Stub, TxnId
from omnigraph.manifest.model.request_key import request_key
from omnigraph.manifest.repository import Repository
from omnigraph.storage import meter

if TYPE_CHECKING:
    from omnigraph.diff.changes import GraphChanges
    from omnigraph.diff.feed import FeedChange, FeedPage

OWN_ACTORS = "omnigraph:"  # of background maintenance
MAINTENANCE_KINDS = ("fold", "optimize", "cleanup", "recovery")


@dataclass(frozen=True, slots=True)
class CommitDetails:
    """A commit with what its manifest and the one before it record about it."""

    commit: Commit
    branch: str
    manifest_version: int
    expired: bool  # cleanup has left its record only
    schema_changed: bool | None  # None where cleanup has expired one of the two


class TagCommands:
    """`g.tags`: names for commits, which protect them from cleanup."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def create(
        self,
        name: str,
        commit: str | None = None,
        *,
        branch: str = MAIN,
        actor: str | None = None,
        txn_id: TxnId | None = None,
    ) -> Tag:
        """Name a commit, by its id or another tag of it; the newest one of a branch if none is given."""
        self._repository.require_writable("Creating a tag")
        with meter.operation("tag_create"):
            check_tag_name(name)
            txn_id = request_key(txn_id, actor, "tag_create", name, commit, branch)
            try:
                made = self._create(name, commit, branch, actor, txn_id)
                if self._repository.sees(made.commit_id):
                    return made
            except AlreadyExists:
                if self._repository.visibility is None:
                    raise
            # The message names no commit, which may be one that this caller may not see.
            raise AlreadyExists(f"A branch or tag {name!r}", "choose another name, or delete it first")

    def _create(self, name: str, commit: str | None, branch: str, actor: str | None, txn_id: TxnId | None) -> Tag:
        repository = self._repository
        if txn_id is not None and (made := repository.tags.find_created_by(name, txn_id)):
            return made
        self._require_no_branch(name)
        chosen = repository.find_head(branch).logical_head if commit is None else repository.find_commit_id(commit)
        return repository.tags.create(name, chosen, actor, txn_id)

    def _require_no_branch(self, name: str) -> None:
        """A branch created later may still get the name; then `tag:NAME` is the tag."""
        with suppress(BranchNotFound):
            self._repository.branches.find(name)
            raise AlreadyExists(f"A branch {name!r}", "choose a name for the tag that no branch has")

    def list(self) -> list[Tag]:
        with meter.operation("tag_list"):
            return self._repository.tags.all()

    def delete(self, name: str) -> None:
        """Delete a tag; its commit is no longer protected."""
        self._repository.require_writable("Deleting a tag")
        with meter.operation("tag_delete"):
            self._repository.tags.delete(name)


class HistoryCommands:
    """Methods of `Graph` that read or revert history."""

    repository: Repository

    def commits(
        self,
        branch: str = MAIN,
        limit: int | None = 50,
        actor: str | None = None,
        *,
        kind: str | None = None,
        types: Iterable[str] = (),
        maintenance: bool = False,
        at: str | datetime | None = None,
    ) -> list[Commit]:
        """The commits of a branch, newest first, on through its fork point: by an actor, of a kind, touching types.

        Maintenance commits are left out unless `maintenance` is set, or one of their actors or kinds is named.
        """
        wanted = _limit(limit)
        maintenance = maintenance or (actor or "").startswith(OWN_ACTORS) or kind in MAINTENANCE_KINDS
        touched = frozenset(types)
        with meter.operation("commits"):
            repository = self.repository
            head = repository.branches.find(branch).head if at is None else repository.snapshot(branch, at).manifest
            found = (
                commit
                for _, commit in read_log(repository.manifests, head, maintenance=maintenance)
                if (actor is None or commit.actor == actor)
                and (kind is None or commit.kind == kind)
                and touched <= {key.partition(":")[2] for key in commit.touched}
            )
            return list(islice(found, wanted))

    def commit_graph(
        self, branches: Iterable[str] | None = None, limit: int | None = 50, *, maintenance: bool = False
    ) -> list[LoggedCommit]:
        """The commits of some branches or all, through both parents, each once, none before what came from it."""
        wanted = _limit(limit)
        with meter.operation("commit_graph"):
            names = self.repository.branch_names() if branches is None else list(branches)
            names.sort(key=lambda name: name != MAIN)  # of commits of one clock tick, those of main are shown first
            heads = [self.repository.branches.find(name).head for name in names]
            return list(islice(read_log_graph(self.repository.manifests, heads, maintenance=maintenance), wanted))

    def commit(self, commit_id: CommitId) -> Commit:
        """One commit, by its id or a tag, on whatever branch it is."""
        with meter.operation("commit_show"):
            return find_commit(self.repository.manifests, self.repository.find_commit_id(commit_id))[1]

    def commit_details(self, commit_id: CommitId) -> CommitDetails:
        """A commit with its branch and manifest, and whether it changed the schema."""
        with meter.operation("commit_show"):
            entry, commit = find_commit(self.repository.manifests, self.repository.find_commit_id(commit_id))
            changed = self._schema_changed(entry)
        return CommitDetails(commit, entry.branch, entry.manifest_version, isinstance(entry, Stub), changed)

    def changes(
        self,
        a: str,
        b: str,
        kinds: Iterable[str] | None = None,
        types: Iterable[str] | None = None,
        operations: Iterable[str] | None = None,
        *,
        limit: int | None = None,
        page: str | None = None,
        branch: str = MAIN,
    ) -> "GraphChanges":
        """What differs between two states, each a commit, a branch, a tag or a time on `branch`.

        It is read while it is iterated. With a `limit`, `next_page` of the result is the `page` to ask for next.
        """
        from omnigraph.diff.changes import Filters, changes_between

        return changes_between(self.repository, a, b, Filters.of(kinds, types, operations), limit, page, branch)

    def commit_changes(
        self,
        commit_id: CommitId,
        kinds: Iterable[str] | None = None,
        types: Iterable[str] | None = None,
        operations: Iterable[str] | None = None,
        *,
        limit: int | None = None,
        page: str | None = None,
    ) -> "GraphChanges":
        """What one commit changed; nothing, if it is maintenance."""
        from omnigraph.diff.changes import Filters, changes_of_commit

        filters = Filters.of(kinds, types, operations)
        return changes_of_commit(self.repository, self.repository.find_commit_id(commit_id), filters, limit, page)

    def poll_changes(
        self, cursor: str | None = None, start: str | None = None, limit: int = 1000, branch: str | None = None
    ) -> "FeedPage":
        """The next changes of a branch behind a cursor, or from a start: `now`, `beginning`, or a commit or tag."""
        from omnigraph.diff.feed import poll

        return poll(self.repository, cursor, start, limit, branch)

    def follow_changes(
        self, cursor: str | None = None, start: str | None = None, branch: str | None = None
    ) -> "Iterator[FeedChange]":
        """All changes up to the newest commit there is now, one by one, each with the cursor to go on behind it."""
        from omnigraph.diff.feed import follow

        return follow(self.repository, cursor, start, branch)

    def revert(
        self,
        commit_id: CommitId,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        if_commit: CommitId | None = None,
        txn_id: TxnId | None = None,
    ) -> PublishedCommit | None:
        """Undo one commit by a new one; None if nothing of it is left to undo."""
        from omnigraph.merge.merge import revert

        txn_id = request_key(txn_id, actor, "revert", commit_id, branch)
        return revert(self.repository, commit_id, branch=branch, actor=actor, if_commit=if_commit, txn_id=txn_id)

    def _schema_changed(self, entry: Entry) -> bool | None:
        point = entry_point(entry)
        if point.manifest_version == 1:
            return False
        before = self.repository.manifests.read(Point(point.branch_id, point.manifest_version - 1))
        if not isinstance(entry, Manifest) or not isinstance(before, Manifest):
            return None
        return entry.schema != before.schema


def _limit(limit: int | None) -> int | None:
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise BadRequest(f"A limit of {limit!r} is invalid: use a whole number, 0 or more.")
    return None if limit is None else min(limit, sys.maxsize)
