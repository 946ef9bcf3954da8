"""Every refusal of the query language, with its code and its place: `¦` stands before the token that is pointed at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import omnigraph.query
from omnigraph.errors import BadRequest
from omnigraph.lexer import LanguageError
from omnigraph.query.compile import choose_query
from omnigraph.query.expression_parser import BRACKETS_MAX, DEPTH_MAX
from omnigraph.query.lint import lint
from omnigraph.query.parser import NOT_DEPTH_MAX, parse
from query.gq import CATALOG, mutation, people, read_text, refused, rows

P = "$p: Person"


def q(match: str, rest: str = "return { $p.slug }", params: str = "") -> str:
    return read_text(match, rest, params)


def m(statement: str, params: str = "") -> str:
    return f"query q({params}) {{ {statement} }}"


GRAMMAR = [
    ("OG-GQ-101", f"query a() {{ match {{ {P} }} return {{ $p }} }}\nquery ¦a() {{ match {{ {P} }} return {{ $p }} }}"),
    ("OG-GQ-102", " // nothing\n¦"),
    ("OG-LX-200", "¦return { $p }"),
    ("OG-LX-202", "match { $p: Person } return { $p } ¦}"),
    ("OG-GQ-107", 'insert Company { name: "x" } ¦match { $p: Person }'),
    ("OG-LX-200", "query ¦(a: I32) { }"),
    ("OG-LX-200", "query q ¦{ match { $p: Person } return { $p } }"),
    ("OG-LX-200", "query q(¦name: String) { }"),
    ("OG-GQ-104", "query q(¦$_: String) { }"),
    ("OG-GQ-105", "query q($a: ¦Text) { }"),
    ("OG-GQ-105", "query q($a: Vector(¦0)) { }"),
    ("OG-GQ-105", "query q($a: enum(x, ¦x)) { }"),
    ("OG-LX-200", "query q($a: enum(¦)) { }"),
    ("OG-LX-200", "query q($a: [¦Vector]) { }"),
    ("OG-LX-200", "query q() { ¦}"),
    ("OG-GQ-106", "query q() { ¦return { 1 as x } }"),
    ("OG-GQ-106", f"query q() {{ match {{ {P} }} ¦order {{ x }} return {{ $p }} }}"),
    ("OG-GQ-106", f"query q() {{ match {{ {P} }} return {{ $p }} limit 3 ¦order {{ x }} }}"),
    ("OG-GQ-107", f"query q() {{ match {{ {P} }} return {{ $p }} ¦insert Company {{ }} }}"),
    ("OG-GQ-107", 'query q() { insert Company { name: "x" } ¦match { $p: Person } }'),
    ("OG-GQ-108", q(P, "return { $p } limit ¦-1")),
    ("OG-LX-200", q(P, "return { $p } limit ¦$n")),
    ("OG-LX-200", "query q() { match { ¦} return { 1 as x } }"),
    ("OG-LX-200", q(P, "return { ¦}")),
    ("OG-LX-200", q(P, "return { $p } order { ¦}")),
    ("OG-GQ-109", q(f"{P} ¦and $p.age > 3")),
    ("OG-GQ-109", q(f"{P} ¦or $p.age < 2")),
    ("OG-GQ-120", q(f"{P} 1 < $p.age ¦< 3")),
    ("OG-GQ-120", q(f"{P} $p.age = 3 ¦is null")),
    ("OG-LX-200", q(f"{P} $p.age is ¦nothing")),
    ("OG-LX-200", q(f"{P} case when $p.happy ¦2 end = 2")),
    ("OG-GQ-109", q(f"{P}¦, $p.age > 3")),
    ("OG-GQ-111", q("$p knows{¦0,2} $_")),
    ("OG-GQ-111", q("$p knows{3,¦2} $_")),
    ("OG-LX-200", q("$p knows{2¦} $_")),
    ("OG-GQ-112", q(f"{P} $p.age ¦== 3")),
    ("OG-GQ-112", q(f"{P} $p.age ¦<> 3")),
    ("OG-LX-200", q(f"{P} $p.age ¦like 3")),
    ("OG-LX-200", q("$p ¦$f")),
    ("OG-LX-200", q(f"{P} $p.age = ¦lead")),
    ("OG-LX-200", q("$p knows ¦Person")),
    ("OG-GQ-113", q(f'{P} ¦lowr($p.name) = "x"')),
    ("OG-GQ-114", q(f"{P} [1, ¦[2]] contains $p.age")),
    ("OG-GQ-115", q(f"{P} $p.big > ¦18446744073709551616")),
    ("OG-GQ-116", q(f"{P} $p.age ¦= null")),
    ("OG-GQ-116", q(f"{P} $p.age > ¦null")),
    ("OG-GQ-116", q("$p: Person { age: ¦null }")),
    ("OG-GQ-116", q(f"{P} ¦coalesce(null) = 3")),
    ("OG-GQ-116", q(f"{P} ¦null")),
    ("OG-GQ-116", q(f"{P} $p.age in [1, ¦null]")),
    ("OG-GQ-116", q(f"{P} search($p.bio, ¦null)")),
    ("OG-GQ-116", q(f'{P} fuzzy($p.bio, "x", ¦null)')),
    ("OG-GQ-116", q(P, "return { $p.slug } order { nearest($p.face, ¦null) } limit 2")),
    ("OG-GQ-116", q(P, "return { ¦null as x }")),
    ("OG-GQ-116", m('insert Knows { from: ¦null, to: "b" }')),
    ("OG-GQ-116", m("delete Knows where from ¦= null")),
    ("OG-GQ-117", q(f'{P} $p.born = date(¦"2026-02-30")')),
    ("OG-GQ-117", q(f'{P} $p.seen = datetime(¦"noon")')),
    ("OG-GQ-118", m('insert Company { name: "x" } ¦delete Company where name = "y"')),
    ("OG-GQ-118", m('delete Company where name = "y" ¦update Person set { age: 1 } where slug = "a"')),
    ("OG-GQ-119", m('update Person set ¦{ } where slug = "a"')),
    ("OG-LX-200", "query q() { delete Person ¦}"),
    ("OG-LX-200", "query q() { update Person set { age: 3 } ¦}"),
    ("OG-GQ-207", m("delete Person where ¦$p.age = 3")),
    ("OG-GQ-301", m("delete Person where age = 3 and slug ¦= 4")),
    ("OG-GQ-110", q(P + " not {" * NOT_DEPTH_MAX + " ¦not { $p knows $_ }" + " }" * NOT_DEPTH_MAX)),
    ("OG-GQ-110", q(P + " " + "(" * BRACKETS_MAX + "¦($p.happy" + ")" * BRACKETS_MAX + ")")),
    ("OG-GQ-110", q(P + " ¦$p.age" + " + 1" * DEPTH_MAX + " > 3")),
]

NAMES = [
    ("OG-GQ-201", q(P, params="$a: I32, ¦$a: I32")),
    ("OG-GQ-202", q("$p: ¦Persn")),
    ("OG-GQ-202", q("$p: ¦Named")),
    ("OG-GQ-202", q("$p: ¦Knows")),
    ("OG-GQ-202", m("insert ¦Nobody { }")),
    ("OG-GQ-203", q("$p ¦likes $f")),
    ("OG-GQ-203", q("$p ¦Knows $f")),
    ("OG-GQ-204", q("$p: Person { ¦nme: 3 }")),
    ("OG-GQ-204", q(f"{P} $p.¦nme = 3")),
    ("OG-GQ-204", q("$p $w:knows $f $w.¦src = 3")),
    ("OG-GQ-204", q(P, "return { $p.¦nme }")),
    ("OG-GQ-204", m("update Person set { ¦nme: 3 } where age = 1")),
    ("OG-GQ-204", m("delete Person where ¦nme = 1")),
    ("OG-GQ-205", q("$p knows $_ ¦$_.age > 3")),
    ("OG-GQ-206", q("$p knows ¦$f", params="$f: String")),
    ("OG-GQ-206", q(f"{P} ¦$a.age > 3", params="$a: I32")),
    ("OG-GQ-207", q(f"{P} ¦$f.age > 3")),
    ("OG-GQ-207", q(f"{P} $p.age > ¦$min")),
    ("OG-GQ-207", q(f"{P} not {{ $p knows $f }}", "return { ¦$f.name }")),
    ("OG-GQ-207", q(P, "return { ¦$x }")),
    ("OG-GQ-207", m("insert Person { slug: ¦$s }")),
]

TYPES = [
    ("OG-GQ-301", q(f'{P} $p.age ¦> "3"')),
    ("OG-GQ-301", q(f"{P} $p.age ¦= $a", params="$a: String")),
    ("OG-GQ-301", q("$p: Person { ¦age: true }")),
    ("OG-GQ-301", q(f'{P} $p.born ¦> "2026-01-01"')),
    ("OG-GQ-301", q(f"{P} $p.born ¦< now()")),
    ("OG-GQ-301", q(f"{P} $p.age ¦contains 3")),
    ("OG-GQ-301", q(f"{P} $p.tags ¦contains 3")),
    ("OG-GQ-301", q(f'{P} $p.age ¦starts_with "3"')),
    ("OG-GQ-301", q("$p: Person { ¦tags: 3 }")),
    ("OG-GQ-301", m('delete Person where age ¦= "x"')),
    ("OG-GQ-302", q(f'{P} $p.tags ¦= "x"')),
    ("OG-GQ-302", q(f"{P} $p.face ¦= [1, 2]")),
    ("OG-GQ-302", q(f"{P} $p.photo ¦= $b", params="$b: Blob")),
    ("OG-GQ-303", q(f'{P} [1, ¦"x"] contains $p.age')),
    ("OG-GQ-304", q(f"{P} $p.seen < ¦now(1)")),
    ("OG-GQ-304", q(f"{P} ¦search($p.bio)")),
    ("OG-GQ-304", q(f'{P} ¦search($p.bio, "a", 1)')),
    ("OG-GQ-304", q(P, "return { ¦count() }")),
    ("OG-GQ-304", q(P, "return { $p.slug } order { ¦bm25($p.bio) }")),
    ("OG-GQ-305", q(f'{P} ¦search($p.bio, "x") or $p.happy')),
    ("OG-GQ-305", q(f'{P} ¦bm25($p.bio, "x") > 1')),
    ("OG-GQ-306", q("$p knows $f ¦$p != $f")),
    ("OG-GQ-307", q(f"{P} ¦count($p) > 1")),
    ("OG-GQ-307", q(f"{P} $p.age > ¦avg($p.age)")),
    ("OG-GQ-307", q(P, "return { ¦sum($p.age) + 1 as n }")),
    ("OG-GQ-310", q(f"{P} ¦$p.age")),
    ("OG-GQ-310", q(f"{P} $p.happy and ¦$p.age")),
    ("OG-GQ-310", q(f"{P} not ¦$p.name")),
    ("OG-GQ-310", q(P, "return { case when ¦$p.age then 1 end as n }")),
    ("OG-GQ-311", q(f'{P} $p.name matches ¦"(a"')),
    ("OG-GQ-311", q(f"{P} $p.name ¦matches $p.slug")),
    ("OG-GQ-312", q(f'{P} $p.age ¦+ "1" > 3')),
    ("OG-GQ-312", q(f"{P} $p.age ¦|| $p.name = 3")),
    ("OG-GQ-312", q(f"{P} ¦-$p.name = 3")),
    ("OG-GQ-312", q(f"{P} ¦lower($p.age) = 3")),
    ("OG-GQ-312", q(f"{P} $p.age¦[0] = 3")),
    ("OG-GQ-312", q(P, 'return { ¦coalesce($p.age, "x") as n }')),
    ("OG-GQ-312", q(P, 'return { ¦case when $p.happy then 1 else "x" end as n }')),
    ("OG-GQ-301", q(f"{P} $p.age ¦in $p.name")),
    ("OG-GQ-304", q(f"{P} ¦lower($p.name, 1) = 3")),
    ("OG-GQ-304", q(f"{P} ¦id(3) = 3")),
    ("OG-GQ-306", q(f"{P} lower(¦$p) = 3")),
    ("OG-GQ-308", m("insert Person { age: ¦2.5 }")),
    ("OG-GQ-308", m('insert Person { age: ¦"3" }')),
    ("OG-GQ-308", m("insert Person { age: ¦$a }", "$a: F64")),
    ("OG-GQ-308", m("insert Person { born: ¦now() }")),
    ("OG-GQ-308", m('insert Knows { from: "a", to: "b", since: ¦"2026-01-01" }')),
    ("OG-GQ-309", m("insert Person { age: ¦2147483648 }")),
    ("OG-GQ-309", m("insert Person { height: ¦1e39 }")),
    ("OG-GQ-309", m("insert Person { face: ¦[1, 2, 3] }")),
    ("OG-GQ-309", m('insert Person { photo: ¦"hello" }')),
]

PATTERNS = [
    ("OG-GQ-401", q("$p ¦$f:knows $f")),
    ("OG-GQ-401", q("$a $w:knows $b $p ¦$w:worksAt $c")),
    ("OG-GQ-402", q("$p: Person ¦$p: Company")),
    ("OG-GQ-403", q("$p: Person $c: Company ¦$c knows $p")),
    ("OG-GQ-403", q("$p worksAt $c ¦$c worksAt $p")),
    ("OG-GQ-404", q("$p <¦worksAt> $c")),
    ("OG-GQ-405", q("$p $w:knows¦{1,2} $f")),
    ("OG-GQ-406", q('$p: Person { ¦tags: ["x"] }')),
    ("OG-GQ-407", q(f"{P} ¦not {{ $a knows $b }}")),
    ("OG-GQ-407", q(f"{P} ¦not {{ $q: Person {{ slug: $s }} }}", params="$s: String")),
    ("OG-GQ-408", q(f'{P} search($p.¦age, "x")')),
    ("OG-GQ-408", q(f'{P} ¦search("x", $p.bio)')),
    ("OG-GQ-408", q(P, "return { $p.slug } order { nearest($p.¦bio, [1, 2]) } limit 3")),
    ("OG-GQ-409", q(f"{P} search($p.bio, ¦3)")),
    ("OG-GQ-409", q(f'{P} fuzzy($p.bio, "x", ¦-1)')),
]

OUTPUTS = [
    ("OG-GQ-501", q("$p $w:knows $f", "return { ¦$w }")),
    ("OG-GQ-501", q("$p $w:knows $f", "return { count(¦$w) }")),
    ("OG-GQ-501", q(P, "return { sum(¦$p) }")),
    ("OG-GQ-502", q(P, "return { ¦7 }")),
    ("OG-GQ-502", q(P, "return { ¦[1, 2] }")),
    ("OG-GQ-502", q(P, "return { ¦$p.age + 1 }")),
    ("OG-GQ-502", q(P, "return { ¦lower($p.name) }")),
    ("OG-GQ-503", q(P, 'return { ¦search($p.bio, "x") as s }')),
    ("OG-GQ-504", q(P, "return { $p.slug, ¦$p.slug }")),
    ("OG-GQ-504", q(P, "return { $p.slug as a, $p.age as ¦a }")),
    ("OG-GQ-505", q(P, "return { $p.slug } order { ¦slug }")),
    ("OG-GQ-506", q(P, "return { $p } order { ¦p }")),
    ("OG-GQ-506", q(P, "return { $p } order { ¦$p }")),
    ("OG-GQ-506", q(P, "return { $p } order { ¦$p.tags }")),
    ("OG-GQ-507", q(P, "return { $p.role, count($p) } order { ¦$p.age }")),
    ("OG-GQ-507", q(P, "return { $p.role } order { ¦count($p) }")),
    ("OG-GQ-508", q(P, "return { $p.role } order { ¦now() }")),
    ("OG-GQ-508", q(P, "return { $p.role } order { ¦7 }")),
    ("OG-GQ-509", q(P, 'return { count($p), ¦bm25($p.bio, "x") as s }')),
    ("OG-GQ-509", q(P, 'return { count($p) } order { ¦bm25($p.bio, "x") }')),
    ("OG-GQ-510", q(P, "return { $p.slug } order { ¦nearest($p.face, [1, 2]) }")),
    ("OG-GQ-510", q(P, 'return { $p.slug } order { rrf(¦nearest($p.face, [1, 2]), bm25($p.bio, "x")) }')),
    ("OG-GQ-511", q(P, "return { sum($p.¦name) }")),
    ("OG-GQ-511", q(P, "return { min($p.¦tags) }")),
    ("OG-GQ-511", q(P, "return { sum(¦1) }")),
    ("OG-GQ-512", q(P, "return { $p.slug } order { nearest($p.face, ¦[1, 2, 3]) } limit 3")),
    ("OG-GQ-512", q(P, "return { $p.slug } order { nearest($p.face, ¦7) } limit 3")),
    ("OG-GQ-512", q(P, 'return { $p.slug } order { nearest($p.spot, ¦"text") } limit 3')),
    ("OG-GQ-512", q(P, "return { $p.slug } order { nearest($p.face, ¦$v) } limit 3", "$v: Vector(3)")),
    ("OG-GQ-513", q(P, 'return { $p.slug } order { rrf(bm25($p.bio, "x"), ¦$p.age) }')),
    ("OG-GQ-513", q(P, 'return { $p.slug } order { rrf(bm25($p.bio, "x"), ¦rrf(1, 2)) }')),
    ("OG-GQ-514", q(P, 'return { $p.slug } order { bm25($p.bio, "x") ¦desc }')),
]

MUTATIONS = [
    ("OG-GQ-601", m("insert Person { age: 1, ¦age: 2 }")),
    ("OG-GQ-601", m('insert Knows { from: "a", to: "b", ¦to: "c" }')),
    ("OG-GQ-602", m('insert ¦Knows { from: "a" }')),
    ("OG-GQ-603", m('insert Person { ¦id: "x" }')),
    ("OG-GQ-603", m("update Person set { ¦slug: $s } where age = 1", "$s: String")),
    ("OG-GQ-603", m('update Knows set { ¦from: "x" } where from = "a"')),
    ("OG-GQ-604", m('insert Person { ¦from: "x" }')),
    ("OG-GQ-605", m('insert Knows { from: ¦3, to: "b" }')),
    ("OG-GQ-605", m('insert Sits { from: "a", to: ¦2.5 }')),
    ("OG-GQ-605", m('insert Sits { from: "a", to: ¦$r }', "$r: F64")),
    ("OG-GQ-605", m('insert Contains { from: 1, to: ["x", ¦"y"] }')),
]


@pytest.mark.parametrize(("code", "text"), GRAMMAR)
def test_the_parser_refuses(code: str, text: str) -> None:
    refused(text, code)


@pytest.mark.parametrize(("code", "text"), NAMES)
def test_unknown_and_misused_names(code: str, text: str) -> None:
    refused(text, code)


@pytest.mark.parametrize(("code", "text"), TYPES)
def test_unlike_types(code: str, text: str) -> None:
    refused(text, code)


@pytest.mark.parametrize(("code", "text"), PATTERNS)
def test_patterns_that_mean_nothing(code: str, text: str) -> None:
    refused(text, code)


@pytest.mark.parametrize(("code", "text"), OUTPUTS)
def test_return_order_and_limit(code: str, text: str) -> None:
    refused(text, code)


@pytest.mark.parametrize(("code", "text"), MUTATIONS)
def test_mutations(code: str, text: str) -> None:
    refused(text, code)


def test_an_error_says_where_what_and_what_instead() -> None:
    error = refused("query q() {\n    match { $p: ¦Persn }\n    return { $p }\n}", "OG-GQ-202")

    assert str(error) == "query:2:17: The schema has no type Persn: did you mean Person. [OG-GQ-202]"
    assert error.excerpt == "2 |     match { $p: Persn }\n  |                 ^"
    assert error.details["language_code"] == "OG-GQ-202"


def test_a_mix_says_how_to_split_it() -> None:
    error = refused(m('insert Company { name: "x" } ¦delete Company where name = "y"'), "OG-GQ-118")

    assert "query of their own" in error.expected


BROKEN = [
    "query broken( { }",
    "query broken() { match { $p: Persn } retrun { $p } }",
    'query broken() { match { $p: Person { slug: "never closed } } return { $p } }',
    "query broken() { match { $p: Person } return { $p }",
    "query broken() { match { $p: Person } ] return { $p } }",
    "query broken() { /* never closed",
    "query q() { match { $p: Person } return { $p } }",  # a name that is taken
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_query_that_does_not_parse_leaves_the_others_of_its_text_usable(text: str) -> None:
    file = parse(f"// a file\n{q(P)}\n\n{text}\nquery last() {{ match {{ {P} }} return {{ $p.slug }} }}\n")
    (broken,) = file.broken

    assert [query.name for query in file.queries] == ["q", "last"]
    assert broken.error.line == 4
    assert file.queries[1].at.line == 5
    assert choose_query(file, "last") is file.queries[1]
    with pytest.raises(LanguageError) as caught:
        choose_query(file, broken.name)
    assert caught.value is broken.error
    with pytest.raises(BadRequest, match="holds 3 queries"):
        choose_query(file, None)
    assert [(issue.severity, issue.line) for issue in lint(file.source, CATALOG)] == [("error", 4)]


def test_a_text_of_which_nothing_parses_is_refused_at_its_first_error() -> None:
    with pytest.raises(LanguageError) as caught:
        parse("query a( {}\nquery b( {}\n")

    assert caught.value.line == 1


def test_a_body_alone_is_a_query() -> None:
    assert rows(f"match {{ {P} }} return {{ $p.slug as slug }} limit 1", people("a")) == [{"slug": "a"}]
    assert mutation('insert Company { name: "x" } insert Company { name: "y" }').name == "query"


def test_every_code_is_tested_and_explained() -> None:
    source = Path(omnigraph.query.__file__).parent
    used = {code for file in source.rglob("*.py") for code in re.findall(r"OG-G[QW]-\d+", file.read_text())}
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    page = (Path(__file__).parents[2] / "docs" / "language-errors.md").read_text()

    assert sorted(code for code in used if code not in tests) == []
    assert sorted(code for code in used if code not in page) == []
