"""Every constraint, kept and broken, three ways: the load of one process, the bulk load with its tasks in this process,
and the bulk load on Spark. What lands is equal, and so is what is said.

All cases go into three loads of some thousand rows. With `make soak` each has more than 100,000, and there are more
loads: each takes a while on Spark."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.errors import ConstraintViolation, InvalidInput, OmnigraphError
from omnigraph.graph.graph import Graph
from omnigraph.pipeline.bulk.load import BulkSettings, bulk_load
from omnigraph.pipeline.spark.session import SparkSessionHandle
from omnigraph.storage.util.runner import LocalRunner
from omnigraph.write.load.load import LoadResult
from omnigraph.write.load.load_options import LoadOptions
from pipeline.bulk import edge, node, write_lines

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

SCHEMA = """
node Person {
    slug:  String @key
    name:  String
    age:   I32?
    role:  enum(engineer, lead, ops) @default("ops")
    email: String? @unique
    born:  Date?
    score: F64?
    tags:  [String]?
    @range(age, 0..150)
    @check(slug, "[a-z0-9-]+")
    @unique(name, born)
}
node Team { name: String @key }
edge Knows: Person -> Person { @unique(src, dst) }
edge WorksAt: Person -> Team @card(0..1)
edge Leads: Team -> Person @card(2..3)
"""
SECOND = 40_000  # the first number in the second file of people
TEAMS = 100


@dataclass(frozen=True)
class Size:
    """How much is in the files; several splits to each, so that a line's number is put together from them."""

    people: int  # in each of two files
    works: int
    split_bytes: int

    def __str__(self) -> str:
        return f"{2 * self.people + self.works} rows"


SIZES = [Size(1_500, 800, 50_000), pytest.param(Size(40_000, 22_000, 1_000_000), marks=pytest.mark.soak)]


def person(slug: str, **more: Any) -> dict[str, Any]:
    return node("Person", slug=slug, **({"name": slug} | more))


def knows(number: int, source: str, target: str) -> dict[str, Any]:
    return edge("Knows", source, target, id=f"k{number}")


def works(entity: str, source: str, target: str) -> dict[str, Any]:
    return edge("WorksAt", source, target, id=entity)


def leads(entity: str, team: str, target: str) -> dict[str, Any]:
    return edge("Leads", team, target, id=entity)


# The input: `s…` is stored before, `n…` comes with each load. Written once, shared by all tests.


def people_lines(prefix: str, numbers: range, age: int | None = None) -> Iterator[str]:
    for number in numbers:
        yield (
            f'{{"type":"Person","data":{{"slug":"{prefix}{number:05}","name":"{prefix.upper()}{number}",'
            f'"age":{number % 100 if age is None else age},"email":"{prefix}{number}@example.org",'
            f'"born":"19{number % 90 + 10}-01-{number % 28 + 1:02}"}}}}'
        )


def works_lines(prefix: str, count: int) -> Iterator[str]:
    for number in range(count):
        yield (
            f'{{"edge":"WorksAt","from":"{prefix}{number:05}","to":"t{number % TEAMS:03}",'
            f'"data":{{"id":"{prefix}w{number:05}"}}}}'
        )


@dataclass(frozen=True)
class Inputs:
    """The files: each of the lists has all the rows of its size."""

    folder: Path
    size: Size

    @property
    def new(self) -> list[Path]:
        return [self.folder / name for name in ("n-people-1.jsonl", "n-people-2.jsonl", "n-works.jsonl")]

    @property
    def stored(self) -> list[Path]:
        return [self.folder / name for name in ("s-people-1.jsonl", "s-people-2.jsonl", "s-works.jsonl")]

    @property
    def old(self) -> list[Path]:
        """The new people, but all of the first file older than anybody may be."""
        return [self.folder / "old.jsonl", *self.new[1:]]

    @property
    def rest(self) -> Path:
        return self.folder / "rest.jsonl"

    def tail(self, entities: Sequence[Any], name: str = "tail.jsonl") -> Path:
        return write_lines(self.folder / name, entities)


FRIENDS = [person(f"friend-{number}", email=f"friend{number}@example.org") for number in range(3)]
LEADERS = [leads(f"l{number}{nth}", f"t{number:03}", f"s{number + nth:05}") for number in range(9) for nth in (0, 1)]
REST = [
    *(node("Team", name=f"t{number:03}") for number in range(TEAMS)),
    *FRIENDS,
    *LEADERS,
    *(knows(number, f"s{number:05}", f"s{number + 1:05}") for number in range(500)),
    *(knows(500 + number, f"friend-{number}", f"s{number:05}") for number in range(3)),
]


@pytest.fixture(scope="module", params=SIZES, ids=str)
def inputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    size: Size = request.param
    found = Inputs(tmp_path_factory.mktemp("inputs"), size)
    first, second = range(size.people), range(SECOND, SECOND + size.people)
    for prefix, files in (("s", found.stored), ("n", found.new)):
        write_lines(files[0], people_lines(prefix, first))
        write_lines(files[1], people_lines(prefix, second))
        write_lines(files[2], works_lines(prefix, size.works))
    write_lines(found.folder / "old.jsonl", people_lines("n", first, age=151))
    write_lines(found.rest, REST)
    return found


# The three ways.


@dataclass
class Way:
    """A graph, and one way to load it."""

    graph: Graph
    load: Callable[..., LoadResult]

    @property
    def head(self) -> str:
        return self.graph.snapshot().commit_id

    def report(self, files: Sequence[Path], **options: Any) -> dict[str, Any]:
        """What is said of a load that must be refused: everything that an error has."""
        with pytest.raises(OmnigraphError) as raised:
            self.load([str(file) for file in files], **options)
        return _told(raised.value)

    def exported(self, branch: str = "main") -> str:
        out = io.BytesIO()
        self.graph.export(out, branch)
        return hashlib.sha256(out.getvalue()).hexdigest()


Ways = Mapping[str, Way]


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, inputs: Inputs, spark_session: SparkSessionHandle) -> Ways:
    """Three graphs, each filled in its own way."""
    folder = tmp_path_factory.mktemp("graphs")
    local, bulk, spark = (omnigraph.init(folder / name, SCHEMA) for name in ("local", "bulk", "spark"))
    splits = BulkSettings(split_bytes=inputs.size.split_bytes)

    def in_bulk(source: Any, **options: Any) -> LoadResult:
        return bulk_load(bulk.repository, LocalRunner(), source, LoadOptions(**options), settings=splits)

    found = {
        "local": Way(local, lambda source, **options: local.load(source, engine="local", **options)),
        "bulk": Way(bulk, in_bulk),
        "spark": Way(
            spark, lambda source, **options: spark.load(source, engine="spark", spark=spark_session.spark, **options)
        ),
    }
    for way in found.values():
        way.load([str(file) for file in (*inputs.stored, inputs.rest)])
    return found


def _told(error: OmnigraphError) -> dict[str, Any]:
    told: dict[str, Any] = {"type": type(error).__name__, "text": str(error), "details": error.details}
    if isinstance(error, ConstraintViolation):
        told["unlisted"] = error.unlisted
        told["violations"] = [
            {field.name: getattr(one, field.name) for field in fields(one)} | {"count": one.count}
            for one in error.violations
        ]
    if isinstance(error, InvalidInput):
        told["total"] = error.total
    return told


def equal_reports(ways: Ways, files: Sequence[Path], **options: Any) -> dict[str, Any]:
    """Refused in all three ways alike, and nothing becomes visible; answers the report."""
    heads = {name: way.head for name, way in ways.items()}
    reports = {name: way.report(files, **options) for name, way in ways.items()}
    assert reports["bulk"] == reports["local"]
    assert reports["spark"] == reports["local"]
    for name, way in ways.items():
        assert way.head == heads[name]
        assert way.graph.repository.intents.list() == []
    return reports["local"]


def commit_alike(ways: Ways, branch: str, files: Sequence[Path], **options: Any) -> LoadResult:
    """Loaded in all three ways onto a branch of its own, with the same counts and the same graph then."""
    results = {}
    for name, way in ways.items():
        way.graph.branches.create(branch)
        results[name] = way.load([str(file) for file in files], branch=branch, **options)
    local = results["local"]
    assert local.commit is not None
    for result in results.values():
        assert result.commit is not None
        assert (result.counts, result.commit.touched) == (local.counts, local.commit.touched)
        assert (result.rejected, result.reports) == (local.rejected, local.reports)
    assert len({way.exported(branch) for way in ways.values()}) == 1
    return local


# What is broken: rows that come after all the good ones, and what is said about them.


@dataclass(frozen=True)
class Case:
    """Bad rows in a file of their own, what is said of which of its lines; and good rows that are nearly so."""

    bundle: str  # cases that are loaded together
    bad: Sequence[Any]
    good: Sequence[Any]
    constraint: str
    ids: tuple[str, ...]
    problem: str
    lines: tuple[int, ...]
    type_name: str = "Person"
    property_name: str | None = None


CASES: dict[str, Case] = {
    "required": Case(
        "values",
        [person("x1", name=None), node("Person", slug="x2")],
        [person("x1", name="")],
        "Person.name required",
        ("x1", "x2"),
        "has no name",
        (1, 2),
        property_name="name",
    ),
    "value-type": Case(
        "values",
        [person("x3", age="old"), person("x4"), person("x5", age="old")],
        [person("x3", age=None)],
        "Person.age type I32",
        ("x3", "x5"),
        'has a bad age, "old" is not an integer',
        (1, 3),
        property_name="age",
    ),
    "key-that-is-missing": Case(
        "values",
        [node("Person", name="x6")],
        [person("0", name="x6")],
        "Person.slug required",
        (),
        "has no slug, a part of its key",
        (1,),
        property_name="slug",
    ),
    "enum": Case(
        "values",
        [person("x7", role="boss"), person("x8", role="chief")],
        [person("x7", role="lead"), person("x8", role="engineer")],
        "Person.role enum",
        ("x7", "x8"),
        'has role "boss", which is not in the enum',
        (1, 2),
        property_name="role",
    ),
    "range": Case(
        "values",
        [person("x9", age=151), person("x10", age=-1)],
        [person("x9", age=150), person("x10", age=0)],
        "Person.age range 0..150",
        ("x9", "x10"),
        "has age 151, outside 0..150",
        (1, 2),
        property_name="age",
    ),
    "check": Case(
        "values",
        [person("x11"), person("Loud!")],
        [person("-11-")],
        "Person.slug check [a-z0-9-]+",
        ("Loud!",),
        'has slug "Loud!", which does not match [a-z0-9-]+',
        (2,),
        property_name="slug",
    ),
    "key": Case(
        "values",
        [person("x12", id="other")],
        [person("x12", id="x12")],
        "Person key (slug)",
        ("other",),
        "has the key of 'x12'",
        (1,),
        property_name="slug",
    ),
    "id-twice": Case(
        "keys",
        [person("n41000", name="b"), person("n41000", name="c")],
        [person("n410000")],
        "Person key (slug)",
        ("n41000",),
        "occurs twice, first at n-people-2.jsonl line 1001",
        (1, 2),
        property_name="slug",
    ),
    "id-of-an-edge-twice": Case(
        "keys",
        [works("nw00799", "n40000", "t000")],
        [works("nw99999", "n40000", "t000")],
        "WorksAt id",
        ("nw00799",),
        "occurs twice, first at n-works.jsonl line 800",
        (1,),
        "WorksAt",
        "id",
    ),
    "id-that-is-there": Case(
        "keys",
        [person("s41001"), person("s00001")],
        [person("s000010")],
        "Person key (slug)",
        ("s00001", "s41001"),
        "already exists",
        (2, 1),
    ),
    "id-of-an-edge-that-is-there": Case(
        "keys",
        [works("sw00003", "n40001", "t001")],
        [works("sw000030", "n40001", "t001")],
        "WorksAt id",
        ("sw00003",),
        "already exists",
        (1,),
        "WorksAt",
    ),
    "unique-in-the-input": Case(
        "keys",
        [person("x13", email="n41002@example.org"), person("x14", email="n41002@example.org")],
        [person("x13", email=None), person("x14", email=None)],
        "Person unique (email)",
        ("x13", "x14"),
        "has the same email as 'n41002' in this write",
        (1, 2),
        property_name="email",
    ),
    "unique-in-the-graph": Case(
        "keys",
        [person("x15", email="s41003@example.org"), person("x16", email="s3@example.org")],
        [person("x15", email="S41003@example.org")],
        "Person unique (email)",
        ("x15", "x16"),
        "has the same email as the stored 's41003'",
        (1, 2),
        property_name="email",
    ),
    "unique-of-two-in-the-input": Case(
        "keys",
        [person("x17", name="N90", born="1910-01-07")],
        [person("x17", name="N90", born="1910-01-08"), person("x18", name="N90"), person("x19", name="N90")],
        "Person unique (name, born)",
        ("x17",),
        "has the same name, born as 'n00090' in this write",
        (1,),
    ),
    "unique-of-two-in-the-graph": Case(
        "keys",
        [person("x20", name="S90", born="1910-01-07")],
        [person("x20", name="S90", born="1910-01-08"), person("x21", name="S90")],
        "Person unique (name, born)",
        ("x20",),
        "has the same name, born as the stored 's00090'",
        (1,),
    ),
    "unique-ends-in-the-input": Case(
        "keys",
        [knows(901, "n00001", "n00002"), knows(902, "n00001", "n00002")],
        [knows(901, "n00001", "n00002"), knows(902, "n00002", "n00001")],
        "Knows unique (src, dst)",
        ("k902",),
        "has the same src, dst as 'k901' in this write",
        (2,),
        "Knows",
    ),
    "unique-ends-in-the-graph": Case(
        "keys",
        [knows(903, "s00001", "s00002")],
        [knows(903, "s00002", "s00001")],
        "Knows unique (src, dst)",
        ("k903",),
        "has the same src, dst as the stored 'k1'",
        (1,),
        "Knows",
    ),
    "from-that-is-missing": Case(
        "keys",
        [knows(910, "ghost", "n00001"), knows(911, "ghost", "s00001"), knows(912, "absent", "n00001")],
        [knows(910, "n00001", "n00001"), knows(911, "x1", "s00001")],
        "Knows.src in Person",
        ("absent", "ghost"),
        "does not exist, and Knows edges have it as from",
        (3, 1, 2),
        property_name="src",
    ),
    "to-that-is-missing": Case(
        "keys",
        [works("nw1", "n40002", "nowhere"), works("nw2", "s40002", "t001")],
        [works("nw1", "n40002", "t001"), works("nw2", "s40002", "t001")],
        "WorksAt.dst in Team",
        ("nowhere",),
        "does not exist, and WorksAt edges have it as to",
        (1,),
        "Team",
        "dst",
    ),
    "most-edges": Case(
        "keys",
        [works("nw3", "n00007", "t001"), works("nw4", "s00007", "t001"), works("nw5", "n00007", "t002")],
        [works("nw3", "n40003", "t001")],
        "WorksAt card 0..1",
        ("n00007", "s00007"),
        "would have 3 WorksAt edges, at most 1 may leave it",
        (1, 3, 2),
        property_name="src",
    ),
    "fewest-edges": Case(
        "keys",
        [leads("l900", "t090", "n00001"), leads("l901", "t091", "n00001"), leads("l902", "t091", "n00001")],
        [leads("l901", "t091", "n00001"), leads("l902", "t091", "n00001"), leads("l903", "t001", "n00002")],
        "Leads card 2..3",
        ("t090",),
        "would have 1 Leads edges, at least 2 must leave it",
        (),
        "Team",
        "src",
    ),
}


@pytest.fixture(scope="module")
def reports(ways: Ways, inputs: Inputs) -> Callable[[str], dict[str, Any]]:
    """What is said of a bundle of cases, each in a file after the good rows; in all ways the same."""

    @cache
    def of(bundle: str) -> dict[str, Any]:
        tails = [inputs.tail(case.bad, f"{what}.jsonl") for what, case in CASES.items() if case.bundle == bundle]
        return equal_reports(ways, [*inputs.new, *tails])

    return of


@pytest.mark.parametrize("what", CASES)
def test_rows_that_break_a_constraint_are_refused_with_equal_reports(
    reports: Callable[[str], dict[str, Any]], what: str
) -> None:
    case = CASES[what]

    report = reports(case.bundle)

    [told] = [
        one for one in report["violations"] if (one["constraint"], one["problem"]) == (case.constraint, case.problem)
    ]
    assert (told["type_name"], told["property_name"]) == (case.type_name, case.property_name)
    assert told["entity_ids"] == case.ids
    assert told["count"] == max(1, len(case.lines))
    assert told["remedy"]
    assert told["places"] == tuple(f"{what}.jsonl line {number}" for number in case.lines)


@pytest.mark.parametrize("bundle", sorted({case.bundle for case in CASES.values()}))
def test_nothing_else_is_reported(reports: Callable[[str], dict[str, Any]], bundle: str) -> None:
    told = {(one["constraint"], one["problem"]) for one in reports(bundle)["violations"]}

    assert told == {(case.constraint, case.problem) for case in CASES.values() if case.bundle == bundle}


@pytest.fixture(scope="module")
def kept(ways: Ways, inputs: Inputs) -> Mapping[str, set[str]]:
    """The good rows of all cases, loaded after all the others; answers the ids that are there then."""
    good = [entity for case in CASES.values() for entity in case.good]
    commit_alike(ways, "kept", [*inputs.new, inputs.tail(good, "good.jsonl")])
    snapshot = ways["local"].graph.snapshot("kept")
    return {
        kind: set(map(str, snapshot.to_arrow(f"{of}:{kind}").column("id").to_pylist()))
        for of, kind in (("node", "Person"), ("edge", "Knows"), ("edge", "WorksAt"), ("edge", "Leads"))
    }


@pytest.mark.parametrize("what", CASES)
def test_rows_that_keep_a_constraint_land_alike(kept: Mapping[str, set[str]], what: str) -> None:
    for entity in CASES[what].good:
        data = entity["data"]
        assert data.get("id", data.get("slug")) in kept[entity.get("type") or entity["edge"]]


@pytest.mark.soak
def test_a_constraint_that_most_rows_break_is_counted_alike(ways: Ways, inputs: Inputs) -> None:
    report = equal_reports(ways, inputs.old)

    [only] = report["violations"]
    assert (only["constraint"], only["count"]) == ("Person.age range 0..150", inputs.size.people)
    assert only["places"][:2] == ("old.jsonl line 1", "old.jsonl line 2")


@pytest.mark.soak
def test_a_load_of_what_is_there_is_refused_alike(ways: Ways, inputs: Inputs) -> None:
    report = equal_reports(ways, inputs.stored)

    told = [(one["constraint"], one["problem"], one["count"]) for one in report["violations"]]
    assert ("Person key (slug)", "already exists", 2 * inputs.size.people) in told
    assert ("WorksAt id", "already exists", inputs.size.works) in told


@pytest.mark.soak
def test_lines_that_are_no_entities_are_reported_alike(ways: Ways, inputs: Inputs) -> None:
    tail = [
        "{",
        '{"type": "Ghost", "data": {}}',
        person("x", rank=1),
        person("x2", age="?"),
        edge("Knows", "n00001", ""),
    ]

    report = equal_reports(ways, [*inputs.new, inputs.tail(tail)])

    assert (report["type"], report["total"]) == ("InvalidInput", 4)


@pytest.mark.soak
def test_rows_of_parquet_are_named_alike(ways: Ways, tmp_path: Path) -> None:
    """Some values only a table can have: NaN among numbers, and null among the items of a list."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 100_001
    names = [f"p{number:06}" for number in range(count)]
    score = np.arange(count) / 2.0
    tags: list[list[str | None]] = [["a", "b"] if number % 2 else [] for number in range(count)]
    columns = {"slug": names, "name": names, "score": score, "tags": pa.array(tags, pa.list_(pa.string()))}
    good = tmp_path / "good" / "Person.parquet"
    good.parent.mkdir()
    pq.write_table(pa.table(columns), good, row_group_size=20_000)
    score[70_000] = score[30_000] = np.nan
    tags[count - 1] = [None]
    columns |= {"tags": pa.array(tags, pa.list_(pa.string()))}
    pq.write_table(pa.table(columns), tmp_path / "Person.parquet", row_group_size=20_000)

    report = equal_reports(ways, [tmp_path / "Person.parquet"])

    assert [(one["constraint"], one["entity_ids"], one["places"]) for one in report["violations"]] == [
        ("Person.score type F64", ("p030000", "p070000"), ("Person.parquet row 30001", "Person.parquet row 70001")),
        ("Person.tags type [String]", ("p100000",), ("Person.parquet row 100001",)),
    ]
    assert commit_alike(ways, "parquet", [good]).counts == {"Person": count}


# Overwrite and merge.


@pytest.mark.soak
def test_an_overwrite_that_leaves_edges_without_nodes_is_refused_alike(ways: Ways, inputs: Inputs) -> None:
    report = equal_reports(ways, inputs.stored, mode="overwrite")

    [only] = report["violations"]
    assert only["entity_ids"] == ("friend-0", "friend-1", "friend-2")
    assert only["problem"] == "would go, and Knows edges still have it as from"


@pytest.mark.soak
def test_an_overwrite_that_leaves_too_few_or_too_many_edges_is_refused_alike(ways: Ways, inputs: Inputs) -> None:
    few = [*FRIENDS, *LEADERS[1:], *(leads(f"l3{nth}+", "t003", f"s{nth:05}") for nth in range(2))]

    report = equal_reports(ways, [*inputs.stored, inputs.tail(few)], mode="overwrite")

    assert [(one["entity_ids"], one["problem"]) for one in report["violations"]] == [
        (("t003",), "would have 4 Leads edges, at most 3 may leave it"),
        (("t000",), "would have 1 Leads edges, at least 2 must leave it"),
    ]


@pytest.mark.soak
def test_an_overwrite_that_leaves_nothing_broken_is_committed_alike(ways: Ways, inputs: Inputs) -> None:
    tail = inputs.tail([*FRIENDS, *LEADERS[2:], leads("l0", "t000", "s00001"), leads("l1", "t000", "s00002")])

    landed = commit_alike(ways, "overwritten", [*inputs.stored, tail], mode="overwrite")

    size = inputs.size
    assert landed.counts == {"Person": 2 * size.people + 3, "WorksAt": size.works, "Leads": len(LEADERS)}


MERGED_BADLY = [
    person("s00001", name="S1", age=200),
    person("s00002", name="S2", email="s3@example.org"),
    person("s00004", name="S4", email="n5@example.org"),
    person("s00008", name="S8", role="boss"),
    node("Person", id="s00009", slug="s00010", name="S9"),
    works("sw00001", "s00011", "t000"),
    works("sw00012", "s00012", "nowhere"),
    leads("l00", "t001", "s00000"),
    person("s00013", name="S13"),
    person("s00013", name="other"),
]
MERGED_WELL = [
    person("s00001", name="S1", age=150),
    person("s00002", name="S2", email="s3@example.org"),
    person("s00003", name="S3", email="s2@example.org"),
    works("sw00001", "s00001", "t099"),
    works("sw00002", "s40000", "t002"),
    leads("l00", "t001", "s00000"),
    leads("l01", "t001", "s00000"),
    leads("l10", "t000", "s00000"),
    leads("l11", "t000", "s00000"),
]


def test_a_merge_that_breaks_constraints_is_refused_alike(ways: Ways, inputs: Inputs) -> None:
    report = equal_reports(ways, [*inputs.new, inputs.tail(MERGED_BADLY)], mode="merge")

    broken = {one["constraint"] for one in report["violations"]}
    assert broken == {
        "Person key (slug)",
        "Person.role enum",
        "Person.age range 0..150",
        "Person unique (email)",
        "WorksAt card 0..1",
        "WorksAt.dst in Team",
        "Leads card 2..3",
    }


@pytest.mark.soak
def test_a_merge_that_keeps_them_is_committed_alike(ways: Ways, inputs: Inputs) -> None:
    landed = commit_alike(ways, "merged", [*inputs.new, inputs.tail(MERGED_WELL)], mode="merge")

    assert landed.commit is not None
    assert landed.commit.touched["node:Person"] == {"inserted": 2 * inputs.size.people, "updated": 3}


# Everything at once, in the midst of good rows.


@pytest.fixture(scope="module")
def mixed(inputs: Inputs) -> list[Path]:
    """The new files with bad rows among the good ones of the first: all for which some row is to blame."""
    bad = [entity for case in CASES.values() if case.lines for entity in case.bad]
    wrong = ["{", '{"type": "Ghost", "data": {}}', *(json.dumps(entity) for entity in bad)]
    every = inputs.new[0].read_text(encoding="utf-8").splitlines()
    step = inputs.size.people // (len(wrong) + 1)
    for number, line in reversed(list(enumerate(wrong, 1))):
        every.insert(number * step, line)
    return [write_lines(inputs.folder / "mixed.jsonl", every), *inputs.new[1:]]


@pytest.mark.soak
def test_what_is_rejected_is_quarantined_alike_and_the_rest_is_committed(
    ways: Ways, inputs: Inputs, mixed: list[Path], tmp_path: Path
) -> None:
    results, texts = {}, {}
    for name, way in ways.items():
        way.graph.branches.create("quarantined")
        given = [str(file) for file in mixed]
        results[name] = way.load(given, branch="quarantined", on_error="quarantine")
        path = results[name].quarantine
        assert path is not None
        texts[name] = path.read_text(encoding="utf-8")
        path.unlink()
    local = results["local"]
    assert local.rejected > len(CASES)
    assert len(texts["local"].splitlines()) == local.rejected
    for name, result in results.items():
        assert texts[name] == texts["local"]
        assert (result.rejected, result.counts, result.reports) == (local.rejected, local.counts, local.reports)
    assert results["spark"].summary == results["bulk"].summary
    assert sum(local.counts.values()) > 2 * inputs.size.people
    assert len({way.exported("quarantined") for way in ways.values()}) == 1


@pytest.mark.soak
def test_more_errors_than_allowed_are_reported_alike(ways: Ways, mixed: list[Path]) -> None:
    report = equal_reports(ways, mixed, on_error="quarantine", max_errors=5)

    assert (report["type"], report["total"]) == ("InvalidInput", report["details"]["total"])
    assert report["text"].endswith(f"{report['total'] - 1} more bad lines, max_errors allows 5).")


@pytest.mark.soak
def test_keys_that_spark_sql_verifies_are_reported_alike(
    ways: Ways, inputs: Inputs, spark_session: SparkSessionHandle
) -> None:
    """Up to a size DuckDB verifies keys on the driver, whatever runs the tasks; here all questions are Spark SQL's."""
    files = [inputs.tail(case.bad, f"{what}.jsonl") for what, case in CASES.items()]
    given = [str(file) for file in (*inputs.new, *files)]
    repository, before = ways["spark"].graph.repository, ways["spark"].head
    conf = spark_session.spark.conf
    partitions = conf.get("spark.sql.shuffle.partitions")
    assert partitions is not None
    conf.set("spark.sql.shuffle.partitions", "2")

    try:
        with pytest.raises(ConstraintViolation) as raised:
            bulk_load(repository, spark_session.runner, given, settings=BulkSettings(spark_keys_min=0))
    finally:
        conf.set("spark.sql.shuffle.partitions", partitions)

    assert _told(raised.value) == ways["local"].report([Path(one) for one in given])
    assert ways["spark"].head == before


@pytest.mark.soak
def test_more_broken_constraints_than_allowed_are_reported_alike(ways: Ways, inputs: Inputs) -> None:
    tails = [inputs.tail(case.bad, f"{what}.jsonl") for what, case in CASES.items() if case.lines]

    report = equal_reports(ways, [*inputs.new, *tails], on_error="quarantine", max_errors=5)

    assert report["type"] == "ConstraintViolation"
    assert report["text"].endswith("rows are rejected, max_errors allows 5).")
