"""The commit path: transaction, plan, conflict table, group commit, publish.

txn.py                WriteTxn, Snapshot: the base of a write or a read
plan.py               PublishPlan: all that a commit changes and relies on
compose.py            base + plan -> the next manifest, pure
conflicts.py          the conflict table, pure
conflict_handlers.py  what a verb does about a lost race
publish.py            the loop around the conditional put
commit_queue.py       leader/follower queue of a group commit
commit_batch.py       the batch under construction
group_commit.py       the retry loop of a batch
contention.py         pacing and backoff between processes
write_reservation.py  reservations for writers that keep losing
stale_base.py         retry of a write whose base was garbage-collected
"""
