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
from omnigraph.server.http.request_context import TheCall
from omnigraph.server.metrics import REQUEST
from omnigraph.server.models.request_models import BranchRequest, MergeRequest, RevertRequest, TagRequest
from omnigraph.server.routes.shared import IfCommit, TxnId, described, graph_router
from omnigraph.storage import meter

router = graph_router("branches")


@router.get("/branches", responses=described(BranchesAnswer), name="list_branches")
async def list_branches(call: TheCall) -> Response:
    """The branches that this token may read, main included."""
    names = await call.read(lambda graph: access.readable_branches(call.principal, call.graph_id, graph))
    return call.answer({"branches": names})


@router.post("/branches", responses=described(BranchAnswer, writes=True), name="create_branch")
async def create_branch(call: TheCall, body: BranchRequest, txn_id: TxnId = None) -> Response:
    """Fork a branch from another, or from an older state of it; nothing is copied."""
    call.require(Action.BRANCH_CREATE, body.name)

    def work(graph: Graph) -> object:
        if body.at is None:
            call.require_named(graph, body.from_)
        else:
            call.require(Action.READ, body.from_)
            call.require_state(graph, body.from_, body.at)
        cost = graph.branches.create(body.name, body.from_, body.at, actor=call.principal.actor, txn_id=txn_id)
        return BranchAnswer.encode(branch=body.name, cost=cost)

    return call.answer(await call.write(work))


@router.post("/branches/merge", responses=described(MergeAnswer, writes=True), name="merge_branch")
async def merge_branch(call: TheCall, body: MergeRequest, if_commit: IfCommit = None, txn_id: TxnId = None) -> Response:
    """Merge a branch into another as one commit; conflicts come all together, and nothing changes."""
    call.require(Action.READ, body.source)
    call.require(Action.READ if body.dry_run else Action.BRANCH_MERGE, body.into)
    if body.delete_branch and not body.dry_run:
        call.require(Action.BRANCH_DELETE, body.source)

    def work(graph: Graph) -> object:
        result = graph.branches.merge(
            body.source,
            body.into,
            body.delete_branch,
            body.dry_run,
            actor=call.principal.actor,
            if_commit=if_commit,
            txn_id=txn_id,
            engine=call.engine(body.engine),
        )
        return MergeAnswer.encode(result)

    return call.answer(await call.write(work))


@router.delete("/branches/{branch:path}", responses=described(BranchAnswer, writes=True), name="delete_branch")
async def delete_branch(call: TheCall, branch: Annotated[str, Path(max_length=200)], txn_id: TxnId = None) -> Response:
    """Delete a branch. Its commits stay readable by their ids until a cleanup."""
    call.require(Action.BRANCH_DELETE, branch)
    cost = await call.write(lambda graph: graph.branches.delete(branch, actor=call.principal.actor, txn_id=txn_id))
    return call.answer(BranchAnswer.encode(branch=branch, cost=cost))


@router.post("/revert", responses=described(WriteAnswer, writes=True), name="revert")
async def revert(call: TheCall, body: RevertRequest, if_commit: IfCommit = None, txn_id: TxnId = None) -> Response:
    """Undo one commit by a new one."""
    call.require(Action.CHANGE, body.branch)

    def work(graph: Graph) -> object:
        call.require_commit(graph, body.commit)
        with meter.operation(REQUEST) as operation:
            made = graph.revert(
                body.commit, body.branch, actor=call.principal.actor, if_commit=if_commit, txn_id=txn_id
            )
        return WriteAnswer.encode(commit=made, cost=operation.cost if made is None else made.cost)

    return call.answer(await call.write(work))


@router.get("/tag", responses=described(TagsAnswer), name="list_tags")
async def list_tags(call: TheCall) -> Response:
    """All tags by name."""
    call.require(Action.READ, None)
    tags = await call.read(lambda graph: graph.tags.list())
    return call.answer(TagsAnswer.encode(tags=tags))


@router.post("/tag", responses=described(TagAnswer, writes=True), name="create_tag")
async def create_tag(call: TheCall, body: TagRequest, txn_id: TxnId = None) -> Response:
    """Name a commit, which protects it from cleanup; the newest one of a branch if none is given."""
    call.require(Action.CHANGE, body.branch)

    def work(graph: Graph) -> object:
        if body.commit is not None:
            call.require_commit(graph, body.commit)
        made = graph.tags.create(body.name, body.commit, branch=body.branch, actor=call.principal.actor, txn_id=txn_id)
        return TagAnswer.encode(tag=made)

    return call.answer(await call.write(work))


@router.delete("/tag/{tag:path}", responses=described(TagGone, writes=True), name="delete_tag")
async def delete_tag(call: TheCall, tag: Annotated[str, Path(max_length=300)]) -> Response:
    """Remove a tag; its commit is as any other then."""
    call.require(Action.CHANGE, None)
    await call.write(lambda graph: graph.tags.delete(tag))
    return call.answer({"tag": tag})
