"""`confirmed-head`: a write is only refused for what holds on a head that was confirmed in that call."""

from __future__ import annotations

from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import BranchNotFound, ConstraintViolation
from omnigraph.manifest.commit.plan import Append
from omnigraph.write.validate.checks import IdsAbsent
from support.catalogs import PERSON, people, person_rows


def test_a_write_to_a_branch_that_another_process_deleted_is_not_refused_for_what_the_branch_had(
    tmp_path: Path,
) -> None:
    warm = omnigraph.init(tmp_path / "graph", people(), {"fsync": "false"})
    warm.branches.create("side")
    warm.write([Append(PERSON, person_rows("ada"))], branch="side")
    refused = [IdsAbsent(PERSON, frozenset({"ada"}))]
    with pytest.raises(ConstraintViolation):
        warm.write([Append(PERSON, person_rows("ada"))], checks=refused, branch="side")
    omnigraph.open(tmp_path / "graph", {"fsync": "false"}).branches.delete("side")

    with pytest.raises(BranchNotFound):
        warm.write([Append(PERSON, person_rows("ada"))], checks=refused, branch="side")
