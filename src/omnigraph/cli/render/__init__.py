"""Rendering of results as text, as far as commands share it or it is a subject of its own.

formats.py    the rows of a query as table, json, jsonl, csv or kv
commit.py     a published commit, row counts and costs
migration.py  the steps of a schema change
log_graph.py  the commit graph in ASCII
"""
