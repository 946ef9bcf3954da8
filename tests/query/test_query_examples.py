"""What language.md says about queries, sentence by sentence, run by the interpreter."""

from __future__ import annotations

import datetime as dt

import pytest

from omnigraph.query import ir
from omnigraph.query.compile import bind
from omnigraph.query.lint import lint
from omnigraph.query.parser import parse
from omnigraph.query.printer import print_file
from omnigraph.schema.types import Scalar
from query.gq import CATALOG, NOW, checked, edge, mutation, people, person, read, read_text, rows, values
from support.interpreter import Graph

FRIENDS = """
query friends_of($name: String, $min: I32?) @description("people $name knows") {
    match {
        $p: Person { name: $name }
        $p $k:knows $f
        $f.age >= $min
        not { $f worksAt $_ }
    }
    return { $f.name, $k.since as since }
    order { since desc }
    limit 20
}
"""
DAY = dt.date(2026, 1, 1)
GRAPH: Graph = {
    "node:Person": [
        person("ada", age=36),
        person("bob", age=20),
        person("cy", age=None),
        person("dan", age=50),
        person("eve", age=40),
    ],
    "node:Company": [{"id": "acme", "name": "acme"}],
    "edge:Knows": [
        edge("k1", "ada", "bob", since=DAY),
        edge("k2", "ada", "cy", since=None),
        edge("k3", "ada", "dan", since=dt.date(2026, 2, 1)),
        edge("k4", "ada", "eve", since=dt.date(2026, 3, 1)),
    ],
    "edge:WorksAt": [edge("w1", "eve", "acme")],
}


def test_the_example_runs() -> None:
    assert rows(FRIENDS, GRAPH, name="Ada", min=30) == [{"f.name": "Dan", "since": dt.date(2026, 2, 1)}]


@pytest.mark.parametrize("params", [{"name": "Ada"}, {"name": "Ada", "min": None}])
def test_a_filter_on_an_absent_or_null_optional_parameter_is_dropped(params: dict[str, object]) -> None:
    assert values(FRIENDS, GRAPH, **params) == [("Dan", dt.date(2026, 2, 1)), ("Bob", DAY), ("Cy", None)]


def test_the_example_has_no_warning_and_prints_as_itself() -> None:
    assert lint(FRIENDS, CATALOG) == ()
    assert parse(print_file(parse(FRIENDS))) == parse(FRIENDS)
    assert read(FRIENDS).description == "people $name knows"


def test_a_property_match_on_an_absent_optional_parameter_is_dropped() -> None:
    text = read_text("$p: Person { name: $n, age: $a }", params="$n: String?, $a: I32?")

    assert values(text, GRAPH, n="Ada") == ["ada"]
    assert len(values(text, GRAPH)) == 5
    assert values(text, GRAPH, n="Ada", a=1) == []


def test_a_negation_of_which_nothing_is_left_is_dropped() -> None:
    text = read_text("$p: Person  not { $p.age > $max }", params="$max: I32?")

    assert values(text, GRAPH, max=36) == ["ada", "bob", "cy"]
    assert len(values(text, GRAPH)) == 5


def test_literals() -> None:
    text = """query q() { match { $p: Person { slug: "ada" } } return {
        "text" as a, 7 as b, -2.5 as c, true as d, [1, 2] as e, date("2026-01-31") as f,
        datetime("2026-01-31T12:00:00Z") as g, now() } }"""

    (row,) = rows(text, GRAPH)

    noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    assert list(row.values()) == ["text", 7, -2.5, True, [1, 2], dt.date(2026, 1, 31), noon, NOW]
    assert list(row)[-1] == "now()"


# match


def test_clauses_hold_in_any_order() -> None:
    one = read_text('$f.age > 30  $p knows $f  $p: Person { slug: "ada" }', "return { $f.slug }")

    assert values(one, GRAPH) == ["dan", "eve"]


def test_return_removes_no_duplicates_and_every_anonymous_variable_counts() -> None:
    assert values(read_text("$p knows $_"), GRAPH) == ["ada"] * 4
    assert values(read_text("$p knows $_  $p knows $_"), GRAPH) == ["ada"] * 16


def test_two_variables_may_be_the_same_entity_and_unconnected_parts_multiply() -> None:
    text = read_text("$p: Person  $q: Person", "return { $p.slug, $q.slug }")

    assert values(text, people("b", "a")) == [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")]


def test_one_variable_is_one_entity_throughout() -> None:
    graph = people("a", "b", "c", knows="ab ba bb bc")

    assert values(read_text("$p knows $q  $q knows $p", "return { $p.slug, $q.slug }"), graph) == [
        ("a", "b"),
        ("b", "a"),
        ("b", "b"),
    ]
    assert values(read_text("$p knows $p"), graph) == ["b"]


def test_an_edge_variable_used_twice_is_one_edge() -> None:
    graph = people("a", "b", knows="ab ab ba")
    text = read_text("$a $w:knows $b  $c $w:knows $d", "return { $w.id, $a.slug, $c.slug }")

    assert values(text, graph) == [("k0", "a", "a"), ("k1", "a", "a"), ("k2", "b", "b")]


def test_a_match_on_a_list_property_is_membership() -> None:
    graph = {"node:Person": [person("a", tags=["x", "y"]), person("b", tags=["x"]), person("c"), person("d", tags=[])]}

    assert values(read_text('$p: Person { tags: "x" }'), graph) == ["a", "b"]
    assert values(read_text('$p: Person { tags: "x", tags: "y" }'), graph) == ["a"]


def test_a_match_may_be_now_and_an_id() -> None:
    graph = {"node:Person": [person("a", seen=NOW), person("b")]}

    assert values(read_text("$p: Person { seen: now() }"), graph) == ["a"]
    assert values(read_text('$p: Person { id: "b" }'), graph) == ["b"]


# Hops


@pytest.mark.parametrize(
    ("bounds", "reached"),
    [
        ("{1,1}", "b"),
        ("{1,2}", "bc"),
        ("{2,2}", "c"),
        ("{2,3}", "cd"),
        ("{1,}", "bcd"),
        ("{3,}", "d"),
        ("{4,}", ""),
    ],
)
def test_hop_bounds_report_each_destination_once_at_its_first_hop(bounds: str, reached: str) -> None:
    graph = people("a", "b", "c", "d", knows="ab ab bc cd ca ba")

    text = read_text(f'$p: Person {{ slug: "a" }}  $p knows{bounds} $f', "return { $f.slug }")

    assert values(text, graph) == list(reached)


def test_a_cycle_does_not_report_its_source_but_a_self_loop_does_at_the_hop_that_takes_it() -> None:
    cycle, loop = people("a", "b", knows="ab ba"), people("a", "b", knows="aa ab bb")
    at_a = '$p: Person { slug: "a" }  $p knows%s $f'

    assert values(read_text(at_a % "{1,5}", "return { $f.slug }"), cycle) == ["b"]
    assert values(read_text(at_a % "{1,5}", "return { $f.slug }"), loop) == ["a", "b"]
    assert values(read_text(at_a % "{2,5}", "return { $f.slug }"), loop) == ["b"]  # b's loop is taken at hop 2
    assert values(read_text(at_a % "{3,5}", "return { $f.slug }"), loop) == []


def test_breadth_first_starts_at_the_left_end_whichever_is_bound() -> None:
    graph = people("a", "b", "c", knows="ab bc")

    assert values(read_text('$p knows{1,2} $f  $f: Person { slug: "c" }'), graph) == ["a", "b"]


def test_an_edge_whose_ends_differ_has_only_hop_1() -> None:
    assert read(read_text("$p worksAt{1,3} $_")).pattern.traversals[0].max_hops == 1
    assert values(read_text("$p worksAt{1,} $c"), GRAPH) == ["eve"]
    assert values(read_text("$p worksAt{2,3} $c"), GRAPH) == []


# Undirected


def test_undirected_gives_each_ordered_pair_once() -> None:
    graph = people("a", "b", "c", knows="ab ba ab cc")

    text = read_text("$p <knows> $f", "return { $p.slug, $f.slug }")

    assert values(text, graph) == [("b", "a"), ("a", "b"), ("c", "c")]  # by $f, then $p


def test_undirected_hops() -> None:
    graph = people("a", "b", "c", knows="ba bc")

    text = read_text('$p: Person { slug: "a" } $p <knows>{1,2} $f', "return { $f.slug }")

    assert values(text, graph) == ["b", "c"]


# Edge bindings


def test_an_edge_binding_gives_a_row_for_each_edge() -> None:
    graph = people("a", "b", knows="ab ab bb")

    assert values(read_text("$p knows $f", "return { $p.slug, $f.slug }"), graph) == [("a", "b"), ("b", "b")]
    assert values(read_text("$p $w:knows $f", "return { $w.id }"), graph) == ["k0", "k1", "k2"]
    assert values(read_text("$p $_:knows $f", "return { $f.slug }"), graph) == ["b", "b", "b"]


def test_an_undirected_edge_binding_fits_both_ways_and_a_self_loop_once() -> None:
    graph = people("a", "b", knows="ab bb")

    text = read_text("$p $w:<knows> $f", "return { $w.id, $p.slug, $f.slug }")

    assert values(text, graph) == [("k0", "b", "a"), ("k0", "a", "b"), ("k1", "b", "b")]


# Filters


NUMBERS = {
    "node:Person": [
        person("a", age=1, height=0.10000000149011612, big=2**53 + 1, score=0.5, happy=False, role="lead"),
        person("b", age=2, height=0.5, big=2**53, score=2.0, happy=True, role="ops"),
        person("c"),
    ]
}


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("$p.age = 1", "a"),
        ("$p.age != 1", "b"),
        ("$p.age < 1.5", "a"),
        ("$p.age >= 2", "b"),
        ("1 < $p.age", "b"),
        ("$p.height = 0.1", "a"),
        ("$p.height <= 0.1", "a"),
        ("$p.height > 0.1", "b"),
        ("$p.height < 1e300", "ab"),
        (f"$p.big > {float(2**53)!r}", "a"),
        (f"$p.big = {2**53 + 1}", "a"),
        ("$p.age > $p.score", "a"),
        ("$p.age = $p.score", "b"),
        ('$p.role = "lead"', "a"),
        ('$p.role > "lead"', "b"),
        ('$p.role starts_with "l"', "a"),
        ("$p.happy < true", "a"),
        ("$p.happy != $p.happy", ""),
        ("[1, 3] contains $p.age", "a"),
        ("[0.1] contains $p.height", "a"),
        ("[] contains $p.age", ""),
        ('["lead", "x"] contains $p.role', "a"),
    ],
)
def test_comparisons(condition: str, found: str) -> None:
    assert values(read_text(f"$p: Person  {condition}"), NUMBERS) == list(found)


TEXTS = {
    "node:Person": [
        person("a", note="100%_a", tags=["Ab"], marks=[0.10000000149011612]),
        person("b", note="Abc\U0001f600", tags=["ab"]),
        person("c", note="\uffff"),
        person("d", note=None),
    ]
}


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ('$p.note contains "%_"', "a"),
        ('$p.note contains "_"', "a"),
        ('$p.note contains "A"', "b"),
        ('$p.note starts_with "a"', ""),
        ('$p.note starts_with "Ab"', "b"),
        ('$p.note contains ""', "abc"),
        ('$p.note != "x"', "abc"),
        ('$p.tags contains "ab"', "b"),
        ("$p.marks contains 0.1", "a"),
        ('"\U0001f600" > $p.note', "abc"),
    ],
)
def test_text_heeds_case_and_has_no_wildcards(condition: str, found: str) -> None:
    assert values(read_text(f"$p: Person  {condition}"), TEXTS) == list(found)


def test_text_orders_by_code_point() -> None:
    graph = {"node:Person": [person("a", note="\uffff"), person("b", note="\U0001f600"), person("c", note="z")]}

    assert values(read_text("$p: Person", "return { $p.slug } order { $p.note }"), graph) == ["c", "a", "b"]


def test_not_counts_matches_of_its_own_pattern() -> None:
    graph = people("a", "b", "c", knows="ab bc")

    assert values(read_text("$p: Person  not { $p knows $f  $f knows $_ }"), graph) == ["b", "c"]
    assert values(read_text("$p: Person  not { $p knows $f  not { $f knows $_ } }"), graph) == ["a", "c"]
    assert values(
        read_text("$p: Person  $q: Person  not { $p knows{1,} $q }", "return { $p.slug, $q.slug }"), graph
    ) == [
        ("a", "a"),
        ("b", "a"),
        ("b", "b"),
        ("c", "a"),
        ("c", "b"),
        ("c", "c"),
    ]


def test_a_null_inside_not_makes_it_hold() -> None:
    assert values(read_text("$p: Person  not { $p.age >= 0 }"), GRAPH) == ["cy"]


def test_text_search_filters() -> None:
    graph = {"node:Person": [person("a", bio="graph data bases"), person("b", bio="data graph"), person("c")]}

    assert values(read_text('$p: Person  search($p.bio, "bases nothing")'), graph) == ["a"]
    assert values(read_text('$p: Person  match_text($p.bio, "graph data")'), graph) == ["a"]
    assert values(read_text('$p: Person  fuzzy($p.bio, "grpah")'), graph) == ["a", "b"]
    assert values(read_text('$p: Person  fuzzy($p.bio, "grpah", 1)'), graph) == []
    text = read_text("$p: Person  search($p.bio, $q)", params="$q: String?")
    assert len(values(text, graph)) == 3


# return


def test_column_names() -> None:
    text = read_text(
        "$p $k:knows $f",
        "return { $p, $p.id, $f.name, count($f), count($f.age) as n, sum($f.age), min($k.since) }",
    )

    columns = ("p", "p.id", "f.name", "count(f)", "n", "sum(f.age)", "min(k.since)")
    assert read(text).columns == columns


def test_a_whole_node_has_its_id_and_every_property() -> None:
    (node,) = values(read_text('$p: Person { slug: "ada" }', "return { $p }"), GRAPH)

    assert list(node)[:3] == ["id", "name", "slug"]
    assert node["age"] == 36
    assert node["photo"] is None


def test_aggregates_group_by_the_other_projections_and_null_is_a_group() -> None:
    graph = {
        "node:Person": [
            person("a", role="ops", age=1, score=0.5),
            person("b", role=None, age=3, score=None),
            person("c", role="ops", age=None, score=1.5),
            person("d", role=None, age=None, score=None),
        ]
    }
    aggregates = "count($p), count($p.age), sum($p.age), avg($p.score), min($p.slug), max($p.age)"

    text = read_text("$p: Person", f"return {{ $p.role, {aggregates} }}")

    assert values(text, graph) == [(None, 2, 1, 3, None, "b", 3), ("ops", 2, 1, 1, 1.0, "a", 1)]


def test_aggregates_alone_give_one_row_and_groups_none_over_nothing() -> None:
    aggregates = "count($p), count($p.age), sum($p.age), avg($p.age), min($p.age)"

    assert values(read_text("$p: Person", f"return {{ {aggregates} }}"), {}) == [(0, 0, None, None, None)]
    assert values(read_text("$p: Person", f"return {{ $p.role, {aggregates} }}"), {}) == []
    assert values(read_text("$p: Person", "return { 1 as one, count($p) }"), {}) == []


def test_a_group_by_a_whole_node_is_by_identity() -> None:
    graph: Graph = {
        "node:Person": [person("a"), {"id": "b", "slug": "b", "name": "A"}],
        "edge:Knows": [edge("1", "a", "a"), edge("2", "a", "b"), edge("3", "b", "a")],
    }

    found = values(read_text("$p knows $f", "return { $p, count($f) as n } order { n, $p.name }"), graph)

    assert [(node["id"], n) for node, n in found] == [("b", 1), ("a", 2)]


# order and limit


def test_nulls_sort_first_ascending_and_last_descending_and_ties_by_id() -> None:
    graph = {"node:Person": [person("d", age=2), person("c"), person("b", age=2), person("a", age=1)]}

    assert values(read_text("$p: Person", "return { $p.slug } order { $p.age }"), graph) == ["c", "a", "b", "d"]
    assert values(read_text("$p: Person", "return { $p.slug } order { $p.age desc }"), graph) == ["b", "d", "a", "c"]


def test_ties_are_broken_by_ids_of_variables_in_alphabetical_order_edges_included() -> None:
    query = read(read_text("$z $b:knows $a", "return { $z.slug }"))

    assert [key.expr.var for key in query.tiebreak if isinstance(key.expr, ir.EntityId)] == ["a", "b", "z"]
    graph = people("a", "b", knows="ba ab")
    assert values(read_text("$z $b:knows $a", "return { $z.slug }"), graph) == ["b", "a"]


def test_ties_of_groups_are_broken_by_the_grouping_values() -> None:
    graph = {"node:Person": [person("a", age=2, role="ops"), person("b", age=1, role="ops"), person("c", age=1)]}

    text = read_text("$p: Person", "return { $p.role, $p.age, count($p) as n } order { n }")

    assert values(text, graph) == [(None, 1, 1), ("ops", 1, 1), ("ops", 2, 1)]


def test_order_by_an_aggregate_that_is_not_returned() -> None:
    graph = people("a", "b", "c", knows="ab ac bc")

    text = read_text("$p knows $f", "return { $p.slug, max($f.slug) } order { count($f) desc } limit 1")

    assert values(text, graph) == [("a", "c")]


VECTORS = {
    "node:Person": [
        person("a", face=[1.0, 0.0], spot=[0.0, 0.0], bio="red fox"),
        person("b", face=[0.0, 1.0], spot=[3.0, 4.0], bio="red red dog"),
        person("c", face=None, spot=[1.0, 0.0], bio="cat"),
        person("d", face=[1.0, 1.0], spot=None, bio=None),
    ]
}


def test_nearest_puts_the_best_first_by_the_declared_metric() -> None:
    text = read_text("$p: Person", "return { $p.slug } order { nearest($p.%s, [1, 0]) } limit %d")

    assert values(text % ("face", 4), VECTORS) == ["a", "d", "b", "c"]
    assert values(text % ("spot", 3), VECTORS) == ["c", "a", "b"]
    filtered = read_text('$p: Person  $p.slug != "a"', "return { $p.slug } order { nearest($p.face, [1, 0]) } limit 1")
    assert values(filtered, VECTORS) == ["d"]


def test_bm25_keeps_only_what_it_finds_and_rrf_what_either_rank_has() -> None:
    bm25 = read_text("$p: Person", 'return { $p.slug } order { bm25($p.bio, "red") }')
    rrf = read_text(
        "$p: Person", 'return { $p.slug } order { rrf(nearest($p.face, [1, 0]), bm25($p.bio, "cat")) } limit 9'
    )

    assert set(values(bm25, VECTORS)) == {"a", "b"}
    assert values(rrf, VECTORS) == ["a", "c", "d", "b"]
    assert read(rrf).keeps == (read(rrf).order[0].expr,)


def test_a_search_score_can_be_returned_and_ordered_by_its_name() -> None:
    text = read_text("$p: Person", 'return { $p.slug, bm25($p.bio, "red") as s } order { s desc }')

    found = values(text, VECTORS)

    assert [slug for slug, _ in found[2:]] == ["c", "d"]
    assert found[2][1] is None
    assert read(text).keeps == ()


# Mutations


def test_an_insert_of_a_node() -> None:
    query = mutation('query q($age: I64?) { insert Person { slug: "ada", age: $age, tags: ["x"], height: 0.1 } }')

    (insert,) = bind(query, {"age": 36}, now=NOW).statements

    assert isinstance(insert, ir.InsertRow)
    assert insert.table_key == "node:Person"
    found = {
        entry.column.name: entry.value.value for entry in insert.assignments if isinstance(entry.value, ir.Literal)
    }
    assert found == {"slug": "ada", "age": 36, "tags": ("x",), "height": 0.10000000149011612}
    (without,) = bind(query, {}, now=NOW).statements
    assert isinstance(without, ir.InsertRow)
    assert without.assignments[1].value == ir.Literal(None, Scalar("I32"))


@pytest.mark.parametrize(
    ("text", "source", "target"),
    [
        ('query q() { insert Knows { from: "a", to: "b", since: date("2026-01-01") } }', "a", "b"),
        ('query q() { insert Sits { from: "a", to: 10 } }', "a", "10"),
        ('query q() { insert Contains { from: 10, to: ["north", 10] } }', "10", '["north","10"]'),
        ('query q() { insert Contains { from: "10", to: "[\\"north\\",\\"10\\"]" } }', "10", '["north","10"]'),
    ],
)
def test_an_edges_ends_are_ids_or_keys(text: str, source: str, target: str) -> None:
    (insert,) = bind(mutation(text), {}, now=NOW).statements

    assert isinstance(insert, ir.InsertRow)
    assert (insert.source, insert.target) == (ir.Literal(source, ir.STRING), ir.Literal(target, ir.STRING))


def test_an_edges_ends_as_parameters() -> None:
    query = mutation("query q($from: I64, $to: [String]) { insert Contains { from: $from, to: $to } }")

    (insert,) = bind(query, {"from": 7, "to": ["north", "10"]}, now=NOW).statements

    assert isinstance(insert, ir.InsertRow)
    assert (insert.source, insert.target) == (ir.Literal("7", ir.STRING), ir.Literal('["north","10"]', ir.STRING))


def test_update_and_delete() -> None:
    update = mutation('query q() { update Person set { age: 3, seen: now() } where slug = "a" }')
    (statement,) = bind(update, {}, now=NOW).statements
    assert isinstance(statement, ir.UpdateRows)
    assert [entry.value for entry in statement.assignments] == [
        ir.Literal(3, Scalar("I32")),
        ir.Literal(NOW, ir.DATETIME),
    ]
    assert isinstance(statement.where, ir.Compare)
    assert isinstance(statement.where.left, ir.Prop)
    assert (statement.where.left.var, statement.where.left.column.name) == (ir.WHERE_ROW, "slug")

    delete = mutation('query q() { delete Knows where from = "a"  delete Person where tags contains "x" }')
    first, second = delete.statements
    assert delete.deletes
    assert first == ir.DeleteRows(
        "edge:Knows",
        ir.Compare("=", ir.EdgeEnd(ir.WHERE_ROW, "edge:Knows", "src"), ir.Literal("a", ir.STRING), "text"),
    )
    assert isinstance(second, ir.DeleteRows)
    assert isinstance(second.where, ir.ListContains)


def test_edges_are_selected_by_their_ends_given_as_keys() -> None:
    query = mutation("query q($n: I32) { delete Sits where to = $n }")

    (delete,) = bind(query, {"n": 4}, now=NOW).statements

    assert isinstance(delete, ir.DeleteRows)
    assert isinstance(delete.where, ir.Compare)
    assert delete.where.right == ir.Literal("4", ir.STRING)


def test_only_the_query_that_runs_is_checked() -> None:
    text = "query good() { match { $p: Person } return { $p.slug } } query bad() { match { $p: Nobody } return { $p } }"

    assert checked(text, "good").name == "good"


def test_no_word_is_reserved() -> None:
    text = """query query($match: String, $order: I32, $return: [I32]) {
        match { $from: Event { title: $match, order: $order, from: "x" } $return contains $from.order }
        return { $from.order as order, $from.from as return, $from.title as desc }
        order { order desc, return, desc desc }
        limit 3 }"""

    query = read(text)

    assert query.columns == ("order", "return", "desc")
    assert [key.descending for key in query.order] == [True, False, True]


def test_an_edge_may_be_named_like_an_operator() -> None:
    query = read(read_text("$r contains $s", "return { $s.row }"))
    assert query.pattern.traversals[0].edge == "edge:Contains"

    both = read(read_text("$names contains $p.name  $p: Person", params="$names: [String]"))
    assert isinstance(both.pattern.filters[0], ir.ListContains)
    constant = read(read_text("$names contains $name  $p: Person", params="$names: [String], $name: String"))
    assert isinstance(constant.pattern.filters[0], ir.ListContains)
