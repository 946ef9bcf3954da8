"""Verification: everything that the graph refers to exists, reads back, and agrees with the rest.

verify.py           the verb
lineage.py          what a manifest says of itself and its parent, pure
branches.py         refs and manifests of each branch
lost_heads.py       manifests that are named but gone
snapshot_checks.py  one manifest with all its tables
tables.py           table versions, files, tails, row counts
files.py            files against their records
rows.py             ids, values and edge ends
indexes.py          indexes against scans
adjacency.py        saved adjacency against a rebuilt one
duckdb_scratch.py   rows in DuckDB, in bounded memory
report.py           findings as values
"""
