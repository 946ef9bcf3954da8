"""A published commit, its row counts and its cost as text."""

from typing import TYPE_CHECKING

from omnigraph.api.wire_model import Document
from omnigraph.cli.output import pluralize

if TYPE_CHECKING:
    from omnigraph.manifest.commit.publish import PublishedCommit
    from omnigraph.storage.meter import Cost

_SIGNS = {"inserted": "+", "updated": "~", "deleted": "-"}


def commit_sentence(published: "PublishedCommit | None", cost: "Cost") -> str:
    """`Committed aaaaaaaaaaaaa.7 on main: Person +2 (6 requests in 5 stages).`"""
    if published is None:
        return "Nothing changed, so there is no commit."
    return f"Committed {published.id} on {published.branch}: {touched_text(published.touched)} ({cost_text(cost)})."


def cost_text(cost: "Cost") -> str:
    """`6 requests in 5 stages`."""
    return f"{pluralize(cost.requests, 'request')} in {pluralize(cost.stages, 'stage')}"


def touched_text(touched: Document) -> str:
    """`Person +2, Knows +1 -3`, nodes before edges."""
    ordered = sorted(touched.items(), key=lambda entry: (entry[0].startswith("edge:"), entry[0]))
    return ", ".join(f"{key.partition(':')[2]} {counts_text(counts)}".rstrip() for key, counts in ordered)


def counts_text(counts: Document) -> str:
    return " ".join(f"{_SIGNS[operation]}{count}" for operation, count in counts.items())
