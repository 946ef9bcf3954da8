"""Caches, threads, task runners: what storage is built with.

single_flight_cache.py  LRU cache with single-flight construction
schema_cache.py         values derived from an Arrow schema
parallel.py             independent calls at once
blocking_hook.py        a hook called before a thread blocks
runner.py               task runners
fork_guard.py           refuses libraries that do not survive a fork
duckdb_stream.py        record batches into DuckDB
"""
