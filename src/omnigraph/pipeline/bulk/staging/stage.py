"""The task of a bulk load: parse one split, write its rows as fragments, return what was written.

The result is put into the store under the split's number, by create-if-absent: of two tasks for the same split (a
speculative copy, a second run of the job) the first one counts, and the other's fragments are garbage.

Merging (upserts) has the meaning of `write/load/load_modes.py`, by the same functions; only the stored rows are found
another way, because a task has more of them than filters can name.
"""

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from gzip import compress, decompress
from typing import TYPE_CHECKING, Any

from omnigraph.errors import Unavailable, Violation
from omnigraph.manifest.model.manifest import TableKey
from omnigraph.pipeline.bulk.job import BulkJob, SplitResult, TableResult
from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.constraints import Key, Unique, type_constraints
from omnigraph.storage.location import Location
from omnigraph.storage.objects.object_store import ObjectStore, PutOutcome, open_store
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.write.fragments import (
    TargetTable,
    WrittenFragment,
    find_addresses,
    key_batches,
    key_schema,
    rows_at,
    write_rows,
)
from omnigraph.write.delta import texts
from omnigraph.write.load.input.input_splits import Split
from omnigraph.write.load.load_rows import match_constraint
from omnigraph.write.load.parse.parse import parse_split
from omnigraph.write.load.parse.parsed import ParsedBlock, ParsedRows, RejectedLine
from omnigraph.write.validate.row_checks import value_violations
from omnigraph.write.validate.row_images import compare_rows, fill_missing, set_null, stale_vector_mask

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class Upserts:
    """Rows as they will be stored, in the order of the input, and how each relates to the stored ones."""

    rows: "pa.Table"
    stored: "Mask"  # an id that is there
    unchanged: "Mask"  # and the row is exactly so already
    minted: "Mask"


def merge_with_stored(location: Location, target: TargetTable, incoming: ParsedRows) -> Upserts:
    """Complete rows from the stored ones: what is not given keeps its value, an edge without id may be a stored one."""
    import numpy as np

    nothing = np.zeros(incoming.rows.num_rows, np.bool_)
    at, definition, rows = target.at, incoming.definition, incoming.rows
    if at is None or not rows.num_rows:
        return Upserts(rows, nothing, nothing, incoming.minted)
    minted = incoming.minted
    known = match_constraint(definition) if definition.kind == "edge" else None
    addresses: list[Any] = []
    if known is not None and minted.any():
        rows, minted, found = _match_edges(location, at, rows, minted, known.columns)
        addresses.append(found)
    if not minted.all():
        addresses.append(_addresses_of_ids(location, at, rows, ~minted))
    where = np.unique(np.concatenate(addresses)) if addresses else np.zeros(0, np.int64)
    if not len(where):
        return Upserts(rows, nothing, nothing, minted)
    before = rows_at(location, at, where, rows.schema.names)
    rows = _complete(definition, incoming, rows, before)
    stored, unchanged = compare_rows(rows, before)
    return Upserts(rows, stored, unchanged, minted)


def _complete(definition: TypeDef, incoming: ParsedRows, rows: "pa.Table", before: "pa.Table") -> "pa.Table":
    given = {prop.column: incoming.given_in(prop.column) for prop in definition.properties}
    if incoming.given is not None:
        rows = fill_missing(rows, given, before)
    for prop in definition.properties:
        if prop.embed is not None:
            source = definition.column(prop.embed.source)
            rows = set_null(rows, prop.column, stale_vector_mask(rows, given, before, source, prop.column))
    return rows


def _addresses_of_ids(location: Location, at: TableVersion, rows: "pa.Table", some: "Mask") -> Any:
    import pyarrow as pa

    found = find_addresses(location, at, texts(rows.filter(pa.array(some)), "id"))
    return _join_stored(location, at, rows, some, ("id",))[1] if found is None else found


def _match_edges(
    location: Location, at: TableVersion, rows: "pa.Table", minted: "Mask", columns: Sequence[str]
) -> "tuple[pa.Table, Mask, Any]":
    """Edges without an id under the id of the stored edge that agrees in these values."""
    import numpy as np
    import pyarrow as pa

    numbers, addresses = _join_stored(location, at, rows, minted, columns)
    if not len(numbers):
        return rows, minted, addresses
    ids = rows_at(location, at, addresses, ["id"]).column("id")
    place = np.arange(rows.num_rows)
    place[numbers] = rows.num_rows + np.arange(len(numbers))
    own = rows.column("id")
    index = rows.schema.get_field_index("id")
    both = pa.chunked_array([*own.chunks, *ids.chunks], own.type).take(place)
    left = minted.copy()
    left[numbers] = False
    return rows.set_column(index, rows.schema.field(index), both), left, addresses


def _join_stored(
    location: Location, at: TableVersion, rows: "pa.Table", some: "Mask", columns: Sequence[str]
) -> "tuple[Any, Any]":
    """Rows (by number) that agree with a stored row in these columns, and the addresses of those; each row once."""
    import numpy as np
    import pyarrow as pa

    from omnigraph.pipeline.bulk.verification.sql_engine import connect_duckdb
    from omnigraph.storage.table.write.fragments import ROW_ADDRESS, normalize_zeros

    aliases = {name: f"k{number}" for number, name in enumerate(columns)}
    chosen = np.flatnonzero(some)
    incoming = {alias: normalize_zeros(rows.column(name).take(chosen)) for name, alias in aliases.items()}
    stored = pa.RecordBatchReader.from_batches(key_schema(location, at, aliases), key_batches(location, at, aliases))
    agree = " AND ".join(f"i.{alias} = o.{alias}" for alias in aliases.values())
    with connect_duckdb() as connection:
        connection.register("i", pa.table({"number": chosen, **incoming}))
        connection.register("o", stored)
        found = connection.sql(
            f"SELECT i.number, max(o.{ROW_ADDRESS}) AS {ROW_ADDRESS} FROM o JOIN i ON {agree} GROUP BY i.number"
        ).to_arrow_table()
    return found.column(0).to_numpy(), found.column(1).to_numpy()


BUFFER_BYTES_MAX = 128 * 1024 * 1024  # of one type's rows, before they become a fragment
PUT_ATTEMPTS_MAX = 8
REPLACING, ADDED = 0, 1  # the two stretches of a table's rows in a split
REJECTED, FLAWED, UNCHANGED = "rejected.gz", "flawed.arrow", "unchanged.arrow"


def stage_split(job: BulkJob, split: Split) -> SplitResult:
    """Parse and write one split, unless that was done."""
    store = open_store(job.location)
    known = store.get(job.result_key(split.number))
    if known is not None:
        return SplitResult.decode(known.data)
    return stage_parsed(job, split.number, parse_split(split, job.catalog, job.source_options, job.minter), store)


def stage_parsed(job: BulkJob, number: int, stretches: Iterable[ParsedBlock], store: ObjectStore) -> SplitResult:
    """As `stage_split`, of stretches that come from wherever."""
    staging = _SplitStager(job, number)
    clock = staging.clock
    parsing = iter(stretches)
    while True:
        with clock.on("parse"):
            parsed = next(parsing, None)
        if parsed is None:
            break
        staging.add(parsed)
    result, sides = staging.finish()
    for what, data in sides.items():
        store.put(job.side_key(number, what), data)
    return _put_result(store, job.result_key(number), result)


def _put_result(store: ObjectStore, key: str, result: SplitResult) -> SplitResult:
    """The result that the store has: this one, or that of another task that was first."""
    for _ in range(PUT_ATTEMPTS_MAX):
        if store.create(key, result.encode()).outcome is PutOutcome.CREATED:
            return result
        stored = store.get(key)
        if stored is not None:
            return SplitResult.decode(stored.data)
    raise Unavailable(key, "no answer to its put arrived")


class CpuClock:
    """CPU seconds of this process by phase, threads of Lance and DuckDB included."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    @contextmanager
    def on(self, phase: str) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        finally:
            self.spent[phase] = self.spent.get(phase, 0.0) + time.process_time() - start


@dataclass
class _TableBuffer:
    """A table's part of a split, as far as it is known."""

    waiting: list[ParsedRows] = field(default_factory=list)
    bytes: int = 0
    result: TableResult = field(default_factory=TableResult)
    flawed: list[Any] = field(default_factory=list)  # (stretch, ordinal) arrays
    unchanged: list[Any] = field(default_factory=list)


class _SplitStager:
    def __init__(self, job: BulkJob, number: int) -> None:
        self._job = job
        self._number = number
        self._tables: dict[TableKey, _TableBuffer] = {}
        self._rejected: list[RejectedLine] = []
        self._lines = 0
        self.clock = CpuClock()

    def add(self, parsed: ParsedBlock) -> None:
        self._lines += parsed.lines
        self._rejected += parsed.rejected
        for key, seen in parsed.seen.items():
            table = self._tables.setdefault(key, _TableBuffer())
            table.result = replace(table.result, seen=table.result.seen + seen)
        for key, rows in parsed.types.items():
            table = self._tables.setdefault(key, _TableBuffer())
            table.waiting.append(rows)
            table.bytes += rows.rows.nbytes
            if table.bytes > BUFFER_BYTES_MAX:
                self._flush(key, table)

    def finish(self) -> tuple[SplitResult, dict[str, bytes]]:
        for key, table in self._tables.items():
            self._flush(key, table)
        numbers = {one.number for one in self._rejected}
        misformed = {one.number for one in self._rejected if isinstance(one.reason, str)}
        result = SplitResult(
            self._number,
            self._lines,
            {key: table.result for key, table in self._tables.items()},
            len(misformed),
            len(numbers) - len(misformed),
            {phase: round(spent, 3) for phase, spent in self.clock.spent.items()},
        )
        sides = {REJECTED: encode_rejected(self._rejected)} if self._rejected else {}
        sides |= _arrow_side(FLAWED, {key: table.flawed for key, table in self._tables.items()})
        sides |= _arrow_side(UNCHANGED, {key: table.unchanged for key, table in self._tables.items()})
        return result, sides

    def _flush(self, key: TableKey, table: _TableBuffer) -> None:
        """Write what waits: in a merge the rows that replace others apart from those that are new."""
        if not table.waiting:
            return
        incoming = concat_rows(table.waiting)
        table.waiting, table.bytes = [], 0
        upserts = prepare_rows(self._job, key, incoming, self.clock)
        for stretch, mask in enumerate(stretch_masks(upserts)):
            self._write(key, table, incoming, upserts, stretch, mask)
        result = table.result
        if upserts.unchanged.any():
            before = sum(one.rows for one in result.replacing) - _count(upserts.stored & ~upserts.unchanged)
            table.unchanged.append(_unchanged_rows(incoming, upserts, before))
        table.result = replace(
            result,
            unchanged=result.unchanged + _count(upserts.unchanged),
            minted=result.minted + _count(upserts.minted),
        )

    def _write(
        self, key: TableKey, table: _TableBuffer, incoming: ParsedRows, upserts: Upserts, stretch: int, mask: Any
    ) -> None:
        import pyarrow as pa

        rows = upserts.rows if mask.all() else upserts.rows.filter(pa.array(mask))
        if not rows.num_rows:
            return
        name = ("replacing", "added")[stretch]
        known: tuple[WrittenFragment, ...] = getattr(table.result, name)
        with self.clock.on("values"):
            bad = find_flawed_rows(incoming, rows)
        if len(bad):
            table.flawed.append((stretch, bad + sum(one.rows for one in known)))
        with self.clock.on("write"):
            replaces_all = self._job.mode == "overwrite"
            written = write_rows(self._job.location, self._job.targets[key], rows, replaces_all=replaces_all)
        table.result = replace(
            table.result,
            flawed=table.result.flawed + len(bad),
            **{name: (*known, *written)},  # type: ignore[arg-type]
        )


def prepare_rows(job: BulkJob, key: TableKey, incoming: ParsedRows, clock: CpuClock | None = None) -> Upserts:
    """The rows as they will be stored: in a merge completed from the stored ones."""
    import numpy as np

    if job.mode == "merge":
        with (clock or CpuClock()).on("merge"):
            return merge_with_stored(job.location, job.targets[key], incoming)
    nothing = np.zeros(incoming.rows.num_rows, np.bool_)
    return Upserts(incoming.rows, nothing, nothing, incoming.minted)


def stretch_masks(upserts: Upserts) -> "tuple[Any, Any]":
    """Which rows go to the fragments that replace, and which to those that add."""
    return upserts.stored & ~upserts.unchanged, ~upserts.stored


def concat_rows(parts: list[ParsedRows]) -> ParsedRows:
    """Several stretches as one."""
    import numpy as np
    import pyarrow as pa

    if len(parts) == 1:
        return parts[0]
    given = None
    if any(part.given is not None for part in parts):
        columns = [prop.column for prop in parts[0].definition.properties]
        given = {name: np.concatenate([part.given_in(name) for part in parts]) for name in columns}
    return ParsedRows(
        parts[0].definition,
        pa.concat_tables([part.rows for part in parts]),
        given,
        np.concatenate([part.minted for part in parts]),
        np.concatenate([part.numbers for part in parts]),
    )


def find_flawed_rows(incoming: ParsedRows, rows: "pa.Table") -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The rows that break a constraint by themselves, by number. What two rows break together is seen later."""
    import numpy as np
    import pyarrow as pa

    definition = incoming.definition
    own = [one for one in type_constraints(definition) if not isinstance(one, Unique)]
    if not value_violations(own, definition, rows):
        return np.zeros(0, np.int64)
    # Ids may occur twice here, so the rows are named by their numbers; only a key is about the id itself.
    numbers = pa.array(np.arange(rows.num_rows).astype(str), pa.string())
    named = rows.set_column(rows.schema.get_field_index("id"), "id", numbers)
    found = value_violations([one for one in own if not isinstance(one, Key)], definition, named)
    bad = {int(number) for violation in found for number in violation.entity_ids}
    keys = value_violations([one for one in own if isinstance(one, Key)], definition, rows)
    wrong = frozenset(entity for violation in keys for entity in violation.entity_ids)
    if wrong:
        bad |= {number for number, entity in enumerate(texts(rows, "id")) if entity in wrong}
    return np.array(sorted(bad), np.int64)


def _unchanged_rows(incoming: ParsedRows, upserts: Upserts, before: int) -> "pa.Table":
    """Ids of rows that are not written, each with the number of replacing rows of this split that come before it."""
    import numpy as np
    import pyarrow as pa

    written = upserts.stored & ~upserts.unchanged
    place = before + np.cumsum(written)
    chosen = np.flatnonzero(upserts.unchanged)
    return pa.table(
        {"id": upserts.rows.column("id").take(chosen), "place": place[chosen], "number": incoming.numbers[chosen]}
    )


def _count(mask: Any) -> int:
    return int(mask.sum())


def _arrow_side(what: str, by_table: dict[TableKey, list[Any]]) -> dict[str, bytes]:
    import numpy as np
    import pyarrow as pa

    parts = []
    for key, found in by_table.items():
        for one in found:
            if isinstance(one, tuple):
                stretch, ordinals = one
                one = pa.table({"stretch": np.full(len(ordinals), stretch, np.int8), "ordinal": ordinals})
            parts.append(one.append_column("table", pa.array([key] * one.num_rows, pa.string())))
    if not parts:
        return {}
    table = pa.concat_tables(parts)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return {what: sink.getvalue().to_pybytes()}


def read_side(store: ObjectStore, job: BulkJob, split: int, what: str, key: TableKey) -> "pa.Table":
    """What a side object that is said to be there has for one table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stored = store.get(job.side_key(split, what))
    if stored is None:
        raise Unavailable(job.side_key(split, what), "it is gone")
    every = pa.ipc.open_file(pa.BufferReader(stored.data)).read_all()
    others = [name for name in every.column_names if name != "table"]
    return every.filter(pc.equal(every.column("table"), pa.scalar(key))).select(others)


def read_unchanged(
    store: ObjectStore, job: BulkJob, results: Iterable[SplitResult], key: TableKey
) -> "pa.Table | None":
    """Rows of a merge that were not written, because they are stored exactly so."""
    import pyarrow as pa

    parts = []
    for result in results:
        if key in result.tables and result.tables[key].unchanged:
            rows = read_side(store, job, result.split, UNCHANGED, key)
            parts.append(rows.append_column("split", pa.array([result.split] * rows.num_rows, pa.int64())))
    return pa.concat_tables(parts) if parts else None


def encode_rejected(rejected: Iterable[RejectedLine]) -> bytes:
    lines = []
    for one in rejected:
        reason: Any = one.reason
        if isinstance(reason, Violation):
            reason = [
                reason.constraint,
                reason.type_name,
                reason.property_name,
                list(reason.entity_ids),
                reason.problem,
                reason.remedy,
                reason.table_key,
            ]
        raw: Any = {"entity": one.raw}
        if isinstance(one.raw, bytes):
            raw = {"line": b64encode(one.raw).decode("ascii")}
        lines.append(json.dumps({"number": one.number, "reason": reason} | raw, default=str))
    return compress("\n".join(lines).encode("utf-8", "surrogatepass"), 1)


def read_rejected(store: ObjectStore, job: BulkJob, split: int) -> Iterator[RejectedLine]:
    stored = store.get(job.side_key(split, REJECTED))
    if stored is None:
        raise Unavailable(job.side_key(split, REJECTED), "it is gone")
    for line in decompress(stored.data).decode("utf-8", "surrogatepass").split("\n"):
        document = json.loads(line)
        reason = document["reason"]
        if isinstance(reason, list):
            constraint, type_name, name, ids, problem, remedy, key = reason
            reason = Violation(constraint, type_name, name, tuple(ids), problem, remedy, key)
        raw = b64decode(document["line"]) if "line" in document else document["entity"]
        yield RejectedLine(int(document["number"]), reason, raw)
