"""Rendering of results as text.

formats.py    rows of a query as table, json, jsonl, csv or kv
commit.py     a published commit
changes.py    entity changes, streamed
merge.py      the result of a merge
migration.py  the steps of a schema change
log_graph.py  the commit graph in ASCII
"""
