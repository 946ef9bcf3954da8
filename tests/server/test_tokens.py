"""Tokens in their file, and the gate that asks what they allow."""

from __future__ import annotations

import hmac
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from omnigraph.cli.main import main
from omnigraph.errors import BadRequest
from omnigraph.server.auth.access import Action, allows
from omnigraph.server.auth.tokens import (
    Grant,
    Principal,
    TokenFile,
    create_token,
    parse_grant,
    read_tokens,
    revoke_token,
)
from omnigraph.server.settings import ServerSettings
from support.server import people_graph, served, token


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


# The file


def test_a_token_is_stored_as_a_hash_for_the_owner_alone(tokens: Path) -> None:
    made, text = create_token(tokens, "ada", [Grant("read")], datetime(2026, 1, 1, tzinfo=UTC))

    stored = tokens.read_text()
    assert text.startswith("og_")
    assert len(text) >= 43
    assert text not in stored
    assert text.removeprefix("og_") not in stored
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o600
    assert read_tokens(tokens) == (made,)


def test_a_token_is_known_until_it_is_revoked(tokens: Path) -> None:
    made, text = create_token(tokens, "ada", [Grant("read")], datetime(2026, 1, 1, tzinfo=UTC))
    known = TokenFile(tokens)

    assert known.principal(text) == Principal("ada", (Grant("read"),), made.id)
    assert known.principal(text + "x") is None
    assert known.principal("") is None
    revoke_token(tokens, made.id)
    assert known.principal(text) is None


def test_a_token_file_that_is_gone_lets_nobody_in(tokens: Path) -> None:
    _, text = create_token(tokens, "ada", [Grant("read")], datetime(2026, 1, 1, tzinfo=UTC))
    known = TokenFile(tokens)
    tokens.unlink()

    assert known.principal(text) is None


def test_a_token_file_that_breaks_lets_nobody_in_and_one_that_is_broken_stops_the_start(tokens: Path) -> None:
    _, text = create_token(tokens, "ada", [Grant("read")], datetime(2026, 1, 1, tzinfo=UTC))
    known = TokenFile(tokens)
    tokens.write_text("{")

    assert known.principal(text) is None
    with pytest.raises(BadRequest):
        TokenFile(tokens)


def test_a_token_file_that_others_may_write_stops_the_start(tokens: Path) -> None:
    create_token(tokens, "ada", [Grant("read")], datetime(2026, 1, 1, tzinfo=UTC))
    for mode in (0o620, 0o602, 0o666):
        tokens.chmod(mode)
        with pytest.raises(BadRequest, match="chmod go-w"):
            TokenFile(tokens)
    tokens.chmod(0o644)
    TokenFile(tokens)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_token_file_that_others_may_write_since_is_not_believed(
    tokens: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    """Neither a token that somebody put there nor those of before: nobody knows what was taken out."""
    _, text = create_token(tokens, "ada", [Grant("read")], datetime(2026, 1, 1, tzinfo=UTC))
    known = TokenFile(tokens)
    assert known.principal(text) is not None

    tokens.chmod(mode)
    assert [known.principal(text) for _ in range(3)] == [None] * 3
    planted = token(tokens.with_name("evil.json"), "eve", "admin")
    tokens.write_bytes(tokens.with_name("evil.json").read_bytes())
    assert known.principal(planted) is None

    assert known.refused is not None
    lines = [record.__dict__["fields"]["error"] for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 2  # one for each change of the file, not one for each request
    assert all("Others may write" in line and "chmod go-w" in line for line in lines)


def test_a_token_file_is_believed_again_when_others_may_not_write_it_any_more(tokens: Path) -> None:
    _, text = create_token(tokens, "ada", [Grant("read")], datetime(2026, 1, 1, tzinfo=UTC))
    known = TokenFile(tokens)
    tokens.chmod(0o666)
    assert known.principal(text) is None

    tokens.chmod(0o600)

    assert known.principal(text) is not None
    assert known.refused is None
    assert known.refusals == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_token_file_with_another_owner_is_not_believed(tokens: Path) -> None:
    _, text = create_token(tokens, "ada", [Grant("read")], datetime(2026, 1, 1, tzinfo=UTC))
    known = TokenFile(tokens)

    os.chown(tokens, 12345, -1)

    assert known.principal(text) is None
    assert "belongs to another user" in str(known.refused)


def test_a_token_file_with_the_size_and_time_of_the_one_before_is_read_again(tokens: Path) -> None:
    first, other = tokens.with_name("first.json"), tokens.with_name("other.json")
    one, two = token(first, "ada", "read"), token(other, "eve", "read")
    tokens.write_bytes(first.read_bytes())
    tokens.chmod(0o600)
    known, before = TokenFile(tokens), tokens.stat()
    assert known.principal(one) is not None

    tokens.write_bytes(other.read_bytes())
    os.utime(tokens, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert tokens.stat().st_size == before.st_size
    assert known.principal(one) is None
    assert known.principal(two) is not None


def test_a_server_whose_token_file_is_refused_lets_nobody_in_and_is_not_ready(tmp_path: Path, tokens: Path) -> None:
    people_graph(tmp_path / "graph")
    text = token(tokens, "ada", "read")
    settings = ServerSettings(tokens=tokens, grace_s=1.0, spark=False)
    with served({"people": tmp_path / "graph"}, settings) as server, server.client(text) as client:
        assert client.get("/graphs").status_code == 200
        assert client.get("/readyz").status_code == 200

        tokens.chmod(0o622)
        assert client.get("/graphs").status_code == 401
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["code"]) == (503, "unavailable")
        assert str(tokens) not in ready.text

        tokens.chmod(0o600)
        assert client.get("/readyz").status_code == 200
        assert "omnigraph_token_file_refusals 1.0" in client.get("/metrics").text


def test_a_change_keeps_who_may_read_the_file_and_the_link_that_leads_to_it(tokens: Path, tmp_path: Path) -> None:
    """A server often runs as another user than whoever makes tokens."""
    made, _ = create_token(tokens, "ada", [Grant("read")], datetime(2026, 1, 1, tzinfo=UTC))
    tokens.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(tokens)

    revoke_token(link, made.id)

    assert link.is_symlink()
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o640
    assert read_tokens(tokens) == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tokens.json.lock", "link.json", "tokens.json"]


def test_tokens_that_are_made_at_once_are_all_kept(tokens: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: token(tokens, f"a{number}", "read"), range(16)))

    known = TokenFile(tokens)
    assert len({one.id for one in read_tokens(tokens)}) == 16
    assert all(known.principal(text) is not None for text in made)


def test_every_hash_is_compared_whole_and_in_constant_time(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [token(tokens, f"a{number}", "read") for number in range(3)]
    known = TokenFile(tokens)
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def noting(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noting)
    for text in (texts[0], texts[2], "og_x", ""):
        known.principal(text)

    assert compared == [(64, 64)] * 12


@pytest.mark.parametrize("text", ["", "reader", "read@", "read@x:", "write people", "READ"])
def test_a_grant_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_grant(text)


def test_the_command_line_makes_lists_and_revokes_tokens(tokens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> Any:
        assert main(["token", *words, "--tokens", str(tokens), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    made = run("create", "ada", "--grant", "read", "--grant", "write@people:agent/*")
    listed = run("list")["tokens"]

    assert TokenFile(tokens).principal(made["token"]) is not None
    assert [entry["id"] for entry in listed] == [made["id"]]
    assert listed[0]["grants"][1] == {"role": "write", "graph": "people", "branch": "agent/*"}
    assert "token" not in listed[0]
    assert "sha256" not in listed[0]
    assert run("revoke", made["id"])["actor"] == "ada"
    assert run("list") == {"tokens": []}


# The gate


def test_a_role_allows_what_lies_below_it() -> None:
    for role, allowed in (("read", Action.READ), ("write", Action.CHANGE), ("admin", Action.SCHEMA_APPLY)):
        assert allows(Principal("x", (parse_grant(role),)), allowed, "g", "main")
    assert not allows(Principal("x", (Grant("read"),)), Action.CHANGE, "g", "main")
    assert not allows(Principal("x", (Grant("write"),)), Action.SCHEMA_APPLY, "g", "main")
    assert not allows(Principal("x", (Grant("write"),)), Action.MAINTAIN, "g", None)


def test_a_grant_is_for_its_graphs_and_branches() -> None:
    bound = Principal("x", (Grant("write", "people", "agent/*"), Grant("read", "people", "main")))

    assert allows(bound, Action.CHANGE, "people", "agent/4/2")
    assert allows(bound, Action.READ, "people", "main")
    assert not allows(bound, Action.CHANGE, "people", "main")
    assert not allows(bound, Action.READ, "people", None)
    assert not allows(bound, Action.READ, "other", "main")
