"""Mutations in the query language.

mutate.py        a bound mutation as a delta
select.py        the rows of a `where`
table_buffer.py  one table while a mutation runs
"""
