"""Tasks that parse splits and write fragments, and the versions made of them.

stage.py     the task: parses a split, merges its rows with stored ones, writes fragments
spool.py     rows that are not in files, spooled
assemble.py  table versions made of fragments, on the driver
"""
