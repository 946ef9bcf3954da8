"""`fence-before-sweep`: a cleanup judges only what was there when it began, however far another has gone meanwhile.

Found by the simulation (seed 2688): a cleanup that was held up before its last step read the newer note on stubs, and
made stubs of manifests behind its own end whose rows a tail still named.
"""

from __future__ import annotations

from pathlib import Path

import omnigraph
from omnigraph.gc.mark import Marks, mark_branch
from omnigraph.gc.sweep import expire_manifests, plan_expiry
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.settings import Settings
from support.catalogs import PERSON, ids_of, people, person_rows
from support.cleanup import assert_sound, clean


def test_a_stalled_cleanup_keeps_rows_that_were_written_after_its_marks(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", people(), {"fsync": "false"}, settings=Settings(maintenance=0))
    graph.write([Append(PERSON, person_rows("ada"))])
    repository = graph.repository
    head = repository.branches.find("main").head
    marks = Marks()
    mark_branch(marks, repository.manifests, head, head.manifest_version)  # then it is held up
    for name in ("bob", "cy", "dan"):
        graph.write([Append(PERSON, person_rows(name))])
    clean(graph)

    expiry = plan_expiry(repository.manifests, marks, head.branch_id, head.manifest_version)
    expire_manifests(repository.manifests, expiry)

    assert all(number < head.manifest_version for number in expiry.expired)
    again = omnigraph.open(tmp_path / "graph", {"fsync": "false"})
    assert ids_of(again.snapshot().to_arrow(PERSON)) == ["ada", "bob", "cy", "dan"]
    assert_sound(again)
