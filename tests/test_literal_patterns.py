"""No module matches a pattern of a user with an engine that backtracks; our own patterns are linear as well."""

import ast
import re
import re._parser as re_parser  # type: ignore[import-not-found]
import time
from collections import deque
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "omnigraph"
MODULES = sorted(SOURCE.rglob("*.py"))
LINEAR = SOURCE / "schema" / "regex.py"  # applies RE2 to patterns of users
APPLIES = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer", "template"}
ARROW = re.compile(r"(match|extract|replace|find|count|split)_\w*_?regex")
LENGTH, SECONDS_MAX = 16_000, 0.02  # of a hostile text, and for it: most take 1 ms, quadratic ones at least 30 ms
SHORTER = {  # expressions whose callers bound the text
    "omnigraph.schema.regex._TOKEN": 1_000,
    "omnigraph.schema.regex._BRACKET_IN_CLASS": 1_000,
    **{f"omnigraph.storage.table.lance_errors.{name}": 4_000 for name in ("_MISSING", "_CORRUPT", "_SOURCE_POSITION")},
}
OTHER_ENGINES = (
    "rlike",
    "regexp_like",
    "regexp_extract",
    "regexp_replace",
    "regexp_count",
    "regexp",
    "fnmatch",
    "from re import",
)


def calls(tree: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            yield owner, node.func.attr, node


def is_literal(node: ast.AST, constants: set[str]) -> bool:
    """A literal, or made of literals and constants of a module."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(name):
            return name in constants
        case ast.BinOp(left, ast.Add(), right):
            return is_literal(left, constants) and is_literal(right, constants)
        case ast.JoinedStr(values):
            return all(is_literal(value, constants) for value in values)
        case ast.FormattedValue(value):
            return is_literal(value, constants)
    return False


def constants_of(tree: ast.Module) -> set[str]:
    """Names that a module binds to literals, and the constants that it imports from others of ours."""
    names: set[str] = set()
    for node in tree.body:
        match node:
            case ast.Assign([ast.Name(name)], value) if is_literal(value, names):
                names.add(name)
            case ast.ImportFrom(module=str(module), names=aliases) if module.startswith("omnigraph"):
                names.update(alias.name for alias in aliases if alias.name.isupper() and alias.asname is None)
    return names


def applied_to_variables(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    constants = constants_of(tree)
    found = []
    for owner, name, call in calls(tree):
        is_re = owner == "re" and name in APPLIES
        if (is_re or (ARROW.fullmatch(name) and path != LINEAR)) and not (
            is_literal(call.args[-1 if ARROW.fullmatch(name) else 0], constants)
        ):
            found.append(f"{path.relative_to(SOURCE)}:{call.lineno} {ast.unparse(call)}")
    return found


def test_no_module_applies_a_pattern_that_is_not_a_literal() -> None:
    assert [found for path in MODULES for found in applied_to_variables(path)] == []


def test_no_module_uses_another_engine() -> None:
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = {
                ast.Name: lambda node: [node.id],
                ast.Attribute: lambda node: [node.attr],
                ast.Import: lambda node: [alias.name for alias in node.names],
                ast.ImportFrom: lambda node: [
                    node.module,
                    *(alias.name for alias in node.names if node.module == "re"),
                ],
                ast.Constant: lambda node: re.findall(r"\w+", node.value) if isinstance(node.value, str) else [],
            }.get(type(node), lambda node: [])(node)
            found += [f"{path.relative_to(SOURCE)}: {name}" for name in names if name in (*OTHER_ENGINES, "re.compile")]
            if isinstance(node, ast.ImportFrom) and node.module == "re":
                found.append(f"{path.relative_to(SOURCE)}: from re import")
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import re\ndef f(p, t):\n    return re.fullmatch(p, t)",
        "import re\ndef f(p):\n    return re.compile(f'a{p}')",
        "import pyarrow.compute as pc\ndef f(t, p):\n    return pc.match_substring_regex(t, p)",
    ],
)
def test_a_pattern_from_a_variable_would_be_found(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "module.py"
    path.write_text(code)
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)

    assert len(applied_to_variables(path)) == 1


def compiled() -> list[tuple[str, str, Any]]:
    """The expressions that modules compile when they are imported, and the methods by which they are used."""
    found = []
    for path in MODULES:
        text = path.read_text()
        if "re.compile(" in text:
            module = ".".join(("omnigraph", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
            for name, value in vars(import_module(module)).items():
                if isinstance(value, re.Pattern):
                    methods = set(re.findall(rf"\b{name}\.(match|fullmatch|search|sub|finditer|findall)\b", text))
                    found += [(f"{module}.{name}", method, value) for method in sorted(methods)]
    return found


COMPILED = compiled()


def sample(parts: Any, branch: int) -> str:
    """A short text that matches: the pieces of attacks are cut from it."""
    text = ""
    for what, of in parts:
        match str(what):
            case "LITERAL":
                text += chr(of)
            case "NOT_LITERAL":
                text += "a" if of != ord("a") else "b"
            case "ANY":
                text += "a"
            case "IN":
                text += member(of)
            case "BRANCH":
                text += sample(of[1][branch % len(of[1])], branch)
            case "SUBPATTERN":
                text += sample(of[-1], branch)
            case "ATOMIC_GROUP":
                text += sample(of, branch)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                text += sample(of[2], branch) * min(max(of[0], 1), 4)
    return text


def member(choices: Any) -> str:
    known = {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a", "CATEGORY_NOT_SPACE": "a"}
    if str(choices[0][0]) == "NEGATE":
        excluded = re.compile("[" + "".join(re.escape(chr(of)) for what, of in choices if str(what) == "LITERAL") + "]")
        return next(char for char in "a 1,." if not excluded.match(char))
    what, of = choices[0]
    return chr(of) if str(what) == "LITERAL" else chr(of[0]) if str(what) == "RANGE" else known[str(of)]


def attacks(pattern: Any, length: int) -> list[str]:
    """Long texts that repeat a part of what matches, after a part that matches, before one that does not."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
    parsed = re_parser.parse(source, pattern.flags & re.VERBOSE)
    found = {""}
    for text in {sample(parsed, branch)[:60] for branch in range(12)}:
        pieces = {text[start : start + size] for start in range(len(text)) for size in range(1, 9)}
        for piece in {*pieces, *'a1Z ._-",/\\(\n', '""', "aA", "a1", "1.", " a"}:
            for before in {"", text[: text.find(piece)] if piece in text else ""}:
                found.add(before + piece * (length // len(piece)) + "\0")
    return sorted(found)


def seconds(pattern: Any, method: str, text: str) -> float:
    subject: Any = text.encode() if isinstance(pattern.pattern, bytes) else text
    started = time.thread_time()
    if method == "sub":
        pattern.sub(b"" if isinstance(subject, bytes) else "", subject)
    elif method == "finditer":
        deque(pattern.finditer(subject), maxlen=0)
    else:
        getattr(pattern, method)(subject)
    return time.thread_time() - started


@pytest.mark.parametrize(
    ("name", "method", "pattern"), [pytest.param(*one, id=f"{one[0]} {one[1]}") for one in COMPILED]
)
def test_our_own_patterns_are_linear(name: str, method: str, pattern: Any) -> None:
    length = SHORTER.get(name, LENGTH)
    for text in attacks(pattern, length):
        if seconds(pattern, method, text) > SECONDS_MAX:
            assert min(seconds(pattern, method, text) for _ in range(3)) <= SECONDS_MAX, text[:60]


@pytest.mark.parametrize(
    ("expression", "length"),
    [
        (r"(a+)+b\Z", 24),
        (r"(a|a)*b", 22),
        (r"/(home|root)/\S+\.rs:\d+", LENGTH),
        (r"sum\([^)]*\) is", 4 * LENGTH),
        (r"[0-9]+\.?[0-9]*e\Z", 600),
    ],
)
def test_a_pattern_that_backtracks_would_be_found(expression: str, length: int) -> None:
    pattern = re.compile(expression)

    assert any(seconds(pattern, "search", text) > SECONDS_MAX for text in attacks(pattern, length))
