"""Queries on Spark: the same meaning as in `read/`, by joins over partitions of Lance tables.

query.py        a query as a DataFrame, and its result
match.py        patterns and traversals as joins
scan.py         tables as DataFrames
expressions.py  filters and exact aggregates as Spark expressions
"""
