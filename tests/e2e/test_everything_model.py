"""Whatever is done to a graph, through whichever of two handles, in whatever order: it says what dictionaries say.

Writes small and staged, alone and at once; branches from anywhere, merges, reverts, tags; schema changes; folds,
optimize and cleanup in between. After every step the head is compared with the model, and what older commits said
stays what they say.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from omnigraph.manifest.settings import Settings
from support.s3 import S3Location
from support.soak import SoakReport
from support.whole.base import Step
from support.whole.driver import Driver, shrunk, steps

NO_FSYNC = {"fsync": "false"}


def settings_of(seed: int) -> tuple[Settings, Settings]:
    """Of the two handles: small limits, so that every boundary is met."""
    chooser = random.Random(seed)

    def one() -> Settings:
        return Settings(
            inline_rows=chooser.choice([0, 3, 3, 5, 8]),
            tail_manifests=chooser.choice([1, 3]),
            tails_manifests=chooser.choice([6, 128]),
            group_commits=chooser.choice([2, 256]),
            maintenance=chooser.choice([0, 0, 1]),
        )

    return one(), one()


def drive(seed: int, run: list[Step], uri: str, options: dict[str, str]) -> None:
    driver = Driver(uri, options, settings_of(seed))
    try:
        for step in run:
            driver.run(step)
        driver.finish()
    except BaseException as error:
        error.add_note("\n".join(driver.log))
        raise
    finally:
        for graph in driver.handles:
            graph.maintenance.close()


@pytest.mark.parametrize("seed", [2, 4, 6, 12])
def test_the_graph_says_what_the_model_says(tmp_path: Path, seed: int) -> None:
    drive(seed, steps(seed, 16), str(tmp_path / "graph"), NO_FSYNC)


@pytest.mark.soak
def test_the_graph_says_what_the_model_says_through_thousands_of_steps(tmp_path: Path, soak_report: SoakReport) -> None:
    runs, length = 150, 30
    for seed in range(1000, 1000 + runs):
        run = steps(seed, length)
        try:
            drive(seed, run, str(tmp_path / f"graph{seed}"), NO_FSYNC)
        except Exception as error:
            small = shrunk(lambda part, seed=seed: _fails(seed, part, tmp_path), run)  # type: ignore[misc]
            raise AssertionError(f"seed {seed} fails; so do these of its steps: {small}") from error
    soak_report.line(f"{runs} runs of {length} steps through two handles each: the graph said what the model said.")


@pytest.mark.soak
def test_the_same_on_s3(s3: S3Location) -> None:
    for seed in range(2000, 2010):
        drive(seed, steps(seed, 20), f"{s3.uri}/graph{seed}", s3.options)


def _fails(seed: int, run: list[Step], folder: Path) -> bool:
    place = folder / f"part{len(list(folder.iterdir()))}"
    try:
        drive(seed, run, str(place), NO_FSYNC)
    except Exception:
        return True
    return False
