"""The bulk load on an object store: input and graph in buckets, results of splits by conditional puts."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnigraph.manifest.model.paths import RECOVERY, intent_key
from omnigraph.manifest.repository import init_repository
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.object_store import open_store
from omnigraph.storage.util.runner import LocalRunner
from pipeline.bulk import SCHEMA, SMALL_SPLITS, BulkWorld, edge, person, write_lines
from support.s3 import S3Location

pytestmark = pytest.mark.s3


def test_a_load_from_a_bucket_into_a_bucket_is_one_commit_and_leaves_nothing(tmp_path: Path, s3: S3Location) -> None:
    lines = write_lines(
        tmp_path / "given.jsonl",
        [*(person(f"p{n:02}") for n in range(30)), *(edge("Likes", f"p{n:02}", f"p{n + 1:02}") for n in range(29))],
    )
    inbox = open_store(parse_location(f"s3://{s3.bucket}/inbox", s3.options))
    inbox.put("given.jsonl", lines.read_bytes())
    repository = init_repository(f"s3://{s3.bucket}/graph", compile_schema(SCHEMA), s3.options)
    world = BulkWorld(repository, LocalRunner(), SMALL_SPLITS)

    first = world.bulk(f"s3://{s3.bucket}/inbox/*.jsonl", job_id="nightly")
    again = world.bulk(f"s3://{s3.bucket}/inbox/*.jsonl", job_id="nightly")
    merged = world.bulk(f"s3://{s3.bucket}/inbox/given.jsonl", mode="merge", on_error="quarantine")

    assert first.commit is not None
    assert again.commit is not None
    assert again.commit.id == first.commit.id
    assert merged.commit is not None
    assert merged.commit.touched == {"edge:Likes": {"inserted": 29}}  # without an id they are new each time
    assert (world.count("Person"), world.count("Likes")) == (30, 58)
    left = [one.key for one in repository.store.list(RECOVERY) if not one.key.endswith("_clock")]
    assert left == [intent_key("load-nightly")]
    assert all(seen.ended for seen in repository.intents.list())
