"""From a requested change to one published commit.

mutate/         mutations in the query language
load/           loads in this process
migrate/        schema changes
delta.py        what a write changes, as values
validate/       checks of a delta against the schema
commit.py       the whole path: open, plan, check, stage, publish
stage.py        rows in the manifest, or detached table versions
"""
