"""Expensive but valid queries from the grammar, each from a seed.

They are about the graph of `bomb_graph.py`. Everything that a reader may write is used, with weights for cost: products
of parts that nothing connects, long chains over hubs, unbounded hops, cycles, negations, comparisons that no index
serves, search with large limits, and endings that sort, group or return everything.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hostile.bomb_graph import DIMENSION, word

PERSON, CITY = "Person", "City"
NUMBERS = ["age", "big", "score"]
SCALARS = ["name", "bio", *NUMBERS, "ok", "role", "born", "seen", "slug", "id"]
SHOWN = [*SCALARS, "tags", "nums"]
BOUNDS = ["{1,30}", "{1,}", "{2,}", "{2,4}", "{3,3}", "{1,8}", "{5,30}", "{7,7}"]
OPS = ["=", "!=", "<", "<=", ">", ">="]
LIMITS = [0, 1, 10, 100_000, 1_000_000_000]
TEXT_MAX = 200_000

_LONG_LIST = re.compile(r"(\[0, 1, 2,)[0-9, ]{30,} ([0-9]+)\]")
_LONG_WORDS = re.compile(r"(?:ba){4,}|(?:[a-z]{8} ){5,}[a-z]{8}")


@dataclass(frozen=True)
class Bomb:
    """A query, and the seed that makes it again."""

    seed: int
    text: str
    params: dict[str, Any]
    as_json: bool  # how the result is read: as JSON values, or as Arrow batches

    def __str__(self) -> str:
        text = _LONG_LIST.sub(r"\1 … \2]", self.text)
        text = _LONG_WORDS.sub("…", text)
        sizes = ", ".join(f"${name} of {len(value):,} letters" for name, value in self.params.items())
        return f"seed {self.seed}: {text}" + (f"  with {sizes}" if sizes else "")


def bomb(seed: int) -> Bomb:
    dice = Random(seed)
    query = _Query(dice)
    body = query.body()
    params = f"({', '.join(query.declared)})" if query.declared else "()"
    return Bomb(seed, f"query bomb{params} {{ {body} }}", query.params, dice.random() < 0.5)


@dataclass
class _Query:
    dice: Random
    nodes: dict[str, str] = field(default_factory=dict)  # types of variables
    edges: list[str] = field(default_factory=list)
    clauses: list[str] = field(default_factory=list)
    declared: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    locals: int = 0
    longest: int = 5_000  # of lists of literals

    def body(self) -> str:
        dice = self.dice
        if dice.random() < 0.1:
            return self._broad()
        start = self._new(PERSON)
        self.clauses.append(f"${start}: Person" + self._properties())
        for _ in range(dice.choice([0, 1, 1, 2, 2, 3, 4, 6, 8])):
            self._grow()
        for _ in range(dice.choice([0, 0, 0, 1, 2])):
            self._traverse(self._person(), self._person())
        for _ in range(dice.choice([0, 0, 1, 1, 2, 4, 30])):
            self.clauses.append(self._filter(self._person(), self._person()))
        if dice.random() < 0.15:
            self.clauses.append(self._search_filter())
        for _ in range(dice.choice([0, 0, 0, 1, 2])):
            self.clauses.append(self._negation(dice.choice([1, 1, 2, 3])))
        ending = dice.choice([self._plain, self._plain, self._grouped, self._grouped, self._ranked])()
        dice.shuffle(self.clauses)
        return f"match {{ {'  '.join(self.clauses)} }} {ending}"

    def _broad(self) -> str:
        """A little of everything, hundreds of times."""
        dice, many = self.dice, self.dice.choice([100, 1_000, 5_000])
        self.nodes, self.longest = {f"v{n}": PERSON for n in range(many)}, 3
        clauses = {
            "chain": [f"$v{n} knows $v{n + 1}" for n in range(many - 1)],
            "star": [f"$v0 {dice.choice(['knows', 'follows'])} $v{n}" for n in range(1, many)],
            "loops": [f"$v0 {dice.choice(['knows', 'follows', '<knows>'])} $v0" for _ in range(many)],
            "product": [f'$v{n}: Person {{ slug: "p{n}" }}' for n in range(many)],
            "negations": [f"not {{ $v0 knows{dice.choice(BOUNDS)} $_ }}" for _ in range(many)],
            "filters": [self._filter("v0", "v0") for _ in range(many)],
        }[dice.choice(["chain", "star", "loops", "product", "negations", "filters"])]
        texts = ["$v0: Person", *clauses]
        used = {name for text in texts for name in re.findall(r"\$(v[0-9]+)", text)}
        self.nodes = {name: PERSON for name in self.nodes if name in used}
        wide = dice.choice([1, 50, 1_000])
        shown = [f"$v0.{dice.choice(SHOWN)} as c{n}" for n in range(wide)]
        keys = [f"$v0.{dice.choice(SCALARS)}" for _ in range(dice.choice([0, 1, 50, 1_000]))]
        if dice.random() < 0.5:
            return f"match {{ {'  '.join(texts)} }} {self._end(shown, keys, self._limit())}"
        shown = [f"{self._aggregate()} as a{n}" for n in range(wide)]
        return f"match {{ {'  '.join(texts)} }} {self._end(shown, [], self._limit())}"

    # Patterns

    def _new(self, kind: str) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes[name] = kind
        return name

    def _person(self) -> str:
        return self.dice.choice([var for var, kind in self.nodes.items() if kind == PERSON])

    def _properties(self) -> str:
        return "" if self.dice.random() < 0.8 else ' { role: "ops" }'

    def _grow(self) -> None:
        near, share = self._person(), self.dice.random()
        if share < 0.22:
            self.clauses.append(f"${self._new(PERSON)}: Person" + self._properties())
        elif share < 0.27:
            self.clauses.append(f"${self._new(CITY)}: City")
        elif share < 0.35:
            city = self._new(CITY)
            self.clauses.append(f"${near} livesIn ${city}")
            if self.dice.random() < 0.6:
                self.clauses.append(f"${self._new(PERSON)} livesIn ${city}")
        else:
            ends = [near, self._new(PERSON)]
            self.dice.shuffle(ends)
            self._traverse(*ends)

    def _traverse(self, source: str, target: str) -> None:
        edge = self.dice.choice(["knows", "knows", "follows"])
        form = self.dice.choice(["hop", "hop", "bounded", "bounded", "undirected", "both", "named", "anonymous"])
        name = f"<{edge}>" if form in ("undirected", "both") else edge
        if form in ("bounded", "both"):
            name += self.dice.choice(BOUNDS)
        if form == "named":
            self.edges.append(f"e{len(self.edges)}")
            name = f"${self.edges[-1]}:{self.dice.choice(['knows', '<knows>'])}"
        if form == "anonymous":
            self.clauses.append(f"${source} {name} $_")
        self.clauses.append(f"${source} {name} ${target}")

    def _negation(self, depth: int) -> str:
        one, other = self._person(), self._person()
        self.locals += 1
        inner = f"n{self.locals}"
        choices = [
            f"${one} knows{self.dice.choice(BOUNDS)} ${inner}  {self._filter(inner, other)}",
            f"${one} knows ${other}",
            f"${inner}: Person  ${inner}.age {self.dice.choice(OPS)} ${one}.age  {self._filter(inner, other)}",
            f"${one} follows ${inner}  ${inner} knows ${other}",
            f"${one} <knows> ${inner}  ${other} <knows> ${inner}",
        ]
        text = self.dice.choice(choices)
        if depth > 1:
            text += "  " + self._negation(depth - 1)
        return f"not {{ {text} }}"

    # Filters

    def _filter(self, one: str, other: str) -> str:
        dice = self.dice
        op, number = dice.choice(OPS), dice.choice(NUMBERS)
        field, again = dice.choice(["name", "bio", "slug", "id"]), dice.choice(["name", "slug"])
        if dice.random() < 0.05:
            return f"${one}.slug != {self._parameter()}"
        return dice.choice(
            [
                f"${one}.{number} {op} ${other}.{dice.choice(NUMBERS)}",
                f"${one}.{number} {op} ${other}.{number}",
                f"${one}.{field} {op} ${other}.{again}",
                f"${one}.{field} contains ${other}.{again}",
                f"${one}.{field} starts_with ${other}.{again}",
                f"${one}.tags contains ${other}.name",
                f"${one}.nums contains ${other}.age",
                f"${one}.born {op} ${other}.born",
                f'${one}.seen {op} datetime("1990-01-01T00:00:00Z")',
                f"${one}.{number} != {dice.randint(-5, 90)}",
                f"${one}.bio contains {json.dumps('ba' * dice.choice([1, 3, min(2_000, self.longest)]))}",
                f"{self._long_list()} contains ${one}.age",
            ]
        )

    def _long_list(self) -> str:
        return f"[{', '.join(map(str, range(min(self.dice.choice([3, 500, 5_000]), self.longest))))}]"

    def _parameter(self) -> str:
        name = f"t{len(self.declared)}"
        self.declared.append(f"${name}: String")
        self.params[name] = "p" * self.dice.choice([1, 1_000, TEXT_MAX])
        return f"${name}"

    def _search_filter(self) -> str:
        words = json.dumps(" ".join(word(n) for n in range(self.dice.choice([1, 3, 200]))))
        var, field = self._person(), self.dice.choice(["bio", "name"])
        return self.dice.choice(
            [
                f"search(${var}.{field}, {words})",
                f"fuzzy(${var}.{field}, {words}, 2)",
                f"match_text(${var}.bio, {words})",
            ]
        )

    # Endings

    def _end(self, shown: list[str], keys: list[str], limit: int | None) -> str:
        order = f" order {{ {', '.join(keys)} }}" if keys else ""
        return f"return {{ {', '.join(shown)} }}{order}" + ("" if limit is None else f" limit {limit}")

    def _limit(self) -> int | None:
        return None if self.dice.random() < 0.5 else self.dice.choice(LIMITS)

    def _plain(self) -> str:
        dice, people = self.dice, [var for var, kind in self.nodes.items() if kind == PERSON]
        shown = [f"${var}.{dice.choice(SHOWN)} as c{place}" for place, var in enumerate(people)]
        if dice.random() < 0.3:
            shown += [f"${dice.choice(people)}.{name} as w{n}{name}" for n in range(4) for name in SHOWN]
        if dice.random() < 0.3:
            shown += [f"${var} as whole{var}" for var in self.nodes]
        shown += [f"${edge}.{dice.choice(['since', 'weight', 'note'])} as s{edge}" for edge in self.edges]
        keys = [
            f"${dice.choice(people)}.{dice.choice(SCALARS)} {dice.choice(['asc', 'desc'])}"
            for _ in range(dice.choice([0, 1, 1, 2, 5]))
        ]
        return self._end(shown, keys, self._limit())

    def _grouped(self) -> str:
        dice = self.dice
        by = [
            f"${self._person()}{dice.choice(['', *(f'.{name}' for name in SHOWN)])}"
            for _ in range(dice.choice([0, 1, 1, 2, 4]))
        ]
        sums = [self._aggregate() for _ in range(dice.choice([1, 1, 3, 8]))]
        shown = [f"{expr} as g{n}" for n, expr in enumerate(by)] + [f"{expr} as a{n}" for n, expr in enumerate(sums)]
        keys = [f"a0 {dice.choice(['asc', 'desc'])}"] if dice.random() < 0.6 else []
        return self._end(shown, keys, self._limit())

    def _aggregate(self) -> str:
        var = self._person()
        fn = self.dice.choice(["count", "count", "sum", "avg", "min", "max"])
        if fn == "count":
            return f"count(${var}{self.dice.choice(['', '.age', '.bio'])})"
        return f"{fn}(${var}.{self.dice.choice(NUMBERS if fn in ('sum', 'avg') else SCALARS)})"

    def _ranked(self) -> str:
        dice, var = self.dice, self._person()
        words = json.dumps(" ".join(word(n) for n in range(dice.choice([1, 3, 200]))))
        near = f"nearest(${var}.face, {[round(dice.uniform(-1, 1), 3) for _ in range(DIMENSION)]})"
        best = f"bm25(${self._person()}.bio, {words})"
        key = dice.choice([near, best, f"rrf({near}, {best})", f"rrf({near}, {best}, 1)"])
        return self._end([f"${v}.id as c{v}" for v in self.nodes], [key], dice.choice([1, 10, 5_000, 1_000_000]))
