"""Read: a pinned snapshot's rows.

table.py  the rows of one type, at one snapshot
"""
