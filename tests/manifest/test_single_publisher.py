"""`publish` is unbypassable: no other code creates a manifest. The source is walked, so a new verb can't forget it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.manifest.commit.plan import Delete
from omnigraph.manifest.settings import Settings
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.storage.objects.object_store import ObjectStore

SOURCE = Path(omnigraph.__file__).parent

# Who may do what, by the path of a module inside the package.
MAY_CREATE_MANIFESTS = {"manifest/commit/publish.py"}  # calls Manifests.create
MAY_WRITE_MANIFEST_KEYS = {"manifest/store/manifest_store.py"}  # puts under manifest_key
MAY_COMPOSE_MANIFESTS = {
    "manifest/commit/compose.py",
    "manifest/model/codec.py",
    "manifest/store/manifest_store.py",
}  # the last: a swept grave
MAY_MAKE_COMPOSED = {  # call compose_manifest; the others for publish
    "manifest/commit/publish.py",
    "manifest/commit/commit_queue.py",
    "manifest/commit/rebase.py",
}
MAY_NAME_MANIFESTS = {  # ask which are there
    "manifest/model/paths.py",
    "manifest/store/head_search.py",
    "verify/branches.py",
}
WRITING_METHODS = {"create", "put"}


def violations(source: str, module: str) -> list[str]:
    """What a module does that only publish, or the store beneath it, may do."""
    tree = ast.parse(source)
    found = []
    if module not in MAY_CREATE_MANIFESTS:
        found += [f"{module}: {function or 'top level'} creates a manifest" for function in manifest_creators(tree)]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        method = called.rpartition(".")[2]
        arguments = " ".join(ast.unparse(argument) for argument in (*node.args, *(kw.value for kw in node.keywords)))
        names_manifests = "manifest_key" in arguments or "manifest_folder" in arguments or "__manifest" in arguments
        if method in WRITING_METHODS and names_manifests and module not in MAY_WRITE_MANIFEST_KEYS:
            found.append(f"{module}:{node.lineno} writes under a manifest's key: {called}")
        if method == "Manifest" and module not in MAY_COMPOSE_MANIFESTS:
            found.append(f"{module}:{node.lineno} makes a manifest by hand: {called}")
        if method == "compose_manifest" and module not in MAY_MAKE_COMPOSED:
            found.append(f"{module}:{node.lineno} composes a manifest: {called}")
    if module not in MAY_WRITE_MANIFEST_KEYS | MAY_NAME_MANIFESTS and "manifest_key" in _imported(tree):
        found.append(f"{module} imports manifest_key, which only the store of manifests needs")
    return found


def manifest_creators(tree: ast.AST, inside: str = "") -> Iterator[str]:
    """The qualified name of the function around each use of `Manifests.create`: a call, or a reference to be called."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Attribute) and node.attr == "create" and "manifests" in ast.unparse(node.value).lower():
            yield inside
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from manifest_creators(node, f"{inside}.{node.name}".lstrip("."))
        else:
            yield from manifest_creators(node, inside)


def _imported(tree: ast.Module) -> set[str]:
    return {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_no_module_creates_a_manifest_but_publish() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 20

    found = [line for path in modules for line in violations(path.read_text(), path.relative_to(SOURCE).as_posix())]

    assert found == []


def test_publish_creates_manifests_in_exactly_one_place() -> None:
    source = (SOURCE / "manifest/commit/publish.py").read_text()

    assert list(manifest_creators(ast.parse(source))) == ["ConditionalPut.create"]


def test_every_verb_creates_its_manifests_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callers: list[str] = []
    puts: list[str] = []
    create, put = Manifests.create, ObjectStore.create

    def watched_create(self: Manifests, manifest: Any) -> Any:
        callers.append(sys._getframe(1).f_code.co_qualname)
        return create(self, manifest)

    def watched_put(self: ObjectStore, key: str, data: bytes) -> Any:
        if key.startswith("__manifest/") and key.endswith(".json"):  # not a note on what cleanup left
            puts.append(key)
        return put(self, key, data)

    monkeypatch.setattr(Manifests, "create", watched_create)
    monkeypatch.setattr(ObjectStore, "create", watched_put)
    settings = Settings(maintenance=0)
    graph = omnigraph.init(tmp_path / "graph", "node T { k: String @key  n: I32? }", settings=settings)
    insert = "query q($k: String) { insert T { k: $k } }"
    person = {"type": "T", "data": {"k": "c"}}
    verbs: dict[str, Callable[[], object]] = {
        "mutate": lambda: graph.mutate(insert, params={"k": "a"}),
        "write": lambda: graph.write([Delete("node:T", ("a",))]),
        "create a branch": lambda: graph.branches.create("b"),
        "load": lambda: graph.load([person], branch="b"),
        "merge": lambda: graph.branches.merge("b"),
        "delete a branch": lambda: graph.branches.delete("b"),
        "revert": lambda: graph.revert(graph.commits()[0].id),
        "change the schema": lambda: graph.schema.apply("node T { k: String @key  n: I32?  m: I32? }"),
        "optimize": graph.optimize,
        "clean up": lambda: graph.cleanup(older_than=timedelta(0), dry_run=False),
    }
    assert callers == ["ConditionalPut.create"]  # by `init`
    for verb, run in verbs.items():
        before = len(callers)
        run()
        assert set(callers[before:]) == {"ConditionalPut.create"}, verb
    assert len(puts) == len(callers), "a manifest was put without Manifests.create"


@pytest.mark.parametrize(
    "sample",
    [
        "repository.manifests.create(manifest)",
        "self._manifests.create(replace(head, tables=tables))",
        "Manifests(store).create(manifest)",
        "put = self._manifests.create",
        "submit(repository.manifests.create, manifest)",
        "store.create(manifest_key(point), data)",
        "self._store.put(key=manifest_key(point), data=data)",
        "store.put(f'__manifest/{branch_id}/1.json', data)",
        "model.Manifest(branch='main')",
        "compose_manifest(txn.base, plan, now)",
        "from omnigraph.manifest.model.paths import manifest_key",
    ],
)
def test_the_walk_catches_a_bypass(sample: str) -> None:
    assert violations(f"def verb():\n    {sample}\n", "maintenance/fold.py")


@pytest.mark.parametrize(
    "sample", ["tables.create(table_id, rows)", "store.put(hint_key(branch_id), b'1')", "branches.create(name, fork)"]
)
def test_the_walk_lets_other_writes_pass(sample: str) -> None:
    assert violations(f"def verb():\n    {sample}\n", "maintenance/fold.py") == []
