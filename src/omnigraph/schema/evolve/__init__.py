"""Schema changes: migration plans and merges of two schemas.

migration.py       the ordered steps from one schema to another
migration_step.py  a step as a value, and the steps of one type
schema_merge.py    the merge of two schemas
"""
