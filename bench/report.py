"""What was measured, as docs/bench.md."""

from __future__ import annotations

from collections.abc import Iterable

from bench.graph import COMPANIES, DOCUMENTS, EDGES, PEOPLE
from bench.run import MIB, OURS, Measured, Report

PHASES = {
    "head": "confirming the head",
    "plan": "text to bound plan",
    "run": "running",
    "rows": "making rows",
    "meter": "metering",
}


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(value: float) -> str:
    return f"{value:.0f}x" if value >= 10 else f"{value:.1f}x" if value >= 1 else f"{value:.2f}x"


def _table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def _met(measured: Measured) -> str:
    if not measured.aims:
        return "none"
    return "met" if not measured.misses() else "**missed**"


def _compared(found: list[Measured], peers: list[str], same: str) -> list[str]:
    head = ["query", OURS, *peers, *(f"{peer} / ours" for peer in peers), "aim", same]
    rows = []
    for one in found:
        times = [_ms(one.ms[name]) for name in (OURS, *peers)]
        rows.append([one.label, *times, *(_ratio(one.ratio(peer)) for peer in peers), _met(one), one.same])
    return _table(head, rows)


def _misses(report: Report) -> list[str]:
    lines = []
    for one in (*report.graph, *report.search):
        missed = one.misses()
        if not missed:
            continue
        phases = ", ".join(f"{PHASES[name]} {_ms(value)}" for name, value in one.phases.items())
        lines.append(f"- **{one.label}**: {'; '.join(missed)}.")
        lines.append(f"  In ms: {phases}. Most own time (profiled): {one.profile}.")
    return [*(lines or ["None."]), ""]


def _phases(report: Report) -> list[str]:
    found = [one for one in (*report.graph, *report.search) if one.phases]
    return _table(
        ["query", *PHASES.values()], ([one.label, *(_ms(one.phases[name]) for name in PHASES)] for one in found)
    )


def written(report: Report) -> str:
    scale = report.scale
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    loads = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.loads.items())
    before, after = report.load_average
    lines = [
        "# Speed",
        "",
        "Written by `make bench`; do not edit. All in one run, each from the text of a query to rows in Python, with",
        "the head of the branch confirmed each time. Times are warm medians in ms; the engines took turns.",
        "",
        f"- {versions}.",
        f"- {int(PEOPLE * scale):,} Person, {int(EDGES * scale):,} Knows (median degree 4, skewed), "
        f"{int(COMPANIES * scale):,} Company, {int(PEOPLE * scale):,} WorksAt; "
        f"{int(DOCUMENTS * scale):,} Document with a text and 64 numbers. Local disk.",
        f"- A shared machine: load average {before:.1f} before, {after:.1f} after, so ratios below 2 mean little. "
        f"The run took {report.seconds:.0f} s.",
        f"- Loading, with indexes: {loads}. Ours and lancedb's include or are the documents.",
        "- Where a peer can say it in several ways, the fastest counts. Ladybug and ours keep what they compiled by",
        "  the text of a query, so except in the second row nothing is compiled in these times.",
        "",
        "## Graph queries",
        "",
        *_compared(report.graph, ["ladybug", "DuckDB"], "same answers"),
        "Aims: 5x as fast as either on hubs, 1..3 hops, the join, the anti-join and triangles; at most 6 times",
        "ladybug's time for a lookup, 3 times for one and two hops. Ratios above 1 mean that ours is faster. The",
        "median person knows 4 people, the hub 2,823; where nothing is said, somebody who knows 10, the mean.",
        "",
        "## Search",
        "",
        *_compared(report.search, ["lancedb"], "among the exact ten"),
        "Aim: at most twice lancedb's time. lancedb does not look for newer versions; ours confirms the head. The last",
        "column counts answers that are among the exact ten, or tie with them. `rrf` of ours ranks every document by",
        "both ranks; lancedb fuses the first rows of each.",
        "",
        *(["Left out:", "", *(f"- {one}" for one in report.left_out), ""] if report.left_out else []),
        "## What was missed, and what dominates",
        "",
        *_misses(report),
        "## Where our time goes",
        "",
        *_phases(report),
        "## First calls, and memory",
        "",
        "A graph just opened, with nothing in memory; from the hub where there is a start. The files are in the",
        "system's cache. Before an adjacency is in memory, small frontiers are looked up in the edge table's index.",
        "",
        *_table(
            ["first call", "ms", "held then, MiB"],
            [[label, _ms(taken), f"{held / MIB:.0f}"] for label, taken, held in report.first],
        ),
        *_table(["memory of a reader", ""], [list(row) for row in report.held]),
    ]
    return "\n".join(lines).rstrip() + "\n"
