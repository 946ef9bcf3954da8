"""Every error survives the wire: the class, the sentence, the code, the details and the fields."""

from __future__ import annotations

import json
import pickle
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import omnigraph
from omnigraph import errors
from omnigraph.cancellation import Stopped
from omnigraph.errors import MergeConflict, OmnigraphError, Violation
from omnigraph.gc.mark import Overtaken
from omnigraph.lexer import LanguageError
from omnigraph.manifest.model.manifest import Point
from omnigraph.memory_budget import NoRoom, ProcessBusy
from omnigraph.query.compile import ParameterError
from omnigraph.query.values import BadValue
from omnigraph.read.search.embedding import ProviderUnavailable
from omnigraph.remote.wire.errors import FAMILIES, error_from, with_places
from omnigraph.schema.consistency import CatalogPath, InvalidCatalog
from omnigraph.write.load.input.load_input import TooLargeForProcess

STEP = {"kind": "add_property", "type_name": "A", "property_name": "x", "supported": False, "code": "OG-MF-103"}
PLAN = {
    "supported": False,
    "step_count": 2,
    "steps": [
        STEP | {"message": "rows hinder it", "before": None, "after": "I32", "count": 1},
        STEP | {"property_name": None, "message": "it can't be", "before": None, "after": "I32", "count": 1},
    ],
}
CONFLICTS = (
    MergeConflict("node", "Person", "ada", "DivergentUpdate", "Person 'ada' differs in age"),
    MergeConflict("edge", "Knows", "k", "OrphanEdge", "Knows 'k' lost its node"),
)
FIRST = Violation(
    "key", "Person", "slug", ("ada", "bob"), "already exists", "take another", places=("a.jsonl line 1", "line 2")
)
MANY = Violation("range", "Person", None, tuple(f"p{n}" for n in range(30)), "has age 999", "give less", more_rows=5)

SAMPLES: list[OmnigraphError] = [
    OmnigraphError("It went wrong."),
    errors.BadRequest("The name is empty: give one."),
    errors.SchemaChangeRefused(PLAN, (("A", "it can't be", "OG-MF-103"),)),
    errors.NotFound("nothing.gq does not exist: check the path."),
    errors.NotAGraph("/somewhere"),
    errors.BranchNotFound("agent/42"),
    errors.CommitNotFound("abc.7", "cleanup has expired it"),
    errors.TagNotFound("v1"),
    errors.CursorRefused("it is of another branch", "begin again"),
    errors.CursorExpired("main", "abc.7", None),
    errors.CursorExpired("main", "abc.7", "abc.9"),
    errors.UnsupportedFormat("The graph", 7, 1),
    errors.Damaged("manifest 3", "no JSON"),
    errors.HeadLost("main", 50, 57, "tag 'v1' names it"),
    errors.ReadOnly("Loading"),
    errors.AccessDenied("__manifest/1", "403"),
    errors.Unavailable("__manifest/1", "timed out"),
    errors.StorageFull("__manifest/1", "no space"),
    errors.DiscardUnsettled("job"),
    errors.ClockAhead(600, 300),
    errors.SparkNotReady("Java is missing: install it."),
    errors.JobFailed("stage", "lost"),
    errors.Unauthorized("A token is needed: send one."),
    errors.Forbidden("This token does not allow writing: ask for another."),
    errors.TooLarge("The body is larger than 3 bytes: send less.", 3, "bytes"),
    errors.TooManyRequests("Too many are waiting: try again in 1 s.", 1),
    errors.ServerUnreachable("http://127.0.0.1:1", "refused"),
    errors.ConflictError("Both wrote it: read it again."),
    errors.AlreadyExists("The branch 'x'", "choose another name"),
    errors.ExpectedVersionMismatch("node:Person", "abc.1", None),
    errors.SchemasDiverged(("adds A.z",), ("drops A.x", "adds A.y")),
    errors.MergeConflicts("agent", "main", CONFLICTS),
    errors.RevertConflicts("abc.7", "main", CONFLICTS[:1]),
    errors.RetriesExhausted("main", 9, 30.5),
    errors.JobRunning("job", "host", 7, 1.5),
    errors.JobLost("job"),
    errors.JobEnding("job"),
    errors.JobDiscarded("job"),
    errors.KeyReused("order-4711"),
    errors.JobInputDiffers("job", "abc.7", "1 file of 3 bytes", "1 file of 4 bytes"),
    errors.PreconditionFailed("abc.1", "abc.2"),
    errors.ConstraintViolation("key", "Person", ("ada", "bob"), f"{FIRST.sentence}.", "slug", (FIRST, MANY)),
    errors.ConstraintViolation("endpoint", "Knows", (), "Knows has no ends.", None, (), (0, 0)),
    errors.InvalidInput((("a.jsonl line 1", "no JSON"), ("a.jsonl line 2", "no type")), 7),
    errors.InvalidInput((("a.jsonl line 1", "no JSON"),), 3, 2),
    errors.OutcomeUnknown("01TXN", "main", 7),
    errors.AnswerLost("01TXN", "main", "no answer in time"),
    Stopped("the deadline has passed", "ask for less"),
    LanguageError("OG-GQ-202", "There is no type Persn", "did you mean Person", "query", 2, 3, "  Persn"),
    ParameterError("OG-GQ-702", "age", '"x" is not an integer', "give a number"),
    BadValue('"x" is not a date', "write it as 2026-01-31"),
    InvalidCatalog("OG-PG-101", "Person has two keys", "keep one", CatalogPath("Person")),
    TooLargeForProcess("The input has more than 1 row: load it with Spark."),
    NoRoom("A part has 7 rows, at most 3 fit: add a filter."),
    ProcessBusy("1,000 rows", "1.0 MiB of 2.0 GiB are free"),
    ProviderUnavailable("http://127.0.0.1:1", "refused"),
    Overtaken(Point("abc", 7)),
    errors.MergeBaseExpired("abcdefghijklm.7.0"),
    errors.MergeBaseExpired(None),
]


def classes() -> Iterator[type[OmnigraphError]]:
    """All errors of the package, whatever module they are in."""
    for module in pkgutil.walk_packages(omnigraph.__path__, "omnigraph."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    todo: list[type[OmnigraphError]] = [OmnigraphError]
    while todo:
        found = todo.pop()
        todo += found.__subclasses__()
        if found.__module__.startswith("omnigraph.") and not found.__name__.startswith("_"):
            yield found


def over_the_wire(error: OmnigraphError) -> Any:
    return json.loads(json.dumps(error.to_json()))


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_as_it_was(error: OmnigraphError) -> None:
    again = error_from(over_the_wire(error), "query q()\n  Persn\n")
    assert isinstance(again, type(error))
    assert type(again).__name__ == type(error).__name__
    assert (str(again), again.code, again.details) == (str(error), error.code, over_the_wire(error)["details"])
    assert (again.exit_code, again.http_status) == (error.exit_code, error.http_status)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_what_came_back_survives_pickling(error: OmnigraphError) -> None:
    again = error_from(over_the_wire(error))
    copied = pickle.loads(pickle.dumps(again))
    assert (type(copied).__name__, str(copied), copied.details) == (type(again).__name__, str(again), again.details)


def test_every_class_of_errors_has_a_sample() -> None:
    elsewhere = ("omnigraph.server.", "omnigraph.cli.", "omnigraph.remote.")
    known = {type(error).__name__ for error in SAMPLES}
    missing = [
        found.__name__
        for found in classes()
        if not found.__module__.startswith(elsewhere) and found.__name__ not in known
    ]
    assert missing == []


def test_every_error_that_a_server_may_name_is_public() -> None:
    """A client finds the class of a body by its name in `omnigraph`."""
    not_sent = ("omnigraph.server.", "omnigraph.cli.", "omnigraph.remote.")
    missing = [
        found.__name__
        for found in classes()
        if not found.__module__.startswith(not_sent) and found.__name__ not in omnigraph.__all__
    ]
    assert missing == []


def test_a_body_can_name_nothing_but_errors() -> None:
    for name in ("Graph", "OmnigraphDataSource", "__all__", "os", ["list"]):
        error = error_from({"error": "x", "code": "conflict", "details": {"kind": name}})
        assert isinstance(error, errors.ConflictError)


def test_every_code_of_the_surface_has_a_family() -> None:
    assert FAMILIES.keys() | {"internal"} == errors.HTTP_STATUS.keys()


@pytest.mark.parametrize("code", sorted(errors.HTTP_STATUS))
def test_a_kind_that_only_the_server_knows_is_of_its_codes_family(code: str) -> None:
    body = {"error": "It says something.", "code": code, "details": {"kind": "SomethingNew", "what": 1}}
    again = error_from(body)
    assert isinstance(again, FAMILIES.get(code, OmnigraphError))
    assert (str(again), again.code, again.details) == ("It says something.", code, body["details"])


def test_fields_are_there_where_the_details_have_them() -> None:
    error = error_from(over_the_wire(SAMPLES[[type(s).__name__ for s in SAMPLES].index("ConstraintViolation")]))
    assert isinstance(error, errors.ConstraintViolation)
    assert (error.constraint, error.type_name, error.property_name) == ("key", "Person", "slug")
    assert [violation.problem for violation in error.violations] == ["already exists", "has age 999"]
    assert [violation.count for violation in error.violations] == [2, 35]
    again = error_from(over_the_wire(errors.MergeConflicts("agent", "main", CONFLICTS)))
    assert isinstance(again, errors.MergeConflicts)
    assert again.args == ("agent", "main", CONFLICTS)


def test_a_sentence_that_the_server_changed_is_said_as_the_server_says_it() -> None:
    error = error_from(
        {
            "error": "The store did not serve: try again later.",
            "code": "unavailable",
            "details": {"kind": "StorageFull"},
        }
    )
    assert isinstance(error, errors.StorageFull)
    assert str(error) == "The store did not serve: try again later."


def test_a_body_of_no_known_form_is_an_error_all_the_same() -> None:
    assert str(error_from({"error": "x"})) == "x"
    assert error_from({"error": "x", "code": "teapot", "details": None}).exit_code == 1


def test_places_get_the_names_that_the_caller_knows() -> None:
    error = errors.ConstraintViolation("key", "Person", ("ada",), f"{FIRST.sentence}.", "slug", (FIRST,))
    again = with_places(error, lambda place: place.replace("a.jsonl", "people.jsonl"))
    assert isinstance(again, errors.ConstraintViolation)
    assert again.violations[0].places == ("people.jsonl line 1", "line 2")
    assert str(again).startswith("people.jsonl line 1: Person 'ada'")
