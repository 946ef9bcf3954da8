"""The glossary has each term once, in order, with a link that leads to the section it names."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
GLOSSARY = DOCS / "glossary.md"
SENTENCES_MAX = 3


def entries() -> list[tuple[str, str]]:
    """The terms with their definitions."""
    _, *sections = re.split(r"^### ", GLOSSARY.read_text(), flags=re.MULTILINE)
    return [(term, " ".join(text.split())) for term, _, text in (section.partition("\n") for section in sections)]


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", text)


def anchors(page: Path) -> set[str]:
    """What can stand behind `#` in a link to the page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_terms_are_sorted_and_unique() -> None:
    terms = [term.lower() for term, _ in entries()]

    assert len(terms) > 50
    assert terms == sorted(set(terms))


def test_each_definition_is_short_and_says_where_there_is_more() -> None:
    for term, text in entries():
        definition = text.partition(" See ")[0]
        assert links(text), term
        assert len(re.findall(r"[.:?](?= [A-Z]|$)", definition)) <= SENTENCES_MAX, term
        assert definition.endswith("."), term


def test_every_link_leads_to_a_page_and_a_section_of_it() -> None:
    broken = []
    for link in links(GLOSSARY.read_text()):
        path, _, anchor = link.partition("#")
        page = DOCS / path
        if not page.is_file() or (anchor and anchor not in anchors(page)):
            broken.append(link)

    assert broken == []


def test_the_words_of_the_protocol_are_defined() -> None:
    picture = (DOCS / "protocol.md").read_text().partition("## The picture")[2].partition("\n## ")[0]
    words = re.findall(r"^\| (\w[\w ]*) \| ", picture, re.MULTILINE)
    known_as = {"staged": "stage (of a write)", "inline": "inline row"}

    assert words[0] == "word"
    assert {known_as.get(word, word) for word in words[1:]} <= {term for term, _ in entries()}
