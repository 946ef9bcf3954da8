"""The plan of a schema change that a server made, as the embedded graph has it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from omnigraph.api.models import SchemaStep
from omnigraph.errors import OmnigraphError
from omnigraph.schema.evolve.migration import MigrationPlan, plan_migration
from omnigraph.schema.evolve.migration_step import Step
from omnigraph.schema.lang.compile import compile_schema


def plan_of(accepted: str, wanted: str, name: str, document: Mapping[str, Any]) -> MigrationPlan:
    """What lies between the two texts, with what the server found out about the rows."""
    before = compile_schema(accepted)
    try:
        plan = plan_migration(before, wanted, name)
    except OmnigraphError:  # it was read with more history than a text has, such as renames that are done
        return MigrationPlan(before, compile_schema(wanted, name=name), _decoded(document["steps"]))
    return plan.with_steps(_decided(plan.steps, document["steps"]))


def _decided(steps: Sequence[Step], found: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    same = [(step.kind, step.type_name, step.property_name) for step in steps] == [
        (entry["kind"], entry["type_name"], entry["property_name"]) for entry in found
    ]
    if not same:  # the schema changed between two requests: the server's answer counts
        return _decoded(found)
    return tuple(replace(step, **SchemaStep.arguments(entry)) for step, entry in zip(steps, found, strict=True))


def _decoded(steps: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    return tuple(SchemaStep.decode(entry) for entry in steps)
