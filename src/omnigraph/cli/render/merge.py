"""What `branch merge` answers: in JSON, and in a few lines for a person."""

from typing import TYPE_CHECKING

from omnigraph.api.models import MergeAnswer
from omnigraph.cli.output import printable
from omnigraph.cli.render.commit import counts_text, spent_text

if TYPE_CHECKING:
    from omnigraph.merge.merge import MergeResult

_OUTCOMES = {"already_up_to_date": "already up to date", "fast_forward": "fast-forward", "merged": "merged"}


def merge_text(result: "MergeResult") -> str:
    """`Merged agent/42 into main (fast-forward) as aaaaaaaaaaaaa.7: Person +2 (3 requests in 3 stages).`"""
    return "\n".join(printable(line) for line in _lines(result))


def _lines(result: "MergeResult") -> list[str]:
    pair = f"{result.source} into {result.into}"
    outcome = _OUTCOMES[result.outcome.value]
    spent = f"({spent_text(result.cost)})"
    lines = [f"  {conflict.kind}: {conflict.message}" for conflict in result.conflicts]
    if result.conflicts:
        head = f"Merging {pair} would be refused, with {len(lines)} conflict{'s' if len(lines) > 1 else ''} {spent}:"
    elif result.outcome.value == "already_up_to_date":
        head = f"{result.into} is {outcome} with {result.source}."
    elif result.commit is None:
        head = f"Merging {pair} would be {_article(outcome)}: {_changed(result)} {spent}."
    else:
        head = f"Merged {pair} ({outcome}) as {result.commit.id}: {_changed(result)} {spent}."
    after = [f"Deleted branch {result.source}."] if result.deleted else []
    if result.not_deleted is not None:
        after = [f"The branch {result.source} is still there ({result.not_deleted})."]
    return [head, *lines, *after]


def _article(outcome: str) -> str:
    return f"a {outcome}" if outcome == "fast-forward" else outcome


def _changed(result: "MergeResult") -> str:
    """`Person +2, Knows`: a type without a number was taken over as it is, with as many rows as before."""
    counts = {key.partition(":")[2]: touch for key, touch in MergeAnswer.encode(result)["types"].items()}
    return ", ".join(f"{name} {counts_text(touch)}".strip() for name, touch in sorted(counts.items())) or "no rows"
