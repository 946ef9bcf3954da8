"""Tables as a query sees them: in memory or fetched on demand, and the cache of derived values.

table_access.py    resident or lazy access, by cost; rows fetched on demand
resident_table.py  a table in memory, rows numbered
column_store.py    columns of one stored version
id_index.py        hash index from id to row number
scan.py            rows of one type as Arrow tables
arrow_numpy.py     Arrow columns as numpy arrays, exact comparison
large_arrays.py    operations on large arrays in short steps, within the memory budget
read_cache.py      the bounded cache of derived values
"""
