"""Commands that read and write data and schemas.

schema.py       init, schema show, plan, apply
load_export.py  load, export
query.py        query, mutate, lint
snapshot.py     snapshot, version
analyze.py      analyze
embed.py        embed
"""
