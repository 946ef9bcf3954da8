"""Export: parts written by tasks, in files that load again.

export.py       parts by type, written in parallel
destination.py  the target directory or URI, replaced atomically
"""
