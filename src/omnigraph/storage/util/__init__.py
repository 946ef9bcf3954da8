"""Schema caches, task runners, fork guards: what storage is built with.

schema_cache.py   values derived from an Arrow schema
runner.py         task runners
fork_guard.py     refuses libraries that do not survive a fork
duckdb_stream.py  record batches into DuckDB
"""
