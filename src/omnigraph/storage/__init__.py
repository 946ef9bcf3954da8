"""Storage: the only code that does I/O.

location.py  a graph's root: one URI and its options
objects.py   the object store: typed answers, retries, counting
local.py     a local disk as a store that survives power cuts
remote.py    S3 and its kin through obstore
files.py     files of a load, anywhere, by ranges
tables.py    Lance tables as immutable versions: the way in for the rest of the code
  staging.py   each change as a new detached version    durable.py  what it wrote, synced
  reading.py   scans and point questions                rows.py     finding rows by id
  overlay.py   rows on top of a version, pure           views.py    a private dataset that is the combination
  handles.py   open datasets, one Lance session         kept.py     a bounded cache that makes each value once
  indexing.py  segments of the declared indexes         searching.py  full text and vectors through indexes
  index_section.py, lance_errors.py, counting.py        what Lance keeps to itself
meter.py     what an operation cost
streams.py   rows on their way into DuckDB
parallel.py  independent calls at once
"""
