"""Three-way merge of branches, and revert.

merge.py        branch merge and revert: the verbs
plan.py         the merge plan: base, adopted tables, row deltas, conflicts
table_merge.py  merges one table that both sides changed
row_merge.py    the three-way merge of rows: the decision about each row, vectorised
constraints.py  constraint violations that only the merged graph has
"""
