"""What the tests of the bulk load share: two graphs that are loaded alike, one in process and one in bulk."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnigraph.errors import ConstraintViolation, InvalidInput, OmnigraphError
from omnigraph.manifest.repository import Repository, init_repository
from omnigraph.pipeline.bulk.load import BulkSettings, bulk_load
from omnigraph.read.tables import scan as read_table
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.util.runner import LocalRunner, Runner
from omnigraph.write.load.input.load_input import UNLIMITED
from omnigraph.write.load.load import LoadResult, load
from omnigraph.write.load.load_options import LoadOptions

SCHEMA = """
node Person {
    slug: String @key
    name: String
    age:  I32?
    role: enum(engineer, lead, ops) @default("ops")
    tags: [String]?
    score: F64?
    bio:  String?
    face: Vector(2)? @embed("bio")
    @range(age, 0..150)
    @check(slug, "[a-z0-9-]+")
    @unique(name, role)
}
node Company { name: String @key }
node Note { text: String  rank: I64? @unique }
edge Knows: Person -> Person { since: Date?  @unique(src, dst) }
edge Likes: Person -> Person { much: F64? }
edge WorksAt: Person -> Company @card(0..1)
edge Needs: Company -> Person @card(1..2)
"""
SMALL_SPLITS = BulkSettings(split_bytes=600)
_ULID = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b")


def node(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data}


def person(slug: str, **more: Any) -> dict[str, Any]:
    return node("Person", slug=slug, **({"name": slug.capitalize()} | more))


def edge(kind: str, source: str, target: str, **data: Any) -> dict[str, Any]:
    return {"edge": kind, "from": source, "to": target, "data": data}


def write_lines(path: Path, entities: Iterable[Any]) -> Path:
    """NDJSON; text goes in as it is."""
    lines = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in entities]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@dataclass
class Outcome:
    """What a load came to, in terms that both ways must share: ids that were minted are all alike."""

    error: dict[str, Any] | None
    counts: Mapping[str, int]
    touched: Mapping[str, Any]
    rejected: int
    quarantine: list[dict[str, Any]]
    reports: tuple[str, ...]
    rows: dict[str, list[dict[str, Any]]]


@dataclass
class BulkWorld:
    """One graph, loaded either way."""

    repository: Repository
    runner: Runner
    settings: BulkSettings = SMALL_SPLITS

    @staticmethod
    def make(place: Path, schema: str = SCHEMA, runner: Runner | None = None) -> BulkWorld:
        return BulkWorld(init_repository(str(place), compile_schema(schema)), runner or LocalRunner())

    def bulk(self, source: Any, **options: Any) -> LoadResult:
        settings, progress = options.pop("settings", self.settings), options.pop("progress", None)
        load_options = LoadOptions(**options)
        return bulk_load(self.repository, self.runner, source, load_options, progress=progress, settings=settings)

    def in_process(self, source: Any, **options: Any) -> LoadResult:
        return load(self.repository, source, LoadOptions(**options), limits=UNLIMITED)

    def rows(self, type_name: str, branch: str = "main") -> list[dict[str, Any]]:
        snapshot = self.repository.snapshot(branch)
        key = snapshot.catalog.by_name[type_name].table_key
        found = read_table.scan(self.repository.tables, snapshot, key).to_pylist()
        return sorted(found, key=lambda row: str(row["id"]))

    def count(self, type_name: str, branch: str = "main") -> int:
        return len(self.rows(type_name, branch))

    @property
    def head(self) -> str:
        return self.repository.snapshot().commit_id

    def everything(self) -> dict[str, list[dict[str, Any]]]:
        """All rows by type, those with minted ids without them."""
        found = {}
        for definition in self.repository.snapshot().catalog.types:
            rows = [_plain(row) for row in self.rows(definition.name)]
            found[definition.name] = sorted(rows, key=lambda row: json.dumps(row, sort_keys=True, default=str))
        return found

    def outcome(self, how: str, source: Any, **options: Any) -> Outcome:
        """Load, and tell what became of it."""
        act = self.bulk if how == "bulk" else self.in_process
        error: dict[str, Any] | None = None
        result = LoadResult(None, {})
        try:
            result = act(source, **options)
        except OmnigraphError as raised:
            error = _error(raised)
        lines = []
        if result.quarantine is not None:
            lines = [json.loads(line) for line in result.quarantine.read_text(encoding="utf-8").splitlines()]
        touched = {} if result.commit is None else result.commit.touched
        return Outcome(
            error, result.counts, touched, result.rejected, _minted(lines), result.reports, self.everything()
        )


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"id": _ULID.sub("<minted>", row["id"])}


def _minted(value: Any) -> Any:
    return json.loads(_ULID.sub("<minted>", json.dumps(value, ensure_ascii=False, default=str)))


def _error(raised: OmnigraphError) -> dict[str, Any]:
    told: dict[str, Any] = {"type": type(raised).__name__, "text": str(raised), "details": raised.details}
    if isinstance(raised, ConstraintViolation):
        told["violations"] = [
            {name: getattr(one, name) for name in one.__dataclass_fields__} | {"count": one.count}
            for one in raised.violations
        ]
        told["unlisted"] = raised.unlisted
    if isinstance(raised, InvalidInput):
        told["total"] = raised.total
    return dict(_minted(told))


def both(
    tmp_path: Path,
    entities: Iterable[Any],
    before: Iterable[Any] = (),
    *,
    runner: Runner | None = None,
    settings: BulkSettings = SMALL_SPLITS,
    schema: str = SCHEMA,
    **options: Any,
) -> tuple[Outcome, Outcome]:
    """The same load into the same graph, in process and in bulk."""
    folder = tmp_path / f"both{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    given = write_lines(folder / "given.jsonl", entities)
    earlier = list(before)
    outcomes = []
    for how in ("in process", "bulk"):
        world = BulkWorld.make(folder / how.replace(" ", ""), schema, runner)
        world.settings = settings
        if earlier:
            world.in_process(earlier)
        options_here = dict(options)
        if options.get("on_error") == "quarantine":
            options_here["quarantine"] = folder / f"{how}.json"
        outcomes.append(world.outcome(how, str(given), **options_here))
    return outcomes[0], outcomes[1]


def agree(tmp_path: Path, entities: Iterable[Any], before: Iterable[Any] = (), **options: Any) -> Outcome:
    """Both ways come to the same; answers what it is."""
    one, other = both(tmp_path, entities, before, **options)
    assert other == one
    return other
