"""Indexes against scans: values, words and vectors are looked up in an index and by scanning every row.

Rows that no segment covers are scanned by every search: they are counted, and are no damage. Without `full`, some
values of some fragments are sampled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from omnigraph.schema.catalog import TypeDef
from omnigraph.schema.indexes import DeclaredIndex, declared_indexes
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.maintain import inspect as checking
from omnigraph.storage.table.read.predicates import sql_in
from omnigraph.storage.table.read.search import words
from omnigraph.storage.table.tables import Tables
from omnigraph.verify.duckdb_scratch import ScratchDatabase, StreamedRows
from omnigraph.verify.report import Findings

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lance import LanceDataset

    Addresses = np.ndarray[Any, np.dtype[np.uint64]]

FRAGMENTS_SAMPLED = 4
VALUES_SAMPLED = 32
WORDS_SAMPLED = 8
VECTORS_SAMPLED = 8
NEAREST = 32  # the true nearest row must be among so many results of the index
VALUES_AT_ONCE = 512
FOUND_READ_MAX = 256  # rows found by a word whose text is read
REBUILD = "drop the index and build it again with `optimize`"


class IndexChecks:
    """Checks the indexes of stored versions, each once."""

    def __init__(self, tables: Tables, query: ScratchDatabase, *, full: bool, seed: int) -> None:
        self._tables = tables
        self._query = query
        self._full = full
        self._seed = seed

    def check(self, found: Findings, place: str, definition: TypeDef, at: TableVersion) -> None:
        dataset = self._tables.open(at)
        for segmented in checking.index_coverage(dataset, declared_indexes(definition)):
            found.count("indexes")
            found.count("unindexed_rows", segmented.unindexed_rows)
            where = f"{place}, index {segmented.index.name}"
            with found.catching(where, REBUILD):
                on = _StoredIndex(at, dataset, segmented.index)
                match segmented.index.kind:
                    case "btree":
                        self._check_values(found, where, on)
                    case "full_text":
                        self._check_words(found, where, on)
                    case "vector":
                        self._check_vectors(found, where, on)

    # By value.

    def _check_values(self, found: Findings, where: str, on: "_StoredIndex") -> None:
        """Rows by value, rows without a value included."""
        import numpy as np

        self._compare(found, where, on, f"`{on.column}` IS NULL", "without a value", None)
        if self._full:
            self._query("CREATE OR REPLACE TABLE found AS SELECT * FROM rows", {"rows": on.rows()})
            for rows in _groups_by_value(self._query, on.numbers):
                values, true = rows.column(0).unique().to_pylist(), np.sort(rows.column(1).to_numpy())
                self._compare(found, where, on, sql_in(on.column, values), f"of {_format_values(values)}", true)
            return
        seen: set[Any] = set()
        for batch in on.batches(self._sample_fragments(on)):
            given = [value for value in batch.column(on.column).unique().to_pylist() if value is not None]
            seen.update(value for value in self._sample(on, given, VALUES_SAMPLED) if value == value)
        values = self._sample(on, sorted(seen), VALUES_SAMPLED)
        if values:
            self._compare(found, where, on, sql_in(on.column, values), f"of {_format_values(values)}", None)

    def _compare(
        self, found: Findings, where: str, on: "_StoredIndex", condition: str, of: str, true: "Addresses | None"
    ) -> None:
        """Compare what the index finds with what a scan finds; `true` if that is known already."""
        import numpy as np

        found.count("lookups")
        if true is None:
            true = checking.matching_addresses(on.at, on.dataset, condition, indexed=False)
        answered = checking.matching_addresses(on.at, on.dataset, condition, indexed=True)
        lacking, wrong = np.setdiff1d(true, answered), np.setdiff1d(answered, true)
        if len(lacking) or len(wrong):
            message = f"it finds {len(answered):,} rows {of}, there are {len(true):,}"
            found.add(where, f"{message} ({len(lacking):,} not found, {len(wrong):,} found wrongly)", REBUILD)

    # By words.

    def _check_words(self, found: Findings, where: str, on: "_StoredIndex") -> None:
        """Rows by the words of their text, split as the index splits them."""
        import numpy as np

        if not self._full:
            self._check_sampled_words(found, where, on)
            return
        self._query("CREATE OR REPLACE TABLE found AS SELECT * FROM rows", {"rows": on.rows_of_words()})
        for rows in _groups_by_value(self._query, on.numbers):
            by_word = rows.group_by("value").aggregate([("address", "list")])
            pairs: Any = zip(by_word.column("value").to_pylist(), by_word.column("address_list"), strict=True)
            for word, addresses in pairs:
                if words(word) != [word]:
                    continue  # a search would stem it again
                answered, true = np.sort(self._search_word(found, on, word)), np.sort(addresses.values.to_numpy())
                if not np.array_equal(answered, true):
                    message = f"it finds {len(answered):,} rows with {word!r}, there are {len(true):,}"
                    found.add(where, message, REBUILD)

    def _check_sampled_words(self, found: Findings, where: str, on: "_StoredIndex") -> None:
        """Sampled rows are found by one of their words, and all other results have that word too."""
        import numpy as np

        random = Random(f"{self._seed} {on.at} {on.column}")
        texts: dict[int, str] = {}
        for batch in on.batches(self._sample_fragments(on)):
            pairs: Any = zip(batch.column("_rowaddr").to_pylist(), batch.column(on.column).to_pylist(), strict=True)
            given = [(address, text) for address, text in pairs if text]
            texts |= dict(random.sample(given, min(len(given), WORDS_SAMPLED)))
        for address in random.sample(sorted(texts), min(len(texts), WORDS_SAMPLED)):
            own = [word for word in words(texts[address]) if words(word) == [word]]
            if not own:
                continue
            word = random.choice(own)
            answered = self._search_word(found, on, word)
            if address not in answered:
                found.add(where, f"it does not find a row by its word {word!r}", REBUILD)
            others = np.sort(answered)[:FOUND_READ_MAX]
            read = checking.values_at(on.at, on.dataset, on.column, others)
            if not all(text is not None and word in words(text) for text in read):
                found.add(where, f"it finds rows with {word!r} that do not have it", REBUILD)

    def _search_word(self, found: Findings, on: "_StoredIndex", word: str) -> "Addresses":
        found.count("lookups")
        answered: Addresses = self._tables.search_text(on.at, on.column, "search", word).addresses
        return answered

    # By vector.

    def _check_vectors(self, found: Findings, where: str, on: "_StoredIndex") -> None:
        """The nearest row of a stored vector, usually its own, is among the first results of the index."""
        import numpy as np

        metric = on.index.metric
        assert metric is not None
        missed = searched = 0
        for vector in self._sample_vectors(on):
            addresses, distances = checking.nearest_addresses(on.at, on.dataset, on.index, vector, NEAREST)
            nearest = addresses[distances <= distances.min()] if len(distances) else addresses
            if len(nearest) == NEAREST or not len(nearest):
                continue  # so many rows are equally near that any result is right
            found.count("lookups")
            searched += 1
            answered = self._tables.search_nearest(on.at, on.column, vector.tolist(), metric, NEAREST)
            missed += not np.isin(nearest, answered.addresses).any()
        if missed * 10 > searched:
            found.add(where, f"it misses the nearest row of {missed:,} of {searched:,} stored vectors", REBUILD)

    def _sample_vectors(self, on: "_StoredIndex") -> Iterator[Any]:
        """With `full` all vectors, otherwise some of the first rows of some fragments."""
        import numpy as np

        random = Random(f"{self._seed} {on.at} {on.column}")
        left = VECTORS_SAMPLED
        for batch in on.batches(self._sample_fragments(on)):
            vectors = [np.asarray(one, np.float32) for one in batch.column(on.column).drop_null().to_pylist()]
            given = [one for one in vectors if np.isfinite(one).all() and one.any()]
            chosen = given if self._full else random.sample(given, min(len(given), left))
            left -= len(chosen)
            yield from chosen
            if not self._full and not left:
                return

    def _sample_fragments(self, on: "_StoredIndex") -> list[int] | None:
        """The fragments whose values are sampled; None for all."""
        ids = [int(fragment.fragment_id) for fragment in on.dataset.get_fragments()]
        if self._full or len(ids) <= FRAGMENTS_SAMPLED:
            return None
        return sorted(Random(f"{self._seed} {on.at}").sample(ids, FRAGMENTS_SAMPLED))

    def _sample(self, on: "_StoredIndex", values: Sequence[Any], count: int) -> list[Any]:
        if len(values) <= count:
            return list(values)
        return list(Random(f"{self._seed} {on.at} {on.column}").sample(values, count))


@dataclass(frozen=True, slots=True)
class _StoredIndex:
    """One index of one stored version."""

    at: TableVersion
    dataset: "LanceDataset"
    index: DeclaredIndex

    @property
    def column(self) -> str:
        return self.index.column

    @property
    def numbers(self) -> str:
        """An SQL condition: the value can be looked up."""
        import pyarrow as pa

        kind: pa.DataType = self.dataset.schema.field(self.column).type
        return "value IS NOT NULL" + (" AND NOT isnan(value)" if pa.types.is_floating(kind) else "")

    def batches(self, fragments: list[int] | None = None) -> "Iterator[pa.RecordBatch]":
        return checking.column_batches(self.at, self.dataset, self.column, fragments)

    def rows(self) -> StreamedRows:
        """Values with the addresses of their rows."""
        import pyarrow as pa

        def read() -> "Iterator[pa.RecordBatch]":
            for batch in self.batches():
                columns = [batch.column(self.column), batch.column("_rowaddr")]
                yield pa.record_batch(columns, names=["value", "address"])

        kind: pa.DataType = self.dataset.schema.field(self.column).type
        schema: pa.Schema = pa.schema([pa.field("value", kind), pa.field("address", pa.uint64())])
        return StreamedRows(schema, read)

    def rows_of_words(self) -> StreamedRows:
        """Words with the addresses of the rows that have them, each word of a row once."""
        import pyarrow as pa

        kinds: list[pa.Field[Any]] = [pa.field("value", pa.string()), pa.field("address", pa.uint64())]
        schema = pa.schema(kinds)

        def read() -> "Iterator[pa.RecordBatch]":
            for batch in self.batches():
                pairs = zip(batch.column(self.column).to_pylist(), batch.column("_rowaddr").to_pylist(), strict=True)
                found = [(word, address) for text, address in pairs for word in dict.fromkeys(words(text or ""))]
                columns = [pa.array([word for word, _ in found], pa.string())]
                yield pa.record_batch([*columns, pa.array([at for _, at in found], pa.uint64())], schema=schema)

        return StreamedRows(schema, read)


def _groups_by_value(query: ScratchDatabase, numbers: str) -> "Iterator[pa.Table]":
    """The values in order, some hundreds at a time, each with all its rows; NULL and NaN are left out."""
    import pyarrow as pa

    rows: list[pa.RecordBatch] = []
    for batch in query.batches(f"SELECT value, address FROM found WHERE {numbers} ORDER BY value", VALUES_AT_ONCE):
        last = rows[-1].column(0)[-1].as_py() if rows else None
        values = batch.column(0).to_pylist()
        same = next((number for number, value in enumerate(values) if value != last), len(values)) if rows else 0
        if same:
            rows.append(batch.slice(0, same))
        if same < len(values):
            if rows:
                yield pa.Table.from_batches(rows)
            rows = [batch.slice(same)]
    if rows:
        yield pa.Table.from_batches(rows)


def _format_values(values: Sequence[Any]) -> str:
    named = ", ".join(repr(value) for value in values[:2])
    return named if len(values) <= 2 else f"{named} and {len(values) - 2:,} more values"
