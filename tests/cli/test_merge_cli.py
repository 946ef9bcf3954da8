"""`branch merge` on the command line: what it prints, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runs import Cli
from support.merge import Merging, make_merging


@pytest.fixture
def graph(tmp_path: Path) -> Merging:
    merging = make_merging(tmp_path / "graph")
    merging.change(Person={"ada": {"age": 1}})
    merging.fork("b")
    merging.change("b", Person={"eve": {}})
    return merging


@pytest.fixture
def diverged(graph: Merging) -> Merging:
    graph.change("b", Person={"ada": {"age": 2}})
    graph.change("main", Person={"ada": {"age": 3}})
    return graph


def test_a_merge_says_what_it_did(graph: Merging, cli: Cli) -> None:
    run = cli("branch", "merge", "b", "--into", "main", "--store", graph.graph.uri)

    assert run.code == 0, run.err
    assert run.out.startswith(f"Merged b into main (fast-forward) as {graph.head().logical_head}: Person +1 (")
    assert cli("branch", "merge", "b", "--store", graph.graph.uri).out == "main is already up to date with b.\n"


def test_a_merge_in_json_has_the_commit_with_both_parents(graph: Merging, cli: Cli) -> None:
    parent, other = graph.head().logical_head, graph.head("b").logical_head

    run = cli("branch", "merge", "b", "--delete-branch", "--as", "ada", "--json", "--store", graph.graph.uri)

    found = run.json
    assert run.code == 0
    assert (found["outcome"], found["source"], found["into"]) == ("fast_forward", "b", "main")
    assert (found["deleted"], found["not_deleted"], found["dry_run"], found["conflicts"]) == (True, None, False, [])
    commit = found["commit"]
    assert (commit["kind"], commit["actor"], commit["parent"], commit["merged_parent"]) == (
        "merge",
        "ada",
        parent,
        other,
    )
    assert commit["touched"] == found["types"] == {"node:Person": {"inserted": 1}}
    assert found["cost"]["requests"] > 0
    assert cli("branch", "list", "--json", "--store", graph.graph.uri).json == {"branches": ["main"]}


def test_conflicts_exit_with_three_and_are_listed(diverged: Merging, cli: Cli) -> None:
    head = diverged.head()

    text = cli("branch", "merge", "b", "--store", diverged.graph.uri)
    body = cli("branch", "merge", "b", "--json", "--store", diverged.graph.uri)

    assert (text.code, body.code) == (3, 3)
    assert "DivergentUpdate: Person 'ada': both sides changed its age (3 and 2)" in text.err
    assert body.error["code"] == "conflict"
    assert [
        (one["entity_kind"], one["type_name"], one["entity_id"], one["kind"])
        for one in body.error["details"]["merge_conflicts"]
    ] == [("node", "Person", "ada", "DivergentUpdate")]
    assert diverged.head() == head


def test_a_dry_run_lists_conflicts_and_changes_nothing(diverged: Merging, cli: Cli) -> None:
    head = diverged.head()

    text = cli("branch", "merge", "b", "--dry-run", "--store", diverged.graph.uri)
    body = cli("branch", "merge", "b", "--dry-run", "--json", "--store", diverged.graph.uri)

    assert (text.code, body.code) == (0, 0)
    assert "would fail with 1 conflict" in text.out
    assert [one["kind"] for one in body.json["conflicts"]] == ["DivergentUpdate"]
    assert (body.json["commit"], body.json["outcome"]) == (None, "merged")
    assert diverged.head() == head


def test_a_dry_run_of_a_clean_merge_counts_its_rows(graph: Merging, cli: Cli) -> None:
    run = cli("branch", "merge", "b", "--dry-run", "--store", graph.graph.uri)

    assert run.out.startswith("Merging b into main would be a fast-forward: Person +1 (")


def test_a_branch_that_is_not_there_and_a_head_that_moved_have_their_exit_codes(graph: Merging, cli: Cli) -> None:
    store = ("--store", graph.graph.uri)

    assert cli("branch", "merge", "nobody", *store).code == 1
    assert cli("branch", "merge", "b", "--if-commit", graph.head("b").logical_head, *store).code == 4
    assert cli("branch", "merge", "b", "--into", "b", *store).code == 1
