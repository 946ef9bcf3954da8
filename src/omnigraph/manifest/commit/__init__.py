"""The commit path: transaction, plan, conflict table, group commit, publish.

txn.py              WriteTxn, Snapshot: the base of a write or a read
plan.py             PublishPlan: all that a commit changes and relies on
write_op.py         WriteOp: what a verb decides about its own write
publish.py          the commit loop: put N+1, or read what won and decide
commit_queue.py     group commit: the queue of writes of one process, and its batches
compose.py          base + plan -> the next manifest, pure
conditional_put.py  the conditional put, and how its outcome is settled
conflicts.py        the conflict table, pure
rebase.py           what becomes of a plan that lost a race
contention.py       pacing, backoff and reservations between processes
stale_base.py       retry of a write whose base was garbage-collected
"""
