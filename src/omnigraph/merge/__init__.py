"""Three-way merge of branches, and revert.

merge.py         branch merge: the verb
plan.py          the merge plan: adopted tables, row deltas, conflicts
virtual_base.py  the recursive merge base of a criss-cross
table_merge.py   merges the row differences of one table
row_merge.py     the three-way decision about a row, vectorised
align_tables.py  tables of one side in the columns of the merged schema
constraints.py   constraint violations that only the merged graph has
revert.py        undoes a commit by a three-way merge
"""
