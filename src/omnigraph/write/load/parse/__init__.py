"""Parsing splits of input into typed rows.

parse.py          a split as typed rows: CSV, Parquet and Arrow
parse_ndjson.py   NDJSON, with Arrow's reader where that is exact
parse_columns.py  whole columns -> columns of a property's type
parse_rows.py     columns of one type -> rows, with defaults and ids
parsed.py         the result: rows and rejected lines
arrow_builder.py  values -> Arrow columns
keyed_ids.py      ids of keyed rows, by column
"""
