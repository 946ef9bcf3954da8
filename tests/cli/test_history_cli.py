"""The command line's view of history: commits, changes, the feed, tags, revert, time travel."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runs import Cli
from omnigraph.graph.graph import Graph
from support.history import compact, expire, make_graph, person, run, update


@pytest.fixture
def graph(store: str, monkeypatch: pytest.MonkeyPatch) -> Graph:
    graph = make_graph(Path(store))
    return graph


@pytest.fixture
def og(cli: Cli, graph: Graph, store: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line with the store in its environment."""
    monkeypatch.setenv("OMNIGRAPH_STORE", store)
    return cli


# commit


def test_commits_are_filtered_by_actor_kind_and_type(og: Cli, graph: Graph) -> None:
    ada = run(graph, person("ada"), actor="ada")
    run(graph, 'insert Company { name: "acme" }', actor="eve")
    both = run(graph, person("bob") + 'insert Company { name: "other" }', actor="eve")

    def found(*filters: str) -> list[str]:
        flags = [word for text in filters for word in ("--filter", text)]
        return [commit["id"] for commit in og("commit", "list", *flags, "--json").json["commits"]]

    assert found("actor=ada") == [ada]
    assert found("type=Person") == [both, ada]
    assert found("type=Person", "type=Company") == [both]
    assert found("kind=mutation", "actor=eve", "type=Person") == [both]
    assert len(found("kind=init")) == 1


@pytest.mark.parametrize(
    "words", [["x=1"], ["actor"], ["actor=a", "--filter", "actor=b"], ["kind=a", "--filter", "kind=b"]]
)
def test_a_filter_that_makes_no_sense_is_a_usage_error(og: Cli, words: list[str]) -> None:
    assert og("commit", "list", "--filter", *words).code == 2


def test_the_graph_is_drawn(og: Cli, graph: Graph) -> None:
    base = run(graph, person("ada"))
    graph.branches.create("dev")
    on_dev = run(graph, person("bob"), "dev")
    on_main = run(graph, person("cy"))
    graph.branches.merge("dev")
    last = graph.commits(limit=1)[0].id

    lines = og("commit", "list", "--graph").out.splitlines()

    drawn = [
        (line[:5].split("  ")[0].rstrip(), next((c for c in (last, on_main, on_dev, base) if c in line), None))
        for line in lines
    ]
    assert drawn[:6] == [("*", last), ("|\\", None), ("* |", on_main), ("| *", on_dev), ("|/", None), ("*", base)]


def test_the_graph_as_json_has_the_parents(og: Cli, graph: Graph) -> None:
    first = run(graph, person("ada"))
    second = run(graph, person("bob"))

    commits = og("commit", "list", "--graph", "--json").json["commits"]

    assert [(commit["id"], commit["parents"][:1]) for commit in commits][:1] == [(second, [first])]
    assert commits[0]["branch"] == "main"


def test_the_graph_draws_every_commit(og: Cli) -> None:
    assert og("commit", "list", "--graph", "--filter", "actor=a").code == 2


def test_a_commit_is_shown_with_its_place_and_whether_it_changed_the_schema(og: Cli, graph: Graph) -> None:
    commit = run(graph, person("ada"))
    graph.schema.apply(graph.schema.show() + "node Pet { name: String @key }")
    applied = graph.commits(limit=1)[0].id

    shown = og("commit", "show", commit, "--json").json
    assert (shown["branch"], shown["manifest_version"], shown["schema_changed"]) == ("main", 2, False)
    assert og("commit", "show", applied, "--json").json["schema_changed"] is True
    assert "schema_changed    yes" in og("commit", "show", applied).out


def test_the_history_of_an_older_state_ends_there(og: Cli, graph: Graph) -> None:
    first = run(graph, person("ada"))
    run(graph, person("bob"))

    assert og("commit", "list", "--at", first, "--json").json["commits"][0]["id"] == first


# changes


def test_changes_between_two_states_are_shown(og: Cli, graph: Graph) -> None:
    first = run(graph, person("ada", age=36))
    run(graph, update("ada", age=37) + person("bob", name="Bob"))

    answer = og("changes", first, "main")

    assert answer.out.splitlines() == ["~ Person 'ada': age 36 → 37", '+ Person \'bob\': slug "bob", name "Bob"']
    assert f"2 changes from {first} to" in answer.err


def test_changes_as_json_are_one_document(og: Cli, graph: Graph) -> None:
    first = run(graph, person("ada", age=36))
    second = run(graph, update("ada", age=37))

    document = og("changes", first, "main", "--json", "--explain").json

    assert (document["from"], document["to"], document["schema_changed"]) == (first, second, False)
    (change,) = document["changes"]
    assert (change["operation"], change["changed"], change["before"]["age"], change["after"]["age"]) == (
        "update",
        ["age"],
        36,
        37,
    )
    assert document["explain"]["method"] == "composed"
    assert document["explain"]["reads"][0]["type_name"] == "Person"
    assert document["next_page"] is None


def test_flags_may_stand_before_the_two_states(og: Cli, graph: Graph, store: str) -> None:
    first = run(graph, person("ada"))
    run(graph, person("bob"))

    assert og("changes", "--store", store, "--kind", "node", first, "main").out.startswith("+ Person 'bob'")
    assert og("--json", "changes", first, "main").json["changes"]


def test_what_is_wrong_is_reported_before_anything_is_written(og: Cli, graph: Graph) -> None:
    run(graph, person("ada"))

    answer = og("changes", "main", "main", "--type", "Persn", "--json")
    assert (answer.code, answer.out) == (1, "")
    assert og("changes", "nowhere", "main").code == 1
    assert og("changes", "main").code == 2
    assert og("changes", "main", "main", "--operation", "upsert").code == 2


def test_pages_are_asked_for_by_their_token(og: Cli, graph: Graph) -> None:
    first = graph.commits()[-1].id
    run(graph, person("a") + person("b"))

    page = og("changes", first, "main", "--limit", "1", "--json").json
    rest = og("changes", first, "main", "--limit", "1", "--page", page["next_page"], "--json").json

    assert [page["changes"][0]["id"], rest["changes"][0]["id"]] == ["a", "b"]
    assert rest["next_page"] is None
    assert "--page" in og("changes", first, "main", "--limit", "1").err


def test_a_stub_in_between_is_explained(og: Cli, graph: Graph) -> None:
    kept = run(graph, person("ada"))
    graph.tags.create("kept", kept)
    run(graph, person("bob"))
    run(graph, person("cy"))
    expire(graph, 4, keep=(2,))

    answer = og("changes", "kept", "main", "--explain")

    assert "direct: cleanup has expired" in answer.err
    assert "compared no table with 1 small commits on top with no table with 3 small commits on top" in answer.err


def test_the_changes_of_a_commit_are_shown_and_of_maintenance_there_are_none(og: Cli, graph: Graph) -> None:
    commit = run(graph, person("ada"))
    compaction = compact(graph)

    assert og("commit", "changes", commit).out.startswith("+ Person 'ada'")
    assert og("commit", "changes", compaction, "--json").json["changes"] == []


# changes poll


def test_the_feed_goes_on_from_its_cursor(og: Cli, graph: Graph) -> None:
    begun = og("changes", "poll", "--json").json
    commit = run(graph, person("ada"))

    page = og("changes", "poll", "--cursor", begun["cursor"], "--json").json

    assert begun["changes"] == []
    assert [(change["commit_id"], change["operation"], change["id"]) for change in page["changes"]] == [
        (commit, "insert", "ada")
    ]
    assert page["more"] is False
    assert og("changes", "poll", "--start", "beginning").out.startswith(f"{commit} + Person 'ada'")


def test_an_expired_cursor_says_how_to_begin_again(og: Cli, graph: Graph) -> None:
    begun = og("changes", "poll", "--json").json
    run(graph, person("ada"))
    run(graph, person("bob"))
    expire(graph, 3)

    answer = og("changes", "poll", "--cursor", begun["cursor"], "--json")

    assert (answer.code, answer.error["code"]) == (1, "not_found")
    baseline = answer.error["details"]["baseline"]
    assert og("export", "--at", baseline).out.count("\n") == 2
    assert og("changes", "poll", "--start", baseline, "--json").json["changes"] == []


# tag, revert, time travel


def test_tags_are_made_listed_and_deleted(og: Cli, graph: Graph) -> None:
    commit = run(graph, person("ada"))
    run(graph, person("bob"))

    assert og("tag", "create", "v1", commit, "--as", "eve").code == 0
    (tag,) = og("tag", "list", "--json").json["tags"]
    assert (tag["name"], tag["commit_id"], tag["actor"]) == ("v1", commit, "eve")
    assert "v1" in og("tag", "list").out
    assert og("snapshot", "--at", "v1", "--json").json["commit_id"] == commit
    assert og("export", "--at", "v1").out.count("\n") == 1
    assert og("schema", "show", "--at", "v1").code == 0
    assert (
        len(
            og("query", "-e", "query q() { match { $p: Person } return { $p.slug } }", "--at", "v1", "--json").json[
                "rows"
            ]
        )
        == 1
    )
    assert og("tag", "create", "v1").code == 3
    assert og("tag", "delete", "v1").code == 0
    assert og("tag", "list", "--json").json["tags"] == []
    assert og("tag", "delete", "v1").code == 1


def test_a_branch_is_forked_from_a_commit(og: Cli, graph: Graph) -> None:
    commit = run(graph, person("ada"))
    run(graph, person("bob"))

    assert og("branch", "create", "old", "--from", commit).code == 0
    assert og("branch", "create", "older", "--at", commit).code == 0
    for branch in ("old", "older"):
        assert og("snapshot", "--branch", branch, "--json").json["types"][0]["rows"] == 1


def test_a_commit_is_reverted(og: Cli, graph: Graph) -> None:
    run(graph, person("ada", age=1))
    commit = run(graph, update("ada", age=2))

    made = og("revert", commit, "--as", "eve", "--json").json["commit"]

    assert (made["kind"], made["actor"], made["touched"]) == ("revert", "eve", {"node:Person": {"updated": 1}})
    assert "Nothing changed" in og("revert", commit).out


def test_a_revert_that_conflicts_exits_with_3_and_lists_the_conflicts(og: Cli, graph: Graph) -> None:
    run(graph, person("ada", age=1))
    commit = run(graph, update("ada", age=2))
    run(graph, update("ada", age=3))

    answer = og("revert", commit, "--json")

    assert answer.code == 3
    (conflict,) = answer.error["details"]["merge_conflicts"]
    assert (conflict["kind"], conflict["entity_id"]) == ("DivergentUpdate", "ada")
