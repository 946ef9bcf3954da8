"""Writing a table: each change is a new detached version.

detached_commit.py   changes as new detached versions
fragments.py         fragments written by tasks, versions made of them
column_updates.py    new values of one column
schema_evolution.py  columns added and dropped
"""
