"""To who is bound to branches, others do not exist: a graph with them and one without give the same answers."""

from __future__ import annotations

import io
import json
import logging
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import omnigraph
from omnigraph.diff.changes import Filters
from omnigraph.diff.cursor import encode_token, fingerprint
from omnigraph.graph.graph import Graph
from omnigraph.server.http.errors import Redaction
from omnigraph.server.run import create_app, log_to
from omnigraph.server.settings import ServerSettings
from server.test_observability import wait_until
from support.server import ADD, PEOPLE, QUICK, SCHEMA, ndjson, people_graph, served, token

DOCUMENT = create_app({}).openapi()
OPERATIONS = [
    (method, path) for path, operations in DOCUMENT["paths"].items() for method in operations if "{graph}" in path
]
EXAMPLES = 40  # of every operation
SENSIBLE: dict[str, list[Any]] = {  # values of what is no name
    "query": [PEOPLE, ADD, "query q() {"],
    "schema": [SCHEMA, SCHEMA.replace("age: I32?", "")],
    "params": [{}, {"slug": "x"}],
    "mode": ["merge"],
    "engine": ["auto", "local"],
    "algorithm": ["degrees"],
    "file": ["export"],
    "delete_branch": [False],
    "directory": [False],  # a tar has times
    "older_than": ["7d"],
    "intent_ttl": ["7d"],
}


@dataclass
class Worlds:
    """A graph with hidden branches, and the same one without; and every name of what is hidden."""

    whole: httpx.Client
    visible: httpx.Client
    hidden: list[str]
    shown: list[str]
    known_ids: frozenset[str]  # branch ids that both have

    def normalise(self, text: str) -> str:
        """Without what is new in every answer: times, and ids that were made since."""
        text = re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+(Z|\+00:00)", "TIME", text)
        text = re.sub(r"\b[a-z2-7]{13}\b", lambda found: found[0] if found[0] in self.known_ids else "ID", text)
        text = re.sub(r"requests=\d+, stages=\d+, bytes=\d+", "COST", text)
        return re.sub(r'"(requests|stages|bytes)":\d+', "COST", text)

    def differences(self, method: str, path: str, **options: Any) -> list[str]:
        told = []
        for client in (self.whole, self.visible):
            answer = client.request(method, path, **options)
            headers = sorted(
                f"{name}: {value}" for name, value in answer.headers.items() if name not in ("date", "x-request-id",
                "content-length")
            )  # fmt: skip
            told.append(self.normalise("\n".join([str(answer.status_code), *headers, answer.text])))
        return [] if told[0] == told[1] else told


def hide(graph: Graph) -> list[str]:
    """Add what is hidden: branches, commits, tags, keys; the names of it all."""
    graph.branches.create("secret", txn_id="key of a branch")
    one = graph.mutate(ADD, params={"slug": "spy"}, branch="secret", txn_id="key of a commit")
    two = graph.mutate(ADD, params={"slug": "spy2"}, branch="secret")
    later = graph.mutate(ADD, params={"slug": "later"})
    graph.branches.create("gone")
    dead = graph.mutate(ADD, params={"slug": "dead"}, branch="gone")
    graph.branches.delete("gone", txn_id="key of a deletion")
    assert one is not None
    assert two is not None
    assert later is not None
    assert dead is not None
    graph.tags.create("hidden", one.id, txn_id="key of a tag")
    graph.tags.create("agent/planted", two.id)
    graph.tags.create("both", two.id)
    graph.branches.create("both")
    branch_id, number = one.id.split(".")
    main_id, main_number = later.id.split(".")
    pages = [
        encode_token("page token", {"a": [branch_id, 1], "b": [branch_id, int(number)], "p": ["node", "Aaa", "", ""],
            "f": fingerprint(f"{branch} {a} {b}", Filters.of(None, None, None).to_json())})
        for branch in ("agent/1", "main") for a, b in (("agent/1", "agent/1"), ("agent/1", "shared"))
    ]  # fmt: skip
    own = graph.snapshot("agent/1")
    cursors = [
        encode_token("cursor", {"b": branch, "i": branch_id, "n": at, "p": None})
        for branch in ("secret", "agent/1", "main")
        for at in ([branch_id, 1], [main_id, int(main_number)])
    ] + [
        encode_token("cursor", {"b": "agent/1", "i": own.commit_id.split(".")[0], "n": at, "p": None})
        for at in ([branch_id, 1], [main_id, int(main_number)], [main_id, int(main_number), 1])
    ]
    return [
        "secret", "gone", "both", "hidden", "tag:hidden", "tag:agent/planted", "tag:both", one.id, two.id, later.id,
        dead.id, f"{one.id}.0", f"{one.id}.1", "key of a branch", "key of a commit", "key of a tag",
        "key of a deletion", "main", *pages, *cursors,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    folder = tmp_path_factory.mktemp("worlds")
    patch = pytest.MonkeyPatch()
    patch.setenv("OMNIGRAPH_MAINTENANCE", "0")
    graph = people_graph(folder / "whole")
    graph.branches.create("agent/1")
    own = graph.mutate(ADD, params={"slug": "own"}, branch="agent/1", txn_id="own key")
    assert own is not None
    graph.branches.create("agent/2", "agent/1")
    graph.tags.create("shared", graph.snapshot().commit_id)
    shared = graph.snapshot().commit_id
    shutil.copytree(folder / "whole", folder / "visible")
    hidden = hide(omnigraph.open(folder / "whole", QUICK))
    (folder / "queries").mkdir()
    (folder / "queries" / "all.gq").write_text(f"{PEOPLE}\n{ADD}\n")
    tokens = folder / "tokens.json"
    text, wide = token(tokens, "agent", "admin@people:agent/*"), token(tokens, "root", "admin")
    options = ServerSettings(tokens=tokens, queries=folder / "queries", grace_s=2.0, spark=False)
    shown = ["agent/1", "agent/2", "shared", own.id, shared, "own key", "people"]
    known = frozenset({own.id.split(".")[0], shared.split(".")[0]})
    with (
        served({"people": folder / "whole"}, options) as one,
        served({"people": folder / "visible"}, options) as other,
        one.client(text) as whole,
        other.client(text) as visible,
        one.client(wide) as everything,
    ):
        job = everything.post("/graphs/people/verify", json={}, headers={"Prefer": "wait=20"})
        assert job.status_code == 200, job.text
        jobs = [one["id"] for one in everything.get("/graphs/people/jobs").json()["jobs"]]
        yield Worlds(whole, visible, hidden + jobs, shown, known)
    patch.undo()


def values(worlds: Worlds, name: str, schema: Any) -> st.SearchStrategy[Any]:
    """What a parameter or a field may have: every name of what is hidden, where it may be a name."""
    schema = schema.get("anyOf", [schema])[0]
    if name in SENSIBLE:
        return st.sampled_from(SENSIBLE[name])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    match schema.get("type"):
        case "boolean":
            return st.booleans()
        case "integer" | "number":
            return st.integers(1, 5)
        case "array":
            return st.just([])
        case "string":
            likely = ["agent/1"] * 3 if name in ("branch", "into", "source") else worlds.shown
            return st.sampled_from(worlds.hidden) | st.sampled_from(likely)
        case _:
            return st.none()


def members(worlds: Worlds, described: dict[str, tuple[Any, bool]]) -> st.SearchStrategy[dict[str, Any]]:
    required = {name: values(worlds, name, schema) for name, (schema, needed) in described.items() if needed}
    optional = {name: values(worlds, name, schema) for name, (schema, needed) in described.items() if not needed}
    return st.fixed_dictionaries(required, optional=optional)


def parameters(worlds: Worlds, operation: dict[str, Any], place: str) -> st.SearchStrategy[dict[str, Any]]:
    listed = [one for one in operation.get("parameters", []) if one["in"] == place]
    names = {one["name"]: (one["schema"], one["required"]) for one in listed}
    for name in ("graph", "Request-Timeout", "Prefer"):
        names.pop(name, None)
    return members(worlds, names)


def bodies(worlds: Worlds, operation: dict[str, Any]) -> st.SearchStrategy[Any]:
    described = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if described is None:
        return st.none()
    model = DOCUMENT["components"]["schemas"][described["schema"]["$ref"].rsplit("/", 1)[-1]]
    needed = set(model.get("required", ()))
    return members(worlds, {name: (schema, name in needed) for name, schema in model["properties"].items()})


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_what_is_hidden_is_as_what_does_not_exist(worlds: Worlds, method: str, path: str) -> None:
    operation = DOCUMENT["paths"][path][method]

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        parameters(worlds, operation, "path"),
        parameters(worlds, operation, "query"),
        parameters(worlds, operation, "header"),
        bodies(worlds, operation),
    )
    def ask(places: Any, query: Any, headers: Any, body: Any) -> None:
        line = ndjson([{"type": "Person", "data": {"slug": "loaded"}}])
        sent: dict[str, Any] = {"content": line} if path.endswith("/load") else {"json": body} if body else {}
        if method == "post" and not sent:
            sent = {"json": {}}
        if method == "delete" and places.get("branch") == "agent/1":
            return  # the others need it
        if path.endswith("/embed") and body is not None:
            body["dry_run"] = True
        found = worlds.differences(
            method, path.format(graph="people", **places), params=query, headers=headers | {"Prefer": "wait=20"}, **sent
        )
        assert not found, "\n--- whole\n{}\n--- visible\n{}".format(*found) + f"\n{places} {query} {headers} {body}"

    ask()


@pytest.mark.parametrize("reference", ["hidden", "tag:hidden", "{id}", "{id}.7", "secret", "nothing", "tag:nothing"])
def test_a_hidden_state_is_not_found_by_any_route(worlds: Worlds, reference: str) -> None:
    at = reference.format(id=next(name for name in worlds.hidden if re.fullmatch(r"[a-z2-7]{13}\.\d+", name)))
    base, on = "/graphs/people", {"branch": "agent/1", "at": at}
    answers = [
        worlds.whole.get(f"{base}/commits/{at}"),
        worlds.whole.get(f"{base}/commits/{at}/changes"),
        worlds.whole.get(f"{base}/changes", params={"a": at, "b": "agent/1"}),
        worlds.whole.get(f"{base}/changes", params={"branch": "agent/1", "start": at}),
        worlds.whole.post(f"{base}/tag", json={"name": "agent/t", "commit": at, "branch": "agent/1"}),
        worlds.whole.post(f"{base}/revert", json={"commit": at, "branch": "agent/1"}),
        worlds.whole.post(f"{base}/branches", json={"name": "agent/3", "from": at}),
    ]

    assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(404, "not_found")}
    read = worlds.whole.get(f"{base}/snapshot", params=on)
    assert read.status_code == (400 if at.isalpha() else 404), "what is no tag is no time either"
    assert at.removeprefix("tag:") in read.text


def test_of_main_it_is_said_that_it_may_not_be_read(worlds: Worlds) -> None:
    """Everybody knows that it exists."""
    for answer in (
        worlds.whole.get("/graphs/people/snapshot"),
        worlds.whole.get("/graphs/people/changes?a=main&b=agent/1"),
        worlds.whole.post("/graphs/people/branches", json={"name": "agent/3"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_taken_tag_does_not_tell_which_commit_it_names(worlds: Worlds) -> None:
    body = {"name": "agent/planted", "branch": "agent/1"}
    answer = worlds.whole.post("/graphs/people/tag", json=body)

    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert not [name for name in worlds.hidden if name in answer.text]


def test_what_is_hidden_takes_as_many_requests_to_the_store_as_what_does_not_exist(worlds: Worlds) -> None:
    """Otherwise the time of an answer tells them apart, on a store where a request takes long."""
    stream = io.StringIO()
    handler = log_to(stream, Redaction())
    secret = next(name for name in worlds.hidden if re.fullmatch(r"[a-z2-7]{13}\.\d+", name))
    main_id = worlds.shown[4].split(".")[0]
    pairs = [
        ("hidden", "absent"),
        ("tag:hidden", "tag:absent"),
        ("agent/planted", "agent/absent"),
        (secret, "a" * 13 + ".2"),
        (f"{main_id}.3", f"{main_id}.999"),
    ]
    asked = (
        "/commits/{}",
        "/snapshot?branch=agent/1&at={}",
        "/changes?a={}&b=agent/1",
        "/changes?branch=agent/1&start={}",
    )
    try:
        for _ in range(2):  # what was read once may be in a cache
            for pair in pairs:
                for path in asked:
                    for reference in pair:
                        answer = worlds.whole.get(f"/graphs/people{path.format(reference)}")
                        assert answer.status_code in (400, 404), (path, reference)
        wait_until(lambda: len(stream.getvalue().splitlines()) >= 2 * 2 * len(pairs) * len(asked))
    finally:
        for name in ("omnigraph", "uvicorn.error"):
            logging.getLogger(name).removeHandler(handler)

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    requests = [line["cost"]["requests"] for line in lines if line["message"] == "request"]
    assert len(requests) == 2 * 2 * len(pairs) * len(asked)
    second = requests[len(requests) // 2 :]
    assert second[::2] == second[1::2]
