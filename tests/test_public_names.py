"""What users need is importable from `omnigraph`, and `import omnigraph` stays light."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import omnigraph
from omnigraph import errors

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path(omnigraph.__file__).parent
HEAVY = ("duckdb", "httpx", "lance", "numpy", "obstore", "pandas", "pyarrow", "pyspark")
FACADE = ("graph/graph.py", "api/interface.py", "graph/history.py", "graph/bulk.py")
NEED_SPARK = {"OmnigraphDataSource", "graph_frames"}
SHOWN = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.py"))]


@pytest.mark.parametrize("name", [name for name in omnigraph.__all__ if not name.startswith("__")])
def test_a_public_name_resolves(name: str) -> None:
    assert name in dir(omnigraph)
    assert getattr(omnigraph, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'omnigraph' has no attribute 'Grpah'$"):
        omnigraph.Grpah  # type: ignore[attr-defined]  # noqa: B018 - the access is what is tested


def test_public_names_are_sorted_and_each_is_there_once() -> None:
    assert omnigraph.__all__ == sorted(set(omnigraph.__all__))


def test_every_error_is_public() -> None:
    classes = {name: value for name in errors.__all__ if isinstance(value := getattr(errors, name), type)}

    assert len(classes) > 40
    assert classes.keys() - set(omnigraph.__all__) == set()
    assert {name: getattr(omnigraph, name) for name in classes} == classes


def annotated_classes(module: Path) -> Iterator[str]:
    """Our own classes in the signatures of a module's public methods."""
    tree = ast.parse(module.read_text())
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("omnigraph")
        for alias in node.names
    }
    defined = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    methods = [node for each in defined for node in each.body if isinstance(node, ast.FunctionDef)]
    for method in methods:
        if method.name.startswith("_"):
            continue
        arguments = [*method.args.args, *method.args.kwonlyargs]
        texts = [ast.unparse(one) for one in (method.returns, *(each.annotation for each in arguments)) if one]
        words = {word for text in texts for word in re.findall(r"\w+", text)}
        for source, name in (imported[word] for word in words & imported.keys()):
            value = getattr(importlib.import_module(source), name)
            if isinstance(value, type) and value.__module__.startswith("omnigraph"):
                yield name


@pytest.mark.parametrize("module", FACADE)
def test_what_methods_take_and_return_is_public(module: str) -> None:
    named = set(annotated_classes(SOURCE / module))

    assert named
    assert named - set(omnigraph.__all__) == set()


def test_the_signatures_are_really_read() -> None:
    named = {name for module in FACADE for name in annotated_classes(SOURCE / module)}

    assert {"QueryResult", "MergeResult", "LoadResult", "VerifyReport", "PublishedCommit", "Changes", "Cost"} <= named


def test_type_checkers_see_the_names_that_are_imported_on_first_use() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (block,) = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    typed = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert typed == omnigraph._MODULE_OF
    assert typed.keys() - set(omnigraph.__all__) == NEED_SPARK
    assert (SOURCE / "py.typed").exists()


IMPORT = re.compile(r"^\s*(?:from omnigraph[\w.]* import (?:\([^)]*\)|[^\n(]+)|import omnigraph[\w.]*)", re.MULTILINE)


def imports(code: str) -> Iterator[str]:
    """The import statements that name omnigraph."""
    for statement in IMPORT.findall(code):
        yield textwrap.dedent(statement).strip()


def attributes(text: str) -> set[str]:
    """What is called or named as an attribute of the package, in code or in a code span: `omnigraph.open(…)`."""
    return set(re.findall(r"(?<!logger `)(?<![\w./\"'-])omnigraph\.([A-Za-z]\w*)(?=[\s(),\]:.|`])", text))


def code_of(page: Path) -> str:
    text = page.read_text()
    if page.suffix == ".py":
        return text
    return "\n".join(re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def names_omnigraph(page: Path) -> bool:
    return bool(list(imports(code_of(page))) or attributes(page.read_text()))


@pytest.mark.parametrize("page", [page for page in SHOWN if names_omnigraph(page)], ids=lambda page: page.name)
def test_what_docs_and_examples_import_resolves(page: Path) -> None:
    for statement in imports(code_of(page)):
        exec(statement, {})
    for name in attributes(page.read_text()):
        assert hasattr(omnigraph, name), name


def test_imports_in_docs_and_examples_are_found() -> None:
    found = {statement for page in SHOWN for statement in imports(code_of(page))}

    assert "import omnigraph" in found
    assert "from omnigraph import Append" in found
    assert any("NodesExist" in statement for statement in found), "of several lines"
    assert {"init", "open", "connect", "GraphLike"} <= {name for page in SHOWN for name in attributes(page.read_text())}


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after a statement."""
    run = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        env=os.environ | {"PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(run.stdout.split())


def test_importing_the_package_loads_no_heavy_library() -> None:
    loaded = loaded_by("import omnigraph")

    assert loaded & set(HEAVY) == set()
    assert loaded & set(omnigraph._MODULE_OF.values()) <= {"omnigraph.pipeline"}, "these are imported on first use"


def test_a_name_is_imported_on_first_use() -> None:
    assert "omnigraph.read.result" in loaded_by("from omnigraph import QueryResult")


def test_importing_every_name_needs_no_spark() -> None:
    assert "pyspark" not in loaded_by("from omnigraph import *")


def test_the_bases_of_the_facade_share_no_names() -> None:
    """So their order does not matter: nothing of one overrides anything of another."""
    names = [set(vars(base)) - set(vars(object)) - {"__annotations__", "__dict__", "__weakref__", "__module__"}
             for base in (*omnigraph.Graph.__bases__, omnigraph.Graph)]  # fmt: skip
    counts = Counter(name for some in names for name in some if not name.startswith("__"))

    assert [name for name, count in counts.items() if count > 1] == []
