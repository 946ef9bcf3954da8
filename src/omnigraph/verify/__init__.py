"""Verification: everything that the graph refers to exists, can be read, and is consistent.

verify.py           the verb
branches.py         refs and manifests of each branch, lost heads, and the choice of states to check
lineage.py          consistency of a manifest with itself and its parent, pure
snapshot_checks.py  one manifest with all its tables: ids, values and edge ends of rows, saved adjacency
tables.py           table versions, tails, row counts, files and their recorded checksums
indexes.py          indexes against scans
duckdb_scratch.py   rows in DuckDB, in bounded memory
report.py           findings as values
"""
