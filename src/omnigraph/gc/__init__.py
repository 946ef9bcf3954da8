"""Garbage collection: expire old history, mark what is reachable, sweep the rest; recover unfinished jobs.

cleanup.py      the verb: expire, mark, sweep
retention.py    which history of a branch is retained
inventory.py    the list of all branches and jobs, taken twice
merge_bases.py  merge bases that are retained, and dead branches that leave the ancestry
mark.py         manifests and table versions that are reachable
sweep.py        stubs in place of expired manifests
recovery.py     completes or discards long writes whose process has ended
"""
