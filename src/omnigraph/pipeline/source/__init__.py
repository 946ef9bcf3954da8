"""The Spark data source, and tables as DataFrames."""
