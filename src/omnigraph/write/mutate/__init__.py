"""Mutations in the query language.

mutate.py        a bound mutation as a delta
table_buffer.py  one table while a mutation runs, and the rows of a `where` in it
"""
