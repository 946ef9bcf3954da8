"""Queries on Spark: the same meaning as in `read/`, by joins over partitions of Lance tables.

engines.py        chooses the engine of a query
query.py          the IR as DataFrames
match.py          patterns as joins
traversal.py      traversals as joins
scan.py           tables as DataFrames
spark_filters.py  filters as Spark expressions
exact_sum.py      sums that are rounded once
output.py         result columns in their own types
"""
