"""Authorization: the one check that every route makes.

An action is what `surface.md` names for policies. A role stands for the actions up to its own; a grant gives a role on
graphs and branches by pattern. A token that is bound to branches may see the states that these branches
consist of, whatever name leads to them: a commit id, a tag, a cursor.
"""

import ipaddress
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from omnigraph.errors import BranchNotFound
from omnigraph.manifest.history.history import find_commit
from omnigraph.manifest.model.ancestry import contains_commit
from omnigraph.manifest.model.manifest import NOTHING
from omnigraph.server.auth.tokens import ANY, Grant, Principal
from omnigraph.server.http.errors import NotFromHere, forbidden

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import Request

    from omnigraph.graph.graph import Graph
    from omnigraph.manifest.model.manifest import Entry, Manifest


class Action(StrEnum):
    """What can be done to a graph; those of a policy, and maintenance."""

    READ = "read"
    EXPORT = "export"
    INVOKE_QUERY = "invoke_query"
    CHANGE = "change"
    BRANCH_CREATE = "branch_create"
    BRANCH_DELETE = "branch_delete"
    BRANCH_MERGE = "branch_merge"
    SCHEMA_APPLY = "schema_apply"
    MAINTAIN = "maintain"


_READS = frozenset({Action.READ, Action.EXPORT, Action.INVOKE_QUERY})
_WRITES = _READS | {Action.CHANGE, Action.BRANCH_CREATE, Action.BRANCH_DELETE, Action.BRANCH_MERGE}
ROLE_ACTIONS = {"read": _READS, "write": _WRITES, "admin": frozenset(Action)}

_DESCRIPTIONS = {
    Action.READ: "reading",
    Action.EXPORT: "exporting",
    Action.INVOKE_QUERY: "stored queries",
    Action.CHANGE: "writing",
    Action.BRANCH_CREATE: "creating branches",
    Action.BRANCH_DELETE: "deleting branches",
    Action.BRANCH_MERGE: "merging branches",
    Action.SCHEMA_APPLY: "changing the schema",
    Action.MAINTAIN: "maintenance",
}


def matches(pattern: str, name: str) -> bool:
    """Whether a name is of a pattern, in which `*` is any text and everything else stands for itself."""
    first, *others = pattern.split(ANY)
    if not others:
        return name == first
    *inner, last = others
    if not name.startswith(first) or not name.endswith(last) or len(name) < len(first) + len(last):
        return False
    place, end = len(first), len(name) - len(last)
    for part in inner:  # each as early as it comes: what is left can only be more
        place = name.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return True


def allows(principal: Principal, action: Action, graph: str, branch: str | None) -> bool:
    """Whether somebody may do this on a branch; None stands for the whole graph, whatever its branches."""
    return any(
        action in ROLE_ACTIONS[grant.role]
        and matches(grant.graph, graph)
        and (grant.branch == ANY if branch is None else matches(grant.branch, branch))
        for grant in principal.grants
    )


def has_access(principal: Principal, graph: str) -> bool:
    """Whether the graph is anything to somebody at all."""
    return any(matches(grant.graph, graph) for grant in principal.grants)


def require(principal: Principal, action: Action, graph: str, branch: str | None) -> None:
    if not allows(principal, action, graph, branch):
        where = f"the graph {graph!r}" if branch is None else f"branch {branch!r} of the graph {graph!r}"
        raise forbidden(f"{_DESCRIPTIONS[action]} on {where}")


def sees_everything(principal: Principal, graph: str) -> bool:
    return allows(principal, Action.READ, graph, None)


def require_state(principal: Principal, graph_id: str, graph: "Graph", branch: str, at: str) -> None:
    """For who is bound to branches: what `at` stands for has to be part of one that they may read.

    It is looked up as the work will look it up: a tag may have the name of a branch, and be something else.
    """
    if not sees_everything(principal, graph_id):
        require_entry(principal, graph_id, graph, graph.repository.snapshot(branch, at).manifest)


def require_named(principal: Principal, graph_id: str, graph: "Graph", reference: str, branch: str) -> None:
    """The same for a name that may be a branch too, which then goes before a tag."""
    if not sees_everything(principal, graph_id):
        require_entry(principal, graph_id, graph, graph.repository.find_state(reference, branch))


def require_commit(principal: Principal, graph_id: str, graph: "Graph", reference: str) -> None:
    if not sees_everything(principal, graph_id):
        commit = graph.repository.find_commit_id(reference)
        entry, _ = find_commit(graph.repository.manifests, commit)
        _require_ancestor(principal, graph_id, graph, entry.branch, lambda head: contains_commit(head.ancestry, commit))


def require_entry(principal: Principal, graph_id: str, graph: "Graph", entry: "Entry") -> None:
    """Refuse a place in history that is on no branch that they may read, nor among the ancestors of one."""
    branch_id = entry.branch_id
    place = entry.ancestry[branch_id]
    _require_ancestor(
        principal, graph_id, graph, entry.branch, lambda head: head.ancestry.get(branch_id, NOTHING) >= place
    )


def _require_ancestor(
    principal: Principal, graph_id: str, graph: "Graph", branch: str, contained_in: "Callable[[Manifest], bool]"
) -> None:
    """Refuse what is neither on a branch that they may read nor contained in the head of one."""
    if sees_everything(principal, graph_id) or allows(principal, Action.READ, graph_id, branch):
        return
    for name in readable_branches(principal, graph_id, graph):
        try:
            if contained_in(graph.repository.branches.find(name).head):
                return
        except BranchNotFound:
            continue
    raise forbidden(f"reading that state of the graph {graph_id!r}")


def readable_branches(principal: Principal, graph_id: str, graph: "Graph") -> list[str]:
    return [name for name in graph.branches.list() if allows(principal, Action.READ, graph_id, name)]


def require_no_browser(request: "Request", *, local_only: bool) -> None:
    """Without tokens a web page that somebody visits could write here through their browser.

    It gives itself away by its origin; one that has made its own name point here, by the host that it calls.
    """
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    try:
        if origin is not None and urlsplit(origin).netloc != host:
            raise NotFromHere("of a page from elsewhere")
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise NotFromHere("of a page from elsewhere")
        if local_only and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            raise NotFromHere("to another than a loopback name")
    except ValueError:
        raise NotFromHere("with a host or an origin that is none") from None


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine answers to it; a name counts only if it can't be anything else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def roles_on(grants: tuple[Grant, ...], graph: str) -> list[str]:
    """The roles that somebody has on a graph, for `GET /graphs`."""
    return sorted({grant.role for grant in grants if matches(grant.graph, graph)})
