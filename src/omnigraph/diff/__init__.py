"""Differences between two states of a graph, and the change feed.

graph_state.py     a manifest resolved with its schema
lineage.py         the commits between two states
type_diff.py       row differences of one type between two states
align_rows.py      rows of one state in the columns of another definition
entity_changes.py  row differences as changes of nodes and edges
changes.py         all changes between two states
feed.py            the change feed of a branch
cursor.py          opaque page tokens and cursors
"""
