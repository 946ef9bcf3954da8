"""The Spark data source, and tables as DataFrames.

datasource.py  spark.read and df.write with format("omnigraph")
scans.py       one type as a partitioned scan of a pinned snapshot
pushdown.py    Spark filters as Lance filters
frames.py      (vertices, edges) as DataFrames
"""
