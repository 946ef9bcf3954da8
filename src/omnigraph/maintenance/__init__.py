"""Maintenance changes how tables are stored, never what the graph says: fold, compact, index.

policy.py             what is due: pure functions
table_maintenance.py  compaction and indexes of one table version
fold.py               inline rows written into a table
adjacency.py          saved adjacency of edge tables
commit.py             one maintenance commit
optimize.py           the verb
background.py         maintenance behind the writers of a process
report.py             what a run did for each type
"""
