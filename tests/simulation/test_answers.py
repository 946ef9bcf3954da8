"""Wrong answers are reported: what a call said must agree with the log and the states that were there within it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulation import ops
from simulation.histories import change_manifest, found, manifests, mutate, person
from simulation.ops import StoreWrite
from simulation.serial import STAGED, Serial


def answer(serial: Serial, verb: ops.Verb, outcome: ops.Outcome, *, start: int = 90, end: int = 92) -> set[str]:
    """What the checks say about one more call that answered so; nothing else happened during it."""
    name = f"c{len(serial.history.calls)}"
    serial.history.begin(ops.Call(name, "p0", "t0", verb, start, end, outcome))
    checks = found(serial.history)
    del serial.history.calls[name]
    return checks


def error(name: str, **fields: Any) -> ops.Refused:
    return ops.Refused(name, fields, name)


def heads(serial: Serial, branch: str = "main") -> str:
    return serial.graph.snapshot(branch).commit_id


def rows(serial: Serial, branch: str = "main", at: str | None = None) -> dict[str, Any]:
    result = serial.call(ops.Read(branch, at)).outcome
    assert isinstance(result, ops.ReadResult)
    return {name: dict(table) for name, table in result.contents.items()}


def test_an_acknowledged_commit_that_is_not_there_is_reported(branched: Serial) -> None:
    assert "acknowledged" in answer(branched, mutate(person("dan")), ops.Committed("nowhere.7"))


def test_an_answer_with_the_commit_of_another_call_is_reported(branched: Serial) -> None:
    assert "acknowledged" in answer(branched, mutate(person("dan")), ops.Committed(heads(branched)))


def test_a_repetition_may_answer_with_the_commit_of_the_first_call(serial: Serial) -> None:
    verb = mutate(person("ada"), txn_id="once")
    first = serial.commit(verb)

    assert answer(serial, verb, ops.Committed(first)) == set()
    assert "acknowledged" in answer(serial, replace(verb, txn_id="another"), ops.Committed(first))


@pytest.mark.parametrize("outcome", [error("Unavailable"), ops.NoChange(), error("RetriesExhausted")])
def test_a_refused_call_that_is_committed_is_reported(branched: Serial, outcome: ops.Outcome) -> None:
    call = branched.history.calls["c4"]
    branched.history.calls["c4"] = replace(call, outcome=outcome)

    assert "acknowledged" in found(branched.history)


@pytest.mark.parametrize("outcome", [ops.Unknown("x"), ops.Crashed()])
def test_an_unknown_outcome_may_be_there_once_under_its_own_id(branched: Serial, outcome: ops.Outcome) -> None:
    call = branched.history.calls["c4"]
    branched.history.calls["c4"] = replace(call, outcome=outcome)

    assert found(branched.history) == ({"unknown"} if isinstance(outcome, ops.Unknown) else set())


def test_a_commit_that_comes_after_its_answer_is_reported(branched: Serial) -> None:
    call = branched.history.calls["c4"]
    branched.history.calls["c4"] = replace(call, end=call.start)

    assert "acknowledged" in found(branched.history)


def test_a_no_op_that_would_have_changed_something_is_reported(branched: Serial) -> None:
    assert answer(branched, mutate(person("ada", age=3)), ops.NoChange()) == set()
    assert answer(branched, mutate(person("ada", age=4)), ops.NoChange()) == {"no-op"}


def test_an_up_to_date_merge_that_has_something_to_merge_is_reported(branched: Serial) -> None:
    assert answer(branched, ops.Merge("b0"), ops.NoChange("already_up_to_date")) == {"no-op"}


REFUSALS: Mapping[str, tuple[ops.Verb, ops.Refused]] = {
    "nothing is violated": (mutate(person("dan")), error("ConstraintViolation")),
    "the branch is there": (mutate(person("dan"), branch="b0"), error("BranchNotFound", branch="b0")),
    "there is no such commit": (
        mutate(person("dan"), strict=True),
        error("ExpectedVersionMismatch", table_key="node:Person", expected=None, actual="x.4.0"),
    ),
    "the write is not strict": (
        mutate(person("dan")),
        error("ExpectedVersionMismatch", table_key="node:Person", expected=None, actual=None),
    ),
    "the branch was not there": (
        mutate(person("dan"), if_commit="x.1"),
        error("PreconditionFailed", expected="x.1", actual="x.2"),
    ),
    "nobody has the name": (ops.CreateBranch("b9"), error("AlreadyExists", what="", remedy="")),
    "nobody has the tag": (ops.CreateTag("t9"), error("AlreadyExists", what="", remedy="")),
    "nothing conflicts": (ops.Merge("b0"), error("MergeConflicts", conflicts=(("DivergentUpdate", "Person", "ada"),))),
    "the schemas are the same": (ops.Merge("b0"), error("SchemasDiverged")),
    "the base is there": (ops.Merge("b0"), error("NothingInCommon")),
    "it is damaged": (ops.Read(), error("Damaged")),
    "it is no error of the facade": (ops.Read(), error("ValueError")),
    "a read is not refused like that": (ops.Read(), error("BadRequest")),
    "no cleanup was": (ops.Poll("f"), error("CursorExpired")),
    "nobody is in the way": (ops.CreateBranch("b9"), error("ConflictError")),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_wrong_refusal_is_reported(branched: Serial, why: str) -> None:
    assert answer(branched, *REFUSALS[why]) == {"refusal"}


@pytest.mark.parametrize(("mode", "wrong"), [("overwrite", set()), ("merge", {"refusal"})])
def test_a_recovery_may_lose_to_another_write_if_the_load_that_it_completes_is_strict(
    branched: Serial, mode: Any, wrong: set[str]
) -> None:
    row = ops.LoadRow("Person", (("slug", "dan"), ("age", 1)))
    branched.history.begin(ops.Call("job", "p0", "t0", ops.Load((row,), mode, job_id="j"), 0, 1, ops.Crashed()))
    commits = {"expected": None, "actual": heads(branched)}
    refused = error("ExpectedVersionMismatch", table_key="node:Person", **commits)

    assert answer(branched, ops.Recover(complete=("load-j",)), refused, start=0) == wrong


def test_a_refusal_is_right_if_a_state_within_the_call_demands_it(branched: Serial) -> None:
    """The branch that was deleted later was not missing yet; the tag that was there before was."""
    branched.call(ops.DeleteBranch("b0"))
    gone = branched.history.writes[-1].step
    missing = error("BranchNotFound", branch="b0")

    assert answer(branched, ops.Read("b0"), missing, start=gone - 1, end=gone + 1) == set()
    assert answer(branched, ops.Read("b0"), missing, start=gone - 3, end=gone - 1) == {"refusal"}


def test_a_readable_commit_that_is_not_found_is_reported(branched: Serial) -> None:
    commit = heads(branched)

    assert answer(branched, ops.Read(at=commit), error("CommitNotFound", reference=commit)) == {"refusal"}
    assert answer(branched, ops.Read(at="x.1"), error("CommitNotFound", reference="x.1")) == set()


def test_a_tag_that_is_not_found_is_reported(branched: Serial) -> None:
    branched.call(ops.CreateTag("t0"))

    assert answer(branched, ops.DeleteTag("t0"), error("TagNotFound", tag="t0")) == {"refusal"}


def test_a_stale_read_is_reported(branched: Serial) -> None:
    old = rows(branched, at=f"{heads(branched).partition('.')[0]}.2")

    assert answer(branched, ops.Read(), ops.ReadResult(old)) == {"read"}
    assert answer(branched, ops.Read(), ops.ReadResult(old), start=3, end=5) == set()


def test_rows_that_never_were_together_are_reported(branched: Serial) -> None:
    mixed = rows(branched) | {"Knows": {}}

    assert answer(branched, ops.Read(), ops.ReadResult(mixed)) == {"read"}


def test_time_travel_to_another_state_is_reported(branched: Serial) -> None:
    first = f"{heads(branched).partition('.')[0]}.2"

    assert answer(branched, ops.Read(at=first), ops.ReadResult(rows(branched, at=first), first)) == set()
    assert answer(branched, ops.Read(at=first), ops.ReadResult(rows(branched), first)) == {"read"}
    assert answer(branched, ops.Read(), ops.ReadResult(rows(branched), "x.1")) == {"read"}


def test_a_wrong_diff_is_reported(branched: Serial) -> None:
    call = branched.call(ops.Diff("b0", "main"))
    assert isinstance(call.outcome, ops.Changes)
    assert found(branched.history) == set()

    assert answer(branched, call.verb, ops.Changes(call.outcome.changes[1:])) == {"diff"}
    assert answer(branched, call.verb, ops.Changes(call.outcome.changes[::-1])) == {"diff"}


@pytest.mark.parametrize("names", [("main",), ("b0", "b1", "main"), ("b0", "b0", "main")])
def test_a_wrong_list_of_branches_is_reported(branched: Serial, names: tuple[str, ...]) -> None:
    assert answer(branched, ops.ListNames("branches"), ops.Names(names)) == {"list"}


def test_a_wrong_history_is_reported(branched: Serial) -> None:
    call = branched.call(ops.ListCommits())
    assert isinstance(call.outcome, ops.Names)
    assert found(branched.history) == set()

    assert answer(branched, call.verb, ops.Names(call.outcome.names[1:])) == {"list"}


@pytest.mark.parametrize("wrong", ["gap", "twice", "order", "stops early"])
def test_a_feed_that_is_wrong_is_reported(branched: Serial, wrong: str) -> None:
    first = branched.call(ops.Poll("f0", None, "beginning", 2)).outcome
    assert isinstance(first, ops.Page)
    second = branched.call(ops.Poll("f0", first.cursor, None, 100))
    assert isinstance(second.outcome, ops.Page)
    assert found(branched.history) == set()
    rest = second.outcome.changes
    changes = {
        "gap": rest[1:],
        "twice": (first.changes[-1], *rest),
        "order": rest[::-1],
        "stops early": rest[:1],
    }[wrong]

    assert answer(branched, second.verb, replace(second.outcome, changes=changes)) == {"feed"}


def test_a_branch_from_another_place_is_reported(branched: Serial) -> None:
    call = branched.call(ops.CreateBranch("b1"))
    assert found(branched.history) == set()
    branched.history.calls[call.name] = replace(call, verb=ops.CreateBranch("b1", "b0"))

    assert found(branched.history) == {"done"}


def test_a_branch_or_tag_that_was_not_made_or_deleted_is_reported(branched: Serial) -> None:
    branched.call(ops.CreateTag("t0"))

    assert answer(branched, ops.CreateBranch("b9"), ops.Done()) == {"done"}
    assert answer(branched, ops.DeleteBranch("b0"), ops.Done()) == {"done"}
    assert answer(branched, ops.DeleteTag("t0"), ops.Done()) == {"done"}
    assert answer(branched, ops.CreateTag("t1"), ops.Done(commit_id="x.1")) == {"done"}


# --- Jobs ----------------------------------------------------------------------------------------------------------


def test_a_corrected_input_that_is_reported_as_loaded_is_reported(tmp_path: Path) -> None:
    serial = Serial(tmp_path, STAGED)
    verb = ops.Load((ops.LoadRow("Person", (("slug", "ada"),)),), job_id="j0")
    commit = serial.commit(verb)
    assert found(serial.history) == set()

    assert answer(serial, verb, ops.Committed(commit)) == set()
    other = replace(verb, rows=(ops.LoadRow("Person", (("slug", "bob"),)),))
    assert answer(serial, other, ops.Committed(commit)) == {"acknowledged"}


def test_the_commit_of_a_discarded_run_is_reported(tmp_path: Path) -> None:
    serial = Serial(tmp_path, STAGED)
    serial.commit(ops.Load((ops.LoadRow("Person", (("slug", "ada"),)),), job_id="j0"))
    call = serial.history.calls["c0"]
    intent = {"txn_id": "load-j0", "owner": {"token": "first"}}
    key = "__recovery/load-j0.json"
    place = next(n for n, write in enumerate(serial.history.writes) if write.call == "c0")
    serial.history.writes.insert(place, StoreWrite(2, key, json.dumps(intent).encode(), "c0"))
    serial.history.calls["c0"] = replace(call, outcome=ops.Crashed(), end=None)
    discard = ops.Recover(discard=("load-j0",))

    assert answer(serial, discard, ops.Done(jobs=(("load-j0", "landed"),))) == set()
    assert answer(serial, discard, ops.Done(jobs=(("load-j0", "discarded"),))) == {"discard"}


def test_a_commit_under_a_token_that_was_discarded_is_reported(tmp_path: Path) -> None:
    serial = Serial(tmp_path, STAGED)
    serial.commit(ops.Load((ops.LoadRow("Person", (("slug", "ada"),)),), job_id="j0"))
    token = manifests(serial.history)[-1][1]["commits"][0]["token"]
    assert found(serial.history) == set()

    change_manifest(serial.history, 0, lambda document: document.update(discards=[token]))

    assert found(serial.history) == {"discard"}


# --- Refusals that only somebody else or a fault can demand --------------------------------------------------------

JOB = ops.Load((ops.LoadRow("Person", (("slug", "zoe"),)),), "merge", job_id="j")
UNDEMANDED: Mapping[str, tuple[ops.Verb, ops.Refused]] = {
    "a first start meets no other input": (JOB, error("JobInputDiffers", job_id="j", commit_id="x.1")),
    "nobody took its job": (JOB, error("JobLost", job_id="j")),
    "nobody runs its job": (JOB, error("JobRunning", job_id="j", age_s=1.0)),
    "nobody ends its job": (JOB, error("JobEnding", job_id="j")),
    "nobody discarded its job": (JOB, error("JobDiscarded", job_id="j")),
    "nobody was in the way of the job": (JOB, error("ConflictError")),
    "nothing is wrong with the job": (JOB, error("BadRequest")),
    "a job that can be started": (JOB, error("NotFound")),
    "maintenance met nobody": (ops.Maintain("optimize"), error("ConflictError")),
    "maintenance is no bad request": (ops.Maintain("optimize"), error("BadRequest")),
    "maintenance lost nothing": (ops.Maintain("optimize"), error("JobLost", job_id="j")),
    "nobody takes up a job that is not there": (ops.Recover(discard=("load-j",)), error("ConflictError")),
    "there is nothing to complete": (ops.Recover(complete=("load-j",)), error("BadRequest")),
    "nobody wrote meanwhile": (mutate(person("dan")), error("RetriesExhausted", branch="main", seconds=60.0)),
    "no request failed": (mutate(person("dan")), error("Unavailable")),
    "no clock has jumped": (mutate(person("dan")), error("ClockAhead")),
    "a load that makes no branch": (replace(JOB, job_id=None), error("AlreadyExists", what="", remedy="")),
    "nobody made the load's branch": (replace(JOB, branch="b9", from_="main"), error("AlreadyExists", what="")),
}


@pytest.mark.parametrize("why", UNDEMANDED)
def test_a_refusal_without_its_reason_is_reported(branched: Serial, why: str) -> None:
    assert answer(branched, *UNDEMANDED[why]) == {"refusal"}


def test_a_store_that_failed_within_the_call_is_a_reason(branched: Serial) -> None:
    verb, unavailable = mutate(person("dan")), error("Unavailable")
    branched.history.strike(91, "p0", "fail")

    assert answer(branched, verb, unavailable) == set()
    assert answer(branched, verb, unavailable, start=92, end=94) == {"refusal"}


def test_another_start_of_a_job_is_a_reason(tmp_path: Path) -> None:
    """Its intent was put by another call: by this one it would be none."""
    serial = Serial(tmp_path, STAGED)
    intent = {"txn_id": "load-j", "owner": {"token": "first"}, "tokens": ["first"], "state": "working"}
    body = json.dumps(intent).encode()
    running, lost = error("JobRunning", job_id="j", age_s=1.0), error("JobLost", job_id="j")
    serial.history.write(91, "__recovery/load-j.json", body, "another")

    assert answer(serial, JOB, running) == set()
    assert answer(serial, JOB, error("JobRunning", job_id="j", age_s=1000.0), start=91, end=93) == {"refusal"}
    assert answer(serial, JOB, running, start=80, end=90) == {"refusal"}
    assert answer(serial, JOB, lost) == set()
    assert answer(serial, JOB, lost, start=92, end=94) == {"refusal"}


def test_a_job_that_was_loaded_with_other_rows_is_a_reason(tmp_path: Path) -> None:
    serial = Serial(tmp_path, STAGED)
    commit = serial.commit(JOB)
    differs = error("JobInputDiffers", job_id="j", commit_id=commit)

    assert answer(serial, JOB, differs) == {"refusal"}
    other = replace(JOB, rows=(ops.LoadRow("Person", (("slug", "bob"),)),))
    assert answer(serial, other, differs) == set()
    assert answer(serial, other, error("ConflictError")) == {"refusal"}


# --- Refused, and done all the same --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb", [ops.CreateTag("t1"), ops.DeleteTag("t0"), ops.DeleteBranch("b0"), ops.Merge("b0", delete_branch=True)]
)
def test_a_refused_call_that_has_done_it_is_reported(branched: Serial, verb: ops.Verb) -> None:
    branched.call(ops.CreateTag("t0"))
    call = branched.call(verb)
    assert not isinstance(call.outcome, ops.Refused)
    assert found(branched.history) == set()
    branched.history.calls[call.name] = replace(call, outcome=error("BadRequest"))

    assert "acknowledged" in found(branched.history)


# --- What a merge did ----------------------------------------------------------------------------------------------


def test_a_rehearsal_that_says_something_else_is_reported(branched: Serial) -> None:
    rehearsal = ops.Merge("b0", dry_run=True)

    assert answer(branched, rehearsal, ops.NoChange("merged")) == set()
    assert answer(branched, rehearsal, ops.NoChange("already_up_to_date")) == {"no-op"}
    assert answer(branched, rehearsal, ops.NoChange("fast_forward")) == {"no-op"}


@pytest.mark.parametrize("forward", [False, True])
def test_a_merge_that_says_how_it_was_done_must_be_right(branched: Serial, forward: bool) -> None:
    if forward:
        branched.call(ops.CreateBranch("b1"))
        branched.commit(mutate(person("eve"), branch="b1"))
    call = branched.call(ops.Merge("b1" if forward else "b0"))
    assert isinstance(call.outcome, ops.Committed)
    assert call.outcome.outcome == ("fast_forward" if forward else "merged")
    assert found(branched.history) == set()
    wrong = replace(call.outcome, outcome="merged" if forward else "fast_forward")
    branched.history.calls[call.name] = replace(call, outcome=wrong)

    assert found(branched.history) == {"acknowledged"}


def test_what_a_cleanup_has_swept_is_reported_at_once(tmp_path: Path) -> None:
    serial = Serial(tmp_path, STAGED)
    rows = tuple(ops.LoadRow("Person", (("slug", f"p{number}"),)) for number in range(4))
    serial.commit(ops.Load(rows))
    serial.checker.after_cleanup()
    assert serial.checker.violations == []

    next(Path(str(serial.history.tables)).rglob("*.lance")).unlink()
    serial.checker.after_cleanup()

    assert {violation.check for violation in serial.checker.violations} == {"retained"}


# Merge bases that a cleanup has expired.


def test_a_merge_that_is_refused_for_a_base_that_is_there_is_reported(branched: Serial) -> None:
    assert "refusal" in answer(branched, ops.Merge("b0", "main"), error("MergeBaseExpired", base=None))


def test_a_base_may_be_gone_if_it_had_expired_before_its_branch_was_forked_from_an_old_commit(serial: Serial) -> None:
    """The old commit is retained on b0, whose first manifest has the state of the base. But main has not merged b0, so
    what it has in common with a fork of that commit is the base on main itself (seed 3304 of the run of 20,000)."""
    serial.commit(mutate(person("ada")))
    serial.call(ops.CreateBranch("b0"))
    old = serial.commit(mutate(person("bob"), branch="b0"))
    for number in range(3):
        serial.commit(mutate(person(f"p{number}")))
    serial.commit(ops.Merge("main", "b0"))
    serial.call(ops.Maintain("cleanup", keep=3))
    serial.call(ops.CreateBranch("b1", old))

    refused = serial.call(ops.Merge("b1", "main")).outcome

    assert isinstance(refused, ops.Refused)
    assert refused.error == "MergeBaseExpired"
    assert found(serial.history) == set()


@pytest.mark.parametrize(("kept", "wrong"), [(1, set[str]()), (9, {"refusal"})], ids=["expired", "retained"])
def test_a_read_may_find_files_missing_only_if_a_cleanup_has_expired_its_state_meanwhile(
    branched: Serial, kept: int, wrong: set[str]
) -> None:
    """A diff that sleeps for longer than its states are retained (seed 9687 of the run of 20,000)."""
    first = branched.history.calls["c1"].outcome
    assert isinstance(first, ops.Committed)
    start = branched.call(ops.Read("main")).start
    end = branched.call(ops.Maintain("cleanup", keep=kept)).end
    assert end is not None

    diff = ops.Diff(first.commit_id, "main")
    assert answer(branched, diff, error("Damaged"), start=start, end=end) == wrong
    assert answer(branched, ops.Read("main", first.commit_id), error("Damaged"), start=start, end=end) == wrong
    assert "refusal" in answer(branched, diff, error("Damaged"))
    assert "refusal" in answer(branched, mutate(person("dan")), error("Damaged"), start=start, end=end)
