"""Docs that cannot lie: what they show is run, and what they name exists."""

from __future__ import annotations

import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from omnigraph.cli.main import cli, main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def write_files(page: Path, folder: Path) -> None:
    """The files that a page shows, named behind their languages; what goes on with one is put to its end."""
    for file, text in re.findall(r"^```[a-z]+ (\S+)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        with (folder / file).open("a") as end:
            end.write(f"{text}\n" if file.endswith((".gq", ".pg")) else text)


def environment(**more: str) -> dict[str, str]:
    """Without what the machine says about stores, and with our commands on the path."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("OMNIGRAPH_")}
    return own | {"PATH": f"{Path(sys.executable).parent}:{own['PATH']}"} | more


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "README.md", "python")

    run = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=120)

    assert run.returncode == 0, run.stderr
    assert "'Rob', 'age': 42" in run.stdout
    assert (tmp_path / "people" / "_omnigraph.json").exists()


def test_the_commands_of_the_readme_exist_with_their_flags() -> None:
    lines = [line for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("omnigraph ")]

    assert commands
    for words in commands:
        command: click.Command = cli
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        known = {flag for parameter in command.params for flag in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


def test_the_commands_of_the_readme_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (script,) = [block for block in blocks(ROOT / "README.md", "sh") if "omnigraph init" in block]
    write_files(ROOT / "README.md", tmp_path)
    variables = in_a_folder(tmp_path, monkeypatch)
    said = ""

    for line in script.splitlines():
        command, *words = shlex.split(line, comments=True)
        if command == "export":
            name, _, value = words[0].partition("=")
            monkeypatch.setenv(name, value)
            continue
        if "ID" in words:
            _, newest, _ = ran(["omnigraph", "commit", "list", "--limit", "1"], variables, capsys)
            words[words.index("ID")] = newest.splitlines()[-1].split()[0]
        code, out, error = ran([command, *words], variables, capsys)
        assert code == 0, f"{line}\n{error}"
        said += out

    assert "Bob      41  2019-03-01" in said
    assert "on agent/42: Person +1, WorksAt +1" in said
    assert len((tmp_path / "persons.jsonl").read_text().splitlines()) == 2


def in_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Go there, as somebody whose machine says nothing about stores; answers the environment."""
    variables = environment()
    for variable in os.environ.keys() - variables.keys():
        monkeypatch.delenv(variable)
    monkeypatch.chdir(folder)
    return variables


def ran(words: list[str], variables: dict[str, str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """A command's code, answer and words of failure. Ours run in this process, which saves a second for each."""
    if words[0] == "omnigraph" and "spark" not in words:
        capsys.readouterr()
        code = main(words[1:])
        told = capsys.readouterr()
        return code, told.out, told.err
    run = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=60)
    return run.returncode, run.stdout, run.stderr


GUIDE = ROOT / "docs" / "guide.md"
SCHEMA_CHANGE = ROOT / "docs" / "schema-change.md"
HISTORY = ROOT / "docs" / "history.md"


@pytest.mark.parametrize("page", [GUIDE, SCHEMA_CHANGE, HISTORY], ids=name)
def test_the_guides_show_what_their_commands_answer(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything in order: answers are compared line by line, and `…` stands for anything."""
    write_files(page, tmp_path)
    variables = in_a_folder(tmp_path, monkeypatch)

    for session in blocks(page, "console"):
        for entry in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
            command, _, expected = entry.partition("\n")
            if command.startswith("export "):
                variables |= dict([command.removeprefix("export ").split("=")])
                for variable, value in variables.items():
                    monkeypatch.setenv(variable, value)
                continue
            code, out, error = ran(shlex.split(command), variables, capsys)
            answer = error if code else out
            pattern = ".*".join(re.escape(part) for part in expected.split("…"))
            assert re.fullmatch(pattern, answer, re.DOTALL), f"{command}\n{answer}"

    for example in blocks(page, "python"):
        run = subprocess.run(
            [sys.executable, "-W", "ignore::ResourceWarning", "-c", example],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 0, run.stderr


def test_the_consistency_page_is_a_program_that_runs(tmp_path: Path) -> None:
    """All examples in order, as one program: what the page promises is asserted in it."""
    program = "\n".join(blocks(ROOT / "docs" / "consistency.md", "python"))
    command = [sys.executable, "-W", "ignore::ResourceWarning", "-c", program]

    run = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)

    assert (run.returncode, run.stderr) == (0, "")


def test_every_command_is_in_the_readme() -> None:
    shown = "\n".join(blocks(ROOT / "README.md", "sh"))

    assert [command for command in cli.commands if f"omnigraph {command}" not in shown] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_commands_for_contributors_exist() -> None:
    """Targets of make with their variables, and the tests that are named."""
    makefile = (ROOT / "Makefile").read_text()
    text = (ROOT / "CONTRIBUTING.md").read_text()
    targets = re.findall(r"(?:^|`)make (?:[A-Z]+=\S+ )?([a-z]+)", text, re.MULTILINE)
    variables = re.findall(r"\b([A-Z]+)=[0-9./]", text)
    tests = re.findall(r"\btests/[\w/.]+\w", text)

    assert {"check", "test", "simulate", "soak", "clean"} <= set(targets)
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
    assert {"PYTHON", "SEEDS", "WORKERS"} <= set(variables)
    assert [name for name in variables if f"#   {name}=" not in makefile] == []
    assert [path for path in tests if not (ROOT / path).exists()] == []


def test_the_hooks_before_a_commit_are_the_parts_of_make_check() -> None:
    hooks = re.findall(r"^ +entry: \.venv/bin/(.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    check = re.split(r"^check:.*$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)[1].partition("\n\n")[0]

    assert [hook for hook in hooks if f"@$(BIN)/{hook}" not in check] == []
    assert len(hooks) == check.count("@$(BIN)/")


def test_the_architecture_names_every_package_and_module_of_the_code() -> None:
    """Packages with their paths, and the modules beside them; those inside are on the map of their package."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "omnigraph"
    modules = [path.relative_to(source) for path in source.rglob("*.py") if not path.name.startswith("__")]
    packages = {module.parent.as_posix() for module in modules} - {"."}

    assert [str(module) for module in modules if f"`{module}`" not in text and str(module.parent) == "."] == []
    assert sorted(package for package in packages if f"`{package}/`" not in text) == []


def test_modules_that_the_architecture_names_are_in_the_package_that_the_paragraph_is_about() -> None:
    code_map = (ROOT / "docs" / "architecture.md").read_text().partition("## Code map")[2].partition("## Invariants")[0]
    source = ROOT / "src" / "omnigraph"

    for package, text in re.findall(r"^\*\*`(\w+)/`\*\*:(.*?)\n\n", code_map, re.MULTILINE | re.DOTALL):
        there = {path.name for path in (source / package).rglob("*.py")}
        assert set(re.findall(r"`(\w+\.py)`", text)) <= there, package
        assert [path for path in re.findall(r"`(\w+/[\w/]*)`", text) if not (source / path).is_dir()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_pages_name_exist(page: Path) -> None:
    """Paths in backticks, from the root of the project or of the package."""
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|md|sh))`", page.read_text())

    assert [path for path in named if not any((base / path).exists() for base in (ROOT, ROOT / "src/omnigraph"))] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_of_the_package_on_pages_exist(page: Path) -> None:
    for dotted in set(re.findall(r"(?<!logger )`(omnigraph(?:\.\w+)+)`", page.read_text())):
        pkgutil.resolve_name(dotted)


def test_the_loggers_that_pages_name_are_used() -> None:
    named = {found for page in PAGES for found in re.findall(r"logger `([\w.]+)`", page.read_text())}
    code = "\n".join(path.read_text() for path in (ROOT / "src" / "omnigraph").rglob("*.py"))

    assert "omnigraph.maintain" in named
    assert [logger for logger in named if f'getLogger("{logger}")' not in code] == []


def test_the_format_page_explains_every_field_that_is_stored() -> None:
    """Fields are taken from the code that writes them, so that a new one can't be forgotten."""
    text = (ROOT / "docs" / "format.md").read_text()
    sources = [
        "manifest/model/codec.py",
        "manifest/intent/intent.py",
        "manifest/branch/refs.py",
        "manifest/repository.py",
    ]
    sources += ["manifest/branch/tags.py", "schema/catalog.py"]
    code = "\n".join((ROOT / "src" / "omnigraph" / source).read_text() for source in sources)
    fields = set(re.findall(r'"([a-z_]+)":', code)) | set(re.findall(r'document\["([a-z_]+)"\] =', code))

    assert sorted(field for field in fields if f"`{field}`" not in text) == []


def test_the_tour_runs_and_the_commands_it_prints_work(tmp_path: Path) -> None:
    tour = [sys.executable, str(ROOT / "examples" / "commit_path.py"), str(tmp_path)]

    run = subprocess.run(tour, capture_output=True, text=True, timeout=120)

    assert run.returncode == 0, run.stderr
    assert "20 of 20 commits were made" in run.stdout
    assert "nothing happened" in run.stdout
    commands = [line.strip() for line in run.stdout.partition("Look around")[2].splitlines() if "omnigraph " in line]
    assert commands
    for command in commands:
        subprocess.run(shlex.split(command), check=True, capture_output=True, timeout=60)
