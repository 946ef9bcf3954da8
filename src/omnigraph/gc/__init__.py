"""Garbage collection: expires old history, marks what is reachable, sweeps the rest; and recovery of unfinished jobs.

cleanup.py      the verb: lists candidates, fences, marks, sweeps
retention.py    how much history of a branch is retained
mark.py         mark: reachable manifests and table versions, retained merge bases, dead branches that may be dropped
sweep.py        sweep: decides what to delete, makes stubs of expired manifests, deletes files
recovery.py     completes or discards long writes whose process has ended
"""
