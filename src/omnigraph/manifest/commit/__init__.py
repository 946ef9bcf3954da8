"""The commit path: transaction, plan, conflict table, group commit, publish."""
