"""The base of a bulk load: table versions with all rows of their types, inline rows of manifests included.

Its tasks and its SQL know stored rows only, so the rows of small commits are written into one more version first, which
only the load uses (`whole-tail`). There are a few hundred of them at most, however large the table is.
"""

from omnigraph.caches import SingleFlightCache
from omnigraph.manifest.commit.txn import WriteTxn
from omnigraph.manifest.model.manifest import TableKey, TableRef
from omnigraph.manifest.repository import Repository
from omnigraph.storage.table.handles import TableVersion
from omnigraph.storage.table.table_content import Tail, make_content
from omnigraph.storage.table.write.fragments import ensure_table

FOLDED_MAX = 4096


class FoldedBases:
    """Folds inline rows into table versions, once for each state of a table."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._cache: SingleFlightCache[tuple[TableVersion, Tail], TableVersion] = SingleFlightCache(FOLDED_MAX)

    def version(self, txn: WriteTxn, key: TableKey, fresh_id: str) -> TableVersion | None:
        """A type's rows in this base; None if it never had any. A first table gets the id `fresh_id`."""
        ref = txn.table(key)
        if ref is None or not ref.tail:
            return None if ref is None else ref.stored
        on = ref.stored or self._first_table(txn, key, fresh_id)
        return self._cache.get_or_create((on, ref.tail), lambda: self._fold(txn, key, on, ref))

    def _first_table(self, txn: WriteTxn, key: TableKey, fresh_id: str) -> TableVersion:
        """Empty, so that every run and every base of the load derives its versions from the same table."""
        from omnigraph.schema.arrow import arrow_schema

        return ensure_table(self._repository.location, fresh_id, arrow_schema(txn.catalog.type_of(key)))

    def _fold(self, txn: WriteTxn, key: TableKey, on: TableVersion, ref: TableRef) -> TableVersion:
        from omnigraph.schema.arrow import arrow_schema

        content = make_content(on, ref.tail)
        assert content is not None
        schema = arrow_schema(txn.catalog.type_of(key))
        return self._repository.tables.fold_tail(content, on.table_id, schema).at
