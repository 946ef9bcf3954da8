"""Schedules that once broke something, each under the name of what it broke: found by seeds, shrunk, and written down.

They say which thread runs up to which request, so they hold whatever else the code asks of the store meanwhile. Each
run is checked as every seed is, and verified in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from simulation.choices import Notebook
from simulation.directed import Directive, Elapse, Let, Step, StepStoreClock, directed
from simulation.mixes import MIXES
from simulation.ops import (
    EXTRAS,
    SPECS,
    ApplySchema,
    Committed,
    CreateBranch,
    Delete,
    Done,
    Insert,
    ListNames,
    Load,
    LoadRow,
    Maintain,
    Merge,
    Mutate,
    Names,
    NoChange,
    Outcome,
    Recover,
    Refused,
    Statement,
    Update,
)
from simulation.simulate import Run, run
from simulation.store import Listings
from simulation.verdict import told, verdict_on

INLINE, STORED = MIXES["everyday"], MIXES["jobs"]
CLEANUP = Maintain("cleanup", keep=1)
PUT = "create __manifest"
LONG = 20 * 60.0  # longer than an intent lives without a sign of life
JOB = "load-j"


def person(slug: str, age: int = 1) -> LoadRow:
    return LoadRow("Person", (("slug", slug), ("age", age)))


def job(*slugs: str) -> Load:
    return Load(tuple(person(slug) for slug in slugs), job_id="j")


def write(*statements: Statement, branch: str = "main", strict: bool = False) -> Mutate:
    return Mutate(statements, branch, strict)


def insert(slug: str, age: int = 1) -> Statement:
    return Insert("Person", (("slug", slug), ("age", age)))


@contextmanager
def played(
    scripts: Mapping[str, Sequence[Step]],
    directives: Sequence[Directive],
    *,
    stored: bool = False,
    listings: Listings | None = None,
) -> Iterator[dict[str, Outcome]]:
    """Play a schedule; the outcomes of its calls, and at the end the verdict on it."""
    schedule = directed(STORED if stored else INLINE, scripts, directives, listings=listings)
    with run(schedule) as found:
        assert found.error is None, found.error
        yield {name: call.outcome for name, call in found.history.calls.items()}
        assert_sound(found)


def assert_sound(found: Run) -> None:
    verdict = verdict_on(found, verify=True)
    assert not verdict.problems, told(verdict)


def committed(outcome: Outcome) -> str:
    assert isinstance(outcome, Committed), outcome
    return outcome.commit_id


# Groups: t0 is about to put, t1 and t2 queue behind it and share the next manifest.

TOGETHER = (
    Let("p0.t0", PUT),
    Let("p0.t1", "waits for an event"),
    Let("p0.t2", "waits for an event"),
    Let("p0.t0"),
    Let("p0.t1"),
    Let("p0.t2"),
)


def first_of_group(notes: Notebook) -> str:
    """The newest commit that others of its group follow."""
    return next(one for one in reversed(notes.commits) if one.endswith(".0"))


def fork_of_group(name: str) -> Step:
    return lambda notes: CreateBranch(name, first_of_group(notes))


@pytest.mark.parametrize("change", ["delete", "update"])
def test_a_branch_from_within_a_group_is_merged_after_its_base_has_expired(change: str) -> None:
    """`ancestry-positions`: with an older base the row that main has deleted would come back."""
    where = ("slug", "new")
    later: Statement = Delete("Person", where) if change == "delete" else Update("Person", (("age", 7),), where)
    scripts: dict[str, Sequence[Step]] = {
        "p0.t0": [
            write(insert("zero")),
            fork_of_group("b0"),
            write(insert("own"), branch="b0"),
            write(later),
            write(insert("more")),
            CLEANUP,
            Merge("b0"),
            Merge("b0"),
        ],
        "p0.t1": [write(insert("new"))],
        "p0.t2": [write(insert("other"))],
    }
    with played(scripts, TOGETHER) as outcomes:
        assert committed(outcomes["p0.t1.0"]).endswith(".0"), "no group was formed"
        assert outcomes["p0.t0.1"] == Done()
        merged = outcomes["p0.t0.6"]
        assert isinstance(merged, Committed), merged
        assert merged.touched == {"node:Person": {"inserted": 1}}
        assert outcomes["p0.t0.7"] == NoChange("already_up_to_date")


def test_a_branch_from_within_a_group_is_merged_once() -> None:
    """`ancestry-positions`: it says of itself how much of the group it has, so there is nothing to merge again."""
    scripts: dict[str, Sequence[Step]] = {
        "p0.t0": [
            write(insert("zero")),
            CreateBranch("b1"),
            fork_of_group("b0"),
            write(insert("theirs"), branch="b1"),
            Merge("b0", "b1"),
            Merge("b0", "b1"),
            Merge("b0", "b1"),
        ],
        "p0.t1": [write(insert("new"))],
        "p0.t2": [write(insert("other"))],
    }
    before_the_group = (Let("p0.t0"), Let("p0.t0"), Let("p0.t1", PUT), Let("p0.t2", "waits for an event"))
    with played(
        {**scripts, "p0.t3": [write(insert("third"))]},
        (
            *before_the_group,
            Let("p0.t3", "waits for an event"),
            Let("p0.t1"),
            Let("p0.t2"),
            Let("p0.t3"),
        ),
    ) as outcomes:
        assert committed(outcomes["p0.t2.0"]).endswith(".0"), "no group was formed"
        assert committed(outcomes["p0.t0.4"])
        assert [outcomes[f"p0.t0.{number}"] for number in (5, 6)] == [NoChange("already_up_to_date")] * 2


def test_a_strict_write_that_is_refused_within_a_group_names_a_commit_that_exists() -> None:
    scripts: dict[str, Sequence[Step]] = {
        "p0.t0": [write(insert("zero"))],
        "p0.t1": [write(Update("Person", (("age", 5),), ("slug", "zero")))],
        "p0.t2": [write(Update("Person", (("age", 6),), ("slug", "zero")), strict=True)],
        "p0.t3": [write(insert("three"))],
    }
    directives = (
        Let("p0.t0"),
        Let("p0.t3", PUT),
        Let("p0.t1", "waits for an event"),
        Let("p0.t2", "waits for an event"),
        Let("p0.t3"),
        Let("p0.t1"),
        Let("p0.t2"),
    )
    with played(scripts, directives) as outcomes:
        refused = outcomes["p0.t2.0"]
        assert isinstance(refused, Refused)
        assert refused.error == "ExpectedVersionMismatch"
        assert refused.fields["actual"] == committed(outcomes["p0.t1.0"])


# Schema changes and folds.


def added(branch: str = "main") -> ApplySchema:
    return ApplySchema(frozenset(extra for extra in EXTRAS if extra.name == "a"), branch)


@pytest.mark.parametrize("how", ["apply", "merge"])
def test_a_fold_that_commits_before_a_schema_change_gives_its_table_the_new_column(how: str) -> None:
    """`rebase`: that nothing had to be staged is decided again on the head that the fold made."""
    fold = Maintain("fold", types=tuple(sorted(SPECS)))
    change: Sequence[Step] = [added()] if how == "apply" else [CreateBranch("b0"), added("b0"), Merge("b0")]
    scripts: dict[str, Sequence[Step]] = {
        "p0.t0": [write(insert("zero")), write(Insert("Note", (("text", "n"),))), *change],
        "p1.t0": [write(insert("one")), fold, write(insert("two"))],
    }
    to_the_put = (Let("p0.t0", PUT),)
    before = (Let("p0.t0"), Let("p0.t0"), Let("p1.t0"))
    ready = (*before, *(Let("p0.t0") for _ in change[:-1]), *to_the_put)
    with played(scripts, (*ready, Let("p1.t0"), Let("p0.t0")), stored=True) as outcomes:
        assert isinstance(outcomes["p1.t0.1"], Done)
        assert outcomes["p1.t0.1"].commits, "nothing was folded"
        assert committed(outcomes[f"p0.t0.{1 + len(change)}"])


# Jobs.


def test_a_job_that_was_discarded_and_started_again_does_not_publish_what_a_cleanup_has_swept() -> None:
    """`fence-tokens`, `intent-tokens`: a fence honours the second run, and not the first one of the same name."""
    scripts: dict[str, Sequence[Step]] = {
        "p0.t0": [write(insert("zero")), job("a", "b")],
        "p1.t0": [Recover(discard=(JOB,)), CLEANUP, write(insert("later"))],
        "p2.t0": [job("a", "b")],
    }
    directives = (
        Let("p0.t0"),
        Let("p0.t0", PUT),
        Elapse(LONG),
        Let("p1.t0"),
        Let("p2.t0", PUT),
        Let("p1.t0"),
        Let("p0.t0"),
        Let("p2.t0"),
    )
    with played(scripts, directives, stored=True) as outcomes:
        assert isinstance(outcomes["p1.t0.0"], Done)
        assert outcomes["p1.t0.0"].jobs == ((JOB, "discarded"),)
        assert isinstance(outcomes["p0.t0.1"], Refused)
        assert isinstance(outcomes["p2.t0.0"], Committed)


def test_a_job_that_was_discarded_never_commits() -> None:
    """`intent-tokens`: the put is preceded by a look at the log and at the intent."""
    scripts: dict[str, Sequence[Step]] = {
        "p0.t0": [write(insert("zero")), job("a", "b")],
        "p1.t0": [Recover(discard=(JOB,))],
    }
    with played(
        scripts, (Let("p0.t0"), Let("p0.t0", PUT), Elapse(LONG), Let("p1.t0"), Let("p0.t0")), stored=True
    ) as outcomes:
        assert isinstance(outcomes["p0.t0.1"], Refused)


def test_a_job_that_finds_its_files_swept_says_that_it_was_discarded_and_not_that_a_table_is_damaged() -> None:
    """`intent-tokens`: it slept before it had staged everything, so no put is there to find that out."""
    scripts: dict[str, Sequence[Step]] = {
        "p0.t0": [write(insert("zero")), job("a", "b")],
        "p1.t0": [Recover(discard=(JOB,)), CLEANUP],
    }
    directives = (Let("p0.t0"), Let("p0.t0", "create __recovery/load-j/"), Elapse(LONG), Let("p1.t0"), Let("p1.t0"))
    with played(scripts, (*directives, Let("p0.t0")), stored=True) as outcomes:
        refused = outcomes["p0.t0.1"]
        assert isinstance(refused, Refused)
        assert refused.error == "JobLost"


def test_a_job_whose_first_tables_another_start_has_made_is_answered_by_the_commit_of_that_start() -> None:
    """`intent-tokens`: it slept before it staged its rows. All starts of a job stage them in the same tables."""
    scripts: dict[str, Sequence[Step]] = {"p0.t0": [job("a", "b")], "p1.t0": [job("a", "b")]}
    directives = (Let("p0.t0", "get __recovery/load-j/"), Elapse(LONG), Let("p1.t0"), Let("p0.t0"))
    with played(scripts, directives, stored=True) as outcomes:
        assert committed(outcomes["p0.t0.0"]) == committed(outcomes["p1.t0.0"])


def test_another_input_under_the_id_of_a_committed_job_is_refused() -> None:
    """`intent-tokens`: the commit names a digest of the input."""
    scripts: dict[str, Sequence[Step]] = {"p0.t0": [job("a", "bad"), job("a", "good"), job("a", "bad")]}
    with played(scripts, (), stored=True) as outcomes:
        first = outcomes["p0.t0.0"]
        assert isinstance(first, Committed)
        assert isinstance(outcomes["p0.t0.1"], Refused)
        assert outcomes["p0.t0.2"] == first


def test_files_of_a_job_are_spared_although_the_clock_has_stepped_back() -> None:
    """`intent-tokens`: an honoured intent names what it stages, so that no clock decides."""
    scripts: dict[str, Sequence[Step]] = {
        "p0.t0": [write(insert("zero")), job("a", "b")],
        "p1.t0": [write(insert("one")), CLEANUP],
    }
    directives = (
        Let("p0.t0"),
        Let("p1.t0"),
        Let("p0.t0", "create __recovery"),
        Let("p0.t0", "get __recovery"),
        StepStoreClock(-3600.0),
        Let("p0.t0", PUT),
        Let("p1.t0"),
        Let("p0.t0"),
    )
    with played(scripts, directives, stored=True) as outcomes:
        assert outcomes["p1.t0.1"] == Done()
        assert isinstance(outcomes["p0.t0.1"], Committed)


# Listings.


def test_a_store_that_lists_in_an_order_of_its_own_hides_no_branch() -> None:
    """`monotone-and-complete-listings`: every listing is read to its end, and nothing of a branch is swept."""
    names = tuple(f"b{number}" for number in range(12))
    script: list[Step] = [write(insert("zero"))]
    for name in names:
        script += [CreateBranch(name), write(insert(name), branch=name)]
    script += [ListNames("branches"), CLEANUP, ListNames("branches")]
    with played({"p0.t0": script}, (), listings=Listings(in_order=False, page=3)) as outcomes:
        for number in (len(script) - 3, len(script) - 1):
            listed = outcomes[f"p0.t0.{number}"]
            assert isinstance(listed, Names)
            assert set(listed.names) == {"main", *names}
