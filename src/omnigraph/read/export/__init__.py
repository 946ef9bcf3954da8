"""Export into one file.

export.py          a snapshot as NDJSON, or one type as CSV or Parquet
export_formats.py  rows of a type in each format
"""
