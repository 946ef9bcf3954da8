"""`publish` is unbypassable: no other code creates a manifest. The source is walked, so a new verb can't forget it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import omnigraph

SOURCE = Path(omnigraph.__file__).parent

# Who may do what, by the path of a module inside the package.
MAY_CREATE_MANIFESTS = {"manifest/publish.py"}  # calls Manifests.create
MAY_WRITE_MANIFEST_KEYS = {"manifest/store.py"}  # puts under manifest_key
MAY_COMPOSE_MANIFESTS = {"manifest/compose.py", "manifest/codec.py", "manifest/store.py"}  # the last: a swept grave
MAY_MAKE_COMPOSED = {"manifest/publish.py", "manifest/forming.py"}  # calls compose; the latter for publish
MAY_NAME_MANIFESTS = {"manifest/keys.py", "maintain/verifying/branches.py"}  # the latter asks which are there
WRITING_METHODS = {"create", "put"}


def violations(source: str, module: str) -> list[str]:
    """What a module does that only publish, or the store beneath it, may do."""
    found = []
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        method, receiver = called.rpartition(".")[2], called.rpartition(".")[0].lower()
        arguments = " ".join(ast.unparse(argument) for argument in (*node.args, *(kw.value for kw in node.keywords)))
        names_manifests = "manifest_key" in arguments or "manifest_folder" in arguments or "__manifest" in arguments
        if method == "create" and "manifests" in receiver and module not in MAY_CREATE_MANIFESTS:
            found.append(f"{module}:{node.lineno} creates a manifest: {called}")
        if method in WRITING_METHODS and names_manifests and module not in MAY_WRITE_MANIFEST_KEYS:
            found.append(f"{module}:{node.lineno} writes under a manifest's key: {called}")
        if method == "Manifest" and module not in MAY_COMPOSE_MANIFESTS:
            found.append(f"{module}:{node.lineno} makes a manifest by hand: {called}")
        if method == "compose" and module not in MAY_MAKE_COMPOSED:
            found.append(f"{module}:{node.lineno} composes a manifest: {called}")
    if module not in MAY_WRITE_MANIFEST_KEYS | MAY_NAME_MANIFESTS and "manifest_key" in _imported(tree):
        found.append(f"{module} imports manifest_key, which only the store of manifests needs")
    return found


def _imported(tree: ast.Module) -> set[str]:
    return {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_no_module_creates_a_manifest_but_publish() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 20

    found = [line for path in modules for line in violations(path.read_text(), path.relative_to(SOURCE).as_posix())]

    assert found == []


def test_publish_creates_manifests_in_exactly_one_place() -> None:
    source = (SOURCE / "manifest/publish.py").read_text()

    assert len(violations(source, "somewhere/else.py")) == 1 + source.count("compose(")
    assert source.count("_manifests.create(") == 1


@pytest.mark.parametrize(
    "sample",
    [
        "repository.manifests.create(manifest)",
        "self._manifests.create(replace(head, tables=tables))",
        "Manifests(store).create(manifest)",
        "store.create(manifest_key(point), data)",
        "self._store.put(key=manifest_key(point), data=data)",
        "store.put(f'__manifest/{branch_id}/1.json', data)",
        "model.Manifest(branch='main')",
        "compose(txn.base, plan, now)",
        "from omnigraph.manifest.keys import manifest_key",
    ],
)
def test_the_walk_catches_a_bypass(sample: str) -> None:
    assert violations(f"def verb():\n    {sample}\n", "maintain/fold.py")


@pytest.mark.parametrize(
    "sample", ["tables.create(table_id, rows)", "store.put(hint_key(branch_id), b'1')", "branches.create(name, fork)"]
)
def test_the_walk_lets_other_writes_pass(sample: str) -> None:
    assert violations(f"def verb():\n    {sample}\n", "maintain/fold.py") == []
