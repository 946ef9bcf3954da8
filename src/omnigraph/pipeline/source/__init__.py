"""The Spark data source, and tables as DataFrames.

datasource.py  spark.read and df.write with format("omnigraph"); Spark filters as Lance filters
scans.py       one type as a partitioned scan of a pinned snapshot; (vertices, edges) as DataFrames
"""
