"""The graph that both ways are asked about, and what makes two answers comparable."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa

import omnigraph
from omnigraph.api.models import ChangesExplained
from omnigraph.read.result import QueryResult
from omnigraph.schema.evolve.migration import MigrationPlan
from support.server import QUICK

SCHEMA = """\
node Person {
    slug: String @key
    name: String?
    age: I32?
    email: String? @unique
    born: Date?
    seen: DateTime?
    score: F64?
    ratio: F32?
    photo: Blob?
    tags: [String]?
    days: [Date]?
    big: U64?
    role: enum(engineer, lead)?
    rank: F64?
    @range(age, 0..150)
}
node Note { slug: String @key  text: String?  vec: Vector(8)? @embed("text") }
edge Knows: Person -> Person { since: Date? }
"""
MORE = SCHEMA.replace("name: String?", "name: String?  nick: String?")
ENTITIES: list[dict[str, Any]] = [
    {
        "type": "Person",
        "data": {
            "slug": "ada",
            "name": "Ada",
            "age": 36,
            "email": "ada@example.com",
            "born": "1815-12-10",
            "seen": "2026-01-31T12:00:00.250Z",
            "score": 0.1,
            "ratio": 0.1,
            "photo": "base64:AAEC",
            "tags": ["first", "ä"],
            "days": ["2026-01-31"],
            "big": 2**63,
            "role": "lead",
        },
    },
    {"type": "Person", "data": {"slug": "bob", "name": "Bob", "age": 40, "score": 1e300}},
    {"type": "Person", "data": {"slug": "grace"}},
    {"type": "Note", "data": {"slug": "n1", "text": "a crash of the engine"}},
    {"type": "Note", "data": {"slug": "n2", "text": "lunch"}},
    {"edge": "Knows", "from": "ada", "to": "bob", "data": {"id": "k1", "since": "2020-01-31"}},
    {"edge": "Knows", "from": "bob", "to": "grace", "data": {"id": "k2"}},
]
PEOPLE = "query people() { match { $p: Person } return { $p.slug as slug, $p.age as age } order { slug } }"
WHOLE = "query whole() { match { $p: Person } return { $p, $p.photo as photo } order { $p.slug } }"
OLDER = """\
query older($age: I32, $since: Date?) {
    match { $p: Person  $p.age >= $age  $p knows $f }
    return { $p.slug as slug, count($f) as friends, max($p.score) as best } order { slug }
}
"""
ADD = "query add($slug: String, $age: I32?) { insert Person { slug: $slug, age: $age } }"
SET_AGE = "query older($slug: String, $age: I32) { update Person set { age: $age } where slug = $slug }"

COMMIT = re.compile(r"\b[a-z2-7]{13}\.\d+(\.\d+)?\b")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
TOKEN = re.compile(r"\b[A-Za-z0-9_-]{60,}={0,2}")
REJECTED = re.compile(r"rejected-[a-z2-7]{13}")
TXN = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b")
COSTS = re.compile(r"\d+ requests?( in \d+ stages?)?|, [\d,]+ bytes$", re.MULTILINE)
NOT_COMPARED = frozenset(
    {
        "cost",
        "txn_id",
        "token",  # of a commit, like its input and the digest of its request, for the protocol alone
        "input",
        "request",
        "authored_at",
        "created_at",
        "since",
        "refreshed_ago",
        "repository",
        "session",
        "pinned",
    }
    | {"printers", "type_id", "quarantine", "phases"}
)


def seed(folder: Path) -> None:
    """A graph with branches that agree, that are ahead and that clash, a tag, and some history."""
    graph = omnigraph.init(folder, SCHEMA, QUICK)
    graph.load(ENTITIES, actor="ada")
    graph.tags.create("v1", actor="ada")
    graph.branches.create("agent")
    graph.mutate(ADD, params={"slug": "eve", "age": 3}, branch="agent", actor="agent")
    graph.branches.create("clash")
    graph.mutate(SET_AGE, params={"slug": "ada", "age": 50}, branch="clash")
    graph.mutate(SET_AGE, params={"slug": "ada", "age": 37}, actor="grace")


def plain(value: Any) -> Any:
    """A result as values that can be compared: what differs between two runs of anything is left out."""
    match value:
        case None | bool() | int() | float() | str() | bytes() | date():
            return value
        case timedelta():
            return "a span"
        case Enum():
            return value.value
        case pa.Table():
            return [str(value.schema), value.to_pylist()]
        case QueryResult():
            return _query_result(value)
        case MigrationPlan():  # the ids inside a catalog are the store's own
            return [value.to_json(), value.accepted.source, value.wanted.source]
        case Path():
            return str(value)
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case _ if dataclasses.is_dataclass(value) and hasattr(value, "__iter__") and not hasattr(value, "changes"):
            return _changes(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [entry.name for entry in dataclasses.fields(value) if entry.name not in NOT_COMPARED]
            return {name: plain(getattr(value, name)) for name in names}
        case _ if hasattr(value, "next_page"):
            return _changes(value)
        case _ if isinstance(value, Iterable):
            return [plain(item) for item in value]
        case _:
            return repr(value)


def _query_result(result: QueryResult) -> Any:
    return {
        "columns": result.columns,
        "rows": [{name: plain(value) for name, value in row.items()} for row in result.rows],
        "json": [row for batch in result.json_batches() for row in batch],
        "arrow": [str(result.schema), result.to_arrow().to_pylist()],
        "pandas": result.to_pandas().astype(object).where(lambda frame: frame.notna(), None).to_dict("records"),
        "length": len(result),
        "facts": [result.commit_id, result.branch, result.query],
        "plan": None if result.plan is None else result.plan.to_json(),
    }


def _changes(found: Any) -> Any:
    changes = [(plain(change), change.to_json()) for change in found]
    facts = [found.from_commit, found.to_commit, found.schema_changed, ChangesExplained.encode(found.explained)]
    return {"changes": changes, "facts": facts, "more": found.next_page is not None}


def differences(here: str, there: str) -> str:
    """The lines that only one of two texts has."""
    return "\n".join(difflib.unified_diff(here.splitlines(), there.splitlines(), "here", "there", lineterm="", n=1))


class Alike:
    """Texts of two runs with the names that each run made up for itself replaced by numbers, in order of appearance."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def text(self, text: str) -> str:
        text = COSTS.sub("N requests", TIME.sub(self._time, text))
        text = REJECTED.sub("rejected-X", TXN.sub("TXN", text))
        return TOKEN.sub("TOKEN", COMMIT.sub(lambda found: self._named(found[0]), text))

    def _named(self, commit: str) -> str:
        branch, _, number = commit.partition(".")
        return f"{self._seen.setdefault(branch, f'branch{len(self._seen)}')}.{number}"

    def _time(self, found: re.Match[str]) -> str:
        return found[0] if found[0] == "2026-01-31T12:00:00.250Z" else "TIME"

    def document(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case datetime():
                return self.text(value.isoformat())
            case dict():
                return {key: "cost" if key == "cost" else self.document(item) for key, item in value.items()}
            case list() | tuple():
                return [self.document(item) for item in value]
            case _:
                return value


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands of a click tree that do something themselves."""
    inside = getattr(command, "commands", None)
    if inside is None:
        yield path
        return
    for name, inner in inside.items():
        yield from leaves(inner, (*path, name))
