from __future__ import annotations

import pytest

from support.unordered import list_local_disks_unordered


@pytest.fixture(autouse=True)
def unordered_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may depend on the order of a listing, nor on how many keys a page has."""
    list_local_disks_unordered(monkeypatch)
