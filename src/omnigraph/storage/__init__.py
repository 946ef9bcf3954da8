"""The only code that does I/O.

location.py  a graph's root: one URI and its options
objects/     object stores: local disk, S3, GCS, Azure
table/       Lance tables as immutable versions
util/        caches, threads, task runners
meter.py     what an operation cost: requests, round trips, bytes, retries
"""
