"""Maintenance of stored tables: layout, compaction, orphaned files, inspection.

compaction.py  groups of fragments rewritten by tasks
layout.py      fragments and index segments of a version, as values
table_files.py  files of tables: which are referenced, which are orphans
inspect.py     inspection of versions for `verify`
"""
