"""The public façade: `init`, `open` and `Graph`.

graph.py    init, open, Graph
history.py  commits, changes, the feed, tags, revert
bulk.py     load, export, analyze, embed; optimize, cleanup, recover, verify
"""
