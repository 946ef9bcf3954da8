"""Retention: a branch keeps all history younger than a span, and a number of commits whatever their age."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from omnigraph.errors import BadRequest
from omnigraph.manifest.history.txn_lookup import read_entries_back
from omnigraph.manifest.model.manifest import CommitClass, Manifest
from omnigraph.manifest.store.manifest_store import Manifests

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"([0-9]{1,6})([smhdw])\Z")
CLOCK_STEP = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Retention:
    older_than: timedelta = timedelta(days=7)
    keep: int = 10  # logical commits

    def __post_init__(self) -> None:
        if isinstance(self.keep, bool) or not isinstance(self.keep, int):
            raise BadRequest(f"keep must be the number of commits to keep, not {self.keep!r}.")
        if self.keep < 1:
            raise BadRequest(f"keep must be at least 1, not {self.keep}: a branch always keeps its newest commit.")


def parse_span(text: str | timedelta) -> timedelta:
    """A span such as `7d`, `12h`, `30m` or `0s`."""
    if isinstance(text, timedelta):
        if text < timedelta():
            raise BadRequest(f"{text} is negative: give a span such as 7d.")
        return text
    match = _SPAN.match(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise BadRequest(f"Invalid span of time {text!r}: use a number and s, m, h, d or w, such as 7d.")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def oldest_retained(manifests: Manifests, head: Manifest, retention: Retention, now: datetime) -> int:
    """The oldest manifest of a branch that stays: the state at the start of the span, or older to keep enough commits.

    It never goes back, and the head always stays. The first commits of a group are read from the manifest before it.
    `now` is by the store's clock, which may have a resolution of one second: a commit of this moment is not of the
    future.
    """
    try:
        cutoff = max(now, min(head.authored_at, now + CLOCK_STEP)) - retention.older_than
    except OverflowError:
        return head.oldest_retained
    commits, oldest = 0, head.oldest_retained
    for entry in read_entries_back(manifests, head.manifest_version, oldest, head.branch_id):
        if not isinstance(entry, Manifest):
            return min(entry.manifest_version + 1, head.manifest_version)
        logical = sum(commit.commit_class is CommitClass.LOGICAL for commit in entry.commits)
        commits += logical
        if commits >= retention.keep and entry.authored_at <= cutoff:
            first = entry.manifest_version - (1 if logical > 1 else 0)
            return max(first, oldest)
    return oldest
