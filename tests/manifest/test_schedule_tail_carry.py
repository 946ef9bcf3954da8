"""`whole-tail` with `rebase`: the tail that a staged write contains is not carried to a version that has it too."""

from __future__ import annotations

from pathlib import Path

from omnigraph.manifest.settings import Settings

from .schedules import World, a_put_of_manifest

STAGED = Settings(inline_rows=0, maintenance=0)


def test_rows_of_a_tail_that_two_staged_writes_took_in_are_there_once(tmp_path: Path) -> None:
    world = World(tmp_path / "graph", settings=STAGED)
    world.client("first").insert("stored")
    world.settings = Settings(maintenance=0)
    world.client("small").insert("tail")
    world.settings = STAGED
    writer = world.client("writer")
    with writer.start(lambda: writer.insert("late")) as stalled:
        stalled.run_until(a_put_of_manifest(4))
        world.client("other").insert("other")
        stalled.run_to_end()
        stalled.result()

    assert world.client("reader").people() == ["late", "other", "stored", "tail"]
    assert world.client("reader").head().tables["node:Person"].rows == 4
