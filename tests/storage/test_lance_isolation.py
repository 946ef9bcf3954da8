"""Lance is used in one room only, and nothing in it moves a table's head.

A table head that moves is the one thing the design excludes; Lance's ordinary write methods all
move it. So the source is searched for them: few modules may load Lance at all, and in those a
commit is detached, and a dataset is only ever written whole, as a new table.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import omnigraph

SOURCE = Path(omnigraph.__file__ or "").parent

# The adapter: may load Lance, make tables, and commit detached versions.
ROOM = {
    "storage/table/handles.py",  # loads Lance, opens versions
    "storage/table/write/detached_commit.py",  # makes versions
    "storage/table/write/schema_evolution.py",  # makes versions in other columns
    "storage/table/view.py",  # makes private datasets on scratch disk
    "storage/table/index/metadata.py",  # describes indexes to a view
    "storage/table/read/search.py",  # completes the text index of a view
}
# May load Lance to read, plan or build files, but not to commit: give a reason with each entry.
GUESTS: dict[str, str] = {
    "storage/table/maintain/inspect.py": "reads versions closely, through a session of its own",
    "storage/table/write/column_updates.py": "writes columns of fragments in tasks, which detached_commit commits",
    "storage/table/maintain/compaction.py": "rewrites fragments in tasks, which detached_commit commits",
    "storage/table/write/fragments.py": "writes fragments and deletion files in tasks, which detached_commit commits",
    "storage/table/index/segments.py": "builds index segments, which detached_commit commits",
}

COMMITS_MAINLINE = {  # whatever the receiver is: nothing else has methods of these names
    "alter_columns",
    "checkout_latest",
    "cleanup_old_versions",
    "commit_existing_index_segments",
    "compact_files",
    "create_index",
    "create_scalar_index",
    "deep_clone",
    "drop_columns",
    "drop_index",
    "merge_insert",
    "migrate_manifest_paths_v2",
    "optimize_indices",
    "replace_field_metadata",
    "replace_schema_metadata",
    "shallow_clone",
    "truncate_table",
    "update_config",
}
COMMITS_ON_A_DATASET = {  # dicts, paths and our own classes have these too: checked where Lance is loaded
    "add_columns",
    "commit_batch",
    "create_branch",
    "delete",
    "delete_branch",
    "drop",
    "insert",
    "merge",
    "restore",
    "update",
}


def test_only_the_adapter_uses_lance_and_it_never_moves_a_head() -> None:
    problems = [
        f"{module}:{problem}"
        for path in sorted(SOURCE.rglob("*.py"))
        for module in (path.relative_to(SOURCE).as_posix(),)
        for problem in check(module, path.read_text(encoding="utf-8"))
    ]

    assert problems == []


def test_every_module_of_the_room_exists_and_uses_lance() -> None:
    for module in ROOM | GUESTS.keys():
        assert _loads_lance(ast.parse((SOURCE / module).read_text(encoding="utf-8"))), module


OUTSIDE = {
    "loads lance": "import lance",
    "loads a part of it": "def f():\n    from lance.fragment import write_fragments",
    "loads it under another name": "import lance.dataset as d",
    "loads it by name": "import importlib\nimportlib.import_module('lance')",
    "loads it by our own loader": "from omnigraph.storage.table.handles import lance_module",
    "writes a dataset": "def f(lib, rows): lib.write_dataset(rows, 'x', mode='create')",
    "compacts": "def f(tables, at): tables.open(at).optimize.compact_files()",
    "upserts": "def f(ds, rows): ds.merge_insert('id').execute(rows)",
    "builds an index": "def f(ds): ds.create_index('id', 'BTREE')",
    "commits": "def f(Lance, ds, op): Lance.LanceDataset.commit(ds, op, detached=True)",
    "deletes from what it opened": "def f(tables, at): tables.dataset(at).delete('x = 1')",
}
INSIDE = {
    "commits to the mainline": "lance_module().LanceDataset.commit(ds, op)",
    "commits to the mainline, and says so": "lance.LanceDataset.commit(ds, op, detached=False)",
    "commits however it is told": "lance.LanceDataset.commit(ds, op, detached=flag)",
    "appends": "lance.write_dataset(rows, 'x', mode='append')",
    "writes without saying how": "lance.write_dataset(rows, 'x')",
    "writes however it is told": "lance.write_dataset(rows, 'x', mode=mode)",
    "deletes": "dataset.delete('id = 1')",
    "updates": "dataset.update({'a': '1'})",
    "adds columns": "dataset.add_columns({'a': '1'})",
    "restores": "dataset.restore()",
    "cleans up": "dataset.cleanup_old_versions()",
}
HARMLESS = {
    "storage/objects/store.py": "def f(backend, seen, key): backend.delete(key); seen.update({key: 1}); {}.update(a=1)",
    "write/plan.py": "def f(tables, at, columns): return tables.add_columns(at, columns), tables.delete(at, ['a'])",
    "read/scan.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lance import LanceDataset",
    "manifest/commit/publish.py": "def f(store): store.commit('x'); store.merge('y')",
    "storage/table/write/detached_commit.py": "import lance\nfrom omnigraph.storage import x\nx.delete(1)\n"
    "lance.LanceDataset.commit(ds, op, detached=True)\nlance.write_dataset(rows, 'x', mode='create')",
}


@pytest.mark.parametrize("sample", OUTSIDE)
def test_the_search_finds_what_is_not_allowed_outside(sample: str) -> None:
    assert check("write/sample.py", OUTSIDE[sample])


@pytest.mark.parametrize("sample", INSIDE)
def test_the_search_finds_what_is_not_allowed_even_in_the_room(sample: str) -> None:
    assert check("storage/table/write/detached_commit.py", f"import lance\n{INSIDE[sample]}")


@pytest.mark.parametrize("module", HARMLESS)
def test_the_search_lets_harmless_code_pass(module: str) -> None:
    assert check(module, HARMLESS[module]) == []


def check(module: str, source: str) -> list[str]:
    """What a module does that it must not, each with its line."""
    tree = ast.parse(source)
    loads, inside = _loads_lance(tree), module in ROOM
    problems = []
    if loads and not inside and module not in GUESTS:
        problems.append("1 loads lance outside the adapter")
    modules = _imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            problem = _problem(node, node.func, modules, loads, inside)
            if problem:
                problems.append(f"{node.lineno} {problem}")
    return problems


def _problem(call: ast.Call, func: ast.Attribute, modules: set[str], loads: bool, inside: bool) -> str | None:
    name, receiver = func.attr, func.value
    if name in COMMITS_MAINLINE:
        return f"calls {name}, which moves a table's head"
    if name == "write_dataset":
        if not inside:
            return "writes a dataset outside the adapter"
        return None if _keyword(call, "mode") == "create" else "writes a dataset other than as a new table"
    if name == "commit" and (loads or "LanceDataset" in ast.dump(receiver)) and not _is_module(receiver, modules):
        if not inside:
            return "commits outside the adapter"
        return None if _keyword(call, "detached") is True else "commits to a table's mainline"
    if name in COMMITS_ON_A_DATASET:
        opened = isinstance(receiver, ast.Call) and getattr(receiver.func, "attr", "") in ("dataset", "open")
        if opened or (loads and not _is_module(receiver, modules)):
            return f"calls {name} on what may be a dataset, which moves a table's head"
    return None


def _keyword(call: ast.Call, name: str) -> object:
    values = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return values[0].value if values and isinstance(values[0], ast.Constant) else None


def _is_module(receiver: ast.expr, modules: set[str]) -> bool:
    """Whether it is one of our own modules: `staging.delete(...)` is a function, not a dataset's method."""
    return isinstance(receiver, ast.Name) and receiver.id in modules


def _imported_names(tree: ast.AST) -> set[str]:
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("omnigraph")
        for alias in node.names
    }


def _loads_lance(tree: ast.AST) -> bool:
    return any(_is_lance(name) for node in _executed(tree) for name in _loaded_by(node))


def _is_lance(name: str) -> bool:
    return name.split(".")[0] in ("lance", "pylance", "lance_module")


def _loaded_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.module or ""
        yield from (alias.name for alias in node.names if alias.name == "lance_module")
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        if called in ("import_module", "__import__"):
            yield from (str(arg.value) for arg in node.args if isinstance(arg, ast.Constant))
        elif called == "lance_module":
            yield called


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker sees."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from _executed(child)
