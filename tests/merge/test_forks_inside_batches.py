"""`ancestry-positions`: a branch forked from the middle of a group merges as if each commit had a manifest of its own.

A position counts the commits of a manifest that a branch has. With whole manifests only, the base of a merge would be
the state before the group: a row of the group that one side has removed since would come back.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import omnigraph
from manifest.test_batch_commits import people
from omnigraph.errors import MergeBaseExpired, MergeConflicts
from omnigraph.graph.graph import Graph
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from omnigraph.manifest.model.paths import manifest_key
from omnigraph.merge.plan import MergeOutcome
from support.catalogs import PERSON, person_rows
from support.catalogs import people as people_catalog
from support.cleanup import assert_sound, clean
from support.commit_groups import together


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return omnigraph.init(tmp_path / "graph", people_catalog(), {"fsync": "false"})


@pytest.fixture
def group(graph: Graph) -> list[str]:
    """Two commits that share a manifest: bob comes, cy comes."""
    graph.write([Append(PERSON, person_rows("ada"))])
    _, *ids = together(
        graph,
        lambda: graph.write([Append(PERSON, person_rows("kay"))]),
        lambda: graph.write([Append(PERSON, person_rows("bob"))]),
        lambda: graph.write([Append(PERSON, person_rows("cy"))]),
    )
    return ids


def reopened(graph: Graph) -> Graph:
    return omnigraph.open(graph.repository.location.uri, {"fsync": "false"})


@pytest.mark.parametrize("cleans", [False, True], ids=["", "after a cleanup"])
def test_a_row_deleted_since_the_fork_stays_deleted(graph: Graph, group: list[str], cleans: bool) -> None:
    graph.branches.create("side", group[0])
    graph.write([Append(PERSON, person_rows("eve"))], branch="side")
    graph.write([Delete(PERSON, ("bob",))])
    if cleans:
        clean(graph)

    assert reopened(graph).branches.merge("side").outcome is MergeOutcome.MERGED
    assert people(graph) == ["ada", "cy", "eve", "kay"]
    assert_sound(graph)


@pytest.mark.parametrize("cleans", [False, True], ids=["", "after a cleanup"])
def test_a_row_updated_since_the_fork_is_no_conflict(graph: Graph, group: list[str], cleans: bool) -> None:
    graph.branches.create("side", group[0])
    graph.write([Append(PERSON, person_rows("eve"))], branch="side")
    graph.write([Upsert(PERSON, person_rows("bob", age=7))])
    if cleans:
        clean(graph)

    reopened(graph).branches.merge("side")
    ages = graph.snapshot().to_arrow(PERSON)
    found = dict(zip(ages.column("id").to_pylist(), ages.column("age").to_pylist(), strict=True))
    assert found["bob"] == 7


def test_a_row_that_both_sides_changed_since_the_fork_is_a_conflict(graph: Graph, group: list[str]) -> None:
    graph.branches.create("side", group[0])
    graph.write([Upsert(PERSON, person_rows("bob", age=1))], branch="side")
    graph.write([Upsert(PERSON, person_rows("bob", age=2))])

    with pytest.raises(MergeConflicts):
        graph.branches.merge("side")


def test_what_was_merged_from_the_middle_of_a_group_is_up_to_date_afterwards(graph: Graph, group: list[str]) -> None:
    """The branch stands in the middle of a group; merging it again and again makes no further commit."""
    graph.branches.create("inside", group[0])
    graph.branches.create("other", f"{group[0].split('.')[0]}.2")
    graph.write([Append(PERSON, person_rows("eve"))], branch="other")

    merged = graph.branches.merge("inside", "other")
    assert merged.outcome is MergeOutcome.MERGED
    assert people(graph, branch="other") == ["ada", "bob", "eve", "kay"]
    assert_sound(graph)
    assert graph.branches.merge("inside", "other").outcome is MergeOutcome.UP_TO_DATE
    assert graph.branches.merge("main", "other").outcome is MergeOutcome.MERGED
    assert people(graph, branch="other") == ["ada", "bob", "cy", "eve", "kay"]
    assert_sound(graph)


def test_a_branch_that_merged_a_fork_has_its_position_too(graph: Graph, group: list[str]) -> None:
    graph.branches.create("side", group[0])
    graph.write([Append(PERSON, person_rows("eve"))], branch="side")
    graph.branches.create("third", f"{group[0].split('.')[0]}.1")
    graph.branches.merge("side", "third")
    graph.write([Delete(PERSON, ("bob",))])
    graph.branches.delete("side")
    clean(graph)

    assert reopened(graph).branches.merge("third").outcome is MergeOutcome.MERGED
    assert people(graph) == ["ada", "cy", "eve", "kay"]


def test_two_branches_without_a_live_ancestor_between_them_keep_their_base(graph: Graph) -> None:
    """Both were forked from a branch that is gone: neither names the other, and their base is on the dead one."""
    graph.branches.create("parent")
    graph.write([Append(PERSON, person_rows("bob"))], branch="parent")
    for name in ("one", "two"):
        graph.branches.create(name, "parent")
    graph.branches.delete("parent")
    graph.write([Delete(PERSON, ("bob",))], branch="one")
    graph.write([Append(PERSON, person_rows("eve"))], branch="two")
    clean(graph)
    graph.write([Append(PERSON, person_rows("kay"))], branch="two")
    clean(graph)

    assert reopened(graph).branches.merge("two", "one").outcome is MergeOutcome.MERGED
    assert people(graph, branch="one") == ["eve", "kay"]


def test_a_merge_whose_base_was_expired_is_refused_and_says_what_to_do(graph: Graph, group: list[str]) -> None:
    graph.branches.create("side", group[0])
    graph.write([Append(PERSON, person_rows("eve"))], branch="side")
    graph.write([Delete(PERSON, ("bob",))])
    manifests = graph.repository.manifests
    head = graph.repository.branches.find("main").head
    for number in range(1, head.manifest_version):
        entry = manifests.read(head.point.__class__(head.branch_id, number))
        manifests.replace_with_stub(entry)  # type: ignore[arg-type]

    with pytest.raises(MergeBaseExpired, match=rf"expired {group[0]}.*export the changes"):
        reopened(graph).branches.merge("side")


def as_format_1(graph: Graph, branch: str) -> None:
    """The branch's first manifest as the release of format 1 wrote it: of a group it named the manifest before."""
    head = graph.repository.branches.find(branch).head
    path = Path(graph.uri) / manifest_key(head.point)
    document = json.loads(path.read_bytes())
    del document["checksum"]
    document["format"] = 1
    whole = {id_: place if isinstance(place, int) else place[0] - 1 for id_, place in document["ancestry"].items()}
    document["ancestry"] = whole
    for table in document["tables"].values():
        table.pop("columns", None)
    path.write_text(json.dumps(document, separators=(",", ":")))


def test_a_fork_of_a_fork_of_format_1_has_its_position_too(graph: Graph, group: list[str]) -> None:
    graph.branches.create("side", group[0])
    graph.branches.create("further", "side")
    for branch in ("side", "further"):
        as_format_1(graph, branch)
    again = reopened(graph)
    again.write([Delete(PERSON, ("kay", "bob"))])
    again.write([Append(PERSON, person_rows("dan"))], branch="further")

    again.branches.merge("further")

    assert people(again) == ["ada", "cy", "dan"]


def test_a_dead_branch_that_an_older_commit_still_needs_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two branches merged a third one, each by itself; a fork from before they met has only that one in common."""
    monkeypatch.setenv("OMNIGRAPH_INLINE_ROWS", "0")  # a tail would keep manifests of the dead branch
    graph = omnigraph.init(tmp_path / "graph", people_catalog(), {"fsync": "false"})
    graph.write([Append(PERSON, person_rows("ada"))])
    graph.tags.create("start")  # so that there is an older state that they have in common
    graph.branches.create("third")
    graph.branches.create("other")
    graph.write([Append(PERSON, person_rows("bob"))], branch="third")
    graph.write([Append(PERSON, person_rows("kay"))])
    graph.write([Append(PERSON, person_rows("eve"))], branch="other")
    merged = graph.branches.merge("third").commit
    assert merged is not None
    graph.branches.merge("third", "other")
    graph.write([Delete(PERSON, ("bob",))], branch="other")
    graph.branches.merge("other")
    graph.branches.delete("third")
    clean(graph, keep=3)

    again = reopened(graph)
    again.branches.create("fork", merged.id)
    again.write([Append(PERSON, person_rows("dan"))], branch="fork")
    with pytest.raises(MergeBaseExpired):  # the base was on the dead branch; an older one would bring bob back
        again.branches.merge("fork", "other")
