"""Authorization: the one check that every route makes.

An action is what `surface.md` names for policies. A role stands for the actions up to its own; a grant gives a role on
graphs and branches by pattern. A token that is bound to branches may see the states that these branches
consist of, whatever name leads to them: a commit id, a tag, a cursor.
"""

import ipaddress
from contextlib import suppress
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from omnigraph.errors import BranchNotFound, Damaged, UnsupportedFormat
from omnigraph.manifest.model.manifest import MAIN, NOTHING, BranchId, Point, Position
from omnigraph.server.auth.tokens import ANY, Grant, Principal
from omnigraph.server.http.errors import NotFromHere, forbidden

if TYPE_CHECKING:
    from fastapi import Request

    from omnigraph.graph.graph import Graph
    from omnigraph.manifest.model.manifest import Manifest
    from omnigraph.manifest.repository import Repository


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

# What a route needs on some branch of its graph, whatever its body says; all others need `read`.
LEAST_ACTIONS = {
    "mutate": Action.CHANGE,
    "load": Action.CHANGE,
    "revert": Action.CHANGE,
    "create_tag": Action.CHANGE,
    "delete_tag": Action.CHANGE,
    "create_branch": Action.BRANCH_CREATE,
    "delete_branch": Action.BRANCH_DELETE,
    "apply_schema": Action.SCHEMA_APPLY,
    "optimize": Action.MAINTAIN,
    "cleanup": Action.MAINTAIN,
    "verify": Action.MAINTAIN,
    "recover": Action.MAINTAIN,
}

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


def require_somewhere(principal: Principal, action: Action, graph: str) -> None:
    """Refuse whoever may not do this on any branch of the graph, before it is known on which."""
    if not any(action in ROLE_ACTIONS[grant.role] and matches(grant.graph, graph) for grant in principal.grants):
        raise forbidden(f"{_DESCRIPTIONS[action]} on the graph {graph[:100]!r}")


def has_access(principal: Principal, graph: str) -> bool:
    """Whether the graph is anything to somebody at all."""
    return any(matches(grant.graph, graph) for grant in principal.grants)


def require(principal: Principal, action: Action, graph: str, branch: str | None) -> None:
    if not allows(principal, action, graph, branch):
        where = f"the graph {graph!r}" if branch is None else f"branch {branch!r} of the graph {graph!r}"
        raise forbidden(f"{_DESCRIPTIONS[action]} on {where}")


def require_tag(principal: Principal, graph: str, tag: str) -> None:
    """Refuse to create or delete a tag whose name is of no pattern in which somebody may write: its name is as a
    branch's, whatever commit it names."""
    if not allows(principal, Action.CHANGE, graph, tag):
        raise forbidden(f"writing the tag {tag!r} of the graph {graph!r}")


def sees_everything(principal: Principal, graph: str) -> bool:
    return allows(principal, Action.READ, graph, None)


def visible_graph(principal: Principal, graph_id: str, graph: "Graph") -> "Graph":
    """The graph as somebody may know it: to who is bound to branches, other branches don't exist.

    Everything that a route does to a graph goes through this. The names and ids of a request are looked up in what it
    returns, so what is hidden and what does not exist get the same answer, and a route can't forget to ask.
    """
    if sees_everything(principal, graph_id):
        return graph
    from omnigraph.graph.graph import limit_graph

    return limit_graph(graph, GrantedBranches(principal, graph_id, graph.repository))


class GrantedBranches:
    """What somebody who is bound to branches may know of a graph.

    Those are the branches with names that the grants fit, and every state of which they consist, whatever name leads
    to it: the commits made on them, also before such a branch was deleted, and the ancestors of their heads. Other
    branches and commits are unknown, and a tag of an unknown commit too, whatever it is called.
    """

    def __init__(self, principal: Principal, graph_id: str, repository: "Repository") -> None:
        self._principal = principal
        self._graph_id = graph_id
        self._repository = repository

    def has_branch(self, name: str) -> bool:
        return allows(self._principal, Action.READ, self._graph_id, name)

    def require_branch(self, name: str) -> None:
        """Of main alone it is said that it may not be read: that it exists is known to everybody."""
        if name == MAIN:
            require(self._principal, Action.READ, self._graph_id, name)
        if not self.has_branch(name):
            raise BranchNotFound(name)

    def has_position(self, branch_id: BranchId, position: Position) -> bool:
        """For an unknown commit this takes as many requests as for a hidden one: time tells nothing either."""
        entry = None
        with suppress(Damaged, UnsupportedFormat):  # for who may see it, the work will say so
            entry = self._repository.manifests.read(Point(branch_id, position.number), cached=False)
        if entry is not None and self.has_branch(entry.branch):
            return True
        return any(position <= head.ancestry.get(branch_id, NOTHING) for head in self._heads)

    @cached_property
    def _heads(self) -> list["Manifest"]:
        return self._repository.branches.heads(self.has_branch)


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
