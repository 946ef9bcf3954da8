"""`omnigraph embed` from the outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runs import Cli

SCHEMA = 'node Doc { slug: String @key  body: String?  vec: Vector(8)? @embed("body") }\n'
LINES = """\
{"type": "Doc", "data": {"slug": "a", "body": "some words"}}
{"type": "Doc", "data": {"slug": "b", "body": "other words"}}
{"type": "Doc", "data": {"slug": "c"}}
"""


@pytest.fixture
def docs(cli: Cli, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OMNIGRAPH_EMBED_PROVIDER", "offline")
    (tmp_path / "s.pg").write_text(SCHEMA)
    (tmp_path / "d.jsonl").write_text(LINES)
    assert cli("init", "--schema", str(tmp_path / "s.pg"), store).code == 0
    assert cli("load", "--data", str(tmp_path / "d.jsonl"), store).code == 0
    return store


def test_a_dry_run_prints_rows_tokens_requests_and_price(cli: Cli, docs: str) -> None:
    run = cli("embed", docs, "--dry-run", "--price-per-1k", "0.02")

    assert run.code == 0, run.err
    assert run.out.splitlines() == [
        "property  rows  without text  characters  tokens  requests",
        "Doc.vec      2             1          21       6         1",
        "about 0.00012 for hashed-words-1",
    ]
    assert cli("embed", docs, "--dry-run", "--json").json["embedded"] == 0


def test_it_fills_vectors_and_says_so(cli: Cli, docs: str) -> None:
    run = cli("embed", docs, "--type", "Doc", "--property", "vec", "--as", "grace", "--rate-limit", "6000")

    assert run.code == 0, run.err
    assert "Embedded 2 rows with hashed-words-1 in 1 commit." in run.err
    assert "nothing to do" in cli("embed", docs).err


def test_json_tells_the_commits(cli: Cli, docs: str) -> None:
    run = cli("embed", docs, "--batch", "1", "--commit-every", "1", "--json")

    assert run.code == 0, run.err
    assert run.json["embedded"] == 2
    assert [commit["touched"] for commit in run.json["commits"]] == [{"node:Doc": {"updated": 1}}] * 2


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--type", "Dok"], "no type 'Dok'"), (["--rate-limit", "0"], "A rate limit of 0.0")]
)
def test_what_is_wrong_is_said_in_a_sentence(cli: Cli, docs: str, arguments: list[str], said: str) -> None:
    run = cli("embed", docs, *arguments)

    assert run.code == 1
    assert said in run.err


def test_without_a_provider_it_says_what_to_set(cli: Cli, docs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMNIGRAPH_EMBED_PROVIDER", "OMNIGRAPH_EMBED_API_KEY", "OPENAI_API_KEY", "OMNIGRAPH_EMBED_URL"):
        monkeypatch.delenv(name, raising=False)

    run = cli("embed", docs)

    assert run.code == 1
    assert "No embedding provider is set" in run.err
