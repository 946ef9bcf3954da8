"""The commands. The groups follow those of a graph's methods.

schema.py       init, schema show, plan and apply, snapshot, version
query.py        query, mutate, lint
bulk.py         load, export, analyze, embed
branches.py     branch, tag, revert
history.py      commit, changes
maintenance.py  optimize, cleanup, verify, recover
server.py       serve, token, jobs
"""
