"""Every constraint, broken and kept: a bulk load finds what a load in one process finds, and says it in its words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.bulk import agree, edge, node, person

PEOPLE = [person(f"p{number:02}") for number in range(30)]
COMPANIES = [node("Company", name="acme"), node("Company", name="ibex")]
STORED = [
    *(person(f"s{number}", age=number, bio="x", face=[1.0, 2.0]) for number in range(6)),
    node("Company", name="old"),
    node("Note", id="n1", text="one", rank=1),
    edge("Knows", "s0", "s1", id="k1", since="2020-01-01"),
    edge("WorksAt", "s0", "old", id="w1"),
    edge("Needs", "old", "s1", id="d1"),
]

BROKEN: dict[str, tuple[list[Any], str]] = {
    "Person.name required": ([*PEOPLE, node("Person", slug="nn", name=None)], "append"),
    "Person.age type I32": (
        [*PEOPLE, person("x", age="old"), person("y", age="old"), person("z", age=2**40)],
        "append",
    ),
    "Person.role enum": ([*PEOPLE, person("x", role="boss"), person("y", role="chief")], "append"),
    "Person.age range 0..150": ([*PEOPLE, person("x", age=151), person("y", age=-1)], "append"),
    "Person.slug check [a-z0-9-]+": ([*PEOPLE, person("Loud!")], "append"),
    "Person key (slug)": ([*PEOPLE, person("p03"), person("x", id="other")], "append"),
    "an id twice": ([*PEOPLE, person("p03", name="b"), person("p03", name="c"), person("p07", name="d")], "append"),
    "an id that is stored": ([*PEOPLE, person("s1"), person("s0")], "append"),
    "an edge that is stored, of a type of which few may leave a node": (
        [edge("WorksAt", "s0", "old", id="w1"), edge("Needs", "old", "s1", id="d1")],
        "append",
    ),
    "Person unique (name, role)": ([*PEOPLE, person("x", name="P05"), person("y", name="P05")], "append"),
    "unique in the graph": ([*PEOPLE, person("x", name="S1"), person("y", name="S3")], "append"),
    "Note unique (rank)": ([node("Note", id="b", text="t", rank=1), node("Note", id="c", text="t")], "append"),
    "ends": ([*PEOPLE, edge("Likes", "p01", "nobody", id="l1"), edge("Likes", "none", "nobody", id="l2")], "append"),
    "WorksAt card 0..1": (
        [
            *PEOPLE,
            *COMPANIES,
            edge("WorksAt", "p01", "acme", id="w7"),
            edge("WorksAt", "p01", "ibex", id="w8"),
            edge("WorksAt", "s0", "acme", id="w9"),
        ],
        "append",
    ),
    "Needs card 1..2": (
        [*PEOPLE, *COMPANIES, *(edge("Needs", "acme", f"p{n:02}", id=f"e{n}") for n in range(5))],
        "append",
    ),
    "no entity": ([*PEOPLE, "{", person("p03"), '{"type": "Ghost", "data": {}}', person("x", age="?")], "append"),
    "a row with two flaws": ([*PEOPLE, person("LOUD", age=200, role="boss")], "append"),
    "a changed key": ([node("Person", id="s1", slug="s2", name="n")], "merge"),
    "an upsert out of range": ([person("s1", age=999), person("new", age=999), person("s2", age=999)], "merge"),
    "an id twice in a merge": ([person("s1", age=1), person("s1", age=1), person("s1", age=2)], "merge"),
    "an id twice, both as it is stored": ([person("s1"), person("s2"), person("s1"), person("s1")], "merge"),
    "an edge twice in a merge": ([edge("Knows", "s0", "s1"), edge("Knows", "s0", "s1", since="2021-01-01")], "merge"),
    "a merge meets a stored value": ([person("x", name="S1"), person("s2", name="S3")], "merge"),
    "a merge with too many edges": ([node("Company", name="z"), edge("WorksAt", "s0", "z", id="w2")], "merge"),
    "an overwrite that loses nodes": ([*PEOPLE], "overwrite"),
    "an overwrite with lonely edges": ([edge("Knows", "s0", "ghost", id="k")], "overwrite"),
    "an overwrite that leaves too few": ([*COMPANIES, edge("Needs", "acme", "s1", id="q")], "overwrite"),
}

KEPT: dict[str, tuple[list[Any], str]] = {
    "new rows": ([*PEOPLE, *COMPANIES, edge("Knows", "p00", "s1", id="k2"), edge("WorksAt", "p01", "acme")], "append"),
    "ends that come later": ([edge("Likes", "p00", "p01", much=0.5), *PEOPLE], "append"),
    "nulls agree with nothing": ([node("Note", text="a"), node("Note", text="b"), node("Note", text="c")], "append"),
    "an upsert": ([person("s1", age=77), person("s2"), person("t", bio="y"), edge("Knows", "s0", "s1")], "merge"),
    "a changed text empties its vector": ([node("Person", slug="s3", name="S3", bio="other")], "merge"),
    "values that change hands": ([person("s1", name="S2"), person("s2", name="S1")], "merge"),
    "an edge that moves": ([edge("WorksAt", "s1", "old", id="w1")], "merge"),
    "what is as it was": ([person("s1"), person("s2", age=2)], "merge"),
    "all rows of a type": ([*(person(f"s{n}") for n in range(3)), *PEOPLE], "overwrite"),
    "edges of a type": ([edge("WorksAt", "s1", "old"), edge("WorksAt", "s2", "old")], "overwrite"),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("on_error", ["fail", "quarantine"])
def test_what_is_broken_is_reported_alike(tmp_path: Path, what: str, on_error: str) -> None:
    entities, mode = BROKEN[what]

    outcome = agree(tmp_path, entities, STORED, mode=mode, on_error=on_error)

    assert outcome.error is not None or (on_error == "quarantine" and outcome.rejected)


@pytest.mark.parametrize("what", KEPT)
def test_what_holds_is_taken_alike(tmp_path: Path, what: str) -> None:
    entities, mode = KEPT[what]

    outcome = agree(tmp_path, entities, STORED, mode=mode)

    assert outcome.error is None


SLUGS = st.sampled_from([f"s{n}" for n in range(4)] + ["a", "b", "c", "D"])
IDS = st.sampled_from(["i1", "i2", "i3", "k1", "w1", "d1"])


def _optional(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=values)


ENTITIES = st.one_of(
    st.builds(
        lambda slug, more: person(slug, **more),
        SLUGS,
        _optional(
            name=st.sampled_from(["S1", "S2", "A", "B", None]),
            age=st.sampled_from([1, 2, 200, "x", None]),
            role=st.sampled_from(["ops", "lead", "boss"]),
            bio=st.sampled_from(["x", "y", None]),
            tags=st.sampled_from([["t"], [], None]),
            id=st.sampled_from(["s1", "a"]),
        ),
    ),
    st.builds(lambda name: node("Company", name=name), st.sampled_from(["old", "acme", None])),
    st.builds(lambda i, rank: node("Note", id=i, text="t", rank=rank), IDS, st.sampled_from([1, 2, None])),
    st.builds(lambda a, b, more: edge("Knows", a, b, **more), SLUGS, SLUGS, _optional(id=IDS)),
    st.builds(lambda a, b, more: edge("Likes", a, b, **more), SLUGS, SLUGS, _optional(much=st.just(0.5))),
    st.builds(lambda a, b, i: edge("WorksAt", a, b, id=i), SLUGS, st.sampled_from(["old", "acme"]), IDS),
    st.builds(lambda a, b, i: edge("Needs", a, b, id=i), st.sampled_from(["old", "acme"]), SLUGS, IDS),
    st.sampled_from(STORED),  # exactly as it is
    st.sampled_from(["{", '{"type": "Ghost"}', ""]),
)


LOADS = given(
    entities=st.lists(ENTITIES, min_size=1, max_size=14),
    mode=st.sampled_from(["append", "merge", "overwrite"]),
    on_error=st.sampled_from(["fail", "quarantine"]),
    stored=st.booleans(),
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@LOADS
def test_any_load_comes_to_the_same(
    tmp_path: Path, entities: list[Any], mode: str, on_error: str, stored: bool
) -> None:
    agree(tmp_path, entities, STORED if stored else (), mode=mode, on_error=on_error)


@pytest.mark.soak
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@LOADS
def test_any_of_many_loads_comes_to_the_same(
    tmp_path: Path, entities: list[Any], mode: str, on_error: str, stored: bool
) -> None:
    agree(tmp_path, entities, STORED if stored else (), mode=mode, on_error=on_error)
