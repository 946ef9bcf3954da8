"""Maintenance changes how tables are stored, never what the graph says: fold, compact, index.

policy.py             which fragments and indexes of a table are due: pure functions
table_maintenance.py  compaction and indexes of one table version
commit.py             one maintenance commit: fold, compact and index several tables; `optimize`, saved adjacency
background.py         automatic maintenance: which tables are due to be folded; folds behind the writers of a process
report.py             what a run did for each type
"""
