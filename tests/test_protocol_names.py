"""Rules of the commit protocol are cited by the names that docs/protocol.md gives them, in backticks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROTOCOL = ROOT / "docs" / "protocol.md"
THIS = Path(__file__).resolve()
BACKTICKED = re.compile(r"`([a-z]+(?:-[a-z]+)*)`")
NUMBERED = re.compile(r"\brules? #?[0-9]+", re.IGNORECASE)
ALIKE = 0.75  # how similar to a rule's name a text is that must have meant it


def rule_names() -> list[str]:
    return re.findall(r"^### `([a-z-]+)`$", PROTOCOL.read_text(), re.MULTILINE)


def files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and path != THIS:
                yield path


def citations(lines: Iterable[str], names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The backticked texts that are names of rules, or were meant to be: alike, or said to be in protocol.md."""
    known = list(names)
    for number, line in enumerate(lines, start=1):
        for text in BACKTICKED.findall(line):
            hyphenated = "-" in text
            meant = hyphenated and ("protocol.md" in line or get_close_matches(text, known, 1, ALIKE))
            if text in known or meant:
                yield number, text


def test_every_rule_has_one_section_and_the_schedule_that_breaks_a_system_without_it() -> None:
    sections = re.split(r"^### `", PROTOCOL.read_text(), flags=re.MULTILINE)[1:]
    names = rule_names()

    assert len(names) == len(set(names)) == len(sections)
    assert [
        section.partition("`")[0] for section in sections if not re.search(r"\*\*Schedules? without it", section)
    ] == []


def test_names_that_source_and_tests_cite_exist() -> None:
    names = rule_names()
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for path in files("src", "tests")
        for number, name in citations(path.read_text().splitlines(), names)
        if name not in names
    ]

    assert wrong == []


def test_nothing_cites_a_rule_by_a_number() -> None:
    """A number says nothing to a reader, and changes its meaning when a rule is added."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files("src", "tests", "docs", "bench", "examples", suffixes=(".py", ".md"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if NUMBERED.search(line)
    ]

    assert found == []


def test_every_rule_is_cited_by_a_test() -> None:
    names = rule_names()
    cited = {
        name
        for path in files("tests")
        if path.name.startswith("test_")
        for _, name in citations(path.read_text().splitlines(), names)
    }

    assert sorted(set(names) - cited) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("# `confirmed-head`: the head was read in this call", ["confirmed-head"]),
        ('"""Derived again (`rebase`)."""', ["rebase"]),
        ("# `confirm-head`: misspelt, and found", ["confirm-head"]),
        ("# by `some-rule` in docs/protocol.md", ["some-rule"]),
        ("the header is `respond-async`, the verb `publish`", []),
    ],
)
def test_citations_are_recognised(line: str, found: list[str]) -> None:
    assert [name for _, name in citations([line], rule_names())] == found
