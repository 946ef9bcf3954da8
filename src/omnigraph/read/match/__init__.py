"""Matching patterns: bindings, expansion, joins, filters.

match.py     the order of a match, step by step
estimate.py  row estimates that decide the order
bindings.py  the binding table, and joins of binding tables
expand.py    edges, by adjacency or by lookups
filters.py   filters over columns, in Lance and in memory
"""
