"""Each package's docstring is a map of it: a line for every module and sub-package, and for nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import omnigraph

SOURCE = Path(omnigraph.__file__).parent
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))
ENTRY = re.compile(r"^ *(\w+(?:\.py|/)) {2,}(\S.*)$", re.MULTILINE)  # `name.py  what it holds`, `name/  what it holds`


def entries(docstring: str) -> list[str]:
    return [name for name, _ in ENTRY.findall(docstring)]


def contents(package: Path) -> set[str]:
    """Modules and sub-packages, as a map names them."""
    modules = {path.name for path in package.glob("*.py") if not path.name.startswith("__")}
    return modules | {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}


def name(package: Path) -> str:
    return package.relative_to(SOURCE.parent).as_posix()


def test_every_folder_of_modules_is_a_package() -> None:
    assert len(PACKAGES) > 40
    assert {path.parent for path in SOURCE.rglob("*.py")} == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_the_docstring_of_a_package_is_a_map_of_it(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    named = entries(docstring)

    assert sorted(contents(package) - set(named)) == [], "missing from the map"
    assert sorted(set(named) - contents(package)) == [], "named by the map, and not there"
    assert len(named) == len(set(named)), "named twice"


@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_a_package_says_in_its_first_line_what_it_is_for(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""

    assert len(docstring.partition("\n")[0]) > 15
    assert docstring.partition("\n")[0].endswith((".", "?"))


def test_entries_are_found_in_a_docstring() -> None:
    docstring = """A package.

    It has modules such as
    sort.py and folders like
    this/ one.

    one.py       the first
      two_3.py   the second, indented
    inner/       a sub-package
    """

    assert entries(docstring) == ["one.py", "two_3.py", "inner/"]
