"""Lint: the checker over a whole file, and warnings."""

from __future__ import annotations

import pytest

from omnigraph.api.models import LintFinding
from omnigraph.query.lint import lint
from query.gq import CATALOG, MARK, read_text

P = "$p: Person"
WARNINGS = [
    ("OG-GW-801", read_text(P, params="¦$a: I32")),
    ("OG-GW-801", 'query q(¦$a: I32) { delete Person where slug = "a" }'),
    ("OG-GW-802", read_text(f"{P} $p knows ¦$f")),
    ("OG-GW-802", read_text(f"{P} $p ¦$w:knows $_")),
    ("OG-GW-803", read_text(f"{P} ¦$q: Person", "return { $p.slug, $q.slug }")),
    ("OG-GW-803", read_text(f"{P} not {{ $p knows $_ ¦$a knows $b $a.age = $b.age }}")),
    ("OG-GW-804", read_text(P, "return { $p.slug } limit ¦3")),
    ("OG-GW-805", read_text(f'{P} search($p.¦note, "x")')),
    ("OG-GW-805", read_text("$p $w:knows $_", 'return { $p.slug } order { bm25($w.¦note, "x") }')),
    ("OG-GW-806", read_text("$p knows¦{1,} $_")),
    ("OG-GW-807", read_text('$p: Person { role: ¦"boss" }')),
    ("OG-GW-808", read_text("$p worksAt¦{1,3} $_")),
    ("OG-GW-808", read_text("$p worksAt¦{2,} $_")),
]


@pytest.mark.parametrize(("code", "marked"), WARNINGS)
def test_warnings(code: str, marked: str) -> None:
    before, _, after = marked.partition(MARK)

    (issue,) = lint(before + after, CATALOG)

    assert (issue.severity, issue.code, issue.line, issue.column) == ("warning", code, 1, len(before) + 1)
    assert issue.query == "q"
    assert LintFinding.encode(issue)["remedy"] == issue.remedy
    assert str(issue).startswith(f"query:1:{len(before) + 1}: warning: ")


@pytest.mark.parametrize(
    "text",
    [
        read_text(P, "return { count($p) } limit 1"),
        read_text(f"{P} $q: Person $p.age = $q.age", "return { $p.slug, $q.slug }"),
        read_text(f"{P} $p worksAt{{1,1}} $_"),
        read_text(f'{P} search($p.bio, "x")', "return { $p.slug } order { nearest($p.spot, [1, 2]) } limit 3"),
        "query q($a: I32, $s: String) { update Person set { age: $a } where slug = $s }",
    ],
)
def test_what_needs_no_warning(text: str) -> None:
    assert lint(text, CATALOG) == ()


def test_every_query_of_a_file_is_checked() -> None:
    text = "\n".join(
        [
            "query a() { match { $p: Nobody } return { $p } }",
            "query b() { match { $p: Person } return { $p } }",
            "query c($x: I32) { match { $p: Person } return { $p.nme } }",
        ]
    )

    found = [(issue.severity, issue.code, issue.query, issue.line) for issue in lint(text, CATALOG)]

    assert found == [("error", "OG-GQ-202", "a", 1), ("error", "OG-GQ-204", "c", 3)]


def test_a_file_that_does_not_parse_is_one_error() -> None:
    (issue,) = lint("query q( {", CATALOG, "people.gq")

    assert (issue.severity, issue.query, issue.source_name) == ("error", None, "people.gq")
