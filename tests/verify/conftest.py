from __future__ import annotations

from support.unordered import unordered_listings

__all__ = ["unordered_listings"]  # used by every test here
