"""Shared by the tests of parsing: a schema with every type, and the fast and the row-by-row way to parse an input."""

from __future__ import annotations

from typing import Any

import numpy as np

from omnigraph.schema.catalog import Catalog
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.write.load.parse.parse_rows import parse_one_by_one
from omnigraph.write.load.parse.parsed import IdMinter, ParsedBlock

EVERY_TYPE = """
node Thing {
    slug: String @key
    flag: Bool?
    small: I32?
    big: I64?
    count: U32?
    huge: U64?
    single: F32?
    double: F64?
    day: Date?
    moment: DateTime? @default("2026-01-31T12:00:00Z")
    blob: Blob?
    colour: enum(red, green)? @default("red")
    words: [String]? @default(["a"])
    numbers: [I64]?
    singles: [F32]?
    days: [Date]?
    vector: Vector(2)?
}
node Pair { a: String  b: I64  c: DateTime  @key(a, b, c) }
node Note { text: String?  type: String? }
edge Knows: Thing -> Thing { since: Date?  from: String? }
edge Likes: Thing -> Thing { much: F64? }
"""

MINT = IdMinter(1_700_000_000_000, "salt", split=3)


def every_type() -> Catalog:
    return compile_schema(EVERY_TYPE).catalog


def lines_of(data: bytes) -> list[tuple[int, bytes]]:
    """Lines with their numbers, without blank ones, as a file's iterator has them."""
    lines = data.split(b"\n")
    whole = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    return [(number, line) for number, line in enumerate(whole, 1) if not line.isspace()]


def carefully(data: bytes, catalog: Catalog) -> ParsedBlock:
    return parse_one_by_one(lines_of(data), "line", catalog.by_name, MINT)


def summary(parsed: ParsedBlock) -> dict[str, Any]:
    """All that a parse says, in a form that compares."""
    return {
        "types": {key: _rows(rows) for key, rows in sorted(parsed.types.items())},
        "rejected": [(one.number, one.reason, repr(one.raw)) for one in parsed.rejected],
        "seen": dict(sorted(parsed.seen.items())),
    }


def _rows(rows: Any) -> dict[str, Any]:
    columns = [prop.column for prop in rows.definition.properties]
    return {
        "schema": rows.rows.schema,
        "rows": [repr(row) for row in rows.rows.to_pylist()],  # repr: -0.0 is not 0.0
        "given": {name: rows.given_in(name).tolist() for name in columns},
        "minted": np.asarray(rows.minted).tolist(),
        "numbers": rows.numbers.tolist(),
    }
