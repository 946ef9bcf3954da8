"""History over HTTP: commits, changes, the feed, tags, revert."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from omnigraph.api.models import CommitEntry, CommitInGraph, TagEntry
from omnigraph.errors import BadRequest
from omnigraph.remote.changes import RemoteChanges, TypedChanges
from omnigraph.remote.session import Session, refuse_actor
from omnigraph.remote.transport import HttpRequest, JsonResponse, quote_segment
from omnigraph.remote.wire.decode import cost_in_header
from omnigraph.remote.wire.values import wire_time

if TYPE_CHECKING:
    from omnigraph.diff.feed import FeedChange, FeedPage
    from omnigraph.graph.history import CommitDetails
    from omnigraph.manifest.branch.tags import Tag
    from omnigraph.manifest.commit.publish import PublishedCommit
    from omnigraph.manifest.history.log_graph import LoggedCommit
    from omnigraph.manifest.model.manifest import Commit, CommitId, TxnId

MAIN = "main"
NO_LIMIT = 10**9  # of a limit
SCHEMA_KINDS = ("schema_apply", "merge", "revert")  # commits that may change the schema


class RemoteTags:
    """`g.tags`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def create(
        self,
        name: str,
        commit: str | None = None,
        *,
        branch: str = MAIN,
        actor: str | None = None,
        txn_id: "TxnId | None" = None,
    ) -> "Tag":
        refuse_actor(actor)
        document = {"name": name, "commit": commit, "branch": branch}
        write = self._session.name_request(branch, txn_id)
        tag: Tag = TagEntry.decode(self._session.write("POST", "/tag", document, write).document["tag"])
        return tag

    def delete(self, name: str) -> None:
        write = self._session.name_request(MAIN, repeatable=False)
        self._session.write("DELETE", f"/tag/{quote_segment(name)}", None, write)

    def list(self) -> "list[Tag]":
        return [TagEntry.decode(entry) for entry in self._session.get("/tag").document["tags"]]


class RemoteHistory:
    """The part of `RemoteGraph` that looks back."""

    _session: Session

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
    ) -> "list[Commit]":
        wanted = _limit(limit)
        params: dict[str, Any] = {
            "branch": branch,
            "limit": wanted,
            "actor": actor,
            "kind": kind,
            "type": list(types) or None,
            "all": maintenance,
            "at": wire_time(at),
        }
        found: list[Commit] = []
        while True:
            answer = self._session.get("/commits", params)
            found += map(CommitEntry.decode, answer.document["commits"])
            following = _next_page(answer)
            if following is None or len(found) >= wanted:
                return found
            params |= {"at": following, "limit": wanted - len(found)}

    def commit_graph(
        self, branches: Iterable[str] | None = None, limit: int | None = 50, *, maintenance: bool = False
    ) -> "list[LoggedCommit]":
        names = None if branches is None else list(branches)
        if names is not None and len(names) != 1:
            raise BadRequest("A server shows the history of one branch or of all: name one, or none.")
        params = {
            "graph": True,
            "branch": None if names is None else names[0],
            "limit": _limit(limit),
            "all": maintenance,
        }
        return [CommitInGraph.decode(entry) for entry in self._session.get("/commits", params).document["commits"]]

    def commit(self, commit_id: "CommitId") -> "Commit":
        return self.commit_details(commit_id).commit

    def commit_details(self, commit_id: "CommitId") -> "CommitDetails":
        return self._session.read_details(commit_id)

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
    ) -> RemoteChanges:
        chosen = _filters(kinds, types, operations, limit, page)
        request = HttpRequest("GET", f"{self._session.base}/changes", {"a": a, "b": b, "branch": branch, **chosen})
        return RemoteChanges(self._session, request, limit, branch, nothing=_selects_nothing(chosen))

    def commit_changes(
        self,
        commit_id: "CommitId",
        kinds: Iterable[str] | None = None,
        types: Iterable[str] | None = None,
        operations: Iterable[str] | None = None,
        *,
        limit: int | None = None,
        page: str | None = None,
    ) -> RemoteChanges:
        chosen = _filters(kinds, types, operations, limit, page)
        path = f"{self._session.base}/commits/{quote_segment(commit_id)}/changes"
        return RemoteChanges(
            self._session, HttpRequest("GET", path, chosen), limit, None, nothing=_selects_nothing(chosen)
        )

    def poll_changes(
        self, cursor: str | None = None, start: str | None = None, limit: int = 1000, branch: str | None = None
    ) -> "FeedPage":
        from omnigraph.diff.changes import check_limit
        from omnigraph.diff.feed import Cursor, FeedPage

        check_limit(limit)
        params = {"cursor": cursor, "start": start, "limit": limit, "branch": branch}
        answer = self._session.get("/changes", params)
        document = answer.document
        changes = tuple(self._typed_changes(document["changes"], Cursor.decode(document["cursor"]).branch))
        cost = cost_in_header(answer.headers.get("omnigraph-cost"))
        return FeedPage(changes, document["cursor"], document["more"], cost)

    def follow_changes(
        self, cursor: str | None = None, start: str | None = None, branch: str | None = None
    ) -> "Iterator[FeedChange]":
        page = self.poll_changes(cursor, start, branch=branch)
        return self._follow(page)

    def _follow(self, page: "FeedPage") -> "Iterator[FeedChange]":
        yield from page
        while page.more:
            page = self.poll_changes(page.cursor)
            yield from page

    def _typed_changes(self, documents: list[dict[str, Any]], branch: str) -> "Iterator[FeedChange]":
        """Changes with the commits that made them, which are asked for together, and by the schemas of those."""
        from omnigraph.diff.feed import FeedChange

        if not documents:
            return
        ids = list(dict.fromkeys(document["commit_id"] for document in documents))
        commits = {commit.id: commit for commit in self.commits(branch, len(ids), at=ids[-1])}
        found = [commits.get(commit_id) or self.commit(commit_id) for commit_id in ids]
        typed = {
            commit.id: (commit, typing) for commit, typing in zip(found, self._typings(found, branch), strict=True)
        }
        for document in documents:
            commit, typing = typed[document["commit_id"]]
            yield FeedChange(typing.change(document), commit, document["cursor"])

    def _typings(self, commits: "list[Commit]", branch: str) -> list[TypedChanges]:
        """The schema by which to read each commit's changes: the next commit's, unless that one may have changed it."""
        found: list[TypedChanges] = []
        holds = commits[-1].id
        for commit, following in zip(reversed(commits), [None, *reversed(commits)], strict=False):
            if following is not None and following.kind in SCHEMA_KINDS:
                holds = commit.id
            found.append(TypedChanges(self._session, holds, commit.parent or commit.id, branch))
        return found[::-1]

    def revert(
        self,
        commit_id: "CommitId",
        branch: str = MAIN,
        *,
        actor: str | None = None,
        if_commit: "CommitId | None" = None,
        txn_id: "TxnId | None" = None,
    ) -> "PublishedCommit | None":
        refuse_actor(actor)
        write = self._session.commit_request(branch, txn_id)
        document = {"commit": commit_id, "branch": branch}
        answer = self._session.write("POST", "/revert", document, write, if_commit=if_commit).document
        return self._session.commit_in(answer, write.txn_id)


def _limit(limit: int | None) -> int:
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise BadRequest(f"A limit of {limit!r} is invalid: use a whole number, 0 or more.")
    return NO_LIMIT if limit is None else min(limit, NO_LIMIT)


def _filters(
    kinds: Iterable[str] | None,
    types: Iterable[str] | None,
    operations: Iterable[str] | None,
    limit: int | None,
    page: str | None,
) -> dict[str, Any]:
    """Which changes are wanted, checked here: a slip must not look like a graph without changes."""
    from omnigraph.diff.changes import Filters, check_limit

    kinds, types, operations = (
        given if given is None or isinstance(given, str) else list(given) for given in (kinds, types, operations)
    )
    Filters.of(kinds, types, operations)
    if limit is not None:
        check_limit(limit)
    return {"kind": kinds, "type": types, "operation": operations, "limit": limit, "page": page, "explain": True}


def _selects_nothing(chosen: dict[str, Any]) -> bool:
    """Whether none of something is wanted, which a query string can't say."""
    return any(chosen[name] == [] for name in ("kind", "type", "operation"))


def _next_page(answer: JsonResponse) -> str | None:
    """The commit with which the next page begins."""
    link = answer.headers.get("link", "")
    if 'rel="next"' not in link:
        return None
    query = urlsplit(link[link.index("<") + 1 : link.index(">")]).query
    return dict(parse_qsl(query)).get("at")
