"""Reads of a pinned snapshot, and queries over it.

execute.py    run_query: a bound query to its result
reader.py     the tables of a pinned snapshot
match/        pattern matching
expressions/  values of expressions, the same in process and on Spark
search/       full-text and vector search
project/      grouping, order, limit, columns
tables/       tables as row numbers, resident or lazy, and the cache
graph/        adjacency of edges
export/       export into one file
result.py     QueryResult
explain.py    the plan of a query as it ran
"""
