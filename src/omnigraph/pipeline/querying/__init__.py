"""Queries on Spark: the same meaning as in `read/`, by joins over partitions of Lance tables."""
