"""Texts of any size in both languages: families of queries and schemas with one thing repeated `n` times."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Family = Callable[[int], str]


def repeated(pattern: str, n: int, separator: str = " ") -> str:
    """`pattern` n times; `#` is the number of the repetition, `^` the next one."""
    parts = pattern.split("#")
    return separator.join(str(i).join(parts).replace("^", str(i + 1)) for i in range(n))


def query(match: str, rest: str = "return { $p.slug }", params: str = "") -> str:
    return f"query q({params}) {{ match {{ {match} }} {rest} }}"


def _clauses(pattern: str) -> Family:
    return lambda n: query(f"$p: Person {repeated(pattern, n)}")


def _returns(pattern: str, more: str = "", order: str = "") -> Family:
    def text(n: int) -> str:
        keys = f" order {{ {repeated(order, n, ', ')} }}" if order else ""
        return query("$p: Person", f"return {{ {repeated(pattern, n, ', ')}{more} }}{keys}")

    return text


def _body(statement: str) -> Family:
    return lambda n: f"query q() {{ {repeated(statement, n)} }}"


def _node(prop: str, before: str = "", after: str = "") -> Family:
    return lambda n: f"node T {{ {before} {repeated(prop, n)} {after} }}"


QUERIES: Mapping[str, Family] = {
    "filters": _clauses("$p.age > #"),
    "variables": _clauses("$v#: Person"),
    "bindings of one variable": _clauses("$p: Person"),
    "a chain": _clauses("$v# knows $v^"),
    "a chain backwards": lambda n: query(" ".join(f"$v{i} knows $v{i + 1}" for i in range(n, 0, -1)), "return { $v1 }"),
    "hops": _clauses("$p knows{1,3} $_"),
    "edge variables": _clauses("$p $e#:knows $_"),
    "negations": _clauses("not { $p knows $_ }"),
    "negations inside one": lambda n: query(f"$p: Person not {{ $p knows $_ {repeated('not { $p knows $_ }', n)} }}"),
    "a chain inside a negation": lambda n: query(f"$p: Person not {{ $p knows $v0 {repeated('$v# knows $v^', n)} }}"),
    "joins": _clauses("$v#: Person $v#.age < $p.age"),
    "enum texts": _clauses('$p.role = "x#"'),
    "searches": _clauses('search($p.bio, "word#")'),
    "words of a search": lambda n: query(f'$p: Person search($p.bio, "{repeated("w#", n)}")'),
    "a list": lambda n: query(f"$p: Person [{repeated('#', n, ', ')}] contains $p.age"),
    "values of a binding": lambda n: query(f"$p: Person {{ {repeated('age: #', n, ', ')} }}"),
    "columns": _returns("$p.age as c#"),
    "whole nodes": _returns("$p as c#"),
    "groups": _returns("$p.age as c#", ", count($p) as n", "c#"),
    "order by what is not returned": _returns("$p.age as c#", ", $p.id as id, count($p) as n", "$p.name"),
    "aggregates": _returns("sum($p.age) as c#"),
    "keys of an order": _returns("$p.age as c#", "", "$p.name"),
    "parameters": lambda n: query(repeated("$p: Person $p.age > $q#", n), params=repeated("$q#: I32", n, ", ")),
    "unused parameters": lambda n: query("$p: Person", params=repeated("$q#: I32", n, ", ")),
    "queries": lambda n: repeated("query q#() { match { $p: Person } return { $p.age } }", n),
    "annotations": lambda n: query("$p: Person").replace("()", "() " + repeated('@x#("a")', n)),
    "inserts": _body('insert Person { slug: "#" }'),
    "updates": _body('update Person set { age: # } where slug = "x"'),
    "deletes": _body("delete Person where age > #"),
    "a string": lambda n: query(f'$p: Person {{ name: "{"x" * 20 * n}" }}'),
    "escapes": lambda n: query('$p: Person { name: "' + "\\u00e9" * 5 * n + '" }'),
    "comments": lambda n: "/* x */\n// y\n" * 3 * n + query("$p: Person"),
    "blank lines": lambda n: " \n" * 10 * n + query("$p: Person"),
    "slashes": lambda n: "/" * 20 * n,
    "a string that never ends": lambda n: '"' + '\\"' * 5 * n,
    "a long word": lambda n: "a" * 20 * n,
    "dots": lambda n: "." * 5 * n,
    "an unknown variable": lambda n: query(f"$p: Person {repeated('$v#: Person', n)}", "return { $nobody.age }"),
    "an unknown column": _returns("$p.age as c#", "", "nothing"),
}
SCHEMAS: Mapping[str, Family] = {
    "node types": lambda n: repeated("node T# { a: I32 }", n),
    "edge types": lambda n: "node T { } " + repeated("edge E#: T -> T @card(0..^)", n),
    "properties": _node("p#: I32"),
    "unique properties": _node("p#: I32 @unique"),
    "groups of unique properties": _node("p#: I32 @unique(p#, last)", "last: I32"),
    "indexes": _node("p#: I32 @index"),
    "ranges": _node("p#: I32 @default(3) @range(p#, 0..9)"),
    "patterns": _node('p#: String @default("x") @check(p#, "x(y#)*")'),
    "patterns of one property": _node('@check(p, "x|(y#)*")', 'p: String @default("x")'),
    "a long default": lambda n: f'node T {{ p: String @default("{"a" * 20 * n}") @check(p, "(a+)+") }}',
    "an enum": lambda n: f"node T {{ p: enum({repeated('v#', n, ', ')}) }}",
    "enums": _node("p#: enum(x, y, z)"),
    "annotations": lambda n: f"node T {{ p: I32 {repeated('@x#(1)', n)} }}",
    "arguments": lambda n: f"node T {{ p: I32 @x({repeated('#', n, ', ')}) }}",
    "interfaces of one type": lambda n: (
        f"{repeated('interface I# { x#: I32 }', n)} node T implements {repeated('I#', n, ', ')}"
    ),
    "types of one interface": lambda n: f"interface I {{ x: I32 @index }} {repeated('node T# implements I', n)}",
    "renamed types": lambda n: repeated('node T# @rename_from("S#")', n),
    "renamed properties": _node('p#: I32 @rename_from("q#")'),
    "embeddings": _node('v#: Vector(2) @embed("s")', "s: String"),
    "a description": lambda n: f'node T @description("{"x" * 20 * n}")',
    "a key": lambda n: f"node T {{ {repeated('p#: I32', n)} @key({repeated('p#', n, ', ')}) }}",
}
