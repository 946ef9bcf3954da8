"""Read: a pinned snapshot's rows, and queries over it.

table.py      the rows of one type
run.py        run_query: a bound query to its result, by
  pattern.py    the order of a match, with estimate.py, expand.py (edges), joins.py (values), ranking.py (search)
  output.py     groups, order, limit and columns, with codes.py and aggregate.py
  result.py     QueryResult, with render.py and explain.py
state.py      Reader: the snapshot's tables, each a stored version with an overlay
space.py      entities as numbers: all rows of a table in memory; visited.py: only those that were met
stored.py     one stored version in row order; identity.py: which row has an id
adjacency.py  neighbours as numbers (csr.py), kept; persisted.py: saved beside the table
filters.py    filters over columns, in Lance and in memory (values.py)
caches.py     one bounded memory for all of it
search.py     which entities a text search finds (text.py, vector.py, located.py), and how candidates rank; embedding.py
export.py     a snapshot as NDJSON
"""
