"""Matching patterns: bindings, expansion, joins, filters.

match.py     the order of a match, step by step
estimate.py  row estimates that decide the order
bindings.py  the binding table
expand.py    edges, by adjacency or by lookups
joins.py     joins of unconnected parts
filters.py   filters over columns, in Lance and in memory
"""
