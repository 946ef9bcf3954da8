"""Bulk load: splits are staged by tasks, verified by SQL, and published as one commit.

dispatch.py            chooses local load or bulk load
dataframe_source.py    DataFrames and tables as input
load.py                the load from start to commit; commits a staged load whose process is gone
job.py                 task inputs and results, picklable
staging/               tasks that parse and write fragments
verification/          SQL checks of staged rows
fold_base.py           folds inline rows into the base of the load
plan.py                from staged splits to a publish plan
concurrent_changes.py  whether concurrent commits invalidate the verification
load_intent.py         the intent of a load
resume.py              restart of an interrupted load; the marker complete.json of a staged one
"""
