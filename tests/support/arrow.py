"""Schemas and values of pyarrow with useful types: to its stubs a list of data types is a list of objects."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def schema_of(**columns: pa.DataType) -> pa.Schema:
    """The schema with these columns, all nullable."""
    return pa.schema(list(columns.items()))


def values_of(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    """The values of a column as Python objects."""
    return column.to_pylist()
