"""Branches and tags: names for states, and what brings them together."""

from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from omnigraph.api.models import (
    BranchAnswer,
    BranchesAnswer,
    MergeAnswer,
    TagAnswer,
    TagGone,
    TagsAnswer,
    WriteAnswer,
)
from omnigraph.graph.graph import Graph
from omnigraph.server.auth import access
from omnigraph.server.auth.access import Action
from omnigraph.server.http.request_context import Context
from omnigraph.server.metrics import REQUEST
from omnigraph.server.models.request_models import BranchRequest, MergeRequest, RevertRequest, TagRequest
from omnigraph.server.routes.shared import IfCommitHeader, TxnIdHeader, describe_responses, graph_router
from omnigraph.storage import meter

router = graph_router("branches")


@router.get("/branches", responses=describe_responses(BranchesAnswer), name="list_branches")
async def list_branches(context: Context) -> Response:
    """The branches that this token may read, main included."""
    names = await context.read(lambda graph: access.readable_branches(context.principal, context.graph_id, graph))
    return context.respond({"branches": names})


@router.post("/branches", responses=describe_responses(BranchAnswer, writes=True), name="create_branch")
async def create_branch(context: Context, body: BranchRequest, txn_id: TxnIdHeader = None) -> Response:
    """Fork a branch from another, or from an older state of it; nothing is copied."""
    context.require(Action.BRANCH_CREATE, body.name)

    def work(graph: Graph) -> object:
        if body.at is None:
            context.require_named(graph, body.from_)
        else:
            context.require(Action.READ, body.from_)
            context.require_state(graph, body.from_, body.at)
        cost = graph.branches.create(body.name, body.from_, body.at, actor=context.principal.actor, txn_id=txn_id)
        return BranchAnswer.encode(branch=body.name, cost=cost)

    return context.respond(await context.write(work))


@router.post("/branches/merge", responses=describe_responses(MergeAnswer, writes=True), name="merge_branch")
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


@router.delete("/branches/{branch:path}", responses=describe_responses(BranchAnswer, writes=True), name="delete_branch")
async def delete_branch(
    context: Context, branch: Annotated[str, Path(max_length=200)], txn_id: TxnIdHeader = None
) -> Response:
    """Delete a branch. Its commits stay readable by their ids until a cleanup."""
    context.require(Action.BRANCH_DELETE, branch)
    cost = await context.write(
        lambda graph: graph.branches.delete(branch, actor=context.principal.actor, txn_id=txn_id)
    )
    return context.respond(BranchAnswer.encode(branch=branch, cost=cost))


@router.post("/revert", responses=describe_responses(WriteAnswer, writes=True), name="revert")
async def revert(
    context: Context, body: RevertRequest, if_commit: IfCommitHeader = None, txn_id: TxnIdHeader = None
) -> Response:
    """Undo one commit by a new one."""
    context.require(Action.CHANGE, body.branch)

    def work(graph: Graph) -> object:
        context.require_commit(graph, body.commit)
        with meter.operation(REQUEST) as operation:
            made = graph.revert(
                body.commit, body.branch, actor=context.principal.actor, if_commit=if_commit, txn_id=txn_id
            )
        return WriteAnswer.encode(commit=made, cost=operation.cost if made is None else made.cost)

    return context.respond(await context.write(work))


@router.get("/tag", responses=describe_responses(TagsAnswer), name="list_tags")
async def list_tags(context: Context) -> Response:
    """All tags by name."""
    context.require(Action.READ, None)
    tags = await context.read(lambda graph: graph.tags.list())
    return context.respond(TagsAnswer.encode(tags=tags))


@router.post("/tag", responses=describe_responses(TagAnswer, writes=True), name="create_tag")
async def create_tag(context: Context, body: TagRequest, txn_id: TxnIdHeader = None) -> Response:
    """Name a commit, which protects it from cleanup; the newest one of a branch if none is given."""
    context.require(Action.CHANGE, body.branch)

    def work(graph: Graph) -> object:
        if body.commit is not None:
            context.require_commit(graph, body.commit)
        made = graph.tags.create(
            body.name, body.commit, branch=body.branch, actor=context.principal.actor, txn_id=txn_id
        )
        return TagAnswer.encode(tag=made)

    return context.respond(await context.write(work))


@router.delete("/tag/{tag:path}", responses=describe_responses(TagGone, writes=True), name="delete_tag")
async def delete_tag(context: Context, tag: Annotated[str, Path(max_length=300)]) -> Response:
    """Remove a tag; its commit is as any other then."""
    context.require(Action.CHANGE, None)
    await context.write(lambda graph: graph.tags.delete(tag))
    return context.respond({"tag": tag})
