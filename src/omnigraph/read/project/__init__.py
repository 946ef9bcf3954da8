"""Projection, from bindings to results: grouping, order, limit, columns.

output.py     from bindings to result columns
aggregate.py  aggregates over groups
sort_keys.py  order-preserving integer keys, for sorting and grouping
topk.py       the top k rows of a ranked query without filters
render.py     values as printed in results and exports
"""
