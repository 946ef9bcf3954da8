"""The routes, one module for each group.

health.py       /healthz, /readyz, /metrics
graphs.py       /graphs, snapshot, lint, the schema, plan and apply
data.py         query, mutate, stored queries
bulk.py         load, export
branches.py     branches, tags, merge, revert
history.py      commits, changes, the feed
maintenance.py  optimize, cleanup, verify, recover, analyze, embed; jobs: status, cancel, result
shared.py       descriptions and headers that routes share
"""
