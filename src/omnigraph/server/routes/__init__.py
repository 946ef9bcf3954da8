"""The routes, one module for each group.

graphs.py       health, metrics; /graphs, snapshot, lint, the schema, plan and apply
data.py         query, mutate, stored queries
bulk.py         load, export
history.py      branches, tags, merge, revert; commits, changes, the feed
maintenance.py  optimize, cleanup, verify, recover, analyze, embed; jobs: status, cancel, result
shared.py       descriptions and headers that routes share
"""
