"""Answers of immutable versions are remembered: a question that was asked before asks the store nothing."""

from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage.location import Location
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.index import segments as index_segments
from omnigraph.storage.table.overlay import Overlay
from omnigraph.storage.table.read.lookup_cache import COMPLETE_IDS_MAX, LOOKUP_VALUES_MAX, LookupCache
from omnigraph.storage.table.table_content import VersionWithTail
from omnigraph.storage.table.tables import Tables
from omnigraph.threads import gather
from support.proxy import Proxy
from support.s3 import S3Location
from support.tails import Tails

AT, OTHER = TableVersion("t", 1), TableVersion("t", 2)


def people(*ids: str, age: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.string()), "age": pa.array([age] * len(ids), pa.int64())})


def with_index(tables: Tables, at: TableVersion) -> TableVersion:
    indexed = tables.reindex(at, (), [DeclaredIndex("id", "btree"), DeclaredIndex("age", "btree")])
    assert len(tables.open(indexed).describe_indices()) == 2
    return indexed


def test_it_is_remembered_which_ids_are_there_and_which_are_not() -> None:
    memo = LookupCache()
    memo.add_ids(AT, ["ada", "bob"], {"ada"})

    assert memo.get_ids(AT, ["ada", "bob", "cy"]) == {"ada": True, "bob": False}
    assert memo.get_ids(OTHER, ["ada"]) == {}


def test_rows_answer_also_for_some_of_the_ids_and_for_those_that_are_missing() -> None:
    memo = LookupCache()
    memo.add_rows(AT, ["id", "age"], ["ada", "bob", "nobody"], people("ada", "bob"))

    missing, found = memo.get_rows(AT, ["id", "age"], ["bob", "nobody", "cy"])

    assert missing == ["cy"]
    assert [part.to_pylist() for part in found] == [[{"id": "bob", "age": 0}]]
    assert memo.get_ids(AT, ["ada", "nobody"]) == {"ada": True, "nobody": False}
    assert memo.get_rows(AT, ["id"], ["bob"]) == (["bob"], []), "other columns are another question"


def test_places_are_known_to_those_who_ask_for_all_that_were_found_together() -> None:
    memo = LookupCache()
    memo.add_addresses(AT, ["ada", "bob"], [5])

    assert memo.get_addresses(AT, frozenset({"ada", "bob", "cy"})) == (["cy"], [5])
    assert memo.get_addresses(AT, frozenset({"ada"})) == (["ada"], []), "5 may be bob's"


def test_all_ids_of_a_table_are_known_to_the_process_that_wrote_them() -> None:
    memo = LookupCache()
    memo.add_change(None, Overlay.of(people("ada", "bob")), AT, 2)
    memo.add_change(AT, Overlay.of(people("cy"), ["ada"]), OTHER, 2)

    assert memo.get_ids(AT, ["ada", "cy"]) == {"ada": True, "cy": False}
    assert memo.get_ids(OTHER, ["ada", "bob", "cy"]) == {"ada": False, "bob": True, "cy": True}
    assert memo.get_rows(OTHER, ["id"], ["ada", "bob"]) == (["bob"], [])
    assert memo.get_addresses(OTHER, frozenset({"ada", "bob"})) == (["bob"], [])
    assert memo.possibly_present(OTHER, ["ada", "bob", "ids"]) == ["bob"]

    same = TableVersion("t", 3)
    memo.add_same(OTHER, same)
    assert memo.possibly_present(same, ["ada", "bob"]) == ["bob"]


def test_all_ids_are_known_of_nothing_that_began_unknown_is_large_or_does_not_add_up() -> None:
    memo = LookupCache()
    memo.add_change(AT, Overlay.of(people("cy")), OTHER, 2)
    assert memo.possibly_present(OTHER, ["nobody"]) == ["nobody"], "nobody knows what was there before"

    many = people(*map(str, range(COMPLETE_IDS_MAX + 1)))
    memo.add_change(None, Overlay.of(many), OTHER, many.num_rows)
    memo.add_change(None, Overlay.of(people("cy")), OTHER, 2)
    assert memo.possibly_present(OTHER, ["nobody"]) == ["nobody"]


def test_what_was_asked_longest_ago_is_forgotten_first() -> None:
    memo = LookupCache(bytes_max=10 * 300)
    for k in range(20):
        memo.add_ids(AT, [f"p{k}"], [])
        memo.get_ids(AT, ["p0"])

    assert memo.size <= 3_000
    assert memo.get_ids(AT, ["p0", "p1", "p19"]) == {"p0": False, "p19": False}


def test_learning_the_same_again_takes_no_more_space() -> None:
    memo = LookupCache()
    memo.add_ids(AT, ["ada"], [])
    before = memo.size
    memo.add_ids(AT, ["ada"], [])

    assert memo.size == before


def test_large_questions_are_not_remembered() -> None:
    memo = LookupCache()
    memo.add_ids(AT, [str(k) for k in range(LOOKUP_VALUES_MAX + 1)], [])
    memo.add("question", LOOKUP_VALUES_MAX + 1, people("ada"))

    assert memo.size == 0


def test_threads_may_learn_and_forget_at_once() -> None:
    memo = LookupCache(bytes_max=50_000)

    def work(seed: int) -> None:
        for k in range(200):
            memo.add_rows(AT, ["id", "age"], [f"{seed}-{k}"], people(f"{seed}-{k}"))
            assert memo.get_ids(AT, [f"{seed}-{k}"]) in ({f"{seed}-{k}": True}, {})

    gather([lambda seed=seed: work(seed) for seed in range(8)])  # type: ignore[misc]  # mypy takes no defaults here
    assert memo.size <= 50_000


# What it saves


@pytest.fixture(autouse=True)
def few_rows_are_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_segments, "INDEXED_ROWS_MIN", 1)


@pytest.fixture
def tails() -> Tails:
    return Tails()


@pytest.fixture
def counted(s3_proxied: S3Location, tmp_path: Path, tails: Tails) -> Tables:
    return Tables(Location(s3_proxied.uri, s3_proxied.options), scratch=tmp_path / "scratch", read_tail=tails)


def test_a_question_that_was_asked_before_costs_nothing(proxy: Proxy, counted: Tables, tails: Tails) -> None:
    at = with_index(counted, counted.create("t", people("ada", "bob", "cy")).at)

    def ask(*on_top: Overlay) -> None:
        content = VersionWithTail(at, tails.tail(*on_top))
        assert counted.exists(content, ["ada", "nobody"]) == {"ada"}
        assert counted.lookup(content, ["ada", "nothing"]).to_pylist() == [{"id": "ada", "age": 0}]
        assert counted.lookup(content, ["ada"], ["age"]).to_pylist() == [{"age": 0}]
        assert counted.find_rows(content, ["id"], {"age": [7, 8]}).num_rows == 0
        assert counted.present_values(content, "id", ["ada"]) == {"ada"}

    with proxy.recording() as first:
        ask()
    with proxy.recording() as again:
        ask()
        ask(Overlay.of(people("dee"), new=True))
        assert counted.exists(at, ["nothing"]) == frozenset(), "a lookup has told that too"

    assert len(first) > 0
    assert len(again) == 0, again.describe()
    counted._handles.lookup_cache.clear()
    with proxy.recording() as asked_again:
        ask()
    assert len(asked_again) > 0


def test_the_next_tail_on_a_version_is_read_without_asking_about_the_version_again(
    proxy: Proxy, counted: Tables, tails: Tails
) -> None:
    at = with_index(counted, counted.create("t", people("ada", "bob", "cy")).at)
    tail = tails.tail(Overlay.of(people("dee"), new=True), Overlay.of(people("ada", age=1)))
    counted.dataset(VersionWithTail(at, tail))

    with proxy.recording() as log:
        more = counted.dataset(VersionWithTail(at, (*tail, *tails.tail(Overlay.of(people("eve"), new=True)))))
        again = counted.dataset(VersionWithTail(at, (*tail, *tails.tail(Overlay.of(people("ada", age=2))))))

    assert len(log) == 0, log.describe()
    assert (more.count_rows(), again.count_rows()) == (5, 4)


def test_a_view_of_new_rows_looks_for_no_stored_ones(proxy: Proxy, counted: Tables, tails: Tails) -> None:
    at = counted.create("t", people("ada", "bob")).at

    with proxy.recording() as log:
        view = counted.dataset(VersionWithTail(at, tails.tail(Overlay.of(people("dee"), new=True))))

    assert view.count_rows() == 3
    assert len(log) == 0, log.describe()


def test_a_table_that_small_commits_made_is_not_asked_for_ids_that_it_was_never_given(
    proxy: Proxy, counted: Tables, tails: Tails
) -> None:
    first = counted.fold_tail(VersionWithTail(None, tails.tail(Overlay.of(people("ada", "bob"), new=True))), "t")
    second = counted.fold_tail(VersionWithTail(first.at, tails.tail(Overlay.of(people("cy"), ["ada"]))), "unused")

    with proxy.recording() as log:
        assert counted.lookup(second.at, ["ada", "nobody"], schema=people().schema).num_rows == 0
        assert counted.exists(second.at, ["ada", "bob", "cy", "nobody"]) == {"bob", "cy"}

    assert len(log) == 0, log.describe()
    assert counted.lookup(second.at, ["ada", "bob"]).to_pylist() == [{"id": "bob", "age": 0}]
