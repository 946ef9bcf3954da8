"""What tests of cleanup share: a cleanup of everything that may go, and a look at all that must be there."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from omnigraph.gc.cleanup import Cleaned, cleanup
from omnigraph.gc.retention import Retention
from omnigraph.graph.graph import Graph
from omnigraph.verify.verify import verify

AT_ONCE = timedelta()


def clean(
    graph: Graph,
    keep: int = 1,
    *,
    dry_run: bool = False,
    floor: timedelta = AT_ONCE,
    intent_ttl: timedelta = timedelta(days=7),
) -> Cleaned:
    """A cleanup that keeps so many commits of each branch, and spares no file because it is young."""
    return cleanup(graph.repository, Retention(timedelta(), keep), dry_run=dry_run, floor=floor, intent_ttl=intent_ttl)


def assert_sound(graph: Graph) -> None:
    """Nothing that a retained state, a tag or a branch refers to is missing."""
    report = verify(graph.repository, full=True)
    assert report.ok, report.damage


def table_files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in (root / "tables").rglob("*") if path.is_file()}
