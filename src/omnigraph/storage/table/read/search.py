"""Full-text and vector search in one Lance dataset: row addresses with scores or distances.

Full text is always searched through an index over *all* rows. Lance itself would scan rows without an index, but in
another way: it finds no misspelt words there, and scores them by other statistics, so that fresh rows would rank
differently. Segments over such rows are built in a private view, in some milliseconds per thousand rows.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from omnigraph.caches import SingleFlightCache
from omnigraph.cancellation import checkpoint
from omnigraph.schema.indexes import DeclaredIndex
from omnigraph.storage import meter
from omnigraph.storage.table.handles import Handles, TableVersion, lance_module
from omnigraph.storage.table.index import segments as index_segments
from omnigraph.storage.table.lance_errors import translate_errors
from omnigraph.storage.table.overlay import ID, Overlay
from omnigraph.storage.table.read.row_addresses import id_filter
from omnigraph.storage.table.read.row_addresses import measure_read as reading_rows
from omnigraph.storage.table.view import ViewCache

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lance import LanceDataset

Addresses: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"
Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
TextKind: TypeAlias = Literal["search", "fuzzy", "match_text"]
Allowlist: TypeAlias = "Addresses | Sequence[str] | None"  # row addresses, or ids

TEXT_INDEXES_MAX = 32
PROBES_MAX = 256  # of a vector index: half of its partitions are searched, but no more than this
EXPANSIONS_MAX = 1_000_000  # of a misspelt word: in effect all
PHRASE_WORDS_MAX = 32  # of one query; each costs Lance another pass over its rows
_TOO_FUZZY = "failed to construct the fuzzy query"  # more edits than Lance's automata have states for


@dataclass(frozen=True, slots=True)
class SearchHits:
    """Rows by address, each once, with Lance's scores or distances; with ids if requested."""

    addresses: Addresses
    scores: Floats
    ids: "pa.Array[Any] | None" = None


@dataclass(frozen=True, slots=True)
class TextIndex:
    """A dataset whose rows are all in the full-text index of one column; `_view` keeps its scratch files alive."""

    dataset: "LanceDataset"
    column: str
    _view: "LanceDataset | None" = None


class TextIndexes:
    """A cache of text indexes by table version, overlay and column."""

    def __init__(self, handles: Handles, views: ViewCache) -> None:
        self._handles = handles
        self._views = views
        self._indexes: SingleFlightCache[tuple[TableVersion | None, str, str], TextIndex] = SingleFlightCache(
            TEXT_INDEXES_MAX
        )

    def index(
        self, at: TableVersion | None, overlay: Overlay, schema: "pa.Schema | None", column: str
    ) -> TextIndex | None:
        """The index of a column over all rows; None if there is nothing to find."""
        key = (at, "" if overlay.is_empty else overlay.fingerprint, column)
        meter.track_lance()
        made = self._indexes.get_or_create(key, lambda: self._make(at, overlay, schema, column))
        has_rows = column in made.dataset.schema.names and bool(made.dataset.get_fragments())
        return made if has_rows else None

    def _make(self, at: TableVersion | None, overlay: Overlay, schema: "pa.Schema | None", column: str) -> TextIndex:
        declared = DeclaredIndex(column, "full_text")
        if at is not None and overlay.is_empty:
            stored = self._handles.open(at)
            with translate_errors(str(at)), self._handles.measure(lambda made: min(made, 1)):
                complete = not index_segments.unindexed_fragments(stored, declared)
            if complete or column not in stored.schema.names:
                return TextIndex(stored, column)
        view = self._views.get(at, overlay, schema)
        missing = index_segments.unindexed_fragments(view, declared) if column in view.schema.names else []
        if not missing:
            return TextIndex(view, column)
        what = f"the text of {at}" if at is not None else "the text of inline rows"
        with translate_errors(what), reading_rows(self._handles, view, filtered=False, columns=1):
            segment = index_segments.build_full_text_segment(view, column, missing)
            operation = lance_module().LanceOperation.CreateIndex([segment], [])
            transaction = lance_module("lance.dataset").Transaction(read_version=view.version, operation=operation)
            indexed = lance_module().LanceDataset.commit(
                view, transaction, storage_options=self._handles.options, detached=True
            )
        return TextIndex(indexed, column, view)


def find_text(
    handles: Handles,
    index: TextIndex,
    kind: TextKind,
    text: str,
    edits: int = 0,
    *,
    limit: int | None = None,
    candidates: Allowlist = None,
    with_ids: bool = False,
) -> SearchHits:
    """The rows that a text search finds, only among `candidates` if given; of a `search` the best `limit`."""
    import numpy as np

    queries = _queries(index.column, kind, text, edits)
    if queries == []:
        return no_hits(with_ids)
    if queries is None:
        return _scan_texts(handles, index, text, edits, with_ids)
    best = limit if kind == "search" else None
    try:
        found = _run(handles, index, queries[0], best, candidates, with_ids)
        for query in queries[1:]:
            if not len(found.addresses):
                break
            checkpoint()
            other = _run(handles, index, query, best, candidates, with_ids=False)
            found = _filter_hits(found, np.isin(found.addresses, other.addresses))
    except (OSError, ValueError, RuntimeError) as error:
        if _TOO_FUZZY not in str(error):
            raise
        return _scan_texts(handles, index, text, edits, with_ids)
    if kind == "match_text" and len(queries) > 1 and len(found.addresses):
        return _with_phrase(handles, index, queries[0], text, found)
    return found


def _queries(column: str, kind: TextKind, text: str, edits: int) -> list[Any] | None:
    """Lance queries whose results are to be intersected; None if Lance can't express the search.

    Misspelt words are searched one by one: one query for several would mix up their spellings. They are searched as
    the index has them, because Lance only splits such a query into letters and digits. A long phrase is searched in
    pieces, and `_with_phrase` decides which of the rows have all of it.
    """
    query = lance_module("lance.query")
    written = surface_words(text)
    if not written:
        return []
    if kind == "search":
        return [query.MatchQuery(text, column)]
    if kind == "match_text" and len(written) <= PHRASE_WORDS_MAX:
        return [query.PhraseQuery(text, column)]
    if kind == "match_text":
        starts = range(0, len(written), PHRASE_WORDS_MAX)
        pieces = dict.fromkeys(" ".join(written[start : start + PHRASE_WORDS_MAX]) for start in starts)
        return [query.PhraseQuery(piece, column) for piece in pieces]
    if edits == 0:
        return [query.MatchQuery(word, column) for word in dict.fromkeys(written)]
    stems = list(dict.fromkeys(words(text)))
    if any(surface_words(stem) != [stem] for stem in stems):
        return None
    return [query.MatchQuery(stem, column, fuzziness=edits, max_expansions=EXPANSIONS_MAX) for stem in stems]


def find_nearest(
    handles: Handles,
    dataset: "LanceDataset",
    column: str,
    vector: Sequence[float],
    metric: str,
    count: int,
    candidates: "Addresses | None" = None,
) -> SearchHits:
    """About the `count` nearest rows, through the index if there is one; distances are approximate."""
    import numpy as np

    nearest = {
        "column": column,
        "q": np.asarray(vector, np.float32),
        "k": count,
        "metric": metric,
        "minimum_nprobes": max(1, min(math.isqrt(dataset.count_rows()) // 2, PROBES_MAX)),
    }
    with translate_errors(dataset.uri), reading_rows(handles, dataset, filtered=True):
        scanner: Any = dataset.scanner(
            columns=["_distance"],
            nearest=nearest,
            with_row_address=True,
            prefilter=True,
            disable_scoring_autoprojection=True,
            **_prefilter_options(candidates),
        )
        table = scanner.to_table()
    addresses: Addresses = table.column("_rowaddr").to_numpy()
    distances = table.column("_distance").to_numpy().astype(np.float64)
    # If fewer than `count` rows are allowed, Lance fills up with others, at infinite distance.
    kept = np.isfinite(distances)
    return SearchHits(addresses[kept], distances[kept])


def addresses(handles: Handles, dataset: "LanceDataset", without: frozenset[int] = frozenset()) -> Addresses:
    """The address of every row in row order, except in some fragments."""
    import numpy as np

    fragments = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id not in without]
    if not fragments:
        return np.zeros(0, np.uint64)
    with translate_errors(dataset.uri), reading_rows(handles, dataset, filtered=False):
        scanner: Any = dataset.scanner(columns=[], with_row_address=True, fragments=fragments)
        found: Addresses = scanner.to_table().column("_rowaddr").to_numpy()
    return found


def surface_words(text: str) -> list[str]:
    """The words of a text as written: stemming a stemmed word again would yield another word."""
    plain = {**index_segments.TOKENIZER, "stem": False, "lower_case": False, "ascii_folding": False}
    return [token.text for token in lance_module().tokenize(text, **plain)]


def words(text: str) -> list[str]:
    """The words of a text as an index has them."""
    return [token.text for token in lance_module().tokenize(text, **index_segments.TOKENIZER)]


def _run(
    handles: Handles, index: TextIndex, query: Any, limit: int | None, candidates: Allowlist, with_ids: bool
) -> SearchHits:
    import numpy as np

    table = _search(handles, index, query, limit, candidates, [ID] if with_ids else [])
    scores = table.column("_score").to_numpy().astype(np.float64)
    ids = table.column(ID).combine_chunks() if with_ids else None
    return SearchHits(table.column(_named(index.dataset)).to_numpy(), scores, ids)


def _named(dataset: "LanceDataset") -> str:
    """The column of row addresses: row ids are the same unless they are stable, and the index has them at hand."""
    return "_rowaddr" if dataset.has_stable_row_ids else "_rowid"


def _search(
    handles: Handles,
    index: TextIndex,
    query: Any,
    limit: int | None,
    candidates: Allowlist,
    columns: Sequence[str],
) -> "pa.Table":
    dataset = index.dataset
    named = _named(dataset)
    with translate_errors(dataset.uri), reading_rows(handles, dataset, filtered=True, columns=len(columns)):
        scanner: Any = dataset.scanner(
            columns=[*columns, "_score"],
            full_text_query=query,
            limit=limit,
            with_row_address=named == "_rowaddr",
            with_row_id=named == "_rowid",
            prefilter=True,
            disable_scoring_autoprojection=True,
            **_prefilter_options(candidates),
        )
        table: pa.Table = scanner.to_table()
    return table


def _with_phrase(handles: Handles, index: TextIndex, piece: Any, phrase: str, found: SearchHits) -> SearchHits:
    """Those of the rows found, which have all pieces of a long phrase, that have the phrase itself."""
    import numpy as np

    wanted = _joined(words(phrase))
    table = _search(handles, index, piece, None, found.addresses, [index.column])
    addresses = table.column(_named(index.dataset)).to_numpy()
    having = np.zeros(len(addresses), np.bool_)
    for position, value in enumerate(table.column(index.column)):
        checkpoint()
        having[position] = wanted in _joined(words(value.as_py()))
    return _filter_hits(found, np.isin(found.addresses, addresses[having]))


def _joined(tokens: Sequence[str]) -> str:
    return f" {' '.join(tokens)} "


def _scan_texts(handles: Handles, index: TextIndex, text: str, edits: int, with_ids: bool) -> SearchHits:
    """Find misspelt words by scanning every text, for more edits than Lance can handle."""
    import numpy as np
    import pyarrow as pa

    wanted = words(text)
    near: dict[str, frozenset[int]] = {}  # by word, the indexes of the wanted words that it matches
    every = frozenset(range(len(wanted)))
    dataset = index.dataset
    kept, parts = [], []
    with translate_errors(dataset.uri), reading_rows(handles, dataset, filtered=False, columns=1):
        scanner: Any = dataset.scanner(
            columns=[ID, index.column] if with_ids else [index.column], with_row_address=True
        )
        for batch in scanner.to_batches():
            checkpoint()
            mask = [
                value is not None and _covers(words(value), wanted, edits, near) == every
                for value in batch.column(index.column).to_pylist()
            ]
            kept.append(batch.column("_rowaddr").to_numpy()[np.array(mask, np.bool_)])
            if with_ids:
                parts.append(batch.column(ID).filter(pa.array(mask, pa.bool_())))
    addresses = np.concatenate(kept) if kept else np.zeros(0, np.uint64)
    ids = pa.chunked_array(parts, pa.string()).combine_chunks() if with_ids else None
    return SearchHits(addresses, np.ones(len(addresses)), ids)


def _covers(have: Iterable[str], wanted: Sequence[str], edits: int, near: dict[str, frozenset[int]]) -> frozenset[int]:
    covered: frozenset[int] = frozenset()
    for word in have:
        if word not in near:
            checkpoint()
            near[word] = frozenset(i for i, other in enumerate(wanted) if _is_near(word, other, edits))
        covered |= near[word]
    return covered


def _is_near(one: str, other: str, edits: int) -> bool:
    return abs(len(one) - len(other)) <= edits and edit_distance(one, other) <= edits


def edit_distance(one: str, other: str) -> int:
    """The Levenshtein distance: the fewest letters to insert, remove or replace."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        last, row = row, [i]
        for j, against in enumerate(other, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != against)))
    return row[-1]


def _filter_hits(found: SearchHits, mask: "np.ndarray[Any, np.dtype[np.bool_]]") -> SearchHits:
    import pyarrow as pa

    ids = None if found.ids is None else found.ids.filter(pa.array(mask))
    return SearchHits(found.addresses[mask], found.scores[mask], ids)


def no_hits(with_ids: bool) -> SearchHits:
    import numpy as np
    import pyarrow as pa

    return SearchHits(np.zeros(0, np.uint64), np.zeros(0), pa.array([], pa.string()) if with_ids else None)


def _prefilter_options(among: Allowlist) -> dict[str, Any]:
    """Scanner options that restrict a search to some rows before ranking."""
    import numpy as np

    if among is None:
        return {}
    if isinstance(among, np.ndarray):
        return {"row_addr_allowlist": lance_module("lance.dataset").serialize_row_addrs(among.tolist())}
    return {"filter": id_filter(among)}
