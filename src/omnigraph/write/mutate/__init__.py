"""Mutations in the query language.

mutate.py        a bound mutation as a delta
table_buffer.py  write buffer of one table, and the rows of a `where` in it
"""
