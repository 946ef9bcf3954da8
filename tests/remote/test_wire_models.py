"""Wire models: what they say of results is true, and a document is decoded to the result that it was made of."""

from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest

from omnigraph.api import job_models, models
from omnigraph.api.job_models import CleanupAnswer, OptimizeAnswer, RecoverAnswer, VerifyAnswer
from omnigraph.api.models import ChangesExplained, CommitEntry, EmbedProperty, SchemaStep, TagEntry
from omnigraph.api.wire_model import WireModel, class_named
from omnigraph.diff.changes import Explained, TypeRead
from omnigraph.gc.cleanup import Cleaned
from omnigraph.gc.recovery import RecoveredJob, Recovery, UnfinishedJob
from omnigraph.maintenance.report import OptimizeResult, TypeReport
from omnigraph.manifest.branch.tags import Tag
from omnigraph.manifest.model.manifest import Commit, CommitClass, Recovered, RowCounts
from omnigraph.pipeline.embedding.embed import Estimate
from omnigraph.schema.evolve.migration_step import Step
from omnigraph.storage.meter import Cost
from omnigraph.verify.report import Checked, VerifyProblem, VerifyReport

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def _models() -> Iterator[type[WireModel]]:
    for module in (models, job_models):
        for known in vars(module).values():
            if isinstance(known, type) and issubclass(known, WireModel) and known.result_class:
                yield known


def _targets(model: type[WireModel]) -> set[str]:
    parts = {target for field in model.fields() if field.source.is_part for target in _targets(field.annotation)}
    return parts | {field.target for field in model.fields() if field.target and not field.source.is_part}


MODELS = sorted(set(_models()), key=lambda model: str(model.__name__))


@pytest.mark.parametrize("model", MODELS)
def test_a_model_fills_arguments_that_the_class_of_its_results_has(model: type[WireModel]) -> None:
    result_class = class_named(model.result_class)

    assert _targets(model) | set(model.undescribed) <= {entry.name for entry in fields(result_class) if entry.init}


@pytest.mark.parametrize("model", MODELS)
def test_a_model_reads_attributes_that_results_have(model: type[WireModel]) -> None:
    result_class = class_named(model.result_class)
    given = {"out", "rows"}  # by whoever writes the document

    for field in model.fields():
        name = field.source.read or field.name
        if isinstance(name, str) and not field.source.is_part and field.name not in given:
            assert hasattr(result_class, name.partition(".")[0]) or name in {
                entry.name for entry in fields(result_class)
            }


@pytest.mark.parametrize(
    ("model", "result"),
    [
        (TagEntry, Tag("v1", "b.1", NOON, None, "")),
        (
            CommitEntry,
            Commit(
                "b.2", "", "b.1", None, "ada", NOON, "load", CommitClass.LOGICAL, {"node:Person": RowCounts(inserted=2)}
            ),
        ),
        (
            CommitEntry,
            Commit(
                "b.3",
                "",
                "b.2",
                "c.1",
                None,
                NOON,
                "recovery",
                CommitClass.MAINTENANCE,
                {},
                Recovered("t", "load", None, "completed"),
            ),
        ),
        (
            OptimizeAnswer,
            OptimizeResult("main", None, {"node:Person": TypeReport("node:Person", 1, 2, 3, 4, 5, ("a",), (), True)}),
        ),
        (CleanupAnswer, Cleaned(False, {"main": 3}, 1, 2, 3, 4, 5, 6, ("t",), ("u",), Cost(1, 2, 3, 4))),
        (VerifyAnswer, VerifyReport(("main",), True, 7, Checked(rows=3), (VerifyProblem("w", "x", "y", "notice"),), 1)),
        (
            RecoverAnswer,
            Recovery(
                (UnfinishedJob("t", "load", "main", None, "dead", True, NOON, timedelta(seconds=1.5), "host", 3),),
                (RecoveredJob("u", "discarded", None, "main"),),
                {"v": "it is running"},
            ),
        ),
        (ChangesExplained, Explained("composed", "why", 2, (TypeRead("Person", ((None, "3"), ("3", "4")), 5),))),
        (EmbedProperty, Estimate("Person", "bio", 3, 100, 2, 1)),
        (SchemaStep, Step("extend_enum", "Person", "role", "adds 'admin'", before="a", after="b", count=3)),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_document_is_decoded_to_the_result_it_was_made_of(model: type[WireModel], result: object) -> None:
    assert model.decode(model.encode(result)) == result


def test_members_that_are_not_known_are_ignored() -> None:
    assert RowCounts(1) == models.TouchCounts.decode({"inserted": 1, "upserted": 2})
