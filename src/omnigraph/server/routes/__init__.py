"""The routes, one module for each group.

health.py       /healthz, /readyz, /metrics
graphs.py       /graphs, snapshot, lint
data.py         query, mutate
bulk.py         load, export
stored.py       stored queries
branches.py     branches, tags, merge, revert
history.py      commits, changes, the feed
schema.py       the schema, plan and apply
maintenance.py  optimize, cleanup, verify, recover, analyze, embed
jobs.py         jobs: status, cancel, result
shared.py       descriptions and headers that routes share
"""
