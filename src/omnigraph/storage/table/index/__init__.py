"""Building index segments, and their metadata.

segments.py  index segments over the fragments of a write or a view, built here or by tasks
metadata.py  index metadata of a stored version
"""
