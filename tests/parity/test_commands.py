"""Every command, with --store and with --server: the same output, the same exit code.

The cases are held against the tree of commands: one without a case fails the last test here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

import omnigraph
from omnigraph.cli.main import cli, main
from parity.pairs import Pair
from parity.seeds import ADD, MORE, OLDER, PEOPLE, SCHEMA, SET_AGE, WHOLE, Alike, differences, leaves
from support.server import QUICK

FILES = {
    "people.jsonl": '{"type":"Person","data":{"slug":"p1","age":1}}\n{"edge":"Knows","from":"p1","to":"ada"}\n',
    "bad.jsonl": '{"type":"Person","data":{"slug":"b1"}}\nnope\n',
    "clash.jsonl": '{"type":"Person","data":{"slug":"ada"}}\n{"edge":"Knows","from":"ada","to":"nobody"}\n',
    "Person.csv": "slug,age\nc1,1\nc2,999\n",
    "same.pg": SCHEMA,
    "more.pg": MORE,
    "other.pg": SCHEMA.replace("score: F64?", "score: Date?"),
    "broken.pg": "node Person {\n",
    "queries.gq": f"{PEOPLE}\n{WHOLE}\n{OLDER}",
    "odd.gq": "query odd() { match { $p: Persn } return { $p } }",
    "rows.csv": "slug,age\nr1,1\n",
    "add.gq": ADD,
    "params.json": '{"slug": "eve2", "age": 3}',
}
NEWEST = "{newest}"  # the commit on top of main
# For each command: the lines to run, one after the other, each as text and as JSON on copies of their own.
CASES: dict[tuple[str, ...], list[list[str]]] = {
    ("load",): [
        ["load", "--data", "people.jsonl"],
        ["load", "--data", "people.jsonl"],
        ["load", "--data", "people.jsonl", "--mode", "merge", "--txn-id", "x"],
        ["load", "--data", "people.jsonl", "--branch", "fresh", "--from", "agent"],
        ["load", "--data", "bad.jsonl"],
        ["load", "--data", "bad.jsonl", "--on-error", "quarantine"],
        ["load", "--data", "clash.jsonl"],
        ["load", "--data", "Person.csv"],
        ["load", "--data", "nothing.jsonl"],
        ["load", "--data", "people.jsonl", "--if-commit", "x.1", "--mode", "merge"],
        ["load"],
    ],
    ("query",): [
        ["query", "people", "--query", "queries.gq"],
        ["query", "whole", "--query", "queries.gq", "--format", "kv"],
        ["query", "whole", "--query", "queries.gq", "--format", "csv"],
        ["query", "whole", "--query", "queries.gq", "--format", "jsonl"],
        ["query", "older", "--query", "queries.gq", "--params", '{"age": 30}', "--branch", "agent"],
        ["query", "people", "--query", "queries.gq", "--at", "v1", "--explain"],
        ["query", "older", "--query", "queries.gq", "--params", '{"age": "x"}'],
        ["query", "--query", "odd.gq"],
        ["query", "--query", "queries.gq"],
        ["query", "-e", ADD],
        ["query", "people", "--query", "queries.gq", "--branch", "nope"],
    ],
    ("mutate",): [
        ["mutate", "-e", ADD, "--params", '{"slug": "eve", "age": 3}', "--txn-id", "t"],
        ["mutate", "-e", ADD, "--params", '{"slug": "eve", "age": 3}', "--txn-id", "t"],
        ["mutate", "-e", SET_AGE, "--params", '{"slug": "nobody", "age": 3}'],
        ["mutate", "-e", ADD, "--params", '{"slug": "eve", "age": 999}'],
        ["mutate", "-e", ADD, "--params", '{"slug": "zoe"}', "--if-commit", "x.1"],
        ["mutate", "-e", "query e() { insert Robot { slug: \"x\" } }"],
        ["mutate", "-e", PEOPLE],
    ],
    ("lint",): [
        ["lint", "queries.gq"],
        ["lint", "odd.gq"],
        ["lint", "odd.gq", "--at", "v1", "--branch", "agent"],
        ["lint", "queries.gq", "--branch", "nope"],
    ],
    ("schema", "show"): [["schema", "show"], ["schema", "show", "--branch", "agent", "--at", "v1"]],
    ("schema", "plan"): [
        ["schema", "plan", "--schema", "more.pg"],
        ["schema", "plan", "--schema", "other.pg"],
        ["schema", "plan", "--schema", "same.pg"],
        ["schema", "plan", "--schema", "broken.pg"],
    ],
    ("schema", "apply"): [
        ["schema", "apply", "--schema", "more.pg"],
        ["schema", "apply", "--schema", "more.pg"],
        ["schema", "apply", "--schema", "other.pg"],
        ["schema", "apply", "--schema", "same.pg", "--allow-data-loss", "--if-commit", "x.1"],
        ["schema", "show"],
    ],
    ("export",): [
        ["export"],
        ["export", "--type", "Person", "--at", "v1"],
        ["export", "--out", "all.jsonl"],
        ["export", "--out", "people.csv", "--type", "Person"],
        ["export", "--out", "folder", "--format", "jsonl"],
        ["export", "--out", "folder", "--format", "jsonl"],
        ["export", "--type", "Nope"],
    ],
    ("analyze",): [
        ["analyze", "pagerank"],
        ["analyze", "components", "--edge", "Knows", "--limit", "1"],
        ["analyze", "pagerank", "--write", "Person.rank"],
        ["analyze", "degrees", "--write", "Person.rank"],
        ["analyze", "triangles", "--edge", "Nope"],
    ],
    ("embed",): [["embed", "--dry-run", "--price-per-1k", "0.5"], ["embed"], ["embed", "--type", "Person"]],
    ("snapshot",): [["snapshot"], ["snapshot", "--branch", "agent"], ["snapshot", "--at", "nope"]],
    ("branch", "create"): [
        ["branch", "create", "a/b"],
        ["branch", "create", "a/b"],
        ["branch", "create", "old", "--from", "v1"],
        ["branch", "create", ".."],
    ],
    ("branch", "list"): [["branch", "list"]],
    ("branch", "delete"): [["branch", "delete", "agent"], ["branch", "delete", "agent"], ["branch", "delete", "main"]],
    ("branch", "merge"): [
        ["branch", "merge", "agent", "--dry-run"],
        ["branch", "merge", "clash"],
        ["branch", "merge", "clash", "--dry-run"],
        ["branch", "merge", "agent", "--delete-branch"],
        ["branch", "merge", "agent"],
    ],
    ("commit", "list"): [
        ["commit", "list"],
        ["commit", "list", "--limit", "1"],
        ["commit", "list", "--filter", "actor=ada", "--all"],
        ["commit", "list", "--draw"],
        ["commit", "list", "--branch", "nope"],
    ],
    ("commit", "show"): [["commit", "show", "v1"], ["commit", "show", NEWEST], ["commit", "show", "nope"]],
    ("commit", "changes"): [
        ["commit", "changes", "v1"],
        ["commit", "changes", NEWEST, "--explain"],
        ["commit", "changes", "nope"],
    ],
    ("changes", "between"): [
        ["changes", "v1", "main"],
        ["changes", "main", "agent", "--explain"],
        ["changes", "between", "main", "clash", "--kind", "node", "--type", "Person", "--operation", "update"],
        ["changes", "main", "agent", "--limit", "1"],
        ["changes", "main", "nope"],
    ],
    ("changes", "poll"): [
        ["changes", "poll", "--start", "beginning"],
        ["changes", "poll"],
        ["changes", "poll", "--start", "beginning", "--limit", "2", "--branch", "agent"],
        ["changes", "poll", "--cursor", "nonsense"],
    ],
    ("tag", "create"): [["tag", "create", "v2"], ["tag", "create", "v2"], ["tag", "create", "v3", "v1"]],
    ("tag", "list"): [["tag", "list"]],
    ("tag", "delete"): [["tag", "delete", "v1"], ["tag", "delete", "v1"], ["tag", "list"]],
    ("revert",): [["revert", NEWEST], ["revert", "nope"], ["revert", "v1", "--branch", "clash"]],
    ("optimize",): [["optimize"], ["optimize"], ["optimize", "--type", "Nope"]],
    ("cleanup",): [
        ["cleanup"],
        ["cleanup", "--older-than", "0s", "--keep", "1"],
        ["cleanup", "--older-than", "0s", "--keep", "1", "--confirm"],
    ],
    ("recover",): [["recover"], ["recover", "--all"], ["recover", "--discard", "nope"]],
    ("verify",): [["verify"], ["verify", "--full", "--branch", "agent"], ["verify", "--branch", "nope"]],
    ("version",): [["version"]],
}  # fmt: skip
PAGE, CURSOR = "{next_page}", "{cursor}"  # what the line before answered
# The same for the remaining flags, as JSON only.
FLAGS: dict[tuple[str, ...], list[list[str]]] = {
    ("load",): [
        ["load", "--data", "rows.csv", "--type", "Person", "--engine", "local"],
        ["load", "--data", "people.jsonl", "--engine", "local", "--job-id", "j1", "--branch", "agent"],
        ["load", "--data", "people.jsonl", "--engine", "local", "--job-id", "j1", "--branch", "agent"],
        ["load", "--data", "bad.jsonl", "--on-error", "quarantine", "--max-errors", "0"],
        ["load", "--data", "people.jsonl", "--txn-id", ""],
    ],
    ("query",): [["query", "people", "--query", "queries.gq", "--engine", "local", "--branch", "clash"]],
    ("mutate",): [
        ["mutate", "add", "--query", "add.gq", "--params", "@params.json", "--branch", "agent"],
        ["mutate", "add", "--query", "add.gq", "--params", '{"slug": "x"}', "--branch", "nope"],
    ],
    ("schema", "plan"): [["schema", "plan", "--schema", "more.pg", "--branch", "agent"]],
    ("schema", "apply"): [
        ["schema", "apply", "--schema", "more.pg", "--branch", "agent", "--txn-id", "s"],
        ["schema", "apply", "--schema", "more.pg", "--branch", "agent", "--txn-id", "s"],
    ],
    ("export",): [
        ["export", "--engine", "local", "--branch", "agent", "--out", "folder", "--format", "csv"],
        ["export", "--out", "folder", "--format", "csv", "--overwrite"],
    ],
    ("analyze",): [
        ["analyze", "degrees", "--direction", "in", "--at", "v1", "--engine", "local"],
        ["analyze", "pagerank", "--damping", "0.5", "--tolerance", "0.1", "--iterations", "2", "--branch", "agent"],
        ["analyze", "pagerank", "--write", "Person.rank", "--if-commit", "x.1"],
        ["analyze", "pagerank", "--write", "Person.rank", "--txn-id", "a"],
        ["analyze", "pagerank", "--write", "Person.rank", "--txn-id", "a"],
    ],
    ("embed",): [
        ["embed", "--property", "vec", "--type", "Note", "--batch", "1", "--commit-every", "1", "--rate-limit", "1000"],
        ["embed", "--branch", "agent", "--one-commit", "--concurrency", "1", "--engine", "local"],
    ],
    ("branch", "create"): [
        ["branch", "create", "old", "--from", "main", "--at", "v1", "--txn-id", "b"],
        ["branch", "create", "old", "--from", "main", "--at", "v1", "--txn-id", "b"],
        ["branch", "create", "off", "--branch", "agent"],
        ["branch", "list"],
    ],
    ("branch", "delete"): [
        ["branch", "delete", "agent", "--txn-id", "d"],
        ["branch", "delete", "agent", "--txn-id", "d"],
        ["branch", "delete", "agent", "--txn-id", "e"],
    ],
    ("branch", "merge"): [
        ["branch", "merge", "main", "--into", "agent", "--if-commit", "x.1"],
        ["branch", "merge", "main", "--into", "agent", "--txn-id", "m", "--engine", "local"],
        ["branch", "merge", "main", "--branch", "agent", "--txn-id", "m"],
    ],
    ("commit", "list"): [
        ["commit", "list", "--at", "v1"],
        ["commit", "list", "--draw", "--branch", "agent", "--all", "--limit", "2"],
        ["commit", "list", "--draw", "--filter", "actor=ada"],
    ],
    ("commit", "changes"): [
        ["commit", "changes", "v1", "--limit", "2", "--kind", "node"],
        ["commit", "changes", "v1", "--limit", "2", "--kind", "node", "--page", PAGE],
        ["commit", "changes", "v1", "--type", "Knows", "--operation", "insert"],
    ],
    ("changes", "between"): [
        ["changes", "v1", "clash", "--limit", "1"],
        ["changes", "main", "agent", "--limit", "1"],
        ["changes", "main", "agent", "--limit", "1", "--page", PAGE],
    ],
    ("changes", "poll"): [
        ["changes", "poll", "--start", "beginning", "--limit", "2"],
        ["changes", "poll", "--cursor", CURSOR],
    ],
    ("tag", "create"): [
        ["tag", "create", "v2", "--branch", "agent", "--txn-id", "t"],
        ["tag", "create", "v2", "--txn-id", "t"],
        ["tag", "create", "v2", "--txn-id", "u"],
    ],
    ("revert",): [
        ["revert", NEWEST, "--if-commit", "x.1"],
        ["revert", NEWEST, "--txn-id", "r"],
        ["revert", NEWEST, "--txn-id", "r"],
    ],
    ("optimize",): [["optimize", "--engine", "local", "--branch", "agent"]],
    ("cleanup",): [["cleanup", "--intent-ttl", "1d"], ["cleanup", "--intent-ttl", "soon"]],
    ("recover",): [["recover", "--complete", "nope"]],
    ("verify",): [["verify", "--seed", "7"]],
}  # fmt: skip
COMMON = {"--store", "--server", "--graph", "--token", "--storage-option", "--json", "--quiet", "--debug", "--branch"}
NO_GRAPH = {("lint", "--schema")}  # instead of a graph, wherever that may be
REFUSED = {  # what a server has of its own, and says so
    "--as": ["mutate", "-e", ADD, "--params", '{"slug": "x"}', "--as", "ada"],
    "--storage-option": ["snapshot", "--storage-option", "fsync=false"],
    "--master": ["load", "--data", "people.jsonl", "--master", "local[1]"],
}
HERE_ONLY = {
    ("init",): ["init", "--schema", "same.pg", "elsewhere"],
    ("demo",): ["demo", "somewhere"],
    ("serve",): ["serve"],
    ("token", "create"): ["token", "create", "ada", "--tokens", "tokens.json"],
    ("token", "list"): ["token", "list", "--tokens", "tokens.json"],
    ("token", "revoke"): ["token", "revoke", "x", "--tokens", "tokens.json"],
}

OF_SERVERS = {("jobs", "list"), ("jobs", "show"), ("jobs", "cancel")}


def run(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def written(alike: Alike, line: Sequence[str], ran: tuple[int, str, str]) -> str:
    """One run as text; JSON is laid out, so that a difference is one line."""
    code, out, err = ran
    parts = [f"$ {' '.join(line)}", f"exit {code}"]
    for text in (out, err):
        try:
            parts.append(json.dumps(alike.document(json.loads(text)), indent=1))
        except ValueError:
            parts.append(re.sub(r"\s{2,}", "  ", alike.text(text)))
    return "\n".join(parts)


@pytest.mark.parametrize("form", ["text", "json", "quiet", "flags"])
@pytest.mark.parametrize("command", CASES, ids=" ".join)
def test_both_ways_print_the_same(
    command: tuple[str, ...],
    form: str,
    pair: Pair,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = []
    for number, place in enumerate((pair.here, pair.there)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in FILES.items():
            (folder / name).write_text(text)
        monkeypatch.chdir(folder)
        _, found, _ = run(["commit", "list", "--limit", "1", "--json", *place], capsys)
        newest = json.loads(found)["commits"][0]["id"]
        alike, texts, known = Alike(), [], {NEWEST: newest}
        for line in FLAGS.get(command, []) if form == "flags" else CASES[command]:
            if form == "json" and "--format" in line and "--out" not in line:
                continue  # there is one form of JSON
            given = [known.get(argument, argument) for argument in line]
            flag = {"text": [], "quiet": ["--quiet"]}.get(form, ["--json"])
            ran = run([*given, *flag, *(place if line[0] != "version" else place[:2] * number)], capsys)
            texts.append(written(alike, line, ran))
            known |= pages(ran[1])
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in FILES)
        texts += [f"{alike.text(str(path.relative_to(folder)))}:\n{alike.text(path.read_text())}" for path in files]
        answers.append("\n".join(texts).replace(str(folder), "FOLDER"))
    assert differences(*answers) == ""


def pages(out: str) -> dict[str, str]:
    """Where an answer says that the next one begins."""
    try:
        document = json.loads(out)
    except ValueError:
        return {}
    if not isinstance(document, dict):
        return {}
    return {f"{{{name}}}": document[name] for name in ("next_page", "cursor") if document.get(name)}


def test_every_flag_of_every_command_has_a_case() -> None:
    missing = []
    for path in CASES:
        used = {argument for line in (*CASES[path], *FLAGS.get(path, ())) for argument in line}
        command: click.Command = cli
        for name in path:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        flags = {option: parameter.opts for parameter in command.params for option in parameter.opts}
        missing += [
            (*path, flag)
            for flag, names in flags.items()
            if flag.startswith("--") and not used.intersection(names) and flag not in COMMON | REFUSED.keys()
        ]
    missing = [flag for flag in missing if flag not in NO_GRAPH]
    assert missing == []


@pytest.mark.parametrize("flag", REFUSED)
def test_what_the_server_has_of_its_own_is_refused(
    flag: str, pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.jsonl").write_text(FILES["people.jsonl"])
    code, out, err = run([*REFUSED[flag], *pair.there], capsys)
    assert (code in (1, 2), out) == (True, "")
    assert flag in err
    assert "leave" in err
    assert len(omnigraph.open(pair.store, QUICK).commits()) == len(omnigraph.connect(pair.url, pair.graph).commits())


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("command", HERE_ONLY, ids=" ".join)
def test_what_is_of_this_machine_says_so(
    command: tuple[str, ...],
    before: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    server = ["--server", "http://127.0.0.1:1"]
    line = HERE_ONLY[command]
    code, out, err = run([*server, *line] if before else [*line, *server], capsys)
    assert (code, out) == (2, "")
    assert f"`{command[0]}` " in err
    assert "leave out --server" in err
    assert list(tmp_path.iterdir()) == []


def test_every_command_has_a_case_or_is_of_this_machine() -> None:
    assert set(leaves(cli)) == CASES.keys() | HERE_ONLY.keys() | OF_SERVERS


@pytest.mark.parametrize("command", sorted(OF_SERVERS), ids=" ".join)
def test_what_is_of_servers_says_so(command: tuple[str, ...], pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    names = [] if command[-1] == "list" else ["nope"]
    code, out, err = run([*command, *names, *pair.here], capsys)
    assert (code, out) == (2, "")
    assert "Only servers have jobs" in err
    code, _, err = run([*command, *names, *pair.there], capsys)
    assert (code, "nope" in err) == ((1, True) if names else (0, False))
