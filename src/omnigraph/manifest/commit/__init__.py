"""The commit path: transaction, plan, conflict table, group commit, publish.

txn.py           WriteTxn, Snapshot: the base of a write or a read; WriteOp: what a write decides about itself
plan.py          PublishPlan: all that a commit changes and relies on
publish.py       the commit loop and the conditional put: put N+1, or read what won and decide
commit_queue.py  group commit: the queue of writes of one process, and its batches
compose.py       base + plan -> the next manifest, pure
conflicts.py     the conflict table, pure
rebase.py        what becomes of a plan that lost a race
contention.py    pacing, backoff and reservations between processes
stale_base.py    retry of a write whose base was garbage-collected
"""
