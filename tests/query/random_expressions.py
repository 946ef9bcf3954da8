"""Random expressions of every type over the properties of a Person of gq.SCHEMA, as text, and random rows."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping, Sequence
from typing import Any

TEXTS = ["", "a", "ab", "Ärger ß", "İx", "a,b,,c", " x ", "12", "-3.5", "1e2", "2026-02-28", "2026-02-30", "😀b"]
INTEGERS = [0, 1, -1, 2, 3, 7, -12, 1000, 2**31 - 1, 2**53 + 1, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.5, 0.5, 2.5, -2.5, 1e-300, 1e300, 3.0, 0.49999999999999994, 123456.789]
DAYS = [dt.date(2024, 2, 29), dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31)]
TIMES = [
    dt.datetime(2024, 2, 29, 23, 59, 59, 999_000, dt.UTC),
    dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    dt.datetime(1969, 12, 31, 12, 30, 0, 1_000, dt.UTC),
]
SEPARATORS = ['","', '""', '"a"']
PATTERNS = ["a.*", "[0-9]+", "(a|b)*", ".*b", ""]


def rows(dice: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows with values of every type, and many nulls."""

    def some(values: list[Any]) -> Any:
        return None if dice.random() < 0.25 else dice.choice(values)

    return [
        {
            "id": f"p{number}",
            "slug": dice.choice(TEXTS) + str(number),
            "name": dice.choice(TEXTS),
            "note": some(TEXTS),
            "role": some(["engineer", "lead", "ops"]),
            "age": some([value for value in INTEGERS if -(2**31) <= value < 2**31]),
            "big": some(INTEGERS),
            "natural": some([value for value in INTEGERS if value >= 0] + [2**64 - 1]),
            "height": some([0.0, 0.5, -2.5, 0.10000000149011612, 2.0**127]),
            "score": some(FLOATS),
            "happy": some([True, False]),
            "born": some(DAYS),
            "seen": some(TIMES),
            "tags": some([(), ("a",), ("b", "a", "a"), ("", "x,y")]),
            "marks": some([(), (0.5,), (0.10000000149011612, 2.0)]),
        }
        for number in range(count)
    ]


class Expressions:
    """Draws expressions over the properties of some variables; `names` are theirs for those of gq.SCHEMA.

    With `small`, no result leaves its 64 bits: which rows are evaluated then does not show.
    """

    def __init__(
        self,
        dice: random.Random,
        variables: Sequence[str] = ("p",),
        names: Mapping[str, str] | None = None,
        *,
        small: bool = False,
    ) -> None:
        self.dice, self.variables, self.names, self.small = dice, variables, names or {}, small

    def of(self, kind: str, depth: int) -> str:
        makers = {
            "int": self.integer,
            "float": self.real,
            "text": self.text,
            "bool": self.boolean,
            "date": self.date,
            "datetime": self.datetime,
            "texts": self.texts,
        }
        return makers[kind](depth)

    def any(self, depth: int) -> tuple[str, str]:
        kind = self.dice.choice(["int", "float", "text", "bool", "date", "datetime", "texts"])
        return kind, self.of(kind, depth)

    def choose(self, depth: int, leaves: list[str], larger: list[Any]) -> str:
        if depth <= 0 or self.dice.random() < 0.2:
            return self.dice.choice(leaves)
        return str(self.dice.choice(larger)())

    def prop(self, *names: str) -> list[str]:
        """Properties of any of the variables; bare names where the variable is the row itself, named ""."""
        found = []
        for name in names:
            var, own = self.dice.choice(self.variables), self.names.get(name, name)
            found.append(f"${var}.{own}" if var else own)
        return found

    def number(self, depth: int) -> str:
        return self.integer(depth) if self.dice.random() < 0.6 else self.real(depth)

    def alternatives(self, kind: str, depth: int) -> str:
        if self.dice.random() < 0.5:
            last = self.dice.choice(["null", self.of(kind, depth)])
            return f"coalesce({self.of(kind, depth)}, {last})"
        otherwise = self.dice.choice(["", f" else {self.of(kind, depth)}", " else null"])
        return f"case when {self.boolean(depth)} then {self.of(kind, depth)}{otherwise} end"

    def integer(self, depth: int) -> str:
        d = depth - 1
        leaves = [f"({name} % 1000)" for name in self.prop("age", "big", "natural")]
        if not self.small:
            leaves = [*self.prop("age", "age", "big", "natural"), *(str(value) for value in INTEGERS[6:8])]
        return self.choose(
            depth,
            [*leaves, *(str(value) for value in INTEGERS[:6])],
            [
                lambda: f"({self.integer(d)} {self.dice.choice('+-*%')} {self.integer(d)})",
                lambda: f"-({self.integer(d)})",
                lambda: f"{self.dice.choice(['abs', 'round', 'floor', 'ceil'])}({self.integer(d)})",
                lambda: f"length({self.text(d)})",
                lambda: f"size({self.texts(d)})",
                lambda: f"(int({self.dice.choice([self.number, self.text])(d)}) % 1000)",
                lambda: f"{self.dice.choice(['year', 'month', 'day'])}({self.date(d)})",
                lambda: f"{self.dice.choice(['hour', 'minute', 'second', 'year'])}({self.datetime(d)})",
                lambda: f"days_between({self.date(d)}, {self.datetime(d)})",
                lambda: f"least({self.integer(d)}, {self.integer(d)})",
                lambda: self.alternatives("int", d),
            ],
        )

    def real(self, depth: int) -> str:
        d = depth - 1
        return self.choose(
            depth,
            [*self.prop("height", "score"), *(repr(value) for value in FLOATS)],
            [
                lambda: f"({self.number(d)} / {self.number(d)})",
                lambda: f"({self.real(d)} {self.dice.choice('+-*%')} {self.number(d)})",
                lambda: f"-({self.real(d)})",
                lambda: f"{self.dice.choice(['abs', 'round', 'floor', 'ceil', 'sqrt', 'ln', 'exp'])}({self.real(d)})",
                lambda: f"pow({self.number(d)}, {self.number(d)})",
                lambda: f"float({self.dice.choice([self.number, self.text])(d)})",
                lambda: f"seconds_between({self.datetime(d)}, {self.datetime(d)})",
                lambda: f"greatest({self.real(d)}, {self.number(d)})",
                lambda: self.alternatives("float", d),
            ],
        )

    def text(self, depth: int) -> str:
        d = depth - 1
        return self.choose(
            depth,
            [*self.prop("name", "note", "role", "slug", "id"), *(f'"{text}"' for text in TEXTS)],
            [
                lambda: f"({self.text(d)} || {self.text(d)})",
                lambda: f"{self.dice.choice(['lower', 'upper', 'trim'])}({self.text(d)})",
                lambda: f"substring({self.text(d)}, {self.dice.choice([-1, 0, 1, 2, 9])}, {self.integer(0)})",
                lambda: f"replace({self.text(d)}, {self.text(0)}, {self.text(0)})",
                lambda: f"{self.texts(d)}[{self.dice.choice([-1, 0, 1, 5])}]",
                lambda: f"string({self.dice.choice([self.integer, self.boolean, self.date, self.datetime])(d)})",
                lambda: self.alternatives("text", d),
            ],
        )

    def texts(self, depth: int) -> str:
        d = depth - 1
        return self.choose(
            depth,
            [*self.prop("tags"), '["a", "b"]'],
            [
                lambda: f"split({self.text(d)}, {self.dice.choice(SEPARATORS)})",
                lambda: f"({self.texts(d)} || {self.texts(d)})",
                lambda: self.alternatives("texts", d),
            ],
        )

    def date(self, depth: int) -> str:
        d = depth - 1
        return self.choose(
            depth,
            [*self.prop("born"), *(f'date("{day.isoformat()}")' for day in DAYS)],
            [
                lambda: f"date({self.datetime(d)})",
                lambda: f"date(trim({self.text(d)}))",  # a text alone would be a literal
                lambda: f"add_days({self.date(d)}, {self.integer(d)})",
                lambda: self.alternatives("date", d),
            ],
        )

    def datetime(self, depth: int) -> str:
        d = depth - 1
        return self.choose(
            depth,
            [*self.prop("seen"), 'datetime("2026-03-01T12:00:00Z")'],
            [
                lambda: f"datetime({self.date(d)})",
                lambda: f"add_days({self.datetime(d)}, {self.integer(d)})",
                lambda: f"add_seconds({self.datetime(d)}, {self.integer(d)})",
                lambda: self.alternatives("datetime", d),
            ],
        )

    def boolean(self, depth: int) -> str:
        d = depth - 1
        compare = ["=", "!=", "<", "<=", ">", ">="]
        return self.choose(
            depth,
            [*self.prop("happy"), "true", "false"],
            [
                lambda: f"({self.boolean(d)} {self.dice.choice(['and', 'or'])} {self.boolean(d)})",
                lambda: f"(not {self.boolean(d)})",
                lambda: f"({self.number(d)} {self.dice.choice(compare)} {self.number(d)})",
                lambda: f"({self.text(d)} {self.dice.choice(compare)} {self.text(d)})",
                lambda: f"({self.date(d)} {self.dice.choice(compare)} {self.date(d)})",
                lambda: f"({self.datetime(d)} {self.dice.choice(compare)} {self.datetime(d)})",
                lambda: f"({self.text(d)} {self.dice.choice(['in', 'not in'])} {self.texts(d)})",
                lambda: f"({self.integer(d)} in [1, 2, 3, -12])",
                lambda: f"({self.texts(d)} contains {self.text(d)})",
                lambda: f"({self.text(d)} {self.dice.choice(['contains', 'starts_with', 'ends_with'])} {self.text(d)})",
                lambda: f'({self.text(d)} matches "{self.dice.choice(PATTERNS)}")',
                lambda: f"({self.any(d)[1]} is {self.dice.choice(['null', 'not null'])})",
                lambda: self.alternatives("bool", d),
            ],
        )
