"""The commands, grouped as the methods of a graph are.

bulk.py         load, export
query.py        query, mutate, lint
schema.py       init, schema show, plan, apply
branches.py     branch create, list, delete, merge
history.py      commit list, show, changes
maintenance.py  cleanup
server.py       jobs
snapshot.py     snapshot, version
analyze.py      analyze
embed.py        embed
changes.py      changes, feed
tag.py          tag, revert
optimize.py     optimize
recover.py      recover
serve.py        serve
token.py        token
verify.py       verify
"""
