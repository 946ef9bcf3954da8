"""Mutations in the query language.

mutate.py  a bound mutation as a delta; the write buffer of each table
"""
