"""Reading a table: scans, point lookups, search.

scan.py           rows of a content
point_lookup.py   lookup by id or value, and existence
lookup_cache.py   cached point lookups of immutable versions
row_addresses.py  rows by id within a dataset
predicates.py     predicates as Lance filters and in memory
search.py         full-text and vector search in a dataset
partitions.py     a version in parts, by fragments
"""
