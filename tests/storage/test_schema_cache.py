"""What is derived from a schema is made once for each schema, and never for another."""

from typing import Any

import pyarrow as pa

from omnigraph.storage.util.schema_cache import SCHEMAS_MAX, SchemaCache


def schema_of(**columns: Any) -> pa.Schema:
    return pa.schema(columns)


def test_a_schema_that_is_the_same_gets_what_was_made_before() -> None:
    made: list[pa.Schema] = []
    kept = SchemaCache(lambda schema: made.append(schema) or len(made))  # type: ignore[func-returns-value]

    first, again = (kept.get(schema_of(id=pa.string(), age=pa.int64())) for _ in range(2))

    assert first == again == 1
    assert len(made) == 1


def test_schemas_with_the_same_names_are_not_taken_for_one() -> None:
    kept = SchemaCache(str)
    one = schema_of(id=pa.string(), age=pa.int64())
    others = [
        schema_of(id=pa.string(), age=pa.int32()),
        one.set(0, pa.field("id", pa.string(), nullable=False)),
        one.with_metadata({"who": "knows"}),
    ]

    for other in others:
        assert kept.get(one) == str(one)
        assert kept.get(other) == str(other)


def test_it_forgets_before_there_are_too_many() -> None:
    kept = SchemaCache(lambda schema: schema)
    for number in range(2 * SCHEMAS_MAX):
        kept.get(schema_of(**{f"column{number}": pa.int64()}))

    assert len(kept._values) <= SCHEMAS_MAX
