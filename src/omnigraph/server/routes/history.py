"""Branches and tags; commits, what they changed, and the feed of a branch. Long answers come page by page."""

from collections.abc import Callable
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import Path, Query
from starlette.responses import Response

from omnigraph.api.documents import changes_text
from omnigraph.api.models import (
    BranchAnswer,
    BranchesAnswer,
    ChangesAnswer,
    CommitAnswer,
    CommitGraphAnswer,
    CommitsAnswer,
    FeedAnswer,
    MergeAnswer,
    TagAnswer,
    TagGone,
    TagsAnswer,
    WriteAnswer,
)
from omnigraph.diff.changes import GraphChanges
from omnigraph.diff.feed import Cursor
from omnigraph.errors import BadRequest
from omnigraph.graph.graph import Graph
from omnigraph.server.auth.access import Action
from omnigraph.server.http.pipe import Pipe
from omnigraph.server.http.request_context import Context, RequestContext
from omnigraph.server.metrics import REQUEST
from omnigraph.server.models.request_models import BranchRequest, MergeRequest, Reference, RevertRequest, TagRequest
from omnigraph.server.routes.shared import IfCommitHeader, TxnIdHeader, describe_responses, graph_router
from omnigraph.storage import meter

branches_router = graph_router("branches")
router = graph_router("history")

Kinds = Annotated[list[Literal["node", "edge"]] | None, Query(alias="kind")]
Types = Annotated[list[str] | None, Query(alias="type", max_length=1000)]
Operations = Annotated[list[Literal["insert", "update", "delete"]] | None, Query(alias="operation")]
PageToken = Annotated[str | None, Query(max_length=10_000)]
Limit = Annotated[int | None, Query(ge=1, le=10**9)]


@branches_router.get("/branches", responses=describe_responses(BranchesAnswer), name="list_branches")
async def list_branches(context: Context) -> Response:
    """The branches that this token may read, main included."""
    return await context.respond_read(lambda graph: {"branches": graph.branches.list()})


@branches_router.post("/branches", responses=describe_responses(BranchAnswer, writes=True), name="create_branch")
async def create_branch(context: Context, body: BranchRequest, txn_id: TxnIdHeader = None) -> Response:
    """Fork a branch from another, or from an older state of it; nothing is copied."""
    context.require(Action.BRANCH_CREATE, body.name)
    if body.at is not None:
        context.require(Action.READ, body.from_)

    def work(graph: Graph) -> object:
        cost = graph.branches.create(body.name, body.from_, body.at, actor=context.principal.actor, txn_id=txn_id)
        return BranchAnswer.encode(branch=body.name, cost=cost)

    return context.respond(await context.write(work))


@branches_router.post("/branches/merge", responses=describe_responses(MergeAnswer, writes=True), name="merge_branch")
async def merge_branch(
    context: Context, body: MergeRequest, if_commit: IfCommitHeader = None, txn_id: TxnIdHeader = None
) -> Response:
    """Merge a branch into another as one commit; conflicts come all together, and nothing changes."""
    context.require(Action.READ, body.source)
    context.require(Action.READ if body.dry_run else Action.BRANCH_MERGE, body.into)
    if body.delete_branch and not body.dry_run:
        context.require(Action.BRANCH_DELETE, body.source)

    def work(graph: Graph) -> object:
        result = graph.branches.merge(
            body.source,
            body.into,
            body.delete_branch,
            body.dry_run,
            actor=context.principal.actor,
            if_commit=if_commit,
            txn_id=txn_id,
            engine=context.engine(body.engine),
        )
        return MergeAnswer.encode(result)

    return context.respond(await context.write(work))


@branches_router.delete(
    "/branches/{branch:path}", responses=describe_responses(BranchAnswer, writes=True), name="delete_branch"
)
async def delete_branch(
    context: Context, branch: Annotated[str, Path(max_length=200)], txn_id: TxnIdHeader = None
) -> Response:
    """Delete a branch. Its commits stay readable by their ids until a cleanup."""
    context.require(Action.BRANCH_DELETE, branch)
    cost = await context.write(
        lambda graph: graph.branches.delete(branch, actor=context.principal.actor, txn_id=txn_id)
    )
    return context.respond(BranchAnswer.encode(branch=branch, cost=cost))


@branches_router.post("/revert", responses=describe_responses(WriteAnswer, writes=True), name="revert")
async def revert(
    context: Context, body: RevertRequest, if_commit: IfCommitHeader = None, txn_id: TxnIdHeader = None
) -> Response:
    """Undo one commit by a new one."""
    context.require(Action.CHANGE, body.branch)

    def work(graph: Graph) -> object:
        with meter.operation(REQUEST) as operation:
            made = graph.revert(
                body.commit, body.branch, actor=context.principal.actor, if_commit=if_commit, txn_id=txn_id
            )
        return WriteAnswer.encode(commit=made, cost=operation.cost if made is None else made.cost)

    return context.respond(await context.write(work))


@branches_router.get("/tag", responses=describe_responses(TagsAnswer), name="list_tags")
async def list_tags(context: Context) -> Response:
    """All tags by name."""
    context.require(Action.READ, None)
    return await context.respond_read(lambda graph: TagsAnswer.encode(tags=graph.tags.list()))


@branches_router.post("/tag", responses=describe_responses(TagAnswer, writes=True), name="create_tag")
async def create_tag(context: Context, body: TagRequest, txn_id: TxnIdHeader = None) -> Response:
    """Name a commit, which protects it from cleanup; the newest one of a branch if none is given."""
    context.require_tag(body.name)
    context.require(Action.CHANGE, body.branch)

    def work(graph: Graph) -> object:
        made = graph.tags.create(
            body.name, body.commit, branch=body.branch, actor=context.principal.actor, txn_id=txn_id
        )
        return TagAnswer.encode(tag=made)

    return context.respond(await context.write(work))


@branches_router.delete("/tag/{tag:path}", responses=describe_responses(TagGone, writes=True), name="delete_tag")
async def delete_tag(context: Context, tag: Annotated[str, Path(max_length=300)]) -> Response:
    """Remove a tag; its commit is as any other then."""
    context.require_tag(tag)
    await context.write(lambda graph: graph.tags.delete(tag))
    return context.respond({"tag": tag})


@router.get("/commits", responses=describe_responses(CommitsAnswer), name="list_commits")
async def list_commits(
    context: Context,
    branch: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=0, le=10**9)] = 50,
    actor: Annotated[str | None, Query(max_length=200)] = None,
    kind: Annotated[str | None, Query(max_length=100)] = None,
    types: Types = None,
    all_: Annotated[bool, Query(alias="all")] = False,
    at: Reference | None = None,
    drawn: Annotated[bool, Query(alias="graph")] = False,
) -> Response:
    """The commits of a branch, newest first; with `graph` those of all branches, or one, through their merges.

    Where there are more, `Link` has the address of the next page.
    """
    wanted = min(limit, context.service.settings.limits.commits)
    if drawn:
        if actor is not None or kind is not None or types or at is not None:
            raise BadRequest("graph shows every commit: leave out actor, kind, type and at.")
        return await _graph(context, branch, wanted, all_)
    name = "main" if branch is None else branch
    context.require(Action.READ, name)

    headers: dict[str, str] = {}

    def work(graph: Graph) -> object:
        found = graph.commits(name, wanted + 1, actor, kind=kind, types=types or (), maintenance=all_, at=at)
        if len(found) > wanted > 0:
            given = [
                (key, value) for key, value in context.request.query_params.multi_items() if key not in ("at", "limit")
            ]
            following = urlencode([*given, ("limit", wanted), ("at", found[wanted].id)])
            headers["Link"] = f'</graphs/{context.graph_id}/commits?{following}>; rel="next"'
        return CommitsAnswer.encode(commits=found[:wanted])

    return await context.respond_read(work, headers)


async def _graph(context: RequestContext, branch: str | None, limit: int, maintenance: bool) -> Response:
    if branch is not None:
        context.require(Action.READ, branch)

    def work(graph: Graph) -> object:
        names = None if branch is None else [branch]
        return CommitGraphAnswer.encode(commits=graph.commit_graph(names, limit, maintenance=maintenance))

    return await context.respond_read(work)


@router.get("/commits/{commit:path}/changes", responses=describe_responses(ChangesAnswer), name="commit_changes")
async def commit_changes(
    context: Context,
    commit: Annotated[str, Path(max_length=300)],
    kinds: Kinds = None,
    types: Types = None,
    operations: Operations = None,
    limit: Limit = None,
    page: PageToken = None,
    explain: bool = False,
) -> Response:
    """What one commit changed. With a limit, `next_page` is the `page` to ask for next."""

    def found(graph: Graph) -> GraphChanges:
        return graph.commit_changes(commit, kinds, types, operations, limit=_bound_limit(context, limit), page=page)

    return await _stream_changes(context, found, explain)


@router.get("/commits/{commit:path}", responses=describe_responses(CommitAnswer), name="show_commit")
async def show_commit(context: Context, commit: Annotated[str, Path(max_length=300)]) -> Response:
    """One commit, by its id or a tag, on whatever branch it is."""

    def work(graph: Graph) -> object:
        return CommitAnswer.encode(graph.commit_details(commit))

    return await context.respond_read(work)


@router.get("/changes", responses=describe_responses(ChangesAnswer | FeedAnswer), name="changes")
async def changes(
    context: Context,
    a: Reference | None = None,
    b: Reference | None = None,
    branch: Annotated[str | None, Query(max_length=200)] = None,
    kinds: Kinds = None,
    types: Types = None,
    operations: Operations = None,
    limit: Limit = None,
    page: PageToken = None,
    explain: bool = False,
    cursor: PageToken = None,
    start: Reference | None = None,
) -> Response:
    """Between two states `a` and `b`; without them the feed of a branch, behind a `cursor` or from a `start`."""
    if (a is None) != (b is None):
        raise BadRequest("Changes are between two states: give both a and b, or neither for the feed.")
    if a is None or b is None:
        if kinds or types or operations or page is not None or explain:
            raise BadRequest("The feed tells every change: kind, type, operation, page and explain are for a and b.")
        return await _feed(context, branch, cursor, start, limit)
    if cursor is not None or start is not None:
        raise BadRequest("cursor and start are for the feed: leave them out, or leave out a and b.")
    older, newer, name = a, b, "main" if branch is None else branch
    if branch is not None:
        context.require(Action.READ, branch)

    def found(graph: Graph) -> GraphChanges:
        most = _bound_limit(context, limit)
        return graph.changes(older, newer, kinds, types, operations, limit=most, page=page, branch=name)

    return await _stream_changes(context, found, explain)


async def _feed(
    context: RequestContext, branch: str | None, cursor: str | None, start: str | None, limit: int | None
) -> Response:
    context.require(Action.READ, branch or (None if cursor is None else Cursor.decode(cursor).branch) or "main")
    wanted = min(1000 if limit is None else limit, context.service.settings.limits.changes)

    def work(graph: Graph) -> object:
        return FeedAnswer.encode(graph.poll_changes(cursor, start, wanted, branch))

    return await context.respond_read(work, bounded=True)


def _bound_limit(context: RequestContext, limit: int | None) -> int | None:
    """A caller that sets a limit pages; it gets no more at once than the server allows."""
    return None if limit is None else min(limit, context.service.settings.limits.changes)


async def _stream_changes(context: RequestContext, found: Callable[[Graph], GraphChanges], explain: bool) -> Response:
    def produce(graph: Graph, pipe: Pipe) -> None:
        for piece in changes_text(found(graph), explain=explain):
            pipe.write(piece.encode())

    return await context.stream(produce, "application/json")
