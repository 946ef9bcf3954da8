"""Telling Spark DataFrames from other things, without importing Spark."""

from collections.abc import Mapping


def is_frame(value: object) -> bool:
    """Whether this is a Spark DataFrame."""
    return any(one.__module__.startswith("pyspark.sql") and one.__name__ == "DataFrame" for one in type(value).__mro__)


def has_frames(source: object) -> bool:
    """Whether a load's source is a mapping with a Spark DataFrame in it."""
    return isinstance(source, Mapping) and any(is_frame(value) for value in source.values())
