"""The SQL of verification: one text for DuckDB and Spark, in what both read alike.

Inputs: `n` rows that a load brings, `o` rows that are stored, `d` what an earlier question found. `k0`, `k1` … are the
columns of a constraint, `rowaddr` says where a row is and, among rows of one load, in which order they came. Each input
is named once in a text, and names need no quotes: the two engines quote differently.
"""

from collections.abc import Sequence

DUPLICATE_IDS = "SELECT n.id AS id, min(n.rowaddr) AS first_at FROM n GROUP BY n.id HAVING count(*) > 1"

LATER_ROWS_OF_ID = (
    "SELECT n.rowaddr AS rowaddr, d.first_at AS first_at FROM n JOIN d ON n.id = d.id"
    " WHERE n.rowaddr <> d.first_at ORDER BY 1"
)

# With rows that were left out because they are stored exactly so: `u`. `place` and `turn` put both in one order, `f`
# says of which split a fragment is, by the address of its first row.
DUPLICATE_OR_UNCHANGED_IDS = (
    "SELECT b.id AS id, b.rowaddr AS rowaddr, b.split AS split, b.number AS number, b.nth AS nth FROM"
    " (SELECT a.id AS id, a.rowaddr AS rowaddr, a.split AS split, a.number AS number,"
    " row_number() OVER (PARTITION BY a.id ORDER BY a.split, a.place, a.turn, a.number) AS nth,"
    " count(*) OVER (PARTITION BY a.id) AS times FROM"
    " (SELECT n.id AS id, n.rowaddr AS rowaddr, f.split AS split, f.start + n.rowaddr % 4294967296 AS place,"
    " 1 AS turn, CAST(0 AS BIGINT) AS number FROM n JOIN f ON n.rowaddr - n.rowaddr % 4294967296 = f.first_address"
    " UNION ALL SELECT u.id, CAST(-1 AS BIGINT), u.split, u.place, 0, u.number FROM u) a) b"
    " WHERE b.times > 1 ORDER BY b.id, b.nth"
)

ID_STORED = "SELECT n.rowaddr AS rowaddr FROM n JOIN o ON n.id = o.id ORDER BY n.id, n.rowaddr"

ADDRESS_OF_STORED = "SELECT o.rowaddr AS rowaddr FROM o JOIN n ON n.id = o.id ORDER BY 1"

VALUE_MATCHED = "SELECT n.rowaddr AS rowaddr FROM n JOIN o ON n.k0 = o.k0 LIMIT 1"

NODES_MISSING = "SELECT DISTINCT o.k0 AS node FROM o WHERE NOT EXISTS (SELECT 1 FROM n WHERE n.id = o.k0) ORDER BY 1"


def duplicate_values(width: int) -> str:
    """Values that several rows have, and which row had them first."""
    keys = _keys("n", width)
    given = " AND ".join(f"{key} IS NOT NULL" for key in keys)
    return (
        f"SELECT {_named(keys)}, min(n.rowaddr) AS first_at FROM n WHERE {given}"
        f" GROUP BY {', '.join(keys)} HAVING count(*) > 1"
    )


def later_of_values(width: int) -> str:
    return (
        f"SELECT n.rowaddr AS rowaddr, d.first_at AS first_at FROM n JOIN d ON {_agree('n', 'd', width)}"
        " WHERE n.rowaddr <> d.first_at ORDER BY 1"
    )


def values_stored(width: int) -> str:
    """Rows whose values a stored row of another id has."""
    keys = _keys("n", width)
    return (
        f"SELECT n.rowaddr AS rowaddr, {_named(keys)}, o.id AS other FROM n JOIN o ON {_agree('n', 'o', width)}"
        " WHERE o.id <> n.id"
    )


def still_stored(width: int) -> str:
    """Of those, without stored rows that the load itself replaces: each value once, under its last row."""
    keys = _keys("d", width)
    return (
        "SELECT max(d.rowaddr) AS rowaddr, min(d.rowaddr) AS first_at, max(d.other) AS other"
        " FROM d WHERE NOT EXISTS (SELECT 1 FROM n WHERE n.id = d.other)"
        f" GROUP BY {', '.join(keys)} ORDER BY 2"
    )


def ends_missing(written: bool, stored: bool) -> str:
    """Edges whose end is neither a node of the load (`w`) nor a stored one (`o`)."""
    nodes = ["w"] if written else []
    nodes += ["o"] if stored else []
    missing = [f"NOT EXISTS (SELECT 1 FROM {view} WHERE {view}.id = n.k0)" for view in nodes]
    where = f" WHERE {' AND '.join(missing)}" if missing else ""
    return f"SELECT n.rowaddr AS rowaddr, n.k0 AS node FROM n{where} ORDER BY 2, 1"


def edges_counted(low: int, high: int | None, stored: bool, replaced: bool, lost_only: bool) -> str:
    """Sources whose edges change and are too few or too many then; `r` are ids of stored edges that are replaced."""
    if not stored:  # the usual first load: a plain count costs a third
        wrong = [f"count(*) < {low}"] if low else []
        wrong += [f"count(*) > {high}"] if high is not None else []
        having = " OR ".join(wrong)
        return f"SELECT n.k0 AS source, count(*) AS edges FROM n GROUP BY n.k0 HAVING {having} ORDER BY 1"
    parts = ["SELECT n.k0 AS source, 1 AS written, 0 AS stays, 0 AS lost FROM n"]
    if lost_only:
        parts.append("SELECT o.k0, 0, 0, 1 FROM o")
    elif replaced:
        parts.append(
            "SELECT o.k0, 0, CASE WHEN r.id IS NULL THEN 1 ELSE 0 END, CASE WHEN r.id IS NULL THEN 0 ELSE 1 END"
            " FROM o LEFT JOIN r ON r.id = o.id"
        )
    else:
        parts.append("SELECT o.k0, 0, 1, 0 FROM o")
    total = "sum(a.written) + sum(a.stays)"
    wrong = [f"{total} < {low}"] if low else []
    wrong += [f"{total} > {high}"] if high is not None else []
    return (
        f"SELECT a.source AS source, CAST({total} AS BIGINT) AS edges FROM ({' UNION ALL '.join(parts)}) a"
        f" GROUP BY a.source HAVING sum(a.written) + sum(a.lost) > 0 AND ({' OR '.join(wrong)}) ORDER BY 1"
    )


SURPLUS_EDGES = (
    "SELECT a.rowaddr AS rowaddr, a.source AS source FROM"
    " (SELECT n.rowaddr AS rowaddr, n.k0 AS source, d.surplus AS surplus,"
    " row_number() OVER (PARTITION BY n.k0 ORDER BY n.rowaddr DESC) AS back FROM n JOIN d ON n.k0 = d.source) a"
    " WHERE a.back <= a.surplus ORDER BY 2, 1"
)


def _keys(view: str, width: int) -> list[str]:
    return [f"{view}.k{number}" for number in range(width)]


def _named(keys: Sequence[str]) -> str:
    return ", ".join(f"{key} AS {key.partition('.')[2]}" for key in keys)


def _agree(one: str, other: str, width: int) -> str:
    return " AND ".join(f"{one}.k{number} = {other}.k{number}" for number in range(width))
