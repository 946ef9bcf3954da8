"""Random small graphs and random queries over them, each from a seed: quick to make, and to make again."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from random import Random
from typing import Any

from query.random_expressions import Expressions

from .graphs import CITY, KNOWS, LIVES_IN, PERSON, Data, Row

TEXTS = ["", "a", "A", "ab", "a_b", "a%b", "é", "\uffff", "\U00010000", "it's", "b\\"]
INTS = [-1, 0, 1, 2, 2**31 - 1, -(2**31)]
BIGS = [-(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1]
VASTS = [0, 1, 2**53 + 1, 2**63, 2**64 - 1]
FLOATS = [-1.5, -0.0, 0.0, 0.1, 1.0, 2.0**53, 9.5e18, 1e300]
F32S = [-1.5, -0.0, 0.0, 0.10000000149011612, 1.0, 16777216.0, 3.4028234663852886e38]
DATES = [dt.date(2026, 1, 1), dt.date(1969, 12, 31), dt.date(2026, 1, 2)]
TIMES = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(1960, 1, 1, 0, 0, 0, 250000, tzinfo=dt.UTC)]
PEOPLE = ["p0", "p1", "p2", "p3", "p4", "P'5"]
CITIES = ["x", "y", "z"]


_PERSON_VALUES: dict[str, list[Any]] = {
    "name": TEXTS,
    "age": INTS,
    "big": BIGS,
    "vast": VASTS,
    "score": FLOATS,
    "weight": F32S,
    "ok": [True, False],
    "role": ["ops", "lead"],
    "born": DATES,
    "seen": TIMES,
}


def maybe(rng: Random, values: list[Any]) -> Any:
    return None if rng.random() < 0.2 else rng.choice(values)


def graph(rng: Random) -> Data:
    """People and cities, edges between them: parallel ones and loops too."""
    people = rng.sample(PEOPLE, rng.randint(0, len(PEOPLE)))
    cities = rng.sample(CITIES, rng.randint(0, len(CITIES)))
    return {
        PERSON: [_person(rng, slug) for slug in people],
        CITY: [{"id": name, "name": name, "size": maybe(rng, BIGS)} for name in cities],
        KNOWS: [
            {**ends, "since": maybe(rng, DATES), "weight": maybe(rng, F32S)} for ends in _ends(rng, people, people, 10)
        ],
        LIVES_IN: [{**ends, "kind": maybe(rng, TEXTS)} for ends in _ends(rng, people, cities, 5)],
    }


def _person(rng: Random, slug: str) -> Row:
    values = {name: maybe(rng, values) for name, values in _PERSON_VALUES.items()}
    lists = {
        name: None if rng.random() < 0.2 else rng.choices(items, k=rng.randint(0, 2))
        for name, items in (("tags", TEXTS), ("nums", INTS))
    }
    return {"id": slug, "slug": slug, **values, **lists}


def _ends(rng: Random, sources: list[str], targets: list[str], most: int) -> list[Row]:
    if not sources or not targets:
        return []
    count = rng.randint(0, most)
    return [{"id": f"e{i:02}", "src": rng.choice(sources), "dst": rng.choice(targets)} for i in range(count)]


# Queries, as text: the checker then decides about hidden variables and the order's last keys.

NAMES = {"natural": "vast", "height": "weight", "note": "slug", "happy": "ok"}  # of Person, for those of gq.SCHEMA
OPS = ["=", "!=", "<", "<=", ">", ">="]
NUMBERS = ["age", "big", "vast", "score", "weight"]
_NUMBER_LITERALS = [*INTS, 2**53 + 1, 0.5, 0.1, -0.0, 2.0**53]
_PAIRS = [("name", "name"), ("slug", "name"), ("born", "born"), ("ok", "ok"), ("role", "role")]
_PAIRS += [(one, another) for one in NUMBERS for another in NUMBERS]
_SUMS = ["count($v)", "count($v.age)", "sum($v.age)", "sum($v.score)", "avg($v.big)", "avg($v.weight)", "min($v.name)"]
_SUMS += ["max($v.name)", "min($v.born)", "max($v.weight)", "min($v.id)", "max($v.role)", "sum($v.vast)", "max($v.ok)"]


def literal(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return f'datetime("{value.isoformat()}")'
    if isinstance(value, dt.date):
        return f'date("{value.isoformat()}")'
    return json.dumps(value, ensure_ascii=False)


def query(rng: Random) -> str:
    variables = ["a", "b", "c"][: rng.randint(1, 3)]
    clauses = [f"${variables[0]}: Person"]
    edge_vars: list[str] = []
    for place, var in enumerate(variables[1:], 1):
        if rng.random() < 0.2:
            clauses.append(f"${var}: Person")
        else:
            ends = [rng.choice(variables[:place]), var]
            rng.shuffle(ends)
            clauses.append(_traversal(rng, ends[0], ends[1], edge_vars))
    if rng.random() < 0.25:
        clauses.append(_traversal(rng, rng.choice(variables), rng.choice(variables), edge_vars))
    if rng.random() < 0.25:
        clauses.append(f"${rng.choice(variables)} livesIn {rng.choice(['$t', '$_'])}")
    clauses += [_filter(rng, rng.choice(variables), variables) for _ in range(rng.randint(0, 2))]
    for edge in edge_vars:
        if rng.random() < 0.5:
            clauses.append(f"${edge}." + rng.choice(["weight > 0.5", 'since = date("2026-01-01")']))
    if rng.random() < 0.35:
        clauses.append(f"not {{ {_inner(rng, rng.choice(variables), rng.choice(variables))} }}")
    rng.shuffle(clauses)
    ending = _plain(rng, variables, edge_vars) if rng.random() < 0.5 else _grouped(rng, variables)
    return f"match {{ {'  '.join(clauses)} }} {ending}"


def _traversal(rng: Random, one: str, other: str, edge_vars: list[str]) -> str:
    bounds = rng.choice(["{1,2}", "{2,2}", "{1,}", "{2,3}", "{2,}", "{3,3}"])
    forms = ["knows", "knows", f"knows{bounds}", "<knows>", f"<knows>{bounds}", ":knows", ":<knows>"]
    form = rng.choice(forms)
    if form.startswith(":"):
        edge_vars.append("klmn"[len(edge_vars)])
        form = f"${edge_vars[-1]}{form}"
    return f"${one} {form} ${other}"


def _filter(rng: Random, var: str, variables: list[str]) -> str:
    if rng.random() < 0.3:
        return f"({expressions(rng, variables).boolean(rng.randint(1, 3))})"
    other, op = rng.choice(variables), rng.choice(OPS)
    one, another = rng.choice(_PAIRS)
    scalars: list[tuple[str, Sequence[Any]]] = [("born", DATES), ("seen", TIMES), ("ok", [True, False])]
    lists: list[tuple[str, Sequence[Any]]] = [("tags", TEXTS), ("nums", INTS)]
    field, values = rng.choice(scalars)
    items, members = rng.choice(lists)
    part = rng.choice([literal("a"), literal("_"), literal("%"), literal(""), f"${other}.name"])
    return rng.choice(
        [
            f"${var}.name {op} {literal(rng.choice(TEXTS))}",
            f"${var}.{rng.choice(NUMBERS)} {op} {literal(rng.choice(_NUMBER_LITERALS))}",
            f"{literal(rng.choice(_NUMBER_LITERALS))} {op} ${var}.{rng.choice(NUMBERS)}",
            f"${var}.{rng.choice(['id', 'slug'])} {rng.choice(['=', '=', '!='])} {literal(rng.choice(PEOPLE))}",
            f"${var}.{field} {op} {literal(rng.choice(values))}",
            f"${var}.{items} contains {literal(rng.choice(members))}",
            f"${var}.{items} contains ${other}.{'name' if items == 'tags' else 'age'}",
            f"${var}.name {rng.choice(['contains', 'starts_with'])} {part}",
            f"${var}.{one} {op} ${other}.{another}",
            f"${var}.{one} {op} ${other}.{another}",
        ]
    )


def expressions(rng: Random, variables: Sequence[str]) -> Expressions:
    return Expressions(rng, variables, NAMES, small=True)


def _inner(rng: Random, var: str, other: str) -> str:
    return rng.choice(
        [
            f"${var} knows $_",
            f"$_ <knows> ${var}",
            f"${var} livesIn $_",
            f'${var} livesIn $z  $z.name = "x"',
            f"${var} knows{{1,2}} $n  $n.age > 0",
            f"${var} $e:knows $n  $e.weight > 0.5",
            f"${var} knows $n  not {{ $n knows ${other} }}",
            f"$n: Person  $n.name = ${var}.name  $n.age > ${other}.age",
            f'$n: Person {{ slug: "p1" }}  $n knows{{1,}} ${var}',
            f"${var} knows ${other}",
            f"${var}.age > 0",
        ]
    )


_SHOWN = ["id", "name", "age", "weight", "born", "seen", "ok", "big", "tags"]


def _plain(rng: Random, variables: list[str], edge_vars: list[str]) -> str:
    shown = [f"${var}.{rng.choice(_SHOWN)} as c{i}" for i, var in enumerate(variables)]
    if rng.random() < 0.2:
        shown.append(f"${variables[0]} as whole")
    shown += [f"${edge}.since as s{edge}" for edge in edge_vars]
    keys = [
        f"${rng.choice(variables)}.{rng.choice(_SHOWN[:8])} {rng.choice(['asc', 'desc'])}"
        for _ in range(rng.randint(0, 2))
    ]
    if rng.random() < 0.4:
        shown.append(f"{expressions(rng, variables).any(2)[1]} as x")
    if rng.random() < 0.3:
        kind = rng.choice(["int", "float", "text", "bool", "date", "datetime"])
        keys.append(f"coalesce({expressions(rng, variables).of(kind, 2)}, null) {rng.choice(['asc', 'desc'])}")
    return _ending(rng, [*shown, "1 as one"], keys)


def _grouped(rng: Random, variables: list[str]) -> str:
    fields = [".name", ".age", ".score", "", ".id", ".tags"]
    by = [f"${rng.choice(variables)}{rng.choice(fields)}" for _ in range(rng.randint(0, 2))]
    if rng.random() < 0.3:
        by.append(expressions(rng, variables).any(2)[1])
    of = rng.choice(variables)
    aggregates = [rng.choice(_SUMS).replace("$v", f"${of}") for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.3:
        fn, kind = rng.choice([("sum", "int"), ("sum", "float"), ("avg", "float"), ("min", "text"), ("max", "date")])
        aggregates.append(f"{fn}({expressions(rng, variables).of(kind, 2)})")
    shown = [f"{expr} as g{i}" for i, expr in enumerate(by)] + [f"{expr} as a{i}" for i, expr in enumerate(aggregates)]
    return _ending(rng, shown, [f"a0 {rng.choice(['asc', 'desc'])}"] if rng.random() < 0.5 else [])


def _ending(rng: Random, shown: list[str], keys: list[str]) -> str:
    order = f" order {{ {', '.join(keys)} }}" if keys else ""
    limit = f" limit {rng.randint(0, 4)}" if rng.random() < 0.35 else ""
    return f"return {{ {', '.join(shown)} }}{order}{limit}"
