"""Where the input of a load comes from, and how it is split.

sources.py       paths, globs, directories and URIs as files
load_input.py    files, dicts and tables as records with positions
chunks.py        whole lines in bounded memory, and Parquet
input_splits.py  files in parts, for many workers
csv_records.py   CSV records
strict_json.py   strict JSON
table_rows.py    typed tables as records
"""
